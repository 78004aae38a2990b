"""What the kernels of `matmul` share: constants, sizes, and rounding in float64."""

import numpy as np
from numba import njit

from mpcore.formats.lanes import (
    LANES,
    add,
    bit_and,
    bit_or,
    bits,
    from_bits,
    greater,
    select,
    spread,
    sub,
)

I32, I64, F32, F64 = np.int32, np.int64, np.float32, np.float64
MAGNITUDE, SIGN, EXPONENT = I32(0x7FFFFFFF), I32(-(2**31)), I32(0x7F800000)
MAGNITUDE64, SIGN64 = I64(0x7FFFFFFFFFFFFFFF), I64(-(2**63))
EXPONENT64 = I64(0x7FF0000000000000)
PAIR = 2 * LANES  # columns: the operands are filled up to whole pairs of vectors
COLUMNS = 64  # of C that are worked on while their part of B lies in the cache
ROWS = 4  # of C that share what is loaded of B; operands are filled up to a multiple
OVERFLOW, UNDERFLOW, SATURATION, INEXACT = range(4)  # where a kernel counts in its tally


@njit(inline="always")
def size(x):
    """|x| of float32."""
    return from_bits(bit_and(bits(x), spread(MAGNITUDE)))


@njit(inline="always")
def size64(x):
    return from_bits(bit_and(bits(x), spread(MAGNITUDE64)))


@njit(inline="always")
def round64(x, precision, lowest):
    """float64 to nearest even at so many significand bits; 2**lowest is the smallest normal."""
    field = bit_and(bits(x), spread(EXPONENT64))
    least = spread(I64((lowest + 1023) << 52))
    field = select(greater(least, field), least, field)
    one_and_a_half = I64(((53 - precision) << 52) | (1 << 51))  # of a power of two: for both signs
    magic = from_bits(add(field, spread(one_and_a_half)))
    rounded = bits(sub(add(x, magic), magic))
    return from_bits(bit_or(rounded, bit_and(bits(x), spread(SIGN64))))
