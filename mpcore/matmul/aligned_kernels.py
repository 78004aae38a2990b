"""Compiled sums of matrix units: the fast twin of `units.AlignedSum`.

The kernel works on some rows of C = A @ B, in place, from operands that `engine.py` has laid out:
A [m, K] and B [K, n], n a multiple of 32, K of the products in one chunk. The columns are worked on
a few at a time, so that the chunk of B that they need stays in the cache for all rows. Only
`engine.py` imports this file; nothing here allocates or checks.
"""

from functools import lru_cache

from numba import njit

from mpcore.formats.kernels import to_bits
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
    from_bits,
    greater,
    halves_of_words,
    largest,
    load,
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
    store,
    sub,
    to_double,
    to_float,
)
from mpcore.matmul.kernel_parts import (
    COLUMNS,
    EXPONENT,
    EXPONENT64,
    F32,
    F64,
    I32,
    I64,
    INEXACT,
    MAGNITUDE,
    OVERFLOW,
    PAIR,
    SIGN64,
    UNDERFLOW,
    round64,
    size64,
)

_LARGEST_FINITE = I32(0x7F7FFFFF)
_SAFE_EXPONENT = I32(116)  # of the largest term: up to it, 64 of them and their sum are finite

# ---- matrix units


@njit(inline="always")
def _scale64(emax, fraction):
    """2**(emax - fraction) as float64."""
    return from_bits(shift_left(extend(add(emax, spread(I32(1023 - fraction)))), spread(I64(52))))


@njit(inline="always")
def _is_gone(x):
    """Where an accumulator is infinite: it stays so."""
    return greater(bit_and(bits(x), spread(MAGNITUDE)), spread(_LARGEST_FINITE))


@njit(inline="always")
def _cut_total(old, emax, s, t, fraction, cut_mask):
    """(s + t) * 2**(emax - fraction) cut to the bits of a mask, float32; and where it was exact."""
    total = add(to_double(s), to_double(t))
    kept = from_bits(bit_and(bits(total), spread(cut_mask)))
    value = narrow(mul(kept, _scale64(emax, fraction)))
    return select(_is_gone(old), old, value), equal(kept, total)


@njit(inline="always")
def _exponent_of(x, lowest):
    """Exponents of float32, at least `lowest`."""
    field = shift_right(bit_and(bits(x), spread(MAGNITUDE)), spread(I32(23)))
    return largest(sub(field, spread(I32(127))), lowest)


@njit(inline="always")
def _exponent_of_half(x, lowest):
    """The same of values of fp16, whose subnormals have the exponent -14."""
    exponent = largest(_exponent_of(x, lowest), spread(I32(-14)))
    return select(equal(x, spread(F32(0))), lowest, exponent)


@njit(inline="always")
def _half_total(old, emax, s, t, fraction, cut_mask):
    """The same in fp16, to nearest even."""
    exact = mul(add(to_double(s), to_double(t)), _scale64(emax, fraction))
    value = round64(exact, 11, -14)
    beyond = greater(size64(value), spread(F64(65504.0)))
    infinite = from_bits(bit_or(bit_and(bits(value), spread(SIGN64)), spread(EXPONENT64)))
    rounded = narrow(select(beyond, infinite, value))
    return select(_is_gone(old), old, rounded), equal(value, exact)


@njit(inline="always")
def _cut_total_in_int32(emax, s, t, fraction, cut_mask):
    """`_cut_total` where |s + t| < 2**30 and the mask leaves at most 24 bits."""
    total, one = add(s, t), spread(I32(1))
    nearest = to_float(total)
    back, sign = cut(nearest), shift_right(total, spread(I32(31)))
    went_up = greater(sub(bit_xor(back, sign), sign), sub(bit_xor(total, sign), sign))
    kept = select(went_up, sub(bits(nearest), one), bits(nearest))
    kept = from_bits(bit_and(kept, spread(I32(cut_mask >> 29))))
    scale = from_bits(shift_left(add(emax, spread(I32(127 - fraction))), spread(I32(23))))
    return mul(kept, scale), both(equal(back, total), equal(kept, nearest))


@njit(inline="always")
def _passes_30_bits(s, t):
    """Negative where s + t has 31 bits or more, so that float32 might round it to 2**31."""
    total = add(s, t)
    passed = bit_and(bit_xor(total, s), bit_xor(total, t))  # both of one sign, the sum of another
    return bit_or(passed, bit_xor(total, shift_left(total, spread(I32(1)))))


@njit(inline="always")
def _events(old, new, is_exact, lost):
    """Where a new sum is (infinite, zero though the exact one is not, inexact): masks."""
    was_finite = greater(spread(EXPONENT), bit_and(bits(old), spread(MAGNITUDE)))
    lost = both(either(lost, opposite(is_exact)), was_finite)
    over = both(_is_gone(new), was_finite)
    return over, both(lost, equal(new, spread(F32(0)))), either(lost, over)


@njit(inline="always")
def _pair_at(words, offset):
    """The int16 of which an int32 array holds two copies each, in 32 lanes."""
    return halves_of_words(spread_at(words, offset))


@lru_cache(maxsize=64)
def aligned_sums(stretch, wide_total, counting):
    """The kernel of `units.AlignedSum` for one kind of unit.

    Args:
        stretch: products in a piece of straight code: 8, or fewer where a chunk has fewer.
        wide_total: None, or how the total becomes the accumulator in float64: "cut" or "half".
            None cuts it in int32, where it passes 2**30 rarely: 16 products of 25 fraction bits.
        counting: whether to count.
    """
    # Functions in a closure would change the key under which compiled code is kept: switches only.
    is_half, in_int32 = wide_total == "half", wide_total is None

    @njit(nogil=True, cache=True)
    def kernel(operands, c, first_row, last_row, length, fraction, cut_mask, tally):
        a, a_exponent, a_last, b, b_exponent, b_last = operands
        n, depth = I64(b.shape[1]), I64(b.shape[0])
        lowest, scale_field = spread(I32(fraction - 126)), spread(I32(fraction + 127))
        zero, shift, safe = spread(I32(0)), spread(I32(23)), spread(_SAFE_EXPONENT)
        overflow = underflow = inexact = I64(0)
        nothing = spread(F32(0))
        for left in range(0, n, COLUMNS):
            for start in range(0, depth, length):
                for i in range(first_row, last_row):
                    row = i * depth + start
                    for j in range(left, min(left + COLUMNS, n), PAIR):
                        column, at_c = start * n + j, i * n + j
                        pair = add(_pair_at(a_exponent, row), load(b_exponent, column))
                        for k in range(0, length, stretch):
                            for step in range(stretch):
                                x = _pair_at(a_exponent, row + k + step)
                                y = load(b_exponent, column + (k + step) * n)
                                pair = largest(pair, add(x, y))
                        old, old2 = load(c, at_c), load(c, at_c + LANES)
                        if is_half:
                            own = _exponent_of_half(old, lowest)
                            own2 = _exponent_of_half(old2, lowest)
                        else:
                            own, own2 = _exponent_of(old, lowest), _exponent_of(old2, lowest)
                        emax = largest(own, first_half(pair))
                        emax2 = largest(own2, second_half(pair))
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
                            passed = bit_or(_passes_30_bits(s, t), _passes_30_bits(s2, t2))
                            high = bit_or(sub(safe, emax), sub(safe, emax2))
                            special = any_lane(greater(zero, bit_or(passed, high)))
                        if counting:
                            pair = add(_pair_at(a_last, row), load(b_last, column))
                            for k in range(0, length, stretch):
                                for step in range(stretch):
                                    x = _pair_at(a_last, row + k + step)
                                    y = load(b_last, column + (k + step) * n)
                                    pair = smallest(pair, add(x, y))
                            kept = spread(I32(fraction))
                            lost = either(lost, greater(sub(emax, kept), first_half(pair)))
                            lost2 = either(lost2, greater(sub(emax2, kept), second_half(pair)))
                        if special:
                            if is_half:
                                new, exact = _half_total(old, emax, s, t, fraction, cut_mask)
                                new2, exact2 = _half_total(old2, emax2, s2, t2, fraction, cut_mask)
                            else:
                                new, exact = _cut_total(old, emax, s, t, fraction, cut_mask)
                                new2, exact2 = _cut_total(old2, emax2, s2, t2, fraction, cut_mask)
                            if counting:
                                over, gone, lost = _events(old, new, exact, lost)
                                over2, gone2, lost2 = _events(old2, new2, exact2, lost2)
                                overflow += count_lanes(over) + count_lanes(over2)
                                underflow += count_lanes(gone) + count_lanes(gone2)
                                inexact += count_lanes(lost) + count_lanes(lost2)
                        else:
                            new, exact = _cut_total_in_int32(emax, s, t, fraction, cut_mask)
                            new2, exact2 = _cut_total_in_int32(emax2, s2, t2, fraction, cut_mask)
                            if counting:  # of finite sums
                                lost = either(lost, opposite(exact))
                                lost2 = either(lost2, opposite(exact2))
                                inexact += count_lanes(lost) + count_lanes(lost2)
                                gone = both(lost, equal(new, nothing))
                                gone2 = both(lost2, equal(new2, nothing))
                                underflow += count_lanes(gone) + count_lanes(gone2)
                        store(c, at_c, new)
                        store(c, at_c + LANES, new2)
        tally[OVERFLOW] += overflow
        tally[UNDERFLOW] += underflow
        tally[INEXACT] += inexact

    return kernel


# ---- operands


@njit(inline="always")
def _top_and_last(word):
    """Exponents of the first and the last significant bit of a float32, and whether it is zero."""
    magnitude = I32(word & MAGNITUDE)
    field = I32(magnitude >> I32(23))
    trailing = I32(magnitude & I32((1 << 23) - 1))
    significand = trailing if field == I32(0) else I32(trailing | I32(1 << 23))
    lowest_bit = I32(significand & I32(-significand))
    step = I32(max(field, I32(1)) - I32(127 + 23))
    top = I32(I32(to_bits(F32(significand)) >> I32(23)) - I32(127) + step)
    last = I32(I32(to_bits(F32(lowest_bit)) >> I32(23)) - I32(127) + step)
    return top, last, magnitude == I32(0)


_FAR = I32(1 << 14)  # beyond every exponent


@njit(nogil=True, cache=True)
def extremes_of(x, extremes):
    """What the products of an array's values can be.

    Args:
        x: flat int32 bits of finite float32 values.
        extremes: int64 [4] to write into: least and greatest exponent, least exponent of a last
            significant bit, and most significant bits, of the values that are not zero.
    """
    least, most, least_last, widest = _FAR, I32(-_FAR), _FAR, I32(0)
    for i in range(x.size):
        top, last, is_zero = _top_and_last(x[i])
        least = min(least, _FAR if is_zero else top)
        most = max(most, I32(-_FAR) if is_zero else top)
        least_last = min(least_last, _FAR if is_zero else last)
        widest = max(widest, I32(0) if is_zero else I32(top - last + I32(1)))
    extremes[0], extremes[1], extremes[2], extremes[3] = least, most, least_last, widest


@njit(nogil=True, cache=True)
def exponents_of(x, lowest, copies, exponents, lasts, extremes):
    """Exponents of float32 values as a matrix unit sees them, and of their last significant bits.

    Args:
        x: flat int32 bits of finite values. lowest: exponent of the format's smallest normal value.
        copies: 1, or 1 + 2**16, which writes an int16 twice into an int32.
        exponents, lasts: flat, to write int16 into; of zero the exponent is -126, the last bit far
            above all others.
        extremes: int64 [3] to write into: least and largest exponent, and least last bit, of the
            values that are not zero.
    """
    least, most, least_last = _FAR, I32(-_FAR), _FAR
    for i in range(x.size):
        top, last, is_zero = _top_and_last(x[i])
        exponent = max(top, I32(lowest))
        exponents[i] = ((I32(-126) if is_zero else exponent) & I32(0xFFFF)) * copies
        lasts[i] = ((I32(1 << 12) if is_zero else last) & I32(0xFFFF)) * copies
        least = min(least, _FAR if is_zero else exponent)
        most = max(most, I32(-_FAR) if is_zero else exponent)
        least_last = min(least_last, _FAR if is_zero else last)
    extremes[0], extremes[1], extremes[2] = least, most, least_last
