"""Formats: every rule of rounding, encoding and decoding, against outside and inside oracles."""

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcore.formats import (
    FORMATS,
    OVERFLOW_BEHAVIOURS,
    ROUNDING_MODES,
    Format,
    FormatError,
    count_events,
    custom_format,
    decode,
    encode,
    get_format,
    reference,
    round_to,
    rounding,
)

VECTORS = np.load(Path(__file__).parent / "data" / "conversions.npz")
VECTOR_FORMATS = sorted({key.split("/")[1] for key in VECTORS if "clamped" in key})
EXACT_MODES = [mode for mode in ROUNDING_MODES if mode != "stochastic"]
SMALL = [name for name, f in FORMATS.items() if f.bits <= 8]
TO_16_BITS = [name for name, f in FORMATS.items() if f.bits <= 16]
IN_KERNEL = [name for name, f in FORMATS.items() if f.fits_float32 and f.has_zero]

# Every sign, exponent and upper significand of float32, with telling lower bits.
_LOW_BITS = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
ALL_PATTERNS = ((np.arange(2**16, dtype=np.uint32)[:, None] << 16) | _LOW_BITS).reshape(-1)
ALL_PATTERNS = ALL_PATTERNS.view(np.float32)

NO_SUBNORMALS = Format("flushing", 8, 4, 4, 7, has_subnormals=False)


def same(got, expected):
    """Equal to the bit, but any NaN equals any NaN."""
    got, expected = np.asarray(got), np.asarray(expected)
    both_nan = np.isnan(got) & np.isnan(expected)
    return bool(np.all(both_nan | ((got == expected) & (np.signbit(got) == np.signbit(expected)))))


def telling_values(f):
    """Values, ties and their float32 neighbours for a format of few bits, with both signs."""
    values = decode(np.arange(2**f.bits), f).astype(np.float64)
    values = np.unique(np.abs(values[np.isfinite(values)]))
    ties = (values[1:] + values[:-1]) / 2
    step = values[-1] - values[-2]
    ends = values[-1] + step * np.array([0.25, 0.5, 0.75, 1, 2])
    ties = np.concatenate([ties, ends[ends < 2.0**128], values[1:4] / 4]).astype(np.float32)
    points = [values, ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf), [1e30]]
    points = np.unique(np.concatenate(points).astype(np.float32))
    return np.concatenate([points, -points, [np.inf, -np.inf, np.nan]]).astype(np.float32)


def possible(f):
    return [name for name in OVERFLOW_BEHAVIOURS if name != "nan" or f.has_nan]


# ---- outside oracles


@pytest.mark.parametrize("name", VECTOR_FORMATS)
def test_codes_equal_ml_dtypes_and_gfloat_vectors(name):
    f = get_format(name)
    own = VECTORS[f"round/{name}/own_input_f32_bits"]
    x = np.concatenate([VECTORS["round/_pool_input_f32_bits"], own]).view(np.float32)
    # IEEE halves keep the payload of a NaN in some libraries; ours is canonical, as bf16's is.
    compare = ~np.isnan(x) if name == "fp16" else np.ones(x.size, bool)
    nonsaturating = encode(x, f, overflow="infinity")
    expected = VECTORS[f"round/{name}/ml_dtypes_rne_nonsat_code"]
    assert np.array_equal(nonsaturating[compare], expected[compare])
    clamped = VECTORS[f"round/{name}/ml_dtypes_rne_clamped_code"]
    assert np.array_equal(encode(x, f)[compare], clamped[compare])
    modes = {"rz": "toward_zero", "ru": "toward_positive", "rd": "toward_negative"}
    compared = 0
    for short, mode in (modes | {"rna": "nearest_away"}).items():
        key = f"round/{name}/gfloat_{short}_sat_"
        if key + "code" in VECTORS:
            valid = np.unpackbits(VECTORS[key + "valid"])[: x.size].astype(bool) & compare
            assert np.array_equal(encode(x, f, mode)[valid], VECTORS[key + "code"][valid])
            compared += 1
    assert compared or "fnuz" in name or "ieee" in name
    if f"decode/{name}/value_f32_bits" in VECTORS:
        values = decode(np.arange(2**f.bits), f)
        assert same(values, VECTORS[f"decode/{name}/value_f32_bits"].view(np.float32))


def test_e8m0_breaks_ties_as_gfloat_does_and_away_as_ml_dtypes_does():
    own = VECTORS["round/e8m0fnu/own_input_f32_bits"]
    x = np.concatenate([VECTORS["round/_pool_input_f32_bits"], own]).view(np.float32)
    for overflow, column in (("infinity", "nonsat"), ("saturate", "sat")):
        valid = np.unpackbits(VECTORS[f"round/e8m0fnu/gfloat_rne_{column}_valid"])[: x.size] == 1
        expected = VECTORS[f"round/e8m0fnu/gfloat_rne_{column}_code"]
        assert np.array_equal(encode(x, "e8m0", overflow=overflow)[valid], expected[valid])
    away = encode(x, "e8m0", "nearest_away", "infinity")
    expected = VECTORS["round/e8m0fnu/ml_dtypes_rne_nonsat_code"]
    # Between its two smallest values, 2**-127 and 2**-126, ml_dtypes rounds everything up.
    usual = ~((x > 2.0**-127) & (x < 2.0**-126))
    assert np.array_equal(away[usual], expected[usual])
    assert np.all(expected[~usual] == 1)


@pytest.mark.parametrize(
    "dtype",
    [
        ml_dtypes.bfloat16,
        np.float16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float6_e3m2fn,
        ml_dtypes.float4_e2m1fn,
    ],
)
def test_rounding_equals_the_cast_of_numpy_and_ml_dtypes_on_every_pattern(dtype):
    with np.errstate(over="ignore", invalid="ignore"):
        cast = ALL_PATTERNS.astype(dtype).astype(np.float32)
        assert same(round_to(ALL_PATTERNS, dtype, overflow="infinity"), cast)


def test_decoding_equals_numpy_float16():
    codes = np.arange(2**16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        assert same(decode(codes, "fp16"), codes.view(np.float16).astype(np.float32))


@pytest.mark.parametrize(("name", "dtype"), [("fp16", np.float16), ("fp32", np.float32)])
def test_float64_is_rounded_once(name, dtype):
    rng = np.random.default_rng(0)
    near_ties = decode(rng.integers(0, 0x7BFF, 20000), "fp16").astype(np.float64)
    if dtype is np.float32:
        near_ties *= rng.uniform(1, 2, near_ties.size).astype(np.float32)
    # A tie of the format, moved by less than float32 can see.
    x = near_ties + np.spacing(near_ties.astype(dtype)).astype(np.float64) / 2
    x *= 1 + rng.choice([-1, 0, 1], x.size) * 2.0**-48
    with np.errstate(over="ignore"):
        assert same(round_to(x, name, overflow="infinity"), x.astype(dtype).astype(np.float64))
        assert same(decode(encode(x, name, overflow="infinity"), name), x.astype(dtype))


@pytest.mark.parametrize(("name", "low", "high"), [("int8", -128, 127), ("uint8", 0, 255)])
def test_integers_equal_rint_and_clip(name, low, high):
    x = np.arange(-300, 300, 0.25)
    assert np.array_equal(round_to(x, name), np.clip(np.rint(x), low, high))
    stored = encode(x, name).view(np.dtype(name))
    assert np.array_equal(stored, np.clip(np.rint(x), low, high).astype(name))


# ---- inside oracle


@pytest.mark.parametrize("name", [*SMALL, "e3m2", "e2m4", "flushing"])
def test_fast_equals_reference_at_every_value_and_tie(name):
    f = NO_SUBNORMALS if name == "flushing" else get_format(name)
    x = telling_values(f)
    for mode in EXACT_MODES:
        expected = [reference.round_value(float(v), f, mode) for v in x]
        assert same(rounding.round_numpy(x, f, mode, "saturate"), expected), mode
        assert same(round_to(x.astype(np.float64), f, mode), expected), mode
    edge = x[(np.abs(x) >= f.max) | ~np.isfinite(x)]
    for mode in EXACT_MODES:
        for overflow in possible(f):
            expected = [reference.round_value(float(v), f, mode, overflow) for v in edge]
            assert same(round_to(edge, f, mode, overflow), expected), (mode, overflow)


@given(
    st.floats(width=64),
    st.sampled_from(["fp32", "tf32", "bf16", "fp16", "e5m12", "e8m3", "e11m40", "int32"]),
    st.sampled_from(EXACT_MODES),
    st.sampled_from(["saturate", "infinity"]),
)
@settings(deadline=None)
def test_fast_equals_reference_on_any_float64(x, name, mode, overflow):
    expected = reference.round_value(x, get_format(name), mode, overflow)
    assert same(round_to(np.float64(x), name, mode, overflow), expected)


@pytest.mark.parametrize("name", [*IN_KERNEL, "e3m2", "flushing"])
def test_compiled_kernel_equals_numpy_on_every_pattern(name):
    pytest.importorskip("numba")
    kernels = rounding.compiled_kernels()
    f = NO_SUBNORMALS if name == "flushing" else get_format(name)
    x, compiled = ALL_PATTERNS, np.empty_like(ALL_PATTERNS)
    for i, mode in enumerate(EXACT_MODES):
        overflow = possible(f)[i % len(possible(f))]
        parameters = rounding.kernel_parameters(f, mode, overflow)
        kernels.round_flat(x.view(np.int32), compiled.view(np.int32), parameters)
        chunks = np.array_split(x, 8)
        expected = np.concatenate(
            [rounding.round_numpy(chunk, f, mode, overflow) for chunk in chunks]
        )
        assert same(compiled, expected), (mode, overflow)
        assert same(round_to(x, f, mode, overflow), expected), (mode, overflow)


def test_rounding_of_formats_near_the_end_of_float32_needs_no_magic_number_beyond_it():
    for f in (custom_format(7, 3, bias=0), custom_format(4, 3, -105), custom_format(5, 10, -90)):
        chunks = np.array_split(ALL_PATTERNS, 8)
        expected = [rounding.round_numpy(c, f, "nearest_even", "saturate") for c in chunks]
        assert f.fits_float32 and same(round_to(ALL_PATTERNS, f), np.concatenate(expected))


def test_a_forked_process_has_threads_of_its_own():
    code = (
        "import os, numpy as np, mpcore as mp; x = np.ones(1 << 20, np.float32)\n"
        "mp.round_to(x, 'fp16'); child = os.fork()\n"
        "if child == 0: mp.round_to(x, 'fp16'); os._exit(0)\n"
        "print(os.waitpid(child, 0)[1])"
    )
    if not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.parametrize("name", [*IN_KERNEL, "e3m2", "e8m1"])
def test_rounding_by_magic_numbers_equals_numpy_on_every_pattern(name):
    f = get_format(name)
    for overflow in possible(f):
        in_place = ALL_PATTERNS.copy()
        round_to(in_place, f, overflow=overflow, out=in_place)
        chunks = np.array_split(ALL_PATTERNS, 8)
        expected = [rounding.round_numpy(c, f, "nearest_even", overflow) for c in chunks]
        assert same(in_place, np.concatenate(expected)), overflow


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp4_e2m1", "int4"])
def test_encode_and_decode_equal_reference_codes(name):
    f = get_format(name)
    assert same(
        decode(np.arange(2**f.bits), f), [reference.decode_code(c, f) for c in range(2**f.bits)]
    )
    for x in np.random.default_rng(1).normal(0, f.max / 2, 12):
        assert encode(x, f) == reference.encode_value(x, f)


# ---- properties


@pytest.mark.parametrize("name", [*TO_16_BITS, "e6m5"])
def test_encode_undoes_decode_on_every_code(name):
    f = get_format(name)
    codes = np.arange(2**f.bits, dtype=f.code_dtype)
    values = decode(codes, f)
    number = ~np.isnan(values)
    for overflow in ("saturate", "infinity"):
        number &= np.isfinite(values) if overflow == "saturate" else True
        assert np.array_equal(encode(values, f, overflow=overflow)[number], codes[number])
    assert np.isnan(decode(encode(values, f), f)[np.isnan(values)]).all()


@pytest.mark.parametrize("name", ["fp32", "tf32", "fp64", "int32"])
def test_encode_undoes_decode_on_wide_formats(name):
    f = get_format(name)
    top = (f.max_code + 1) * 2 if f.is_signed else f.max_code
    codes = np.random.default_rng(2).integers(0, min(top, 2**63), 5000).astype(f.code_dtype)
    values = decode(codes, f)
    finite = np.isfinite(values)
    assert finite.any()
    assert np.array_equal(encode(values, f)[finite], codes[finite])


@given(
    st.lists(st.floats(width=32), min_size=2, max_size=30),
    st.sampled_from([*FORMATS, "e3m2", "e4m9"]),
    st.sampled_from(EXACT_MODES),
)
@settings(deadline=None)
def test_rounding_is_monotone_idempotent_and_mirrors_with_its_sign(values, name, mode):
    f = get_format(name)
    x = np.sort(np.array(values, np.float32))
    x = x[~np.isnan(x) if f.has_zero else x > 0]
    rounded = round_to(x, f, mode)
    assert np.all(rounded[1:] >= rounded[:-1])
    assert same(round_to(rounded, f, mode), rounded)
    if f.kind == "float" and f.is_signed:
        other_way = {"toward_positive": "toward_negative", "toward_negative": "toward_positive"}
        mirrored = -round_to(-x, f, other_way.get(mode, mode))
        assert np.array_equal(mirrored, rounded)


def test_stochastic_rounding_goes_up_with_the_distance_as_probability():
    class Drawn:
        def __init__(self, values):
            self.values = values

        def random(self, shape):
            return np.broadcast_to(self.values, shape)

    f = get_format("fp8_e4m3")
    x = telling_values(f)
    for drawn in (0.0, 0.25, 0.5, 0.999):
        expected = [reference.round_value(float(v), f, "stochastic", "saturate", drawn) for v in x]
        assert same(round_to(x, f, "stochastic", rng=Drawn(drawn)), expected)
    mean = round_to(np.full(200_000, 1.03), f, "stochastic", rng=np.random.default_rng(0)).mean()
    assert abs(mean - 1.03) < 5 * 0.054 / np.sqrt(200_000)


def test_tiny_values_round_stochastically_too():
    x = np.full(100_000, 2.0**-13)  # an eighth of e4m3's smallest value, 2**-9 / 16
    rounded = round_to(x, "fp8_e4m3", "stochastic", rng=np.random.default_rng(0))
    assert abs(np.count_nonzero(rounded) / x.size - 1 / 16) < 0.005


# ---- special values, arrays and names


def test_infinity_and_nan_follow_the_overflow_behaviour():
    x = np.array([np.inf, -np.inf, np.nan, 1e6, -1e6, 465.0, 464.0], np.float32)
    assert same(round_to(x, "fp8_e4m3"), [448, -448, np.nan, 448, -448, 448, 448])
    for overflow in ("infinity", "nan"):
        nan = [np.nan] * 6
        assert same(round_to(x, "fp8_e4m3", overflow=overflow), [*nan, 448])
    assert same(round_to(x[:4], "fp16", overflow="infinity"), [np.inf, -np.inf, np.nan, np.inf])
    assert same(round_to(x[:4], "fp16", overflow="nan"), [np.inf, -np.inf, np.nan, np.nan])
    assert same(round_to(x[:5], "fp4_e2m1"), [6, -6, -0.0, 6, -6])
    assert same(round_to(x[:5], "int8"), [127, -128, 0, 127, -128])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("nearest_even", [np.inf, -np.inf]),
        ("nearest_away", [np.inf, -np.inf]),
        ("toward_zero", [65504, -65504]),
        ("to_odd", [65504, -65504]),
        ("toward_positive", [np.inf, -65504]),
        ("toward_negative", [65504, -np.inf]),
    ],
)
def test_rounding_toward_zero_never_overflows(mode, expected):  # IEEE 754, 7.4
    assert same(round_to(np.array([1e6, -1e6]), "fp16", mode, "infinity"), expected)
    assert same(round_to(np.array([np.inf, -np.inf]), "fp16", mode, "infinity"), [np.inf, -np.inf])


def test_zero_keeps_its_sign_where_the_format_has_two():
    x = np.array([0.0, -0.0, -1e-30])
    assert same(round_to(x, "fp16"), [0.0, -0.0, -0.0])
    for name in ("fp8_e4m3fnuz", "int8", "uint8"):
        assert same(round_to(x, name), [0.0, 0.0, 0.0])
        assert np.array_equal(encode(x, name), [0, 0, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_result_has_the_dtype_of_the_input_and_the_input_is_unchanged(dtype):
    x = np.random.default_rng(0).normal(size=(200, 300)).astype(dtype)
    before = x.copy()
    x.flags.writeable = False
    for view in (x, x[::2, 1::3], x.T, x[:0], x[0, 0]):
        rounded = round_to(view, "fp16")
        assert rounded.dtype == dtype
        assert np.array_equal(rounded, np.asarray(view).astype(np.float16))
        assert np.array_equal(encode(view, "fp16"), np.asarray(view).astype(np.float16).view("u2"))
    assert np.array_equal(x, before)


def test_out_is_written_and_must_fit():
    x = np.random.default_rng(0).normal(size=(150, 150)).astype(np.float32)
    expected = round_to(x, "bf16")
    big = np.zeros((150, 300), np.float32)
    for out in (np.empty_like(x), big[:, ::2], x.copy()):
        source = out if out is x else x
        assert round_to(source, "bf16", out=out) is out
        assert np.array_equal(out, expected)
    assert round_to(x, "bf16", out=x) is x
    assert np.array_equal(x, expected)
    codes = np.empty(x.shape, np.uint16)
    assert encode(x, "bf16", out=codes) is codes
    with pytest.raises(FormatError, match=r"out must be an array of float32 \(150, 150\)"):
        round_to(x, "bf16", out=np.empty(x.shape))


def test_counts_tell_overflow_saturation_underflow_and_inexact_apart():
    x = np.array([1.0, 1.01, 1e-9, 0.0, 500.0, -500.0, np.inf, np.nan])
    for overflow, expected in (
        ("saturate", {"saturation": 3, "overflow": 0, "nan": 1, "inexact": 5}),
        ("infinity", {"saturation": 0, "overflow": 2, "nan": 4, "inexact": 2}),
    ):
        counts = count_events(x, round_to(x, "fp8_e4m3", overflow=overflow), "fp8_e4m3")
        assert {event: getattr(counts, event) for event in expected} == expected
        assert (counts.total, counts.underflow) == (8, 1)
    fine = count_events(x[:4], round_to(x[:4], "fp16"), "fp16")
    assert (fine.inexact, fine.underflow, fine.incidence("inexact")) == (2, 1, 0.5)
    assert (fine + counts).total == 12


def test_formats_import_without_numba_and_work_where_it_is_missing():
    code = (
        "import sys, time; import numpy as np\n"
        "import mpcore.formats as f\n"
        "assert not {'numba', 'ml_dtypes', 'scipy'} & set(sys.modules)\n"
        "sys.modules['numba'] = None\n"
        "from mpcore.scaling import scale_and_round, quantize\n"
        "from mpcore.matmul import matmul\n"
        "x = np.linspace(-9, 9, 40000, dtype=np.float32).reshape(200, 200)\n"
        "assert f.round_to(x, 'fp16').tobytes() == x.astype('f2').astype('f4').tobytes()\n"
        "assert abs(scale_and_round(x, 'int8', 'per_token').values).max() == 127\n"
        "assert quantize(x, 'int8').codes.shape == x.shape\n"
        "assert matmul(x[:9], x[:, :9], 'bf16', 'bf16').value.shape == (9, 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Numba") == 1 and "mpcore doctor" in done.stderr  # said once


# ---- public cases (number in docs: practitioner cases)


def test_case_1_attention_score_overflows_fp16_at_the_store():
    q = k = np.full(64, 40.0, np.float32)
    score = np.float32(q @ k)
    assert score == 102400
    assert round_to(score, "fp16", overflow="infinity") == np.inf
    assert round_to((q / 8) @ k, "fp16", overflow="infinity") == 12800


def test_case_3_half_of_the_gradients_vanish_in_fp16():
    g = 10 ** np.random.default_rng(3).uniform(-12, -3, 100000)
    flushed = count_events(g, round_to(g, "fp16", overflow="infinity"), "fp16")
    assert round(100 * flushed.incidence("underflow"), 1) == 49.7
    scaled = count_events(g * 2**16, round_to(g * 2**16, "fp16", overflow="infinity"), "fp16")
    assert (scaled.underflow, scaled.overflow) == (0, 0)


def test_case_5_a_bf16_weight_does_not_move():
    weight, master = 1.0, np.float32(1.0)
    for _ in range(100):
        weight = float(round_to(weight - 6e-4, "bf16"))
        master = np.float32(master - np.float32(6e-4))
    assert weight == 1.0
    assert round(float(master), 4) == 0.9400


def test_case_17_tf32_loses_digits():
    rng = np.random.default_rng(17)
    a = rng.normal(size=(512, 512)).astype(np.float32)
    b = rng.normal(size=(512, 512)).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for mode, error in (("nearest_even", 2.93e-4), ("toward_zero", 7.69e-4)):
        low = [round_to(x, "tf32", mode).astype(np.float64) for x in (a, b)]
        found = np.linalg.norm(low[0] @ low[1] - exact) / np.linalg.norm(exact)
        assert float(f"{found:.2e}") == error
    assert same(round_to(np.array([1025.5, 1024.5]), "tf32"), [1026, 1024])
