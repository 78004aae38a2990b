"""Options of a matmul: zero points, intermediates, partial formats, bias, blocks, out."""

import numpy as np
import pytest

import mpcore as mp
from mpcore.formats import round_to, split_blocks
from mpcore.matmul import accumulate, engine
from mpcore.matmul.accumulators import Accumulator


def integers(shape, low, high, seed=0):
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.float32)


def without_kernels(monkeypatch):
    monkeypatch.setattr(engine, "kernels", lambda: None)


UNSIGNED_BY_SIGNED = {"a_format": "uint8", "b_format": "int8"}
VPMADDUBSW = Accumulator("int32", every=2, intermediate="int16")


def saturating_pairs(a, b):
    """x86's vpmaddubsw, vpmaddwd and vpaddd on whole numbers."""
    a, b = a.astype(np.int64), b.astype(np.int64)
    total = np.zeros((len(a), b.shape[1]), np.int64)
    for k in range(0, a.shape[1], 2):
        total += np.clip(a[:, k : k + 2] @ b[k : k + 2], -(2**15), 2**15 - 1)
    return total


@pytest.mark.parametrize("shape", [(3, 8, 5), (33, 65, 40), (1, 1, 1), (70, 200, 64)])
def test_pairs_saturate_in_16_bits_as_on_x86(monkeypatch, shape):
    m, k, n = shape
    a, b = integers((m, k), 0, 256), integers((k, n), -128, 128, 1)
    expected = saturating_pairs(a, b)
    found = mp.matmul(a, b, accumulator=VPMADDUBSW, **UNSIGNED_BY_SIGNED)
    assert np.array_equal(found.value, expected)
    without_kernels(monkeypatch)
    slow = mp.matmul(a, b, accumulator=VPMADDUBSW, **UNSIGNED_BY_SIGNED)
    assert np.array_equal(slow.value, expected) and slow.counts == found.counts
    if k > 8:
        assert found.counts.partial.saturation > 0
        exact = mp.matmul(a, b, accumulator="int32", **UNSIGNED_BY_SIGNED)
        assert np.array_equal(exact.value, a.astype(int) @ b.astype(int))
        assert not np.array_equal(exact.value, expected)


@pytest.mark.parametrize("accumulator", ["int32", "fp32", "fp64", "blas_fp32", VPMADDUBSW])
def test_zero_points_come_off_the_sum(accumulator):
    a, b = integers((20, 31), 0, 128), integers((31, 24), -64, 64, 1)
    za, zb = integers((20, 1), 0, 128, 2), integers((1, 24), -64, 64, 3)
    exact = ((a - za).astype(int)) @ ((b - zb).astype(int))
    options = {"accumulator": accumulator, "a_zero_point": za, "b_zero_point": zb}
    found = mp.matmul(a, b, **options, **UNSIGNED_BY_SIGNED).value
    assert np.array_equal(found, exact)
    residual = mp.matmul(a, b, **options, **UNSIGNED_BY_SIGNED, zero_point_correction=False).value
    assert np.array_equal(residual, a.astype(int) @ b.astype(int))
    one = mp.matmul(a, b, accumulator="int32", a_zero_point=7, **UNSIGNED_BY_SIGNED).value
    assert np.array_equal(one, (a - 7).astype(int) @ b.astype(int))


def test_zero_points_of_a_batch_belong_to_its_matrices():
    a, b = integers((3, 4, 6), 0, 256), integers((6, 5), -128, 128)
    za = integers((3, 1, 1), 0, 256, 1)
    found = mp.matmul(a, b, accumulator="int32", a_zero_point=za, **UNSIGNED_BY_SIGNED).value
    assert np.array_equal(found, (a - za).astype(int) @ b.astype(int))


@pytest.mark.parametrize("granularity", ["per_tensor", "per_token", "per_block:1x16"])
def test_an_unsigned_format_with_a_granularity_has_zero_points_from_the_data(granularity):
    rng = np.random.default_rng(5)
    a = rng.standard_normal((12, 64)).astype(np.float32) + 2
    b = rng.standard_normal((64, 9)).astype(np.float32)
    q = mp.quantize(a, "uint8", granularity, symmetric=False)
    w = mp.quantize(b, "int8", "per_channel", axis=1)
    expected = q.dequantize().astype(float) @ w.dequantize().astype(float)
    options = {"a_granularity": granularity, "b_granularity": "per_channel"}
    found = mp.matmul(a, b, accumulator="int32", **options, **UNSIGNED_BY_SIGNED)
    assert np.allclose(found.value, expected, rtol=2e-6, atol=2e-5)
    assert found.counts.a.inexact > 0 and found.counts.partial.saturation == 0
    uncorrected = mp.matmul(
        a, b, accumulator="int32", **options, **UNSIGNED_BY_SIGNED, zero_point_correction=False
    )
    assert np.abs(uncorrected.value - expected).max() > 1


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp4", "mxint8", "nvfp4", "fp8_e4m3_block128"])
def test_block_formats_lie_along_k(name):
    rng = np.random.default_rng(6)
    a = rng.standard_normal((40, 96)).astype(np.float32)
    b = rng.standard_normal((96, 50)).astype(np.float32)
    found = mp.matmul(a, b, a_format=name, b_format=name, accumulator="fp64")
    held = round_to(a, name).astype(float) @ round_to(b.T, name).T.astype(float)
    assert np.allclose(found.value, held, rtol=3e-6, atol=3e-6)
    element = split_blocks(a, name).format.element
    assert found.counts.a.total == a.size
    if name != "fp8_e4m3_block128":
        granularity = "nvfp4" if name == "nvfp4" else "mx"
        options = {"a_granularity": granularity, "b_granularity": granularity}
        again = mp.matmul(a, b, a_format=element, b_format=element, accumulator="fp64", **options)
        assert np.array_equal(again.value, found.value) and again.counts == found.counts


def test_a_split_k_may_store_its_parts_in_another_format():
    rng = np.random.default_rng(7)
    a, b = (round_to(rng.standard_normal(s) * 30, "fp16") for s in ((70, 256), (256, 66)))
    options = {"a_format": "fp16", "b_format": "fp16", "reduction": "split_k:4"}
    parts = [
        mp.matmul(a[:, k : k + 64], b[k : k + 64], a_format="fp16", b_format="fp16").value
        for k in range(0, 256, 64)
    ]
    expected = np.zeros((70, 66), np.float32)
    for part in parts:
        expected = expected + round_to(part, "fp16", overflow="infinity").astype(np.float32)
    found = mp.matmul(a, b, partial_format="fp16", **options)
    plain = mp.matmul(a, b, **options)
    assert np.array_equal(found.value, expected)
    assert found.counts.partial.inexact > plain.counts.partial.inexact
    assert np.array_equal(plain.value, ((parts[0] + parts[1]) + parts[2]) + parts[3])


@pytest.mark.parametrize("accumulator", ["fp16", "fp32", "Hopper.fp16", Accumulator("bf16", 8)])
def test_parts_of_a_split_k_are_added_in_the_format_of_the_accumulator(accumulator):
    """At a size at which kernels sum the parts, too."""
    rng = np.random.default_rng(8)
    a, b = (round_to(rng.standard_normal(s), "fp16") for s in ((64, 256), (256, 64)))
    options = {"a_format": "fp16", "b_format": "fp16", "accumulator": accumulator}
    found = mp.matmul(a, b, reduction="split_k:2", **options)
    halves = [
        mp.matmul(a[:, k : k + 128], b[k : k + 128], **options).value.astype(float)
        for k in (0, 128)
    ]
    assert np.array_equal(found.value, round_to(halves[0] + halves[1], found.format))


@pytest.mark.parametrize("accumulator", ["fp16", "fp32", "blas_fp32", "Hopper.fp16"])
def test_a_bias_is_added_before_the_store_with_one_rounding(accumulator):
    rng = np.random.default_rng(9)
    a, b = (round_to(rng.standard_normal(s), "fp16") for s in ((2, 17, 32), (32, 20)))
    bias = rng.standard_normal(20)
    options = {"a_format": "fp16", "b_format": "fp16", "accumulator": accumulator}
    plain = mp.matmul(a, b, **options)
    found = mp.matmul(a, b, bias=bias, out_format="bf16", **options)
    held = round_to(plain.value.astype(float) + bias, plain.format)
    assert np.array_equal(found.value, round_to(held, "bf16"))
    assert found.counts.partial.total == plain.counts.partial.total + found.value.size


def test_the_result_is_written_into_out():
    rng = np.random.default_rng(10)
    a, b = (rng.standard_normal((3, 12, 12)).astype(np.float32) for _ in range(2))
    expected = mp.matmul(a, b, accumulator="bf16").value
    out = np.empty((3, 12, 12), np.float32)
    found = mp.matmul(a, b, accumulator="bf16", out=out)
    assert found.value is out and np.array_equal(out, expected)
    kept = b.copy()
    found = mp.matmul(a, b, accumulator="bf16", out=a)  # over an operand
    assert found.value is a and np.array_equal(a, expected) and np.array_equal(b, kept)


def test_an_accumulator_may_flush_subnormal_sums():
    a = np.array([[2.0**-10, -(2.0**-11)]])
    b = np.array([[2.0**-5], [2.0**-5]])
    options = {"a_format": "fp16", "b_format": "fp16"}
    plain = mp.matmul(a, b, accumulator="fp16", **options)
    flushed = mp.matmul(a, b, accumulator=Accumulator("fp16", flush_subnormals=True), **options)
    assert plain.value == 2.0**-16 and plain.counts.partial.underflow == 0
    assert flushed.value == 0 and flushed.counts.partial.underflow == 2


def test_a_stochastic_accumulator_is_reproducible_and_right_on_average():
    ones = np.ones((200, 1024), np.float32)
    accumulator = Accumulator("bf16", rounding="stochastic", seed=1)
    first, again = (mp.matmul(ones, ones[:1].T, accumulator=accumulator).value for _ in range(2))
    assert np.array_equal(first, again) and len(np.unique(first)) > 10
    assert abs(first.mean() - 1024) < 4 * first.std() / np.sqrt(200)
    other = Accumulator("bf16", rounding="stochastic", seed=2)
    assert not np.array_equal(mp.matmul(ones, ones[:1].T, accumulator=other).value, first)
    stuck = mp.matmul(ones, ones[:1].T, accumulator="bf16").value
    assert np.all(stuck == 256)


@pytest.mark.parametrize("accumulator", ["int32", "fp32", "fp16", "fp64", "bf16"])
@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero", "toward_negative"])
def test_sums_that_nothing_can_round_are_the_same_by_blas_and_by_the_loop(
    monkeypatch, accumulator, mode
):
    if accumulator == "fp64" and mode != "nearest_even":
        accumulator = "fp32"
    a, b = integers((33, 16), -3, 4), integers((16, 35), -3, 4, 1)
    a[3], b[:, 4] = 0, -0.0
    options = {"accumulator": Accumulator(accumulator, rounding=mode), "a_format": "int4"}
    found = mp.matmul(a * 2.0**-3 if accumulator != "int32" else a, b, **options)
    without_kernels(monkeypatch)
    slow = mp.matmul(a * 2.0**-3 if accumulator != "int32" else a, b, **options)
    assert np.array_equal(found.value, slow.value) and found.counts == slow.counts
    assert np.array_equal(np.signbit(found.value), np.signbit(slow.value))
    assert accumulate.rounded_sum is engine.rounded_sum
