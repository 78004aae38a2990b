"""Matrix units: bit for bit against the reference model's vectors, and what `mma` promises."""

from pathlib import Path

import numpy as np
import pytest

from mpcore.formats import decode, encode, get_format
from mpcore.matmul import MatmulError, Tile, matmul, mma
from mpcore.matmul.instructions import ARCHITECTURES, INSTRUCTIONS, get_instruction, key_of

VECTORS = np.load(Path(__file__).parent / "data" / "matrix_units.npz")
VERIFIED = sorted({tuple(key.split("|")[:3]) for key in VECTORS})


def vectors(name):
    fields = ("A", "B", "C", "D", "SA", "SB")
    found = {field: "|".join([*name, field]) for field in fields}
    return {field: VECTORS[key] for field, key in found.items() if key in VECTORS}


def names(name):
    return dict(zip(("arch", "kind", "qualifier"), name, strict=True))


def mismatches(got, expected, name):
    """Elements that differ; any NaN equals any NaN where it is the host's (fp64 and AMD)."""
    differ = got != expected
    f = get_instruction(*name).d
    if name[1] == "mfma" or f.name == "fp64":
        differ &= ~(np.isnan(decode(got, f)) & np.isnan(decode(expected, f)))
    return int(np.count_nonzero(differ))


def test_every_instruction_equals_the_reference_model_bit_for_bit():
    assert len(VERIFIED) == 179
    wrong = {}
    for name in VERIFIED:
        given = vectors(name)
        expected = given.pop("D")
        got = mma(**given, **names(name))
        assert got.dtype == expected.dtype
        if found := mismatches(got, expected, name):
            wrong[name] = found
    assert wrong == {}


def test_every_row_of_the_table_has_vectors_and_every_architecture_rows():
    assert set(INSTRUCTIONS) == {key_of(*name) for name in VERIFIED}
    assert {i.arch for i in INSTRUCTIONS.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", [v for v in VERIFIED if v[2].startswith(("m64n8k16", "f32_4x4"))])
def test_longer_sums_are_chained_through_d(name):
    given = vectors(name)
    given.pop("D")
    i = get_instruction(*name)
    same = {"arch": i.arch, "kind": i.kind, "qualifier": i.qualifier}
    long = {"A": np.concatenate([given["A"]] * 3, 2), "B": np.concatenate([given["B"]] * 3, 1)}
    step = given["C"]
    for _ in range(3):
        step = mma(given["A"], given["B"], step, **same)
    assert np.array_equal(mma(**long, C=given["C"], **same), step)


HOPPER = {"arch": "Hopper", "kind": "wgmma"}
FP8 = HOPPER | {"qualifier": "m64n8k32.f32.e4m3.e4m3"}
FP16 = HOPPER | {"qualifier": "m64n8k16.f32.f16.f16"}


def random_codes(shape, f, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return encode(values, f)


@pytest.mark.parametrize(
    ("arch", "kind", "qualifier", "last"),
    [
        ("Volta", "mma", "m8n8k4.f32.f16.f16.f32", 23),
        ("Ampere", "mma", "m16n8k16.f32.f16.f16.f32", 24),
        ("Hopper", "wgmma", "m64n8k16.f32.f16.f16", 25),
    ],
)
def test_the_last_bit_that_survives_tells_the_architectures_apart(arch, kind, qualifier, last):
    """1 - 1 + 2**-p: lost from p = last + 1 on (Fasi et al. 2021)."""

    def left(p):
        a = np.zeros((1, 1, get_instruction(arch, kind, qualifier).k))
        b = np.zeros((1, a.shape[2], 1))
        a[0, 0, :3] = 1, 1, 2.0 ** -(p // 2)
        b[0, :3, 0] = 1, -1, 2.0 ** -(p - p // 2)
        a, b = encode(a, "fp16"), encode(b, "fp16")
        return float(decode(mma(a, b, arch=arch, kind=kind, qualifier=qualifier), "fp32")[0, 0, 0])

    assert left(last) == 2.0**-last
    assert left(last + 1) == 0


def one_element(mma, arch, qualifier, f, a, b, c):
    """D of one element whose products along K are a * b, as bits."""
    a, b = encode(np.array([[a]]), f), encode(np.array([[b]]).swapaxes(1, 2), f)
    c = encode(np.full((1, 1, 1), c), "fp32")
    return int(mma(a, b, c, arch=arch, kind="mfma", qualifier=qualifier)[0, 0, 0])


def a_product_and_a_sum_are_rounded_once(mma):
    """1 + 2**-11 + 2**-24 is a tie of fp32, and 2**-60 more is not: IEEE 754's fused operation."""
    x = 1 + 2.0**-12
    found = one_element(mma, "CDNA1", "f32_4x4x1f32", "fp32", [x], [x], 2.0**-60)
    return found == encode(1 + 2.0**-11 + 2.0**-23, "fp32")


def a_flushed_result_keeps_its_sign(mma):
    """As the studies of CDNA2 say; no vector shows it."""
    x = [2.0**-63, 0.0, 0.0, 0.0]  # 2**-126 less 1.5 times that
    found = one_element(mma, "CDNA2", "f32_4x4x4bf16_1k", "bf16", x, x, -1.5 * 2.0**-126)
    return found == encode(-0.0, "fp32")


PROBES = (a_product_and_a_sum_are_rounded_once, a_flushed_result_keeps_its_sign)


@pytest.mark.parametrize("probe", PROBES)
def test_what_no_vector_shows(probe):
    assert probe(mma)


def test_two_level_accumulation_adds_each_part_into_an_fp32_master():
    a, b = random_codes((1, 5, 256), "e4m3"), random_codes((1, 256, 6), "e4m3", 1)
    c = encode(np.full((1, 5, 6), 0.5), "fp32")
    promoted = mma(a, b, c, promote_every_k=96, **FP8)
    master = np.full((1, 5, 6), 0.5, np.float32)
    for start in range(0, 256, 96):
        part = mma(a[:, :, start : start + 96], b[:, start : start + 96], **FP8)
        master += decode(part, "fp32")
    assert np.array_equal(decode(promoted, "fp32"), master)
    assert not np.array_equal(promoted, mma(a, b, c, **FP8))


def test_a_missing_c_is_zero_and_one_case_needs_no_axis_for_cases():
    a, b = random_codes((3, 32), "fp16"), random_codes((32, 2), "fp16", 1)
    zeros = np.zeros((3, 2), np.uint32)
    one = mma(a, b, **FP16)
    assert one.shape == (3, 2)
    assert np.array_equal(one, mma(a, b, zeros, **FP16))
    assert np.array_equal(one, mma(a[None], b[None], **FP16)[0])


@pytest.mark.parametrize(("m", "n"), [(0, 3), (3, 0), (1, 1), (7, 5)])
def test_m_and_n_are_free_and_inputs_are_not_changed(m, n):
    a, b = random_codes((2, m, 16), "fp16"), random_codes((2, 16, n), "fp16", 1)
    before = a.copy(), b.copy()
    a.flags.writeable = b.flags.writeable = False
    d = mma(a, b, **FP16)
    assert d.shape == (2, m, n)
    if m and n:
        assert np.array_equal(d[:, :1, :1], mma(a[:, :1], b[:, :, :1], **FP16))
        strided = np.asfortranarray(a)[:, ::-1]
        assert np.array_equal(mma(strided, b, **FP16), d[:, ::-1])
    assert np.array_equal(a, before[0]) and np.array_equal(b, before[1])


def test_no_products_leave_c():
    c = random_codes((1, 2, 2), "fp32")
    d = mma(np.zeros((1, 2, 0), np.uint16), np.zeros((1, 0, 2), np.uint16), c, **FP16)
    assert np.array_equal(d, c)


A16, B16 = np.zeros((1, 2, 16), np.uint16), np.zeros((1, 16, 3), np.uint16)
A8, B8 = np.zeros((1, 2, 32), np.uint8), np.zeros((1, 32, 3), np.uint8)
MX = {"arch": "Blackwell", "kind": "tcgen05mma_block_scale"}
MXFP8 = MX | {"qualifier": "m128n8k32.block32.f32.e4m3.e4m3.ue8m0"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**FP16, "arch": "Pascal"}, 'no architecture is called "Pascal"; valid are Volta'),
        ({**FP16, "kind": "tcgen05mma"}, 'Hopper has no "tcgen05mma" instructions; it has mma'),
        ({**FP16, "qualifier": "m64n8k16.f32.f16.bf16"}, "the nearest of its 12 are m64n8k16"),
        ({**FP16, "arch": None}, "are strings"),
        ({**FP16, "A": A16[:, :, :8], "B": B16[:, :8]}, "K is 8, not a multiple of the 16"),
        ({**FP16, "A": A8}, "A: fp16 codes are uint16, not uint8"),
        ({**FP16, "A": A16[0, 0]}, "A: .* not shape"),
        ({**FP16, "A": A16[0]}, "A has 2 axes and B has 3"),
        ({**FP16, "B": B16[:, :8]}, "cases and K must agree"),
        ({**FP16, "C": np.zeros((1, 2, 2), np.uint32)}, "C is .* A and B make"),
        ({**FP16, "SA": A8}, "takes no block scales"),
        ({**FP16, "promote_every_k": 24}, "needs a multiple of 16"),
        ({**FP16, "promote_every_k": -16}, "needs a multiple of 16"),
        ({**FP16, "promote_every_k": 1.5}, "needs a multiple of 16"),
        ({**MXFP8, "A": A8, "B": B8}, "needs SA and SB, one scale per 32"),
        ({**MXFP8, "A": A8, "B": B8, "SA": A8, "SB": B8}, "SA is .* needs"),
        ({**FP16, "A": "no array"}, "A: fp16 codes are uint16"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(given, said):
    with pytest.raises(MatmulError, match=said) as refusal:
        mma(**{"A": A16, "B": B16, **given})
    assert "\n" not in str(refusal.value)


def test_names_are_free_in_case_and_spaces_and_in_m_and_n():
    a, b = random_codes((1, 2, 32), "e4m3"), random_codes((1, 32, 3), "e4m3", 1)
    usual = mma(a, b, arch="Ada Lovelace", kind="mma", qualifier="m16n8k32.f32.e4m3.e4m3.f32")
    other = mma(a, b, arch="adalovelace", kind="MMA", qualifier="m16n16k32.F32.e4m3.e4m3.f32")
    assert np.array_equal(usual, other)
    assert get_format("ue4m3") is get_format("fp8_e4m3")


# ---- the same units under `matmul`


@pytest.mark.parametrize(
    ("unit", "formats", "instruction"),
    [
        ("Hopper.fp16", "fp16", ("Hopper", "wgmma", "m64n8k16.f32.f16.f16")),
        ("hopper.fp16:fp16", "fp16", ("Hopper", "wgmma", "m64n8k16.f16.f16.f16")),
        ("Hopper.fp8", "e4m3", ("Hopper", "wgmma", "m64n8k32.f32.e4m3.e4m3")),
        ("Ada.fp8:fp16", "e5m2", ("Ada Lovelace", "mma", "m16n8k32.f16.e5m2.e5m2.f16")),
        ("Ampere.bf16", "bf16", ("Ampere", "mma", "m16n8k16.f32.bf16.bf16.f32")),
        ("RTX Blackwell.fp8", "e5m2", ("RTX Blackwell", "mma", "m16n8k32.f32.e5m2.e5m2.f32")),
        ("CDNA2.fp16", "fp16", ("CDNA2", "mfma", "f32_16x16x16f16")),
        ("CDNA3.fp8", "e4m3fnuz", ("CDNA3", "mfma", "f32_16x16x32_fp8_fp8")),
        ("Hopper.fp64", "fp64", ("Hopper", "mma", "m16n8k16.f64.f64.f64.f64")),
    ],
)
@pytest.mark.parametrize("depth", [1, 40, 96])
def test_matmul_runs_the_unit_bit_for_bit(unit, formats, instruction, depth):
    rng = np.random.default_rng(depth)
    a, b = rng.standard_normal((5, depth)), rng.standard_normal((depth, 7))
    result = matmul(a, b, a_format=formats, b_format=formats, accumulator=unit, tile=Tile(2, 3, 4))
    missing = -depth % get_instruction(*instruction).k
    a, b = np.pad(a, ((0, 0), (0, missing))), np.pad(b, ((0, missing), (0, 0)))
    expected = mma(encode(a, formats), encode(b, formats), **names(instruction))
    f = get_instruction(*instruction).d
    assert result.format == f
    assert np.array_equal(encode(result.value, f), expected)


def test_a_unit_takes_its_own_format_by_default_and_wider_inputs_of_fewer_bits():
    a, b = np.full((1, 4), 1.2), np.full((4, 1), 1.2)
    assert matmul(a, b, accumulator="Hopper.fp8").value == 4 * 1.25**2
    narrow = matmul(a, b, "e4m3", "int8", accumulator="Hopper.fp16").value
    assert narrow == 4 * 1.25


def test_split_k_adds_the_sums_of_parts_in_the_units_format():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((3, 96)), rng.standard_normal((96, 4))
    halves = [
        matmul(a[:, k], b[k], accumulator="Hopper.fp16").value for k in (slice(48), slice(48, 96))
    ]
    whole = matmul(a, b, accumulator="Hopper.fp16", reduction="split_k:2").value
    assert np.array_equal(whole, halves[0].astype(np.float32) + halves[1].astype(np.float32))


def test_counts_of_a_unit_tell_lost_bits_from_exact_sums():
    ones = np.ones((2, 64))
    exact = matmul(ones, ones.T, accumulator="Hopper.fp16").counts.partial
    assert (exact.total, exact.inexact) == (2 * 2 * 4, 0)
    far = np.ones((1, 16))
    far[0, 1] = 2.0**-13
    lost = matmul(far, far.T, accumulator="Hopper.fp16").counts.partial
    assert (lost.total, lost.inexact, lost.underflow, lost.overflow) == (1, 1, 0, 0)
    big = np.full((1, 32), 65504.0)
    over = matmul(big, big.T, accumulator="Hopper.fp16:fp16").counts.partial
    assert (over.total, over.overflow, over.nan) == (2, 1, 0)
    specials = np.array([[np.inf, 0.0]])
    nan = matmul(specials, np.array([[0.0], [1.0]]), accumulator="Hopper.fp16").counts.partial
    assert (nan.overflow, nan.nan, nan.inexact) == (0, 1, 0)
