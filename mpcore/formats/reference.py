"""Rounding, encoding and decoding of one number, with pencil and paper: exact fractions, no bits.

This is what `rounding.py`, `codes.py` and `kernels.py` are tested against.
"""

from fractions import Fraction
from math import copysign, inf, isinf, isnan, nan

from mpcore.formats.rounding import outcomes


def step_exponent(magnitude, f):
    """Exponent of the distance between values of the format around a fraction that is not negative.

    From 2**emin on, one unit in the last place of the binade; below, that of the subnormals.
    """
    numerator, denominator = magnitude.numerator, magnitude.denominator
    exponent = numerator.bit_length() - denominator.bit_length()
    if _scaled(numerator, -exponent) < _scaled(denominator, exponent):
        exponent -= 1
    return exponent - f.mantissa_bits if numerator and exponent >= f.emin else f.tiny_exponent


def _scaled(whole, exponent):
    """whole * 2**exponent where the exponent is positive, else the whole number itself."""
    return whole << exponent if exponent > 0 else whole


def round_fraction(value, f, rounding, fraction_drawn=None):
    """An exact value rounded to the format as if its range had no upper end.

    Args:
        value: a Fraction.
        fraction_drawn: for "stochastic", a number drawn from [0, 1).
    """
    exponent = step_exponent(abs(value), f)
    # |value| / step as a quotient of whole numbers; `rest` of `step` parts is what is left over
    step = _scaled(value.denominator, exponent)
    steps, rest = divmod(_scaled(abs(value.numerator), -exponent), step)
    up = {
        "nearest_even": lambda: 2 * rest > step or (2 * rest == step and steps % 2),
        "nearest_away": lambda: 2 * rest >= step,
        "toward_zero": lambda: False,
        "toward_positive": lambda: rest > 0 and value > 0,
        "toward_negative": lambda: rest > 0 and value < 0,
        "to_odd": lambda: rest > 0 and steps % 2 == 0,
        "stochastic": lambda: fraction_drawn < Fraction(rest, step),
    }[rounding]()
    steps += bool(up)
    magnitude = Fraction(_scaled(steps, exponent), _scaled(1, -exponent))
    return -magnitude if value < 0 else magnitude


def round_value(x, f, rounding="nearest_even", overflow="saturate", fraction_drawn=None):
    """One value rounded to the format: a float or a Fraction in, a float of the format out."""
    special = outcomes(f, rounding, overflow)
    is_negative = x < 0 if isinstance(x, Fraction) else copysign(1.0, x) < 0
    if not isinstance(x, Fraction):
        if isnan(x):
            return special.nan[is_negative]
        if isinf(x):
            return special.infinity[is_negative]
    rounded = round_fraction(Fraction(x), f, rounding, fraction_drawn)
    if not f.min <= rounded <= f.max:
        return special.overflow[is_negative]
    if rounded == 0:
        return -0.0 if is_negative and f.has_negative_zero else 0.0
    return float(rounded)


def decode_code(code, f):
    """The value of one code, as a float."""
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
