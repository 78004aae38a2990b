"""Compiled float32 rounding: the twin of `rounding.round_numpy`, about 20 times as fast.

A format and a rounding mode are run-time arguments (`rounding.kernel_parameters`), so one compiled
kernel, kept on disk, serves them all. Only `rounding.compiled_kernels` imports this file.

Two things keep the loop vectorised. Every step is cast to int32, since Numba widens int32
arithmetic to int64; and there are only selections, no branches: a rounding mode is the integer
that is added to the remainder before it is cut, put together from masks that are 0 or -1.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from mpcore.formats.lanes import (
    LANES,
    add,
    bit_and,
    bit_or,
    bits,
    equal,
    greater,
    largest,
    load,
    select,
    shift_left,
    shift_right,
    smallest,
    spread,
    store,
    sub,
)
from mpcore.formats.lanes import from_bits as lanes_from_bits

_I32 = np.int32

_ZERO, _ONE = np.int32(0), np.int32(1)
_MANTISSA_BITS, _SIGN_BIT = np.int32(23), np.int32(31)
_DEEPEST = np.int32(25)  # a shift by this much leaves nothing but a remainder below one half
_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN = np.int32(-(2**31))
_INFINITY = np.int32(0x7F800000)
_IMPLICIT_ONE = np.int32(1 << 23)
_STEP_OFFSET = np.int32(127 + 23)  # exponent field of the float32 whose step is 1
_TRAILING = np.int32((1 << 23) - 1)


@intrinsic
def to_bits(_, value):
    """The bits of a float32 as an int32."""

    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), build


@intrinsic
def from_bits(_, bits):
    """The float32 that an int32's bits stand for."""

    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), build


@njit(inline="always")
def round_bits(bits, parameters):
    """One float32, as int32 bits, rounded as the parameters say."""
    (nearest, to_even, half, up_positive, up_negative, to_odd) = parameters[0]
    (cut_normal, normal_bits, tiny_exponent, tiny_bits, top, bottom, keep_zero_sign) = parameters[1]
    (over_pos, over_neg, infinity_pos, infinity_neg, nan_pos, nan_neg) = parameters[2]

    magnitude = np.int32(bits & _MAGNITUDE)
    sign = np.int32(bits >> _SIGN_BIT)  # 0 or -1
    field = np.int32(magnitude >> _MANTISSA_BITS)
    is_normal32 = field > _ZERO
    significand = np.int32(
        np.int32(magnitude & _TRAILING) | (_IMPLICIT_ONE if is_normal32 else _ZERO)
    )
    field = field if is_normal32 else _ONE
    cut_tiny = np.int32(np.int32(tiny_exponent + _STEP_OFFSET) - field)
    cut = cut_normal if magnitude >= normal_bits else cut_tiny
    cut = cut if cut > _ZERO else _ZERO
    cut = cut if cut < _DEEPEST else _DEEPEST

    below_step = np.int32(np.int32(_ONE << cut) - _ONE)
    remainder = np.int32(significand & below_step)
    odd = np.int32(np.int32(significand >> cut) & _ONE)
    directed = np.int32(np.int32(sign & up_negative) | (np.int32(~sign) & up_positive))
    directed = np.int32(directed | np.int32(np.int32(odd - _ONE) & to_odd))
    addend = np.int32(np.int32(below_step >> _ONE) & nearest)
    addend = np.int32(addend + np.int32(np.int32(odd & below_step) & to_even))
    addend = np.int32(addend + np.int32(np.int32(np.int32(below_step + _ONE) >> _ONE) & half))
    addend = np.int32(addend + np.int32(below_step & directed))
    up = np.int32(np.int32(remainder + addend) >> cut)

    stepped = np.int32(np.int32(magnitude - remainder) + np.int32(up << cut))
    rounded = stepped if cut <= _MANTISSA_BITS else (tiny_bits if up > _ZERO else _ZERO)
    result = np.int32(rounded | np.int32(bits & _SIGN))
    result = np.int32(result & keep_zero_sign) if rounded == _ZERO else result
    limit = bottom if sign < _ZERO else top
    result = (over_neg if sign < _ZERO else over_pos) if rounded > limit else result
    infinite = infinity_neg if sign < _ZERO else infinity_pos
    result = infinite if magnitude == _INFINITY else result
    return (nan_neg if sign < _ZERO else nan_pos) if magnitude > _INFINITY else result


# Compiled once, for any array: a signature per layout and writability would cost seconds each.
PARAMETERS = types.Tuple([types.UniTuple(types.int32, size) for size in (6, 7, 6)])
_BITS_READ = types.Array(types.int32, 1, "C", readonly=True)


@njit(types.void(_BITS_READ, types.int32[::1], PARAMETERS), nogil=True, cache=True)
def round_flat(bits, result, parameters):
    """Round a flat array of float32 bits into `result` (both int32)."""
    for i in range(bits.size):
        result[i] = round_bits(bits[i], parameters)


_READ = types.Array(types.float32, 1, "C", readonly=True)


@njit(
    types.void(_READ, types.float32[::1], types.boolean, PARAMETERS),
    nogil=True,
    cache=True,
)
def round_nearest_even(x, result, by_integers, parameters):
    """Round float32 values to nearest even as `round_bits` does, sixteen at a time.

    A magic number is added and subtracted: it is so large that the sum keeps just the bits that the
    format has at x; below the normal numbers it stays what it is at the smallest of them. Where the
    format has float32's own exponents no float32 is large enough, and the bits below are cut with a
    carry instead.

    Args:
        x, result: flat arrays of one size, a multiple of 16; may be the same.
        by_integers: whether the format's smallest exponent is float32's.
        parameters: of `rounding.kernel_parameters`, for a format that has subnormals.
    """
    (cut_bits, normal_bits, _, _, top_bits, bottom_bits, keep_zero_sign) = parameters[1]
    (over_pos, over_neg, infinity_pos, infinity_neg, nan_pos, nan_neg) = parameters[2]
    zero, one, sign_bits = spread(_ZERO), spread(_ONE), spread(_SIGN)
    magnitude_bits, infinity, cut = spread(_MAGNITUDE), spread(_INFINITY), spread(cut_bits)
    magic_shift = spread(_I32(cut_bits << _MANTISSA_BITS))
    half = spread(_I32(_I32(_I32(_ONE << cut_bits) >> _ONE) - _ONE))
    normal, top, bottom = spread(normal_bits), spread(top_bits), spread(bottom_bits)
    # Twice the largest value and more is beyond the range; there the magic number would overflow.
    enough = spread(_I32(_I32(max(top_bits, bottom_bits) & _INFINITY) + _I32(2 << 23)))
    for i in range(0, x.size, LANES):
        word = bits(load(x, i))
        magnitude, sign = bit_and(word, magnitude_bits), bit_and(word, sign_bits)
        if by_integers:
            odd = bit_and(shift_right(magnitude, cut), one)
            carried = add(magnitude, add(half, odd)) if cut_bits > _ZERO else magnitude
            rounded = shift_left(shift_right(carried, cut), cut)
        else:
            bounded = smallest(magnitude, enough)
            value = lanes_from_bits(bounded)
            magic = add(largest(bit_and(bounded, infinity), normal), magic_shift)
            rounded = bits(sub(add(value, lanes_from_bits(magic)), lanes_from_bits(magic)))
        is_negative = greater(zero, sign)
        over = select(is_negative, spread(over_neg), spread(over_pos))
        limit = select(is_negative, bottom, top)
        signed = bit_or(rounded, sign)
        signed = select(equal(rounded, zero), bit_and(signed, spread(keep_zero_sign)), signed)
        signed = select(greater(rounded, limit), over, signed)
        endless = select(is_negative, spread(infinity_neg), spread(infinity_pos))
        signed = select(equal(magnitude, infinity), endless, signed)
        nan = select(is_negative, spread(nan_neg), spread(nan_pos))
        signed = select(greater(magnitude, infinity), nan, signed)
        store(result, i, lanes_from_bits(signed))
