"""The compiled engine equals the NumPy one: values to the last bit, and every count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcore.formats import encode, get_format, round_to
from mpcore.matmul import Accumulator, Tile, engine, matmul, mma
from mpcore.matmul.accumulate import Rounder, UnitRounder
from mpcore.matmul.accumulators import get_accumulator

pytest.importorskip("numba")

FORMATS = ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1", "int8", "e5m7"]
ACCUMULATORS = ["fp16", "bf16", "fp32", "tf32", "e5m7", "e6m9", "fp8_e5m2"]
UNITS = [
    "Volta.fp16",
    "Turing.fp16:fp16",
    "Ampere.fp16",
    "Ampere.bf16",
    "Ampere.tf32",
    "Ada.fp8",
    "Ada.fp8:fp16",
    "Hopper.fp16",
    "Hopper.fp16:fp16",
    "Hopper.bf16",
    "Hopper.fp8",
    "Hopper.fp8:fp16",
    "Hopper.tf32",
    "Blackwell.fp8",
    "RTX Blackwell.fp8:fp16",
]


def test_the_kernels_are_there_where_numba_is():
    assert engine.kernels() is not None


def operands(f, shape, seed, spread=0, special=False):
    """Random values of a format: normal, or spread over binades; some zero, some cancelling."""
    rng, f = np.random.default_rng(seed), get_format(f)
    m, depth, n = shape

    def draw(rows, columns):
        x = rng.standard_normal((rows, columns)) * 2.0 ** rng.uniform(-spread, spread, (rows, 1))
        x[rng.random(x.shape) < 0.1] = 0
        x = round_to(x, f, overflow=f.natural_overflow).astype(np.float32)
        if special and f.has_infinity:
            x[rng.random(x.shape) < 0.01] = rng.choice([np.inf, -np.inf, np.nan])
        return x

    a, b = draw(m, depth), draw(depth, n)
    if depth > 2:
        b[1] = -b[0]
    return a, b


def both(rounder, a, b):
    """(values, counts) of the compiled and of the NumPy engine."""
    fast, slow = rounder(), rounder()
    found = fast.compiled(a, b)
    with np.errstate(all="ignore"):
        expected = slow.in_numpy(a.astype(np.float64), b.astype(np.float64))
    return found, (expected, slow.counts)


def assert_same(found, expected):
    (c, counts), (d, expected_counts) = found, expected
    assert np.array_equal(c, d)
    assert np.array_equal(np.signbit(c), np.signbit(d))
    assert counts == expected_counts


@pytest.mark.parametrize("every", [1, 3, 8, 40])
@pytest.mark.parametrize(
    ("accumulator", "overflow"),
    [
        *((name, "infinity") for name in [*ACCUMULATORS, "fp4_e2m1"]),
        *((name, "saturate") for name in ["fp16", "bf16", "fp8_e4m3", "fp6_e3m2", "fp4_e2m1"]),
    ],
)
def test_sums_through_an_accumulator_equal_those_of_numpy(accumulator, overflow, every):
    accumulator = Accumulator(accumulator, every=every, overflow=overflow)
    compared = 0
    for seed, f in enumerate(FORMATS):
        for spread in (0, 6):
            a, b = operands(f, (7, 83, 37), seed, spread)
            found, expected = both(lambda: Rounder(accumulator, True, True), a, b)
            if found is not None:
                assert_same(found, expected)
                uncounted, _ = engine.rounded_sum(a, b, accumulator, False)
                assert np.array_equal(uncounted, expected[0])
                compared += 1
    assert compared >= len(FORMATS)


@pytest.mark.parametrize("unit", UNITS)
def test_sums_of_a_unit_equal_those_of_numpy(unit):
    unit = get_accumulator(unit)
    inputs = ["e4m3", "e5m2"] if unit.input == "fp8" else [unit.input]
    for f in inputs:
        for seed, spread in enumerate((0, 3, 9)):
            a, b = operands(f, (7, 83, 37), seed, spread)
            found, expected = both(
                lambda f=f: UnitRounder(unit, get_format(f), get_format(f), True), a, b
            )
            assert_same(found, expected)
            instruction = unit.instruction(get_format(f), get_format(f))
            uncounted, _ = engine.aligned_sum(a, b, instruction, False)
            assert np.array_equal(uncounted, expected[0])


@pytest.mark.parametrize("accumulator", ["e9m5", "e10m10", "e11m5"])
@pytest.mark.parametrize("every", [1, 2, 8])
@pytest.mark.parametrize("scale", [1, 2.0**-62])
def test_exponents_beyond_those_of_float32_keep_their_bits(accumulator, every, scale):
    a, b = operands("bf16", (9, 64, 40), every)
    a, b = a * np.float32(scale), b * np.float32(scale)
    a[2], b[:, 3] = 0, 0
    fast = matmul(a, b, "bf16", "bf16", Accumulator(accumulator, every=every))
    c = np.zeros((9, 40))
    for k in range(0, 64, every):  # so few bits add up without error in float64
        step = a[:, k : k + every].astype("f8") @ b[k : k + every].astype("f8")
        c = round_to(c + step, accumulator)
    assert np.array_equal(fast.value, c)
    assert scale == 1 or np.any((c != 0) & (np.abs(c) < 2.0**-126))


@pytest.mark.parametrize("depth", [1, 3, 8, 24, 33])
@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.endswith(":fp16")])
def test_a_unit_fills_its_last_instruction_up_with_zeros(unit, depth):
    """What rounds to -0 in the first half of an instruction becomes +0 in the second."""
    unit = get_accumulator(unit)
    f = get_format("e5m2" if unit.input == "fp8" else unit.input)
    a, b = (
        np.full(shape, 2.0**f.tiny_exponent, np.float32) for shape in ((64, depth), (depth, 64))
    )
    a[::2] *= -1
    found, expected = both(lambda: UnitRounder(unit, f, f, True), a, b)
    assert_same(found, expected)


@pytest.mark.parametrize("every", [2, 8, 16])
def test_what_float32_loses_decides_the_sign_of_a_zero(every):
    """A hair is lost in a product's neighbour, which then cancels; alone it rounds to a zero."""
    accumulator = Accumulator("fp16", every=every)
    rng = np.random.default_rng(every)
    a, b = rng.choice([-1, 1], (64, 1)) * np.ones((64, 2 * every)), np.zeros((2 * every, 96))
    b[0] = 2.0**-6 * rng.choice([-1, 1], 96)
    b[every], b[every + 1] = -b[0], 2.0**-33 * rng.choice([-1, 1], 96)
    a, b = a.astype(np.float32), b.astype(np.float32)
    found, expected = both(lambda: Rounder(accumulator, True, True), a, b)
    assert_same(found, expected)
    uncounted, _ = engine.rounded_sum(a, b, accumulator, False)
    assert not uncounted.any()
    assert np.array_equal(np.signbit(uncounted), np.signbit(a[:, :1] * b[every + 1]))


@given(
    st.sampled_from(FORMATS),
    st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 70)),
    st.integers(0, 2**32 - 1),
    st.sampled_from([*ACCUMULATORS, "Hopper.fp16", "Ampere.fp16"]),
    st.sampled_from([1, 2, 8]),
    st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_matmul_is_the_same_with_and_without_kernels(f, shape, seed, accumulator, every, special):
    if "." in accumulator:
        f = "fp16"
    else:
        accumulator = Accumulator(accumulator, every=every)
    a, b = operands(f, shape, seed, seed % 5, special)
    fast = matmul(a, b, f, f, accumulator)
    kernels, engine.kernels = engine.kernels, lambda: None
    try:
        slow = matmul(a, b, f, f, accumulator)
    finally:
        engine.kernels = kernels
    assert np.array_equal(fast.value, slow.value, equal_nan=True)
    assert fast.counts == slow.counts


@pytest.mark.parametrize("accumulator", ["fp16", "Hopper.fp16", "Hopper.fp16:fp16"])
def test_an_accumulator_that_overflows_stays_infinite(accumulator):
    a, b = operands("fp16", (9, 96, 40), 5, 9)
    a, b = round_to(a * 4096, "fp16", overflow="infinity"), np.abs(b)
    a[~np.isfinite(a)] = 65504
    fast = matmul(a, b * 512, "fp16", "fp16", accumulator)
    kernels, engine.kernels = engine.kernels, lambda: None
    try:
        slow = matmul(a, b * 512, "fp16", "fp16", accumulator)
    finally:
        engine.kernels = kernels
    assert np.isinf(fast.value).any() or accumulator == "Hopper.fp16"
    assert np.array_equal(fast.value, slow.value, equal_nan=True)
    assert fast.counts == slow.counts


@pytest.mark.parametrize("every", [1, 3, 8, 16])
@pytest.mark.parametrize("accumulator", ["fp16", "bf16", "fp8_e5m2", "e5m7", "e8m11"])
def test_sums_a_hair_from_a_tie_or_a_value_round_like_exact_ones(accumulator, every):
    """v + half a step, or nothing, + a hair that float32 loses, in any order and as a product."""
    accumulator = Accumulator(accumulator, every=every)
    half = 2.0**-accumulator.format.precision
    rng = np.random.default_rng(every)
    for _ in range(8):
        a, b = np.ones((6, 16), np.float32), np.zeros((16, 96), np.float32)
        places = rng.permutation(3) if every == 3 else rng.permutation(min(every, 8))
        first, second, third = places[:3] if every > 1 else (0, 1, 2)
        b[first] = round_to(rng.uniform(1, 2, 96), accumulator.format)
        b[second] = half * rng.choice([-1, 0, 1], 96)
        b[third] = rng.choice([-1, 0, 1], 96) * 2.0 ** -rng.integers(22, 32)
        hair = 2.0 ** -rng.integers(3, 8)
        a[:, second], b[second] = 1 + hair, b[second] * (1 - rng.choice([0, 1]) * hair)
        a[:, second] = 1 if rng.random() < 0.5 else a[:, second]
        a *= rng.choice([-1, 1], (6, 1))
        found, expected = both(lambda: Rounder(accumulator, True, True), a, b)
        assert_same(found, expected)
        uncounted, _ = engine.rounded_sum(a, b, accumulator, False)
        assert np.array_equal(uncounted, expected[0])


@pytest.mark.parametrize("every", [1, 8])
def test_sums_that_become_nan_are_left_to_numpy(every):
    a = np.full((16, 64), 16.0)
    found = matmul(a, a.T, "fp16", "fp16", Accumulator("fp8_e4m3", every=every))
    assert np.isnan(found.value).all() and found.counts.partial.nan > 0
    in_range = matmul(a / 64, a.T, "fp16", "fp16", Accumulator("fp8_e4m3", every=every))
    assert np.isfinite(in_range.value).all()


@pytest.mark.parametrize("every", [1, 2, 8])
def test_what_rounds_down_to_the_largest_half_is_saturated(every):
    a, b = np.zeros((64, 8)), np.ones((8, 64))
    a[:, 0], a[0, 1], a[1, 1] = 65504, 15, 16
    found = matmul(a, b, "fp16", "fp16", Accumulator("fp16", every=every))
    assert np.all(found.value[0] == 65504) and np.all(found.value[1] == np.inf)
    assert (found.counts.partial.saturation, found.counts.partial.overflow) == (64, 64)


@pytest.mark.parametrize("accumulator", ["fp16", "bf16", "fp4_e2m1"])
@pytest.mark.parametrize("every", [1, 8, 16])
def test_negative_zeros_add_up_to_a_negative_zero(accumulator, every):
    a, b = np.zeros((16, 64)), np.full((64, 32), -1.0)
    a[:, 0], b[0] = 2.0**-70, -(2.0**-70)
    found = matmul(a, b, "bf16", "bf16", Accumulator(accumulator, every=every)).value
    assert not found.any() and np.signbit(found).all()


def test_a_sum_that_float32_would_round_to_2_to_the_31_is_cut():
    """In units of the last bit kept: 16 products and c make 2**31 - 10."""
    a, b = np.zeros((8, 32)), np.zeros((32, 64))
    a[:, 0], b[0] = 2.0**-2, 2.0**-2
    a[:, 1], b[1] = -522 * 2.0**-13, 2.0**-12
    a[:, 16:] = b[16:] = 2 - 2.0**-10
    assert np.all(matmul(a, b, accumulator="Hopper.fp16").value == 64 - 2.0**-18)


def test_half_arithmetic_of_the_processor_equals_the_emulated_one(monkeypatch):
    a, b = operands("fp16", (33, 200, 65), 3)
    accumulator = Accumulator("fp16")
    native = engine.rounded_sum(a, b, accumulator, True)
    monkeypatch.setattr(engine, "has_half_arithmetic", lambda: False)
    emulated = engine.rounded_sum(a, b, accumulator, True)
    assert np.array_equal(native[0], emulated[0]) and native[1] == emulated[1]


def test_a_large_matmul_equals_the_chained_instruction_and_the_rank_1_loop():
    rng = np.random.default_rng(1)
    a, b = (round_to(rng.standard_normal((192, 192)), "fp16") for _ in "ab")
    unit = matmul(a, b, "fp16", "fp16", "Hopper.fp16", counts=False).value
    names = {"arch": "Hopper", "kind": "wgmma", "qualifier": "m64n8k16.f32.f16.f16"}
    assert np.array_equal(encode(unit, "fp32"), mma(encode(a, "fp16"), encode(b, "fp16"), **names))
    for every in (1, 8):
        c = np.zeros((192, 192))
        for k in range(0, 192, every):  # the products of 22 bits are exact in longdouble sums
            step = a[:, k : k + every].astype(np.longdouble) @ b[k : k + every].astype(
                np.longdouble
            )
            c = round_to((c + step).astype(np.float64), "fp16").astype(np.float64)
        ours = matmul(a, b, "fp16", "fp16", Accumulator("fp16", every=every), counts=False).value
        assert np.array_equal(ours, c)


@pytest.mark.parametrize("accumulator", ["fp16", "bf16", "Hopper.fp16"])
def test_rows_and_columns_can_be_permuted_and_the_tile_does_not_matter(accumulator):
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((40, 70)), rng.standard_normal((70, 50))
    rows, columns = rng.permutation(40), rng.permutation(50)
    whole = matmul(a, b, "fp16", "fp16", accumulator).value
    moved = matmul(a[rows], b[:, columns], "fp16", "fp16", accumulator, tile=Tile(8, 8, 8)).value
    assert np.array_equal(moved, whole[rows][:, columns])


def test_inputs_of_any_layout_are_left_as_they_are():
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((64, 64)).astype("f4"), rng.standard_normal((64, 64)).astype("f4")
    usual = matmul(a, b, "fp16", "fp16", "Hopper.fp16").value
    for left in (a, np.asfortranarray(a), np.repeat(a, 2, 1)[:, ::2]):
        left.flags.writeable = False
        before = left.copy()
        assert np.array_equal(matmul(left, b, "fp16", "fp16", "Hopper.fp16").value, usual)
        assert np.array_equal(left, before)
