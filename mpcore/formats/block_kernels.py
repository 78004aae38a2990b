"""Compiled block formats: the fast twin of `blocks.split_blocks(...).joined()` in float32.

Arrays are flat, a whole number of blocks long. Only `blocks.py` imports this file.
"""

import numpy as np
from numba import njit, types

from mpcore.formats.kernels import from_bits, to_bits
from mpcore.formats.lanes import (
    LANES,
    add,
    bit_and,
    bit_or,
    bits,
    div,
    equal,
    greater,
    largest,
    largest_lane,
    load,
    mul,
    select,
    smallest,
    spread,
    store,
    sub,
)
from mpcore.formats.lanes import from_bits as lanes_from_bits

_I32, _F32 = np.int32, np.float32
_MAGNITUDE, _SIGN, _INFINITY = _I32(0x7FFFFFFF), _I32(-(2**31)), _I32(0x7F800000)
_HALF_OF_LEAST = _I32(0x00400000)  # 2**-127, which is subnormal in float32
_NAN = _I32(0x7FC00000)
_READ = types.Array(types.float32, 1, "C", readonly=True)
_ELEMENT = types.UniTuple(types.int32, 4)  # bits cut off, smallest normal, largest, zero's sign


@njit(inline="always")
def _rounded(quotient, element):
    """Quotients to nearest even in the element's format, saturating."""
    cut, normal_bits, top_bits, keep_zero_sign = element
    word = bits(quotient)
    magnitude, sign = bit_and(word, spread(_MAGNITUDE)), bit_and(word, spread(_SIGN))
    power = largest(bit_and(magnitude, spread(_INFINITY)), spread(normal_bits))
    magic = lanes_from_bits(add(power, spread(_I32(cut << _I32(23)))))
    rounded = bits(sub(add(lanes_from_bits(magnitude), magic), magic))
    rounded = smallest(rounded, spread(top_bits))
    is_zero = equal(rounded, spread(_I32(0)))
    signed = bit_or(rounded, sign)
    return lanes_from_bits(select(is_zero, bit_and(signed, spread(keep_zero_sign)), signed))


@njit(inline="always")
def _power(exponent):
    """2**exponent as float32, for -127 <= exponent <= 127."""
    field = _I32(_I32(exponent + _I32(127)) << _I32(23))
    return from_bits(_HALF_OF_LEAST if field == _I32(0) else field)


@njit(
    types.void(_READ, types.float32[::1], types.int32, _ELEMENT),
    nogil=True,
    cache=True,
)
def round_power_of_two_blocks(x, result, largest_exponent, element):
    """Blocks of 32 under a power of two: 2**(floor(log2 amax) - largest_exponent)."""
    magnitude = spread(_MAGNITUDE)
    for i in range(0, x.size, 2 * LANES):
        first, second = load(x, i), load(x, i + LANES)
        sizes = largest(bit_and(bits(first), magnitude), bit_and(bits(second), magnitude))
        amax = largest_lane(sizes)
        if amax >= _INFINITY:
            store(result, i, spread(from_bits(_NAN)))
            store(result, i + LANES, spread(from_bits(_NAN)))
            continue
        exponent = _I32(_I32(amax >> _I32(23)) - _I32(127) - largest_exponent)
        exponent = max(exponent, _I32(-127))
        scale, inverse = spread(_power(exponent)), spread(_power(_I32(-exponent)))
        store(result, i, mul(_rounded(mul(first, inverse), element), scale))
        store(result, i + LANES, mul(_rounded(mul(second, inverse), element), scale))


@njit(types.float32(_READ), nogil=True, cache=True)
def finite_amax(x):
    """The largest finite magnitude, 0 where there is none."""
    largest_met, limit = spread(_I32(0)), spread(_INFINITY)
    for i in range(0, x.size, LANES):
        size = bit_and(bits(load(x, i)), spread(_MAGNITUDE))
        largest_met = select(greater(limit, size), largest(largest_met, size), largest_met)
    return from_bits(largest_lane(largest_met))


@njit(inline="always")
def _rounded_scale(x, scale_format):
    """One float32 that is not negative, to nearest even in the scales' format, saturating."""
    cut, normal_bits, top_bits, _ = scale_format
    power = max(_I32(to_bits(x) & _INFINITY), normal_bits)
    magic = from_bits(_I32(power + _I32(cut << _I32(23))))
    return min(_F32(_F32(x + magic) - magic), from_bits(top_bits))


@njit(
    types.void(_READ, types.float32[::1], types.float32, types.float32, _ELEMENT, _ELEMENT),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def round_scaled_blocks(x, result, largest_element, tensor_scale, scale_format, element):
    """Blocks of 16 under a scale of another format, itself under a scale of the tensor."""
    for i in range(0, x.size, LANES):
        values = load(x, i)
        amax = largest_lane(bit_and(bits(values), spread(_MAGNITUDE)))
        if amax >= _INFINITY:
            store(result, i, spread(from_bits(_NAN)))
            continue
        wanted = _F32(_F32(from_bits(amax) / largest_element) / tensor_scale)
        scale = _F32(_rounded_scale(wanted, scale_format) * tensor_scale)
        is_lost = scale == _F32(0)
        quotients = spread(_F32(0)) if is_lost else div(values, spread(scale))
        store(result, i, mul(_rounded(quotients, element), spread(scale)))
