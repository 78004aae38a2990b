"""One number under the magnifying glass: its code, its neighbours, its error."""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isfinite, isinf, isnan, nan

import numpy as np

from mpcore.formats.codes import decode, encode
from mpcore.formats.format import Format
from mpcore.formats.reference import step_exponent
from mpcore.formats.registry import get_element_format

_TABLE_BITS = 16  # up to this width, all values of a format fit a small table


@dataclass(frozen=True)
class Explanation:
    """What a format makes of one number."""

    x: float  # the number
    format: Format
    code: int  # bit pattern of the rounded number
    value: float  # the rounded number
    kind: str  # "normal", "subnormal", "zero", "infinity", "nan" or "integer"
    sign: int  # the sign bit
    exponent_field: int  # the exponent's bits as a number; 0 for integers
    trailing: int  # the stored significand bits as a number (all bits of an integer)
    below: float | None  # next value below the rounded one; None at the end of the range
    above: float | None  # next value above it
    ulp: float  # distance between neighbours at x; at the largest value where x lies beyond

    @property
    def error(self):
        """Rounded minus given; NaN where either is infinite or NaN."""
        return self.value - self.x if isfinite(self.x) and isfinite(self.value) else nan

    @property
    def error_in_ulp(self):
        """The error in units in the last place: at most 0.5 in size when rounded to nearest."""
        return self.error / self.ulp

    @property
    def exponent(self):
        """Power of two that the significand is multiplied by (of the subnormals, the least)."""
        f = self.format
        return max(self.exponent_field, int(f.has_zero)) - f.bias if f.kind == "float" else 0

    @property
    def significand(self):
        """The significand as a number: 1.xxx, of subnormals 0.xxx; of an integer its magnitude."""
        if self.format.kind == "int":
            return abs(self.value)
        leading = 1 if self.kind == "normal" else 0
        return leading + self.trailing / 2**self.format.mantissa_bits


def explain(x, f, rounding="nearest_even", overflow="saturate"):
    """The `Explanation` of one number in a format.

    Args:
        x: a real number, infinity or NaN.
        f: a `Format` or anything that `get_format` takes.
        rounding, overflow: as in `round_to`, "stochastic" excepted.

    Raises:
        FormatError: an unknown format, mode or behaviour.
    """
    f, x = get_element_format(f), float(x)
    code = int(encode(np.float64(x), f, rounding, overflow))
    return explain_code(code, f, x)


def explain_code(code, f, x=None):
    """The `Explanation` of a code, as if `x` (by default the code's own value) had led to it."""
    f = get_element_format(f)
    value = float(decode(f.code_dtype.type(code), f))
    x = value if x is None else x
    sign = code >> (f.bits - 1) if f.is_signed else 0
    if f.kind == "int":
        field, trailing = 0, code
    else:
        field, trailing = divmod(code & (2 ** (f.bits - f.is_signed) - 1), 2**f.mantissa_bits)
    return Explanation(
        x,
        f,
        code,
        value,
        _kind(f, value, field),
        sign,
        field,
        trailing,
        next_value(value, f, -1),
        next_value(value, f, +1),
        unit_in_the_last_place(x, f),
    )


def _kind(f, value, field):
    if isnan(value):
        return "nan"
    if isinf(value):
        return "infinity"
    if f.kind == "int":
        return "integer"
    if value == 0:
        return "zero"
    return "normal" if field or not f.has_subnormals else "subnormal"


def unit_in_the_last_place(x, f):
    """Distance between the neighbours of x in a format, as a float; at its ends where x is beyond.

    NaN for NaN.
    """
    f = get_element_format(f)
    if isnan(x):
        return nan
    magnitude = min(abs(x), f.max)
    return float(Fraction(2) ** step_exponent(Fraction(magnitude), f))


def next_value(value, f, direction):
    """The next finite value of a format above (+1) or below (-1) one of its values; None if none.

    Args:
        value: a value of the format, as a float. Infinity comes after the largest finite value.
        direction: +1 or -1.
    """
    f = get_element_format(f)
    if isnan(value):
        return None
    if isinf(value):
        end = f.max if value > 0 else f.min
        return end if (direction > 0) == (value < 0) else None
    if f.kind == "int":
        found = value + direction
        return found if f.min <= found <= f.max else None
    magnitude = int(encode(np.float64(abs(value)), f))
    if not f.has_zero:
        code = magnitude + direction
        return float(decode(f.code_dtype.type(code), f)) if 0 <= code <= f.max_code else None
    ordinal = (magnitude if value > 0 else -magnitude) + direction  # codes in order of their values
    if abs(ordinal) > f.max_code or (ordinal < 0 and not f.is_signed):
        return None
    found = float(decode(f.code_dtype.type(abs(ordinal)), f))
    return -found if ordinal < 0 else found


def values_between(low, high, f, most):
    """The finite values of a format in [low, high], ascending; None where they are more than most.

    Args:
        low, high: finite numbers.
        most: how many values are wanted at most.
    """
    f = get_element_format(f)
    if f.bits <= _TABLE_BITS:
        ascending = _ascending(f)
        first, last = np.searchsorted(ascending, low), np.searchsorted(ascending, high, "right")
        return None if last - first > most else ascending[first:last].tolist()
    start = explain(max(low, f.min), f, "toward_positive").value
    values = []
    while start is not None and start <= high:
        if len(values) == most:
            return None
        values.append(start)
        start = next_value(start, f, +1)
    return [value for value in values if value >= low]


@lru_cache(maxsize=32)
def _ascending(f):
    """Every finite value of a narrow format, once, in order."""
    values = np.unique(decode(np.arange(2**f.bits, dtype=f.code_dtype), f).astype(np.float64))
    values = values + 0.0  # no -0
    return values[np.isfinite(values)]
