"""Compiled float32 rounding: the twin of `rounding.round_numpy`, about 20 times as fast.

A format and a rounding mode are run-time arguments (`rounding.kernel_parameters`), so one compiled
kernel, kept on disk, serves them all. Only `rounding.compiled_kernels` imports this file.

Two things keep the loop vectorised. Every step is cast to int32, since Numba widens int32
arithmetic to int64; and there are only selections, no branches: a rounding mode is the integer
that is added to the remainder before it is cut, put together from masks that are 0 or -1.
"""

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.extending import intrinsic

if config.DISABLE_JIT:
    raise ImportError("Numba is switched off by NUMBA_DISABLE_JIT")

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
