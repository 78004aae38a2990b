"""What counts as a number, what a verdict says in a line, and that its picture says the same."""

from __future__ import annotations

import warnings
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from test_exercises import doubled

from mpcore.errors import InputError
from mpcore.workbook.exercise import Wrong, agree, exercise

WRONG = [Wrong(lambda x: x, "a"), Wrong(lambda x: -x, "b"), Wrong(lambda x: 3 * x, "c")]


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("MPCORE_NOTEBOOKS", str(tmp_path))


@exercise(
    "test",
    lambda rng: {"x": int(rng.integers(1, 9))},
    WRONG,
    ["halve it"],
    "y",
    telling=[{"x": 7}],
    tolerance=0.01,
)
def halved(x):
    """Half of x."""
    return x / 2


@exercise("test", lambda rng: {"x": rng.integers(1, 9, 100)}, WRONG, ["add"], "y", [])
def one_more(x):
    """x and 1."""
    return x + 1


@pytest.mark.parametrize(
    "half",
    [
        ml_dtypes.bfloat16(0.5),
        ml_dtypes.float8_e4m3fn(0.5),
        Fraction(1, 2),
        Decimal("0.5"),
        np.longdouble(0.5),
        np.float16(0.5),
        np.array(0.5),
        np.array(Fraction(1, 2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_holds_a_number_is_one(half):
    assert agree(half, 0.5)
    assert agree((half, 2), [0.5, 2])
    assert agree([half, half], np.array([0.5, 0.5]))
    assert not agree(half, 0.25)
    assert not agree([half], 0.5)


@pytest.mark.parametrize(
    "value", ["1", b"1", None, [1, None], ["1"], 1j, {}, [[1], [2, 3]], np.void(b"abc"), [[], 1]]
)
def test_what_is_no_number_agrees_with_none(value):
    assert not agree(value, 1)
    assert not agree(value, np.array([1.0]))


def test_numbers_beyond_a_float_are_infinite():
    assert agree([10**400, -(10**400)], [np.inf, -np.inf])
    with warnings.catch_warnings(action="error"):
        assert agree(np.longdouble("1e400"), np.inf)


def test_a_buffer_that_is_filled_again_counts_as_it_was_returned():
    buffer = np.zeros(4)

    def into_the_buffer(x):
        np.multiply(x, 2, out=buffer)
        return buffer

    assert doubled.check(into_the_buffer).outcome == "correct"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda x: np.array([x]), "the shape [1], not one number"),
        (lambda x: np.array(2 * x), "yours is 14 where 3.5 is right"),
        (lambda x: np.int64(2 * x), "yours is 14 where 3.5 is right"),
        (lambda x: x > 0, "yours is True where 3.5 is right"),
        (lambda x: np.array("a"), "an array of dtype <U1 and shape [], not a number"),
        (lambda x: [x, "a"], "a list of length 2 that is no array of numbers, not a number"),
        (lambda x: 1j, "a complex, not a number"),
        (lambda x: Fraction(2 * x), "yours is 14 where 3.5 is right"),
    ],
)
def test_a_line_names_what_came_and_what_was_asked_for(answer, said):
    assert said in halved.check(answer).reason


def test_an_array_of_no_numbers_is_told_from_one_of_numbers():
    said = doubled.check(lambda x: np.array(["a"] * 4)).reason
    assert "returns an array of dtype <U1 and shape [4], not an array of 4 numbers" in said
    assert "your result is one number, not an array of 4" in doubled.check(lambda x: 2).reason


def nan_for_odd(x):
    return np.nan if x % 2 else x / 2


def test_nan_where_a_number_is_right_is_marked():
    verdict = halved.check(nan_for_odd)
    svg, caption = verdict.picture()
    odd = verdict.right.count(False)
    assert 0 < odd == svg.count("✗ NaN")
    assert f"{21 - odd} of 21 instances agree" in caption


def near_for_small(x):
    return x / 2 * 1.001 if x < 5 else x


def test_line_picture_and_caption_count_the_same_within_the_tolerance():
    verdict = halved.check(near_for_small)
    agreed = f"{sum(verdict.right)} of 21 instances agree"
    svg, caption = verdict.picture()
    assert 0 < sum(verdict.right) < 21
    assert agreed in verdict.reason and agreed in caption and agreed in svg
    assert svg.count("✗") == 21 - sum(verdict.right)


def test_the_picture_of_many_places_shows_the_first_that_differs():
    def last_left_out(x):
        return np.append(x[:-1] + 1, x[-1])

    verdict = one_more.check(last_left_out)
    assert "at place 99," in verdict.reason
    svg, caption = verdict.picture()
    assert "35 of 36 places from 64 on of instance 0 agree" in caption
    assert svg.count("✗") == 1


@pytest.mark.parametrize("value", [5e-324, 1e308, -1e308, np.longdouble("1e400"), np.nan, 0.0])
def test_a_picture_of_any_number_comes_without_warnings(value):
    def at_times(x):
        return value if x % 2 else -1e308 if x == 2 else 5e-324

    with warnings.catch_warnings(action="error"):
        assert '"nan"' not in halved.check(at_times)._repr_html_()


@pytest.mark.parametrize("seed", [-1, "a", None, 1.5, "x" * 999])
def test_a_seed_that_is_none_is_refused_in_one_line(seed):
    with pytest.raises(InputError, match="must be a whole number from 0 on") as error:
        halved.check(halved.reference, seed)
    assert "\n" not in str(error.value) and len(str(error.value)) < 120


def test_numpy_integers_are_seeds():
    assert halved.check(halved.reference, np.int64(3)).outcome == "correct"


def test_a_function_that_leaves_is_told_so_and_an_interrupt_interrupts():
    def leaves(x):
        raise SystemExit

    def interrupted(x):
        raise KeyboardInterrupt

    assert "raises SystemExit" in halved.check(leaves).reason
    with pytest.raises(KeyboardInterrupt):
        halved.check(interrupted)
