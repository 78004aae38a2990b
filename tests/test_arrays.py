"""What formats are given: arrays that lie in memory in any way, and what is no array at all."""

from __future__ import annotations

import numpy as np
import pytest

from mpcore.formats import FormatError, encode, get_format, round_to


@pytest.mark.parametrize("size", [1000, 40_000])
def test_values_are_rounded_however_they_lie_in_memory(size):
    """Below and above the size from which compiled kernels work."""
    x = np.random.default_rng(2).standard_normal(2 * size).astype(np.float32)
    square = x[: (size // 100) * 100].reshape(-1, 100)
    for view in (x[::2], x[::-1], square[::-1, ::-1], square.T, np.broadcast_to(x[:1], (size,))):
        expected = round_to(view.copy(), "bf16")
        np.testing.assert_array_equal(round_to(view, "bf16"), expected)
        np.testing.assert_array_equal(encode(view, "bf16"), encode(view.copy(), "bf16"))
        out = np.empty(view.shape[::-1], np.float32).T
        np.testing.assert_array_equal(round_to(view, "bf16", out=out), expected)


@pytest.mark.parametrize("size", [1000, 40_000])
@pytest.mark.parametrize("shift", [1, -1])
def test_an_output_that_overlaps_its_input_is_right(size, shift):
    buffer = np.random.default_rng(2).standard_normal(size + 1).astype(np.float32)
    source, out = (buffer[:-1], buffer[1:]) if shift > 0 else (buffer[1:], buffer[:-1])
    expected = round_to(source.copy(), "fp8_e4m3")
    assert round_to(source, "fp8_e4m3", out=out) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("size", [10, 40_000])
def test_a_read_only_output_is_refused(size):
    out = np.zeros(size, np.float32)
    out.flags.writeable = False
    with pytest.raises(FormatError, match="out is read-only"):
        round_to(np.ones(size, np.float32), "bf16", out=out)


@pytest.mark.parametrize(
    "x", [10**400, [[1], [2, 3]], None, [1.0, None], "1", np.array(["2020-01-01"], "M8[D]"), {}]
)
def test_what_is_no_array_of_numbers_is_refused_in_one_line(x):
    for call in (lambda: round_to(x, "bf16"), lambda: encode(x, "bf16")):
        with pytest.raises(FormatError, match="an array of real numbers is needed") as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"rounding": ["a"]}, {"overflow": [1]}, {"rounding": "stochastic", "rng": 5}]
)
def test_modes_of_another_type_are_refused(options):
    with pytest.raises(FormatError):
        round_to(1.0, "bf16", **options)


def test_digits_of_other_scripts_name_no_format():
    with pytest.raises(FormatError):
        get_format("e\u0663m3")
