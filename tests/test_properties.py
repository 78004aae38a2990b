"""Properties that hold for any format, accumulator, unit, shape and layout."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mpcore.formats import FORMATS, custom_format, decode, encode, reference, round_to, rounding
from mpcore.formats.format import NAN_CONVENTIONS
from mpcore.formats.rounding import ROUNDING_MODES
from mpcore.matmul import Accumulator, Tile, engine, matmul
from mpcore.matmul.accumulate import Rounder
from mpcore.matmul.accumulators import get_accumulator
from mpcore.matmul.options import MatmulError

MODES = [mode for mode in ROUNDING_MODES if mode != "stochastic"]
MIRRORED = {"toward_positive": "toward_negative", "toward_negative": "toward_positive"}
FEW = settings(deadline=None, max_examples=60, derandomize=True, database=None)
MANY = settings(FEW, max_examples=250)
UNITS = ["Volta.fp16", "Ampere.bf16", "Ampere.tf32", "Hopper.fp16", "Hopper.fp8", "Ada.fp8:fp16"]


@pytest.fixture(autouse=True, scope="module")
def kernels_always():
    """Kernels, where there are any, do even the smallest work, in threads."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (rounding, engine):
            patch.setattr(module, "COMPILED_FROM", 1)
        patch.setattr(rounding, "PER_THREAD", 32)
        patch.setattr(rounding, "IN_THREADS_FROM", 64)
        patch.setattr(engine, "IN_THREADS_FROM", 1)
        yield


@st.composite
def custom_formats(draw, most_bits=16):
    """A float of any layout: bias, infinity, NaN and subnormals as they can be combined."""
    exponent_bits = draw(st.integers(2, 8))
    mantissa_bits = draw(st.integers(1, most_bits - 1 - exponent_bits))
    infinity = draw(st.booleans())
    nan = draw(st.sampled_from(["ieee"] if infinity else sorted(set(NAN_CONVENTIONS) - {"ieee"})))
    bias = draw(st.none() | st.integers(-20, 60))
    return custom_format(
        exponent_bits, mantissa_bits, bias, infinity, nan, subnormals=draw(st.booleans())
    )


FORMATS_OF_ALL_KINDS = st.sampled_from(list(FORMATS.values())) | custom_formats()


@st.composite
def values_around(draw, f, count=40):
    """float64 values where a format's rounding turns, and anywhere."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    with np.errstate(over="ignore"):
        grid = f.max * 2.0 ** rng.uniform(-14, 0.1, count) * rng.choice([-1, 1], count)
        grid = round_to(grid, f)
        middles = grid * (1 + 2.0**-f.precision * rng.choice([-1, 0, 1], count))
        near = np.nextafter(middles, rng.choice([-np.inf, np.inf], count))
        small = f.smallest * rng.integers(-9, 9, count) / 4
        ends = [0.0, -0.0, np.inf, -np.inf, np.nan, f.max, -f.max, np.float64(f.max) * 2]
    return np.concatenate([grid, middles, near, small, ends])


def same(x, y):
    """Equal, zeros by their sign, every NaN alike."""
    x, y = np.asarray(x), np.asarray(y)
    signs = (np.signbit(x) == np.signbit(y)) | np.isnan(x)
    return bool(np.array_equal(x, y, equal_nan=True) and signs.all())


# ---- formats


@MANY
@given(custom_formats())
def test_encode_undoes_decode_on_every_code_of_any_layout(f):
    codes = np.arange(2**f.bits, dtype=f.code_dtype)
    values = decode(codes, f)
    is_number = ~np.isnan(values)
    assert is_number.sum() >= 2**f.bits - 2 ** (f.mantissa_bits + 1)
    if not f.has_subnormals:  # their codes stand for zero, which has one code of each sign
        is_number &= (values != 0) | ((codes & (2 ** (f.bits - 1) - 1)) == 0)
    found = encode(values, f, overflow="infinity" if f.has_infinity else "saturate")
    assert np.array_equal(found[is_number], codes[is_number])
    assert np.isnan(decode(found, f))[np.isnan(values)].all() or not f.has_nan


@MANY
@given(st.data(), FORMATS_OF_ALL_KINDS, st.sampled_from(MODES))
def test_rounding_is_monotone_idempotent_and_mirrors_with_its_sign(data, f, mode):
    x = np.sort(data.draw(values_around(f)))
    x = x[~np.isnan(x) if f.has_zero else x > 0]
    rounded = round_to(x, f, mode)
    assert np.all(rounded[1:] >= rounded[:-1])
    assert same(round_to(rounded, f, mode), rounded)
    if f.kind == "float" and f.is_signed:
        mirrored = -round_to(-x, f, MIRRORED.get(mode, mode))
        assert same(mirrored, rounded) if f.has_negative_zero else np.array_equal(mirrored, rounded)


@MANY
@given(st.data(), FORMATS_OF_ALL_KINDS, st.sampled_from(MODES), st.booleans())
def test_rounding_equals_exact_fractions(data, f, mode, saturates):
    x = data.draw(values_around(f))
    overflow = "saturate" if saturates else "infinity"
    assume(f.has_zero or mode in ("nearest_even", "toward_zero"))
    expected = [reference.round_value(float(value), f, mode, overflow) for value in x]
    assert same(round_to(x, f, mode, overflow), expected)
    with np.errstate(over="ignore"):
        narrow = x.astype(np.float32)[x.astype(np.float32) == x]
    if f.fits_float32:
        expected = [reference.round_value(float(value), f, mode, overflow) for value in narrow]
        assert same(round_to(narrow, f, mode, overflow), expected)


# ---- matmul


@st.composite
def operands(draw, formats, exact=False):
    """Two matrices on the grids of two formats: plain, sparse, wide, small integers, cancelling."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, depth, n = draw(st.tuples(st.integers(1, 9), st.integers(1, 50), st.integers(1, 70)))
    kinds = ["integers"] if exact else ["plain", "sparse", "wide", "integers", "large"]
    kind = draw(st.sampled_from(kinds))

    def matrix(shape, f):
        x = rng.standard_normal(shape)
        if kind == "integers":
            x = rng.integers(-3, 4, shape) * 2.0 ** rng.integers(-1, 2)
        elif kind == "sparse":
            x = np.where(rng.random(shape) < 0.6, 0.0, x) * rng.choice([-1, 1], shape)
        elif kind == "wide":
            x = x * 2.0 ** rng.integers(-16, 13, shape)
        elif kind == "large":
            x = x * 2.0 ** rng.integers(0, 14)
        return round_to(x, f).astype(np.float32)

    a, b = matrix((m, depth), formats[0]), matrix((depth, n), formats[1])
    if kind == "plain" and depth > 2:
        b[1] = -b[0]
    return a, b


OPERAND_FORMATS = st.sampled_from(["fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1", "e6m7"])
ACCUMULATORS = st.builds(
    Accumulator,
    st.sampled_from(["fp16", "fp16", "bf16", "fp32", "tf32", "fp8_e4m3", "fp4_e2m1"])
    | custom_formats(),
    every=st.sampled_from([1, 1, 2, 3, 3, 8, 8, 24]),
    rounding=st.sampled_from(["nearest_even"] * 9 + ["toward_zero"]),
    overflow=st.sampled_from(["infinity", "saturate"]),
    flush_subnormals=st.sampled_from([False] * 9 + [True]),
)


def test_compiled_sums_equal_those_of_numpy():
    pytest.importorskip("numba")
    compiled = []

    @settings(MANY, max_examples=400)
    @given(st.data(), OPERAND_FORMATS, OPERAND_FORMATS, ACCUMULATORS, st.booleans())
    def check(data, f, g, accumulator, counting):
        a, b = data.draw(operands((f, g)))
        a, b = a[np.isfinite(a).all(1)], b[:, np.isfinite(b).all(0)]
        assume(a.size and b.size)
        found = engine.rounded_sum(a, b, accumulator, counting)
        compiled.append(found is not None)
        if found is None:
            return
        slow = Rounder(accumulator, True, counting)
        with np.errstate(all="ignore"):
            expected = slow.in_numpy(a.astype(np.float64), b.astype(np.float64))
        assert same(found[0], expected)
        assert found[1] == slow.counts

    check()
    assert sum(compiled) > len(compiled) / 3


@FEW
@given(st.data(), st.sampled_from([*UNITS, "fp16", "bf16"]), st.booleans())
def test_rows_columns_batches_and_layout_change_nothing(data, accumulator, special):
    name = accumulator.split(".")[-1].split(":")[0]
    f = {"fp8": "fp8_e4m3"}.get(name, name)
    a, b = data.draw(operands((f, f)))
    if special:
        a[0, 0], b[-1, -1] = np.nan, f != "fp8_e4m3" and np.inf
    rows, columns = np.arange(len(a))[::-1], np.roll(np.arange(b.shape[1]), 1)
    kept = a.copy(), b.copy()
    with np.errstate(invalid="ignore"):
        whole = matmul(a, b, f, f, accumulator)
        moved = matmul(a[rows], b[:, columns], f, f, accumulator, tile=Tile(3, 5, 7))
        striped = matmul(
            np.repeat(a, 2, 1)[:, ::2], np.asfortranarray(b)[:, ::-1], f, f, accumulator
        )
        for x in (a, b):
            x.flags.writeable = False
        batch = matmul(np.stack([a, -a]), b, f, f, accumulator).value
        alone = matmul(-a, b, f, f, accumulator).value
    assert same(moved.value, whole.value[rows][:, columns]) and moved.counts == whole.counts
    assert same(striped.value[:, ::-1], whole.value) and striped.counts == whole.counts
    assert same(batch[0], whole.value) and same(batch[1], alone)
    assert same(a, kept[0]) and same(b, kept[1])


@FEW
@given(
    st.data(),
    st.sampled_from(["fp16", "fp32", "bf16", "Hopper.fp16", "Ampere.fp16", "int32"]),
    st.sampled_from(["pairwise", "strided_tree", "split_k:3", "kahan"]),
)
def test_orders_agree_where_everything_is_exact(data, accumulator, order):
    f = "int8" if accumulator == "int32" else "fp16"
    a, b = data.draw(operands((f, f), exact=True))
    a, b = np.sign(a), np.rint(np.clip(b, -2, 2))  # sums of 50 products of at most 2
    try:
        found = matmul(a, b, f, f, accumulator, reduction=order, tile=Tile(4, 4, 5)).value
    except MatmulError:
        assume(get_accumulator(accumulator) is None)  # an order that a unit has not
    assert np.array_equal(found, a @ b)
