"""Rounding, encoding and decoding of one number, with pencil and paper: exact fractions, no bits.

This is what `rounding.py`, `codes.py` and `kernels.py` are tested against.
"""

from fractions import Fraction
from math import copysign, inf, isinf, isnan, ldexp, nan

from mpcore.formats.rounding import outcomes


def step_exponent(magnitude, f):
    """Exponent of the distance between values of the format around a fraction that is not negative.

    From 2**emin on, one unit in the last place of the binade; below, that of the subnormals.
    """
    return _step_exponent(magnitude.numerator, magnitude.denominator, f)


def _step_exponent(numerator, denominator, f):
    exponent = numerator.bit_length() - denominator.bit_length()
    if _scaled(numerator, -exponent) < _scaled(denominator, exponent):
        exponent -= 1
    return exponent - f.mantissa_bits if numerator and exponent >= f.emin else f.tiny_exponent


def _scaled(whole, exponent):
    """whole * 2**exponent where the exponent is positive, else the whole number itself."""
    return whole << exponent if exponent > 0 else whole


_ROUNDS_UP = {
    "nearest_even": lambda rest, step, steps, _: 2 * rest > step - (steps & 1),
    "nearest_away": lambda rest, step, *_: 2 * rest >= step,
    "toward_zero": lambda *_: False,
    "toward_positive": lambda rest, _, __, is_negative: rest > 0 and not is_negative,
    "toward_negative": lambda rest, _, __, is_negative: rest > 0 and is_negative,
    "to_odd": lambda rest, _, steps, __: rest > 0 and steps % 2 == 0,
}
"""Mode -> whether `steps` whole steps and a rest of `rest` / `step` become one step more."""


def round_ratio(numerator, denominator, f, rounding, overflow, fraction_drawn=None):
    """The exact value numerator / denominator (whole numbers, the latter positive), rounded.

    Args:
        fraction_drawn: for "stochastic", a number drawn from [0, 1).

    Returns:
        A float of the format (or what lies beyond it).
    """
    is_negative, magnitude = numerator < 0, abs(numerator)
    exponent = _step_exponent(magnitude, denominator, f)
    # |value| / step as a quotient of whole numbers; `rest` of `step` parts is what is left over
    step = _scaled(denominator, exponent)
    steps, rest = divmod(_scaled(magnitude, -exponent), step)
    if rounding == "stochastic":
        steps += fraction_drawn < Fraction(rest, step)
    else:
        steps += _ROUNDS_UP[rounding](rest, step, steps, is_negative)
    try:
        rounded = ldexp(-steps if is_negative else steps, exponent)  # exact: steps < 2**53
    except OverflowError:
        rounded = -inf if is_negative else inf
    if not f.min <= rounded <= f.max:
        return outcomes(f, rounding, overflow).overflow[is_negative]
    if rounded == 0:
        return -0.0 if is_negative and f.has_negative_zero else 0.0
    return rounded


def round_value(x, f, rounding="nearest_even", overflow="saturate", fraction_drawn=None):
    """One value rounded to the format: a float or a Fraction in, a float of the format out."""
    is_negative = x < 0 if isinstance(x, Fraction) else copysign(1.0, x) < 0
    if not isinstance(x, Fraction):
        if isnan(x):
            return outcomes(f, rounding, overflow).nan[is_negative]
        if isinf(x) and (x > 0 or f.is_signed or f.has_zero):
            return outcomes(f, rounding, overflow).infinity[is_negative]
    if not f.has_zero and x <= 0:
        return nan  # neither zero nor sign
    if not f.has_zero:
        return _round_to_power(Fraction(x), f, rounding, overflow, fraction_drawn)
    if x == 0:
        return -0.0 if is_negative and f.has_negative_zero else 0.0
    return round_ratio(*x.as_integer_ratio(), f, rounding, overflow, fraction_drawn)


def _round_to_power(x, f, rounding, overflow, fraction_drawn):
    """A positive fraction rounded to a format of powers of two alone."""
    exponent = step_exponent(x, f)  # with one bit of precision, a step is the power itself
    share = max(x / Fraction(2) ** exponent - 1, Fraction(0))  # of the way to the next power
    if rounding == "stochastic":
        exponent += fraction_drawn < share
    else:  # the code, not the significand, is even or odd
        exponent += _ROUNDS_UP[rounding](*share.as_integer_ratio(), exponent + f.bias, False)
    value = float(Fraction(2) ** exponent)
    return value if value <= f.max else outcomes(f, rounding, overflow).overflow[0]


def decode_code(code, f):
    """The value of one code, as a float."""
    if not f.has_zero:
        return float(Fraction(2) ** (code - f.bias)) if code <= f.max_code else nan
    negative = f.is_signed and code >= 2 ** (f.bits - 1)
    sign = -1.0 if negative else 1.0
    magnitude = code - 2 ** (f.bits - 1) if negative else code
    if f.kind == "int":
        return float(code - 2**f.bits if negative else code)
    if f.nan == "negative_zero" and negative and magnitude == 0:
        return -nan
    if magnitude > f.max_code:
        return sign * (inf if f.has_infinity and magnitude == f.max_code + 1 else nan)
    field, trailing = divmod(magnitude, 2**f.mantissa_bits)
    if field == 0:
        significand, exponent = trailing * f.has_subnormals, f.emin
    else:
        significand, exponent = 2**f.mantissa_bits + trailing, field - f.bias
    return sign * float(significand * Fraction(2) ** (exponent - f.mantissa_bits))


def encode_value(x, f, rounding="nearest_even", overflow="saturate"):
    """The code of one value, found by looking for the code that stands for the rounded value.

    For formats of at most 16 bits. Returns None for NaN, which may have several codes.
    """
    rounded = round_value(x, f, rounding, overflow)
    if isnan(rounded):
        return None
    return next(
        code
        for code in range(2**f.bits)
        if decode_code(code, f) == rounded
        and copysign(1.0, decode_code(code, f)) == copysign(1.0, rounded)
    )
