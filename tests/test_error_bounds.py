"""Error bounds: never exceeded, nearly reached by sums made for that, and refused where unknown."""

from __future__ import annotations

from fractions import Fraction
from math import fsum

import numpy as np
import pytest

import mpcore as mp
from mpcore.matmul import MatmulError
from mpcore.matmul.instructions import INSTRUCTIONS, get_instruction

M = N = 2
KINDS = ("plain", "cancelling", "wide", "tiny", "one sign", "with zeros")


def operands(kind, f, depth, seed):
    """[M, K] and [K, N] on the grid of a format, of the kind that a name says."""
    rng = np.random.default_rng(seed)
    f = mp.get_format(f)
    a, b = rng.standard_normal((M, depth)), rng.standard_normal((depth, N))
    if kind == "cancelling":
        half = depth // 2
        a[:, half : 2 * half], b[half : 2 * half] = -a[:, :half], b[:half]
        a[:, -1] *= 2.0**-5
    elif kind == "wide":
        spread = min(12, f.emin * -1 + 3)
        a *= 2.0 ** rng.integers(-spread, 4, a.shape)
        b *= 2.0 ** rng.integers(-spread, 4, b.shape)
    elif kind == "tiny":
        a *= f.smallest_normal
        b *= f.smallest_normal * 2.0 ** rng.integers(0, 5, b.shape)
    elif kind == "one sign":
        a, b = abs(a), abs(b)
    elif kind == "with zeros":
        a[rng.random(a.shape) < 0.4] = 0
        b[rng.random(b.shape) < 0.4] = 0
        b[0] *= min(2.0**40, f.max / 16)
    return [mp.round_to(x, f).astype(np.float64) for x in (a, b)]


def errors(value, a, b):
    """|value - a @ b|, exactly, as fractions in an object array."""
    found = np.empty(value.shape, object)
    for i, j in np.ndindex(*value.shape):
        pairs = zip(a[i], b[:, j], strict=True)
        exact = sum((Fraction(x) * Fraction(y) for x, y in pairs), Fraction(0))
        found[i, j] = abs(Fraction(float(value[i, j])) - exact)
    return found


def assert_within(value, bound, a, b):
    open_ = np.isinf(bound)
    assert not np.isnan(bound).any()
    found = errors(np.where(open_, 0, value), a, b)
    assert all(e <= Fraction(w) for e, w in zip(found[~open_], bound[~open_], strict=True))


ORDERS = ("sequential", "split_k:3", "pairwise", "strided_tree", "kahan")
ACCUMULATORS = [
    *(mp.Accumulator(f) for f in ("fp8_e5m2", "fp8_e4m3", "fp16", "bf16", "fp32", "fp64", "int32")),
    *(mp.Accumulator(f, every=n) for f in ("fp16", "bf16", "e8m13") for n in (3, 16)),
    *(
        mp.Accumulator("fp16", rounding=mode)
        for mode in ("toward_zero", "toward_positive", "to_odd", "nearest_away")
    ),
    mp.Accumulator("bf16", every=4, rounding="toward_negative"),
    mp.Accumulator("bf16", rounding="stochastic", seed=1),
    mp.Accumulator("fp16", flush_subnormals=True),
    mp.Accumulator("fp8_e5m2", every=3, flush_subnormals=True),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("accumulator", ACCUMULATORS, ids=lambda a: f"{a.format}-{a.every}")
def test_no_sum_errs_by_more_than_its_worst_case(accumulator, order):
    is_chain = order in ("sequential", "split_k:3")
    if accumulator.every > 1 and not is_chain:
        return
    is_nearest = accumulator.rounding.startswith("nearest") and not accumulator.flush_subnormals
    if order == "kahan" and not is_nearest:
        return
    bounded = 0
    for seed, kind in enumerate(KINDS):
        for f in ("fp16", "bf16", "fp8_e4m3"):
            a, b = operands(kind, f, 25, seed)
            options = {"accumulator": accumulator, "reduction": order, "tile": mp.Tile(k=10)}
            bound = mp.error_bounds(a, b, f, f, **options).worst
            value = mp.matmul(a, b, f, f, **options).value
            assert_within(value, bound, a, b)
            bounded += np.isfinite(bound).sum()
    hopeless = order == "kahan" and accumulator.format.name == "fp8_e5m2"  # K u**2 is near 1
    assert bounded > 30 or hopeless  # of 72


@pytest.mark.parametrize(
    "i", [i for i in INSTRUCTIONS.values() if i.scale is None], ids=lambda i: str(i)
)
def test_no_instruction_errs_by_more_than_its_worst_case(i):
    names = {"arch": i.arch, "kind": i.kind, "qualifier": i.qualifier}
    words = "fp32" if i.a.name in ("tf32", "xf32") else None  # tf32 operands are fp32 words
    bounded = 0
    for seed, kind in enumerate(KINDS):
        depth = max(i.k, 32 // i.k * i.k)
        a = operands(kind, i.a, depth, seed)[0]
        b = operands(kind, i.b, depth, seed)[1]
        codes = [mp.encode(a, words or i.a), mp.encode(b, words or i.b)]
        value = mp.decode(mp.mma(*codes, **names), i.d).astype(np.float64)
        bound = mp.error_bounds(a, b, accumulator=i).worst
        assert_within(value, bound, a, b)
        bounded += np.isfinite(bound).sum()
    assert bounded >= 16  # of 24


@pytest.mark.parametrize("order", ["sequential", "split_k:3"])
@pytest.mark.parametrize(
    "unit",
    [
        *("Volta.fp16", "Turing.fp16:fp16", "Ampere.tf32", "Ada.fp8", "Ada.fp8:fp16", "Hopper.fp8"),
        *("Blackwell.bf16", "RTX Blackwell.fp8", "CDNA1.bf16", "CDNA2.fp16", "CDNA3.fp8"),
        *("CDNA3.xf32", "Hopper.fp64", "CDNA3.fp32"),
    ],
)
def test_no_matrix_unit_errs_by_more_than_its_worst_case(unit, order):
    for seed, kind in enumerate(KINDS):
        grid = "fp8_e4m3fnuz" if unit == "CDNA3.fp8" else "fp8_e4m3" if "fp8" in unit else "bf16"
        grid = "fp16" if "fp16" in unit and "fp8" not in unit else grid
        a, b = operands(kind, grid, 75, seed)  # no whole number of instructions
        options = {"accumulator": unit, "reduction": order}
        options |= {"a_format": grid, "b_format": grid} if unit == "CDNA3.fp8" else {}
        bound = mp.error_bounds(a, b, **options).worst
        value = mp.matmul(a, b, **options).value
        assert_within(value, bound, a, b)


@pytest.mark.parametrize(
    ("accumulator", "f", "options"),
    [
        ("fp8_e5m2", "fp8_e4m3", {}),
        ("bf16", "bf16", {"reduction": "pairwise", "tile": mp.Tile(k=7)}),
        ("fp16", "fp16", {"reduction": "kahan"}),
        (mp.Accumulator("fp16", every=3, rounding="toward_zero"), "fp16", {}),
        (mp.Accumulator("fp16", flush_subnormals=True), "fp16", {"reduction": "split_k:3"}),
        *((unit, "fp16", {}) for unit in ("Volta.fp16", "Hopper.fp16:fp16", "CDNA2.fp16")),
        *((unit, "bf16", {}) for unit in ("Ampere.bf16", "CDNA1.bf16", "CDNA3.bf16")),
        ("Hopper.fp8", "fp8_e5m2", {"reduction": "split_k:2"}),
    ],
)
def test_operands_sought_for_their_error_do_not_pass_the_worst_case(accumulator, f, options):
    """Climbs: a change of some terms is kept where the error comes nearer to its bound."""
    rng = np.random.default_rng(5)

    def shares(a, b):
        sums = a[:, None], b[:, :, None]  # [cases, 1, K] and [cases, K, 1]
        bound = mp.error_bounds(*sums, f, f, accumulator, **options).worst
        value = mp.matmul(*sums, f, f, accumulator, **options).value
        assert np.isfinite(bound).all() and (bound > 0).all()
        terms = [[*(x * y), -v] for x, y, v in zip(a, b, value[:, 0, 0].astype(float), strict=True)]
        return np.array([abs(fsum(t)) for t in terms]) / bound[:, 0, 0]

    def drawn():
        kinds = [operands(kind, f, 20, rng)[0][:1] for kind in ("plain", "wide", "tiny")]
        return np.concatenate([np.clip(x, -16, 16) for x in kinds * 2])

    a, b = drawn(), drawn()
    nearest = start = shares(a, b)
    for _ in range(40):
        changed = rng.random(a.shape) < 0.2
        tried = np.where(changed, drawn(), a), np.where(changed, drawn(), b)
        found = shares(*tried)
        better = (found > nearest)[:, None]
        a, b = np.where(better, tried[0], a), np.where(better, tried[1], b)
        nearest = np.maximum(found, nearest)
    assert start.max() < nearest.max() <= 1


def share(terms, accumulator, f="fp32", **options):
    """Error of one sum as a share of its worst case."""
    a, b = np.array([terms], float), np.ones((len(terms), 1))
    value = mp.matmul(a, b, f, f, accumulator, **options).value
    bound = mp.error_bounds(a, b, f, f, accumulator, **options).worst
    return float(errors(value, a, b)[0, 0]) / bound[0, 0]


def in_chunks(first, rest, length, count):
    """`first` alone in a chunk, then so many chunks of `rest`, each filled up with zeros."""
    chunks = np.zeros((count + 1, length))
    chunks[0, 0] = first
    chunks[1:, : len(rest)] = rest
    return chunks.reshape(-1)


U = 2.0**-8  # of bf16
BELOW = 1 - 2.0**-7
WORST_SUMS = {
    "ties to even swallow every term": ([2.0**11, *[1] * 200], "fp16", {}),
    "every chunk is swallowed": (
        in_chunks(2.0**8, [0.25] * 4, 4, 30),
        mp.Accumulator("bf16", every=4),
        {},
    ),
    "every term is cut off": (
        [1.0, *[2.0**-7 * BELOW] * 8],
        mp.Accumulator("bf16", rounding="toward_zero"),
        {},
    ),
    "each part swallows its terms": (
        [*[2.0**8, *[1] * 19] * 4],
        "bf16",
        {"reduction": "split_k:4"},
    ),
    "each level of a tree rounds": (
        [(1 + 3 * U - U / 128 if k == 0 else U * BELOW * (k & (k - 1) == 0)) for k in range(64)],
        "bf16",
        {"reduction": "pairwise"},
    ),
    "Kahan's correction is lost three times": (
        [U * BELOW, 1 + 3 * U - U / 128, U * BELOW],
        "bf16",
        {"reduction": "kahan"},
    ),
}


@pytest.mark.parametrize("terms, accumulator, options", WORST_SUMS.values(), ids=WORST_SUMS)
def test_a_sum_made_for_it_nearly_reaches_its_worst_case(terms, accumulator, options):
    assert 0.7 < share(terms, accumulator, **options) <= 1


@pytest.mark.parametrize(
    ("unit", "f", "length", "fraction"),
    [
        ("Volta.fp16", "fp16", 4, 23),
        ("Turing.fp16", "fp16", 8, 24),
        ("Ampere.bf16", "bf16", 8, 24),
        ("Ampere.tf32", "tf32", 4, 24),
        ("Hopper.bf16", "bf16", 16, 25),
        ("Blackwell.fp8", "fp8_e5m2", 32, 25),
        ("Ada.fp8", "fp8_e5m2", 16, 13),
        ("Hopper.fp8", "fp8_e5m2", 32, 13),
    ],
)
def test_a_unit_that_cuts_every_product_nearly_reaches_its_worst_case(unit, f, length, fraction):
    scale = 2.0 ** -(fraction // 2)
    below = 2.0**-fraction * (0.75 if f == "fp8_e5m2" else BELOW)
    terms = in_chunks(1.0, [below] * length, length, 20)
    terms[0] = 1.0
    a, b = terms[None] / scale, np.full((len(terms), 1), scale)
    a[0, 0], b[0, 0] = 1.0, 1.0
    value = mp.matmul(a, b, f, f, unit).value
    bound = mp.error_bounds(a, b, f, f, unit).worst
    assert 0.55 < float(errors(value, a, b)[0, 0]) / bound[0, 0] <= 1


@pytest.mark.parametrize(
    ("unit", "first", "rest", "length", "count"),
    [
        ("Hopper.fp16:fp16", 2.0**11, [1], 16, 30),
        ("CDNA1.fp16", 2.0**24, [1], 4, 30),
        ("CDNA3.fp16", 2.0**24, [1], 8, 30),
        ("CDNA3.bf16", 1.0, [], 8, 0),
    ],
)
def test_a_unit_that_rounds_every_chunk_nearly_reaches_its_worst_case(
    unit, first, rest, length, count
):
    terms = in_chunks(first, rest, length, count)
    if not count:  # one chunk, whose products are cut beside the first one
        terms[1:] = 2.0**-24 * BELOW
    root = 2.0 ** (np.log2(first) // 2)
    a, b = terms[None].copy(), np.ones((len(terms), 1))
    a[0, 0], b[0, 0] = first / root, root
    f = "bf16" if "bf16" in unit else "fp16"
    value = mp.matmul(a, b, f, f, unit).value
    bound = mp.error_bounds(a, b, f, f, unit).worst
    assert 0.7 < float(errors(value, a, b)[0, 0]) / bound[0, 0] <= 1


def test_a_flushed_operand_is_counted_in_full():
    a, b = np.array([[2.0**-20, 1.0]]), np.array([[1.0], [0.0]])
    value = mp.matmul(a, b, "fp16", "fp16", "CDNA2.fp16").value
    assert value == 0
    assert 1 <= mp.error_bounds(a, b, "fp16", "fp16", "CDNA2.fp16").worst / 2.0**-20 < 1.001
    assert mp.error_bounds(a, b, "fp16", "fp16", "CDNA1.fp16").worst < 2.0**-40


def test_a_sum_that_cancels_below_the_normal_values_is_lost_where_they_are_flushed():
    a, b = np.array([[1.5 * 2.0**-14, -(2.0**-14)]]), np.ones((2, 1))
    options = {"a_format": "fp16", "b_format": "fp16"}
    flushed = mp.Accumulator("fp16", flush_subnormals=True)
    assert mp.matmul(a, b, accumulator=flushed, **options).value == 0
    assert mp.error_bounds(a, b, accumulator=flushed, **options).worst >= 2.0**-15
    assert mp.error_bounds(a, b, accumulator="fp16", **options).worst < 2.0**-20


def test_underflow_adds_an_absolute_term_where_products_can_lie_below_the_grid():
    a, b = np.full((1, 20), 3 * 2.0**-14), np.full((20, 1), 2.0**-12)
    value = mp.matmul(a, b, "fp16", "fp16", "fp16").value
    bounds = mp.error_bounds(a, b, "fp16", "fp16", "fp16")
    found = float(errors(value, a, b)[0, 0])
    assert found > 20 * 2.0**-11 * bounds.magnitude[0, 0]  # more than any relative error
    assert found <= bounds.worst[0, 0] < 2.0**-19
    exact = mp.error_bounds(a, b, "fp16", "fp16", "fp32")
    assert exact.worst[0, 0] == pytest.approx(20 * 2.0**-24 * exact.magnitude[0, 0])


@pytest.mark.parametrize("accumulator", ["fp16", "bf16", "fp32", "CDNA1.fp16"])
def test_rounding_errors_of_random_sums_stay_below_the_probable_bound_as_often_as_it_says(
    accumulator,
):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((48, 256)), rng.standard_normal((256, 48))
    f = "bf16" if accumulator == "bf16" else "fp16"
    a, b = (mp.round_to(x, f).astype(np.float64) for x in (a, b))
    error = abs(mp.matmul(a, b, f, f, accumulator).value - a @ b)

    def beyond(lam):
        bounds = mp.error_bounds(a, b, f, f, accumulator, lam=lam)
        assert (bounds.probable <= bounds.worst).all()
        return float((error > bounds.probable).mean()), bounds.failure

    for lam in (4.0, 4.5, 5.0):
        found, allowed = beyond(lam)
        assert found <= allowed < 0.5
    assert beyond(0.002)[0] > 0.02 and beyond(0.002)[1] == 1  # the check can tell


def test_the_probable_bound_grows_with_the_root_of_the_length_and_the_worst_case_with_it():
    def growth(depth):
        a = np.ones((1, depth))
        bounds = mp.error_bounds(a, a.T, "fp16", "fp16", "fp32")
        return np.array([bounds.worst[0, 0], bounds.probable[0, 0]]) / bounds.magnitude[0, 0]

    assert growth(4096) / growth(256) == pytest.approx([16, 4], rel=1e-3)


@pytest.mark.parametrize(
    "accumulator", ["Hopper.fp16", "CDNA2.fp16", mp.Accumulator("fp16", rounding="toward_zero")]
)
def test_errors_with_a_sign_of_their_own_have_no_probable_bound(accumulator):
    a = np.ones((2, 300))
    bounds = mp.error_bounds(a, a.T, "fp16", "fp16", accumulator)
    assert bounds.failure == 0 and (bounds.probable == bounds.worst).all()


def test_blas_is_bounded_whatever_its_order():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 300)), rng.standard_normal((300, 2))
    a, b = (mp.round_to(x, "fp16").astype(np.float64) for x in (a, b))
    bound = mp.error_bounds(a, b, "fp16", "fp16", "blas_fp32").worst
    assert_within(mp.matmul(a, b, "fp16", "fp16", "blas_fp32").value, bound, a, b)


def test_beyond_the_range_nothing_is_promised():
    a = np.full((1, 300), 15.0)
    assert mp.error_bounds(a, a.T, "fp16", "fp16", "fp16").worst == np.inf
    assert np.isfinite(mp.error_bounds(a, a.T, "fp16", "fp16", "fp32").worst)
    assert mp.error_bounds([[1e200]], [[1e200]], accumulator="fp64").worst == np.inf
    assert np.isnan(mp.error_bounds([[np.inf]], [[1.0]]).worst)


def test_raw_operands_are_rounded_first_and_leading_axes_broadcast():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((3, 1, 2, 40)), rng.standard_normal((4, 40, 5))
    bounds = mp.error_bounds(a, b, "bf16", "bf16", "bf16")
    rounded = [mp.round_to(x, "bf16") for x in (a, b)]
    assert bounds.worst.shape == (3, 4, 2, 5)
    assert np.array_equal(bounds.worst, mp.error_bounds(*rounded, "bf16", "bf16", "bf16").worst)


ONE = np.ones((2, 2))
HOPPER = get_instruction("Hopper", "wgmma", "m64n8k16.f32.f16.f16")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"a": np.ones(3)}, "a must have at least 2 axes"),
        ({"a": np.ones((2, 3))}, "a is (2, 3) and b is (2, 2)"),
        ({"a_format": "fp17"}, "fp17"),
        ({"accumulator": "fp17"}, "fp17"),
        ({"accumulator": "Hopper.fp7"}, "fp7"),
        ({"accumulator": "uint8"}, "uint8, which lacks a sign or a zero"),
        ({"reduction": "random"}, "random"),
        ({"reduction": "pairwise", "accumulator": "Hopper.fp16", "a_format": "fp16"}, "split_k"),
        ({"a_format": "nvfp4", "b_format": "fp16"}, "a in a format with block scales"),
        ({"accumulator": "blas_fp32"}, '"blas_fp32" with a in fp64'),
        (
            {"accumulator": mp.Accumulator("int32", every=2, intermediate="int16")},
            "no error bound for sums by way of int16",
        ),
        (
            {"accumulator": mp.Accumulator(flush_subnormals=True), "reduction": "kahan"},
            'no error bound for "kahan" flushed',
        ),
        (
            {"accumulator": HOPPER, "a_format": "fp16"},
            "its own formats and order",
        ),
        ({"lam": 0}, "lam must be a positive number, not 0"),
        ({"lam": "5"}, "lam must be"),
        ({"tile": 64}, "tile must be"),
        (
            {
                "reduction": "kahan",
                "accumulator": mp.Accumulator("fp16", rounding="toward_zero"),
            },
            'no error bound for "kahan" rounded toward_zero',
        ),
        (
            {
                "accumulator": get_instruction(
                    "Blackwell",
                    "tcgen05mma_block_scale",
                    "m128n8k32.block32.f32.e4m3.e4m3.ue8m0",
                )
            },
            "which has block scales",
        ),
    ],
)
def test_what_has_no_bound_is_refused_in_one_line(options, said):
    given = {"a": ONE, "b": ONE, **options}
    with pytest.raises(MatmulError) as refused:
        mp.error_bounds(**given)
    assert said in str(refused.value) and "\n" not in str(refused.value)
