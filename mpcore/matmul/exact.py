"""Exact sums of float64 arrays, so that an emulated accumulator rounds once and not twice.

A sum is held as an expansion: components that do not overlap and add up to it exactly (Shewchuk
1997). Rounding it *to odd* into float64 keeps, in the last bit, whether anything was lost; rounding
that again to a format of at most 51 bits equals one rounding of the exact sum (Boldo and
Melquiond 2008, "Emulation of FMA and correctly rounded sums").
"""

from fractions import Fraction

import numpy as np

from mpcore.formats.reference import round_value


def two_sum(a, b):
    """(s, e) with s = a + b rounded to float64 and e its exact error; e = -0 where s is not finite.

    Knuth's six additions; right for every pair of float64 values whose sum does not overflow.
    """
    s = a + b
    back = s - a
    e = (a - (s - back)) + (b - back)
    return s, _error(e, s)


def two_product(a, b):
    """(p, e) with p = a * b rounded to float64 and e its exact error; e = -0 where p is not finite.

    Dekker's splitting; right while a and b are below 2**996 and the error is above 2**-1074.
    """
    p = a * b
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    e = a_low * b_low - (((p - a_high * b_high) - a_low * b_high) - a_high * b_low)
    return p, _error(e, p)


def add_to_odd(a, b):
    """a + b rounded to odd into float64."""
    s, e = two_sum(a, b)
    if not e.any():  # the common case: float64 held the sum
        return s
    bits = s.view(np.int64)
    is_even = (bits & 1) == 0
    # s is the neighbour with the even significand; the odd one lies on the side of the error.
    away = np.where((e > 0) == (s > 0), 1, -1)
    return (bits + np.where(is_even & (e != 0), away, 0)).view(np.float64)


def grow(expansion, term):
    """The expansion with one more term added exactly: one more component, smallest first."""
    grown = []
    for component in expansion:
        term, low = two_sum(term, component)
        grown.append(low)
    return [*grown, term]


def expansion_to_odd(expansion):
    """The sum of an expansion, rounded to odd into float64."""
    return _fold(expansion, add_to_odd)


def expansion_to_nearest(expansion):
    """The sum of an expansion, rounded to nearest even into float64."""
    return _fold(expansion, np.add)


def _fold(expansion, last_addition):
    rest = expansion[0]
    for component in expansion[1:-1]:
        rest = add_to_odd(rest, component)
    return last_addition(rest, expansion[-1]) if len(expansion) > 1 else rest


def _error(error, value):
    # Nothing lost is -0, which changes no sum that it is added to: not even one of -0.
    return np.where(np.isfinite(value) & (error != 0), error, -0.0)


def _upper_half(x):
    """x rounded to 26 bits."""
    scaled = x * 134217729.0  # 2**27 + 1
    return scaled - (scaled - x)


_SAFE = 400  # operands and results between 2**-400 and 2**400 need no care


def fused_multiply_add(a, b, c, f):
    """a * b + c rounded once, to nearest even, to fp32 or fp64 (beyond the range: infinite).

    Args:
        a, b, c: float64 arrays that broadcast; for fp32, values of fp32.
        f: the format fp32 or fp64.

    Returns:
        float64 array, and where it is not exact.
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if f.fits_float32:
            exact = add_to_odd(a * b, c)  # the product of two significands of 24 bits is exact
            result = exact.astype(np.float32).astype(np.float64)
            return result, result != exact
        p, error = two_product(a, b)
        expansion = grow(grow([c], error), p)
        result = expansion_to_nearest(expansion)
        inexact = expansion_to_odd(grow(expansion, -result)) != 0
        factors_finite = np.isfinite(a) & np.isfinite(b)
        plain = np.where(factors_finite & ~np.isfinite(c), c, p + c)  # p may overflow, a * b not
    finite = factors_finite & np.isfinite(c)
    result, inexact = np.where(finite, result, plain), inexact & finite
    unsafe = finite & ~(_all_safe(a, b, c, p) & np.isfinite(p))
    for index in zip(*np.nonzero(unsafe), strict=True):
        exact = Fraction(a[index]) * Fraction(b[index]) + Fraction(c[index])
        value = round_value(exact, f, overflow="infinity") if exact else plain[index]
        result[index], inexact[index] = value, not np.isfinite(value) or Fraction(value) != exact
    return result, inexact


def _all_safe(*arrays):
    """Where every array is zero, or of a size that no splitting can overflow or underflow."""
    safe = True
    for x in arrays:
        exponent = np.frexp(x)[1]
        safe = safe & ((np.abs(exponent) < _SAFE) | (x == 0))
    return safe
