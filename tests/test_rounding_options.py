"""Options of rounding: flush-to-zero, and random bits that are handed in."""

import numpy as np
import pytest

from mpcore.formats import FORMATS, FormatError, custom_format, decode, encode, get_format, round_to
from mpcore.formats.format import ROUNDING_MODES

MODES = [mode for mode in ROUNDING_MODES if mode != "stochastic"]
FLOATS = [name for name, f in FORMATS.items() if f.kind == "float" and f.has_zero]


def spread(n=20_000, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(n) * 2.0 ** rng.integers(-40, 20, n)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FLOATS)
def test_flushing_makes_zeros_of_subnormal_results_and_leaves_the_rest(name, mode):
    f, x = get_format(name), spread() * get_format(name).smallest_normal * 2.0**10
    plain, flushed = (round_to(x, f, mode, flush_subnormals=flag) for flag in (False, True))
    below = np.abs(plain) < f.smallest_normal
    assert 0 < below.sum() < x.size
    assert np.array_equal(flushed[~below], plain[~below]) and not flushed[below].any()
    sign = np.signbit(x[below]) & f.has_negative_zero
    assert np.array_equal(np.signbit(flushed[below]), sign)
    assert np.array_equal(decode(encode(x, f, mode, flush_subnormals=True), f), flushed)


def test_flushing_is_not_the_same_as_a_format_without_subnormals():
    """The first cuts off what is too small, the second rounds it: up, from halfway on."""
    x = np.float32(0.75 * 2.0**-14)
    without = custom_format(5, 10, subnormals=False)
    assert round_to(x, "fp16", flush_subnormals=True) == 0
    assert round_to(x, without) == np.float32(2.0**-14)


def test_given_random_bits_decide_each_value():
    f, n = get_format("fp8_e4m3"), 200_000
    bits = np.random.default_rng(3).integers(0, 2**16, n, dtype=np.uint16)
    x = np.random.default_rng(4).uniform(1, 2, n).astype(np.float32)
    low, high = round_to(x, f, "toward_zero"), round_to(x, f, "toward_positive")
    share = (x - low) * 8
    expected = np.where(bits / 2**16 < share, high, low)
    assert np.array_equal(round_to(x, f, "stochastic", rng=bits), expected)
    again = round_to(x.reshape(400, 500), f, "stochastic", rng=bits.reshape(400, 500))
    assert np.array_equal(again.reshape(-1), expected)
    assert abs((expected - x).mean()) < 4 * (expected - x).std() / np.sqrt(n)
    assert np.array_equal(decode(encode(x, f, "stochastic", rng=bits), f), expected)


@pytest.mark.parametrize(
    "bits", [np.zeros(3, np.int64), np.zeros(4, np.uint8), np.zeros((3, 1), np.uint32)]
)
def test_random_bits_must_fit_the_values(bits):
    with pytest.raises(FormatError, match="random bits must be unsigned integers of shape"):
        round_to(np.ones(3), "bf16", "stochastic", rng=bits)
