"""Matmul: one rounding per partial sum, in the order that was asked for."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcore.formats import decode, get_format, round_to
from mpcore.matmul import Accumulator, MatmulError, Tile, matmul, matmul_reference
from mpcore.matmul.exact import add_to_odd, expansion_to_nearest, grow, two_product
from mpcore.scaling import quantize

REDUCTIONS = ["sequential", "pairwise", "strided_tree", "split_k:3", "kahan"]
ACCUMULATORS = [
    "fp32",
    "fp16",
    "bf16",
    "fp64",
    "e5m4",
    "int32",
    "fp8_e4m3",
    Accumulator("fp16", rounding="toward_zero"),
    Accumulator("bf16", rounding="to_odd"),
    Accumulator("e4m7", rounding="toward_negative", overflow="saturate"),
]


def operands(seed=0, m=4, k=11, n=3, f="fp16", spread=6):
    """Values of a format whose products differ in magnitude, so that sums are inexact."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(m, k)) * 2.0 ** rng.integers(-spread, spread + 1, (m, k))
    return round_to(a, f), round_to(rng.normal(size=(k, n)), f)


def equal(found, expected):
    return np.array_equal(found, expected, equal_nan=True)


# ---- one rounding for each product


@pytest.mark.parametrize(
    "accumulator", ACCUMULATORS, ids=lambda a: a if isinstance(a, str) else str(a.format)
)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_equals_the_readable_reference(accumulator, reduction):
    for seed, f in enumerate(("fp16", "bf16", "fp32", "fp64")):
        a, b = operands(seed, f=f)
        tile = Tile(2, 2, 4)
        found = matmul(a, b, f, f, accumulator, tile=tile, reduction=reduction)
        expected = matmul_reference(a, b, accumulator, tile, reduction)
        assert equal(found.value, expected), f


@pytest.mark.parametrize("every", [2, 3, 16])
@pytest.mark.parametrize("reduction", ["sequential", "split_k:2"])
def test_rounding_every_n_products_equals_the_reference(every, reduction):
    for seed, f in enumerate(("fp16", "fp32", "fp64")):
        a, b = operands(seed, f=f, spread=40 if f != "fp16" else 6)
        accumulator = Accumulator("e8m10", every=every)
        found = matmul(a, b, f, f, accumulator, reduction=reduction)
        assert equal(found.value, matmul_reference(a, b, accumulator, reduction=reduction)), f


@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30), st.floats(-1e30, 1e30))
@settings(max_examples=200, deadline=None)
def test_expansions_round_an_exact_sum_once(a, b, c):
    # Dekker's product is exact while its error does not underflow.
    a, b, c = (0.0 if abs(v) < 1e-30 else v for v in (a, b, c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    product, error = two_product(np.float64(a), np.float64(b))
    expansion = grow(grow([np.float64(c)], error), product)
    assert sum(map(Fraction, map(float, expansion))) == exact
    assert float(expansion_to_nearest(expansion)) == float(exact)
    odd = add_to_odd(np.float64(a), np.float64(c))
    truth = Fraction(a) + Fraction(c)
    assert Fraction(float(odd)) == truth or int(odd.view(np.int64)) % 2 == 1
    assert odd == truth or abs(Fraction(float(odd)) - truth) < Fraction(float(np.spacing(abs(odd))))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_just_off_a_tie_is_not_rounded_twice(sign):
    # 2**54 + 2**46 ± 1: float64 loses the 1 and would leave a tie of bf16, whose step is 2**47.
    for first, factors, expected in (
        (2**54, (2**23 - 2**12 + 1, 2**23 + 2**12 + 1), 2**54 + 2**47),  # + 2**46 + 1
        (129 * 2**47, (2**23 - 1, 2**23 + 1), 129 * 2**47),  # + 2**46 - 1
    ):
        a = np.array([[first / 2**27, factors[0]]], np.float64) * sign
        b = np.array([[2**27], [factors[1]]], np.float64)
        for f in ("fp32", "fp64"):
            for every in (1, 2):
                found = matmul(a, b, f, f, Accumulator("bf16", every)).value
                assert found == sign * expected


def test_the_smallest_of_many_terms_still_decides_a_tie():
    a, b = np.array([[1, 2.0**-53, 2.0**-120]]), np.ones((3, 1))
    assert matmul(a, b, accumulator=Accumulator("fp64", every=3)).value == 1 + 2.0**-52
    assert matmul(-a, b, accumulator=Accumulator("fp64", every=3)).value == -1 - 2.0**-52
    assert matmul(a[:, :2], b[:2], accumulator=Accumulator("fp64", every=3)).value == 1


def test_fp32_accumulation_of_one_product_is_the_processors_own():
    a, b = operands(f="fp32", k=1)
    assert equal(matmul(a, b, "fp32", "fp32").value, (a * b).astype(np.float32))
    a, b = operands(f="fp16", m=7, k=64, n=5)
    expected = np.zeros((7, 5), np.float32)
    for k in range(64):  # fp16 products are exact in fp32, so fp32 addition is the one rounding
        expected += np.outer(a[:, k], b[k]).astype(np.float32)
    assert equal(matmul(a, b, "fp16", "fp16", "fp32").value, expected)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_the_tile_never_changes_a_sequential_result(m, n, k):
    a, b = operands(m=5, k=10, n=7)
    whole = matmul(a, b, "fp16", "fp16", "bf16", counts=False).value
    tiled = matmul(a, b, "fp16", "fp16", "bf16", tile=Tile(m, n, k))
    assert equal(tiled.value, whole)
    assert tiled.counts.partial.total == 5 * 7 * 10


def test_tile_k_is_the_extent_of_a_tree():
    a, b = operands(k=16, m=20, n=20)
    small = matmul(a, b, "fp16", "fp16", "e5m4", tile=Tile(k=4), reduction="strided_tree").value
    large = matmul(a, b, "fp16", "fp16", "e5m4", tile=Tile(k=16), reduction="strided_tree").value
    assert not equal(small, large)
    ones = matmul(a, b, "fp16", "fp16", "bf16", tile=Tile(k=1), reduction="pairwise").value
    terms = [round_to(np.outer(a[:, k], b[k]), "bf16") for k in range(16)]
    expected = 0
    for term in terms:
        expected = round_to(expected + term, "bf16")
    assert equal(ones, expected)


# ---- operands, scales and store


def test_operands_are_rounded_and_the_result_is_stored_in_its_format():
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(6, 20)), rng.normal(size=(20, 5))
    low = round_to(a, "fp8_e4m3"), round_to(b, "fp8_e5m2")
    for out_format in (None, "bf16", "fp16"):
        found = matmul(a, b, "fp8_e4m3", "fp8_e5m2", "fp32", out_format)
        direct = matmul(*low, "fp64", "fp64", "fp32").value
        assert found.format.name == (out_format or "fp32")
        assert found.value.dtype == np.float32
        assert equal(found.value, round_to(direct, found.format))
    assert matmul(a, b, accumulator="fp16").format.name == "fp16"
    assert matmul(a, b, accumulator="fp64").value.dtype == np.float64


def test_operands_beyond_the_range_overflow_only_where_infinity_exists():
    a, b = np.array([[1e6]]), np.array([[1.0]])
    fp16, e4m3 = matmul(a, b, "fp16", "fp16"), matmul(a, b, "fp8_e4m3", "fp8_e4m3")
    assert (fp16.value[0, 0], e4m3.value[0, 0]) == (np.inf, 448)
    assert (fp16.counts.a.overflow, fp16.counts.a.saturation) == (1, 0)
    assert (e4m3.counts.a.overflow, e4m3.counts.a.saturation) == (0, 1)


@pytest.mark.parametrize("granularity", ["per_tensor", "per_token", "per_channel"])
def test_scaled_int8_equals_integer_arithmetic(granularity):
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(9, 70)).astype(np.float32), rng.normal(size=(70, 6)).astype(np.float32)
    found = matmul(
        a, b, "int8", "int8", "int32", None, Tile(), "sequential", granularity, granularity
    )
    axis = {"per_tensor": (0, 0), "per_token": (0, 1), "per_channel": (0, 1)}[granularity]
    kind = "per_tensor" if granularity == "per_tensor" else "per_channel"
    qa, qb = quantize(a, "int8", kind, axis[0]), quantize(b, "int8", kind, axis[1])
    sums = qa.codes.view(np.int8).astype(np.int64) @ qb.codes.view(np.int8).astype(np.int64)
    scale = (qa.scales * qb.scales).astype(np.float64)
    assert found.format.name == "fp32"
    assert equal(found.value, (sums * scale).astype(np.float32))
    assert found.counts.partial.overflow == 0


def test_block_scales_along_k_are_added_into_an_fp32_master():
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(5, 50)).astype(np.float32), rng.normal(size=(50, 4)).astype(np.float32)
    found = matmul(
        a, b, "fp8_e4m3", "fp8_e4m3", "bf16",
        out_format="fp32", a_granularity="per_block:1x16", b_granularity="per_block:2x32",
    )  # fmt: skip
    qa = quantize(a, "fp8_e4m3", "per_block:1x16")
    qb = quantize(b.T.copy(), "fp8_e4m3", "per_block:2x32")
    values_a, values_b = decode(qa.codes, "fp8_e4m3"), decode(qb.codes, "fp8_e4m3")
    expected = np.zeros((5, 4))
    for block in range(4):
        k = slice(16 * block, 16 * block + 16)
        sums = matmul(values_a[:, k], values_b[:, k].T, "fp32", "fp32", "bf16").value
        scale = qa.scales[:, block, None] * np.repeat(qb.scales[:, block // 2], 2)
        expected = (expected + sums.astype(np.float64) * scale).astype(np.float32)
    assert equal(found.value, expected)


def test_blas_is_exact_where_order_does_not_matter():
    rng = np.random.default_rng(7)
    a, b = rng.integers(-9, 9, (20, 300)), rng.integers(-9, 9, (300, 10))
    found = matmul(a, b, "int8", "int8", "blas_fp32")
    assert equal(found.value, (a @ b).astype(np.float32))
    assert found.counts.partial.total == 0


# ---- counts


def test_counts_say_where_values_were_lost():
    a = np.array([[300.0, 300.0, 1e-9]])
    b = np.array([[300.0], [1.0], [1.0]])
    found = matmul(a, b, "fp16", "fp16", "fp16", "fp8_e4m3")
    assert found.counts.a.underflow == 1
    assert found.counts.partial.overflow == 1
    assert found.counts.store.saturation == 1
    assert found.value[0, 0] == 448
    assert found.counts.total.total == 3 + 3 + 3 + 1
    nan = matmul([[np.inf, -np.inf]], [[1.0], [1.0]], "fp16", "fp16", "fp16")
    assert (nan.counts.partial.nan, nan.counts.store.nan, nan.counts.a.nan) == (1, 1, 0)
    assert matmul(a, b, counts=False).counts is None


def test_inexact_partial_sums_are_counted():
    counts = matmul(np.ones((1, 300)), np.ones((300, 1)), "bf16", "bf16", "bf16").counts
    assert (counts.partial.inexact, counts.partial.total) == (300 - 256, 300)


def test_a_long_format_does_not_lose_its_counts_of_nan():
    found = matmul([[np.inf, 1.0]], [[0.0], [1.0]], accumulator="fp64")
    assert found.counts.partial.nan == 2


# ---- arrays and errors


def test_empty_single_and_odd_shapes():
    for m, k, n in ((0, 3, 2), (2, 0, 3), (2, 3, 0), (1, 1, 1), (129, 1, 3), (5, 65, 2)):
        a, b = np.ones((m, k)), np.ones((k, n))
        for reduction in REDUCTIONS:
            found = matmul(a, b, "fp16", "fp16", "fp16", reduction=reduction)
            assert found.value.shape == (m, n)
            assert np.all(found.value == k)
        for granularity in ("per_tensor", "per_token", "per_block:1x16"):
            found = matmul(
                a, b, "int8", "int8", a_granularity=granularity, b_granularity=granularity
            )
            assert np.allclose(found.value, k, rtol=1e-6)
            assert found.value.shape == (m, n)


def test_layouts_do_not_matter_and_inputs_are_unchanged():
    a, b = operands(m=6, k=12, n=4)
    expected = matmul(a, b, "fp8_e4m3", "fp8_e4m3", "fp16").value
    wide = np.zeros((6, 24))
    wide[:, ::2] = a
    read_only = a.copy()
    read_only.flags.writeable = False
    for left in (wide[:, ::2], read_only, np.asfortranarray(a), a.tolist()):
        before = np.array(left)
        assert equal(matmul(left, b, "fp8_e4m3", "fp8_e4m3", "fp16").value, expected)
        matmul(left, b, "int8", "int8", a_granularity="per_token")
        assert np.array_equal(left, before)


def test_leading_axes_broadcast():
    a = np.stack([operands(seed)[0] for seed in range(3)])[:, None]
    b = np.stack([operands(seed)[1] for seed in range(2)])
    found = matmul(a, b, "fp16", "fp16", "fp16")
    assert found.value.shape == (3, 2, 4, 3)
    alone = matmul(a[2, 0], b[1], "fp16", "fp16", "fp16")
    assert equal(found.value[2, 1], alone.value)
    assert found.counts.partial.total == 6 * alone.counts.partial.total


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"b": np.ones((4, 2))}, r"inner dimensions differ: a is \(2, 3\) and b is \(4, 2\)"),
        ({"a": np.ones(3)}, r"a must have at least 2 axes, not shape \(3,\)"),
        ({"b": "no"}, "b: an array of real numbers is needed"),
        ({"a_format": "fp17"}, 'did you mean "fp16"'),
        ({"out_format": "fp17"}, 'did you mean "fp16"'),
        ({"accumulator": "fp33"}, 'accumulator: no format is called "fp33"'),
        ({"accumulator": "Hopper.fp6"}, 'Hopper has no unit "fp6"; it has fp64:fp64, tf32:fp32'),
        ({"accumulator": "Pascal.fp16"}, 'no architecture is called "Pascal"; valid are Volta'),
        ({"accumulator": "Hopper.fp16", "a_format": "fp32"}, "takes fp16, which cannot hold"),
        ({"accumulator": "Hopper.fp16", "reduction": "kahan"}, 'needs reduction "sequential"'),
        ({"accumulator": "e11m51"}, "at most 51 significand bits"),
        (
            {"reduction": "stream_k"},
            'no reduction order is called "stream_k"; valid are sequential',
        ),
        ({"reduction": "split_k:0"}, "n >= 1"),
        ({"reduction": "split_k:n"}, "n >= 1"),
        ({"tile": (2, 2, 2)}, "tile must be a Tile"),
        ({"a_granularity": "per_row"}, "no granularity is called"),
        ({"b_format": "e8m0", "b_granularity": "per_tensor"}, "e8m0 is not an integer format"),
        ({"b_format": "nvfp4", "b_granularity": "mx"}, "nvfp4 has its own scales"),
        ({"a_zero_point": 3}, "a_zero_point goes with codes of an integer format"),
        ({"a_format": "int8", "a_zero_point": 0.5}, "a_zero_point must be whole numbers"),
        ({"b_format": "int8", "b_zero_point": [[1, 2, 3]]}, "does not broadcast to"),
        ({"bias": np.ones(3)}, r"bias \(3,\) does not broadcast to the result \(2, 2\)"),
        ({"partial_format": "fp16"}, "partial_format is for the parts of"),
        ({"out": np.empty((2, 3), np.float32)}, "out must be an array of float32"),
        ({"accumulator": "nvfp4"}, "accumulator: nvfp4 is a block format"),
        ({"out_format": "nvfp4"}, "nvfp4 is a block format"),
        ({"accumulator": "blas_fp32", "reduction": "kahan"}, "sums in its own order"),
        ({"accumulator": Accumulator("fp16", 4), "reduction": "kahan"}, "every=4 needs"),
        ({"a": np.ones((2, 2, 3)), "b": np.ones((3, 3, 2))}, "do not broadcast"),
    ],
)
def test_unusable_requests_are_refused_in_one_line(arguments, said):
    with pytest.raises(MatmulError, match=said) as caught:
        matmul(**({"a": np.ones((2, 3)), "b": np.ones((3, 2))} | arguments))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_tiles_and_accumulators_need_positive_integers(size):
    with pytest.raises(MatmulError, match="integer of at least 1"):
        Tile(128, size, 64)
    with pytest.raises(MatmulError, match="integer of at least 1"):
        Accumulator("fp16", every=size)


def test_accumulators_take_formats_dtypes_and_modes():
    assert Accumulator(np.float16).format is get_format("fp16")
    assert matmul([[1.0]], [[1.0]], accumulator="torch.float16").format.name == "fp16"
    with pytest.raises(MatmulError, match='cannot round "up"'):
        Accumulator("fp16", rounding="up")
    with pytest.raises(MatmulError, match="a seed"):
        Accumulator("fp16", rounding="stochastic")
    with pytest.raises(MatmulError, match='cannot overflow to "nan"'):
        Accumulator("fp16", overflow="nan")


# ---- public cases


@pytest.mark.parametrize(("f", "n", "stuck"), [("bf16", 1000, 256), ("fp16", 5000, 2048)])
def test_case_4_sums_stagnate(f, n, stuck):
    ones = np.ones((1, n))
    assert matmul(ones, ones.T, f, f, f, counts=False).value == stuck
    assert matmul(ones, ones.T, f, f, "blas_fp32").value == n


@pytest.mark.parametrize(
    ("reduction", "total"), [("sequential", 1.0), ("pairwise", 0.0), ("strided_tree", 2.0)]
)
def test_case_6_the_order_of_a_sum_changes_it(reduction, total):
    x = np.array([[1e8, 1, -1e8, 1]], np.float32)
    assert matmul(x, np.ones((4, 1)), "fp32", "fp32", reduction=reduction).value == total


def test_case_10_and_11_through_matmul():
    rng = np.random.default_rng(10)
    x = rng.normal(size=(64, 512))
    x[:, 7] *= 100
    w = rng.normal(size=(512, 64)) * 0.05
    for granularity, expected in (("per_tensor", 16.95), ("per_token", 25.45)):
        found = matmul(
            x, w, "int8", "int8", "blas_fp32",
            a_granularity=granularity, b_granularity="per_channel",
        ).value  # fmt: skip
        exact = x @ w
        assert round(10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()), 2) == expected
    rng = np.random.default_rng(11)
    w = rng.normal(size=(16, 256)) * 2.0 ** -np.arange(16)[:, None]
    x = rng.normal(size=(256, 64))
    lost = matmul(w, x, "int8", "fp32", "blas_fp32", a_granularity="per_tensor").value
    assert np.count_nonzero(~lost.any(axis=1)) == 7
