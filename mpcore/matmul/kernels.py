"""Compiled sums: the fast twins of `accumulate.Rounder.in_order` and of `units.AlignedSum`.

Each kernel works on some rows of C = A @ B, in place, from operands that `engine.py` has laid out:
A [m, K] and B [K, n], n a multiple of 32, K of the products in one chunk. The columns are worked on
a few at a time, so that the chunk of B that they need stays in the cache for all rows. Only
`engine.py` imports this file; nothing here allocates or checks.

Where a kernel counts, it adds to `tally` at OVERFLOW, UNDERFLOW and INEXACT.
"""

from functools import lru_cache

import numpy as np
from numba import njit

from mpcore.formats.lanes import (
    LANES,
    add,
    any_lane,
    bit_and,
    bit_or,
    bit_xor,
    bits,
    both,
    count_lanes,
    cut,
    different,
    either,
    equal,
    extend,
    first_half,
    fma,
    from_bits,
    greater,
    largest,
    load,
    load_f16,
    mul,
    narrow,
    opposite,
    second_half,
    select,
    shift_left,
    shift_right,
    smallest,
    spread,
    spread_at,
    spread_f16,
    store,
    sub,
    to_double,
    to_float,
    widen,
)

COLUMNS = 64  # worked on at a time
PAIR = 2 * LANES  # columns in one step of the kernel of matrix units
OVERFLOW, UNDERFLOW, INEXACT = range(3)  # of a tally
_I32, _I64, _F32, _F64 = np.int32, np.int64, np.float32, np.float64
_MAGNITUDE, _SIGN, _EXPONENT = _I32(0x7FFFFFFF), _I32(-(2**31)), _I32(0x7F800000)
_LARGEST_FINITE = _I32(0x7F7FFFFF)
_MAGNITUDE64, _SIGN64 = _I64(0x7FFFFFFFFFFFFFFF), _I64(-(2**63))
_EXPONENT64 = _I64(0x7FF0000000000000)


@njit(inline="always")
def _size(x):
    """|x| of float32."""
    return from_bits(bit_and(bits(x), spread(_MAGNITUDE)))


@njit(inline="always")
def _size64(x):
    return from_bits(bit_and(bits(x), spread(_MAGNITUDE64)))


@njit(inline="always")
def _round64(x, precision, lowest):
    """float64 to nearest even at so many significand bits; 2**lowest is the smallest normal."""
    field = bit_and(bits(x), spread(_EXPONENT64))
    least = spread(_I64((lowest + 1023) << 52))
    field = select(greater(least, field), least, field)
    magic = from_bits(add(field, spread(_I64((53 - precision) << 52))))
    rounded = bits(sub(add(x, magic), magic))
    return from_bits(bit_or(rounded, bit_and(bits(x), spread(_SIGN64))))


# ---- matrix units


@njit(inline="always")
def _scale64(emax, fraction):
    """2**(emax - fraction) as float64."""
    return from_bits(shift_left(extend(add(emax, spread(_I32(1023 - fraction)))), spread(_I64(52))))


@njit(inline="always")
def _is_gone(x):
    """Where an accumulator is infinite: it stays so."""
    return greater(bit_and(bits(x), spread(_MAGNITUDE)), spread(_LARGEST_FINITE))


@njit(inline="always")
def _cut_total(old, emax, s, t, fraction, cut_mask):
    """(s + t) * 2**(emax - fraction) cut to the bits of a mask, float32; and where it was exact."""
    total = add(to_double(s), to_double(t))
    kept = from_bits(bit_and(bits(total), spread(cut_mask)))
    value = narrow(mul(kept, _scale64(emax, fraction)))
    return select(_is_gone(old), old, value), equal(kept, total)


@njit(inline="always")
def _half_total(old, emax, s, t, fraction, cut_mask):
    """The same in fp16, to nearest even."""
    exact = mul(add(to_double(s), to_double(t)), _scale64(emax, fraction))
    value = _round64(exact, 11, -14)
    beyond = greater(_size64(value), spread(_F64(65504.0)))
    infinite = from_bits(bit_or(bit_and(bits(value), spread(_SIGN64)), spread(_EXPONENT64)))
    rounded = narrow(select(beyond, infinite, value))
    return select(_is_gone(old), old, rounded), equal(value, exact)


@njit(inline="always")
def _cut_total_24(emax, s, t, fraction):
    """`_cut_total` for 24 bits and |s + t| < 2**31, in int32."""
    total, one = add(s, t), spread(_I32(1))
    nearest = to_float(total)
    back, sign = cut(nearest), shift_right(total, spread(_I32(31)))
    went_up = greater(sub(bit_xor(back, sign), sign), sub(bit_xor(total, sign), sign))
    kept = from_bits(select(went_up, sub(bits(nearest), one), bits(nearest)))
    scale = from_bits(shift_left(add(emax, spread(_I32(127 - fraction))), spread(_I32(23))))
    return mul(kept, scale), equal(back, total)


@njit(inline="always")
def _passed_31_bits(s, t):
    """Negative where s + t does not fit int32."""
    total = add(s, t)
    return bit_and(bit_xor(total, s), bit_xor(total, t))


@njit(inline="always")
def _tally(tally, old, new, is_exact, lost):
    was_finite = greater(spread(_EXPONENT), bit_and(bits(old), spread(_MAGNITUDE)))
    lost = both(either(lost, opposite(is_exact)), was_finite)
    over = both(_is_gone(new), was_finite)
    tally[OVERFLOW] += count_lanes(over)
    tally[UNDERFLOW] += count_lanes(both(lost, equal(new, spread(_F32(0)))))
    tally[INEXACT] += count_lanes(either(lost, over))


@lru_cache(maxsize=64)
def aligned_sums(stretch, wide_total, counting):
    """The kernel of `units.AlignedSum` for one kind of unit.

    Args:
        stretch: products in a piece of straight code: 8, or fewer where a chunk has fewer.
        wide_total: None, or how the total becomes the accumulator: "cut" or "half", in float64.
            None cuts it to 24 bits in int32, for chunks of at most 16 products.
        counting: whether to count.
    """
    finish = _half_total if wide_total == "half" else _cut_total
    in_int32 = wide_total is None

    @njit(nogil=True, cache=True)
    def kernel(operands, c, first_row, last_row, length, fraction, cut_mask, tally):
        a, a_exponent, a_last, b, b_exponent, b_last = operands
        n, depth = _I64(b.shape[1]), _I64(b.shape[0])
        lowest, scale_field = spread(_I32(fraction - 126)), spread(_I32(fraction + 127))
        magnitude, bias, shift = spread(_MAGNITUDE), spread(_I32(127)), spread(_I32(23))
        zero, finite = spread(_I32(0)), spread(_LARGEST_FINITE)
        for left in range(0, n, COLUMNS):
            for start in range(0, depth, length):
                for i in range(first_row, last_row):
                    row = i * depth + start
                    for j in range(left, min(left + COLUMNS, n), PAIR):
                        column, at_c = start * n + j, i * n + j
                        pair = add(spread_at(a_exponent, row), load(b_exponent, column))
                        for k in range(0, length, stretch):
                            for step in range(stretch):
                                x = spread_at(a_exponent, row + k + step)
                                y = load(b_exponent, column + (k + step) * n)
                                pair = largest(pair, add(x, y))
                        old, old2 = load(c, at_c), load(c, at_c + LANES)
                        field = shift_right(bit_and(bits(old), magnitude), shift)
                        field2 = shift_right(bit_and(bits(old2), magnitude), shift)
                        emax = largest(largest(sub(field, bias), lowest), first_half(pair))
                        emax2 = largest(largest(sub(field2, bias), lowest), second_half(pair))
                        scale = from_bits(shift_left(sub(scale_field, emax), shift))
                        scale2 = from_bits(shift_left(sub(scale_field, emax2), shift))
                        s, s2 = cut(mul(old, scale)), cut(mul(old2, scale2))
                        t, t2 = zero, zero
                        if counting:
                            lost = different(to_float(s), mul(old, scale))
                            lost2 = different(to_float(s2), mul(old2, scale2))
                        for k in range(0, length, stretch):
                            for step in range(stretch):
                                x = spread_at(a, row + k + step)
                                at = column + (k + step) * n
                                t = add(t, cut(mul(mul(x, load(b, at)), scale)))
                                t2 = add(t2, cut(mul(mul(x, load(b, at + LANES)), scale2)))
                            s, t, s2, t2 = t, s, t2, s2  # two totals: one might not fit int32
                        special = True
                        if in_int32:
                            passed = bit_or(_passed_31_bits(s, t), _passed_31_bits(s2, t2))
                            gone = sub(finite, bit_and(bits(old), magnitude))
                            gone2 = sub(finite, bit_and(bits(old2), magnitude))
                            special = any_lane(greater(zero, bit_or(passed, bit_or(gone, gone2))))
                        if special:
                            new, exact = finish(old, emax, s, t, fraction, cut_mask)
                            new2, exact2 = finish(old2, emax2, s2, t2, fraction, cut_mask)
                        else:
                            new, exact = _cut_total_24(emax, s, t, fraction)
                            new2, exact2 = _cut_total_24(emax2, s2, t2, fraction)
                        if counting:
                            pair = add(spread_at(a_last, row), load(b_last, column))
                            for k in range(0, length, stretch):
                                for step in range(stretch):
                                    x = spread_at(a_last, row + k + step)
                                    y = load(b_last, column + (k + step) * n)
                                    pair = smallest(pair, add(x, y))
                            kept = spread(_I32(fraction))
                            lost = either(lost, greater(sub(emax, kept), first_half(pair)))
                            lost2 = either(lost2, greater(sub(emax2, kept), second_half(pair)))
                            _tally(tally, old, new, exact, lost)
                            _tally(tally, old2, new2, exact2, lost2)
                        store(c, at_c, new)
                        store(c, at_c + LANES, new2)

    return kernel
