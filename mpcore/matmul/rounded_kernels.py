"""Compiled sums through an accumulator: the fast twin of `accumulate.Rounder.in_order`.

Each kernel works on some rows of C = A @ B, in place, from operands that `engine.py` has laid out
as for `aligned_kernels.py`.
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
    different,
    either,
    equal,
    fma,
    from_bits,
    greater,
    largest,
    load,
    load_f16,
    load_halves,
    mul,
    narrow,
    opposite,
    select,
    spread,
    spread_at,
    spread_f16,
    spread_half,
    store,
    sub,
    widen,
)
from mpcore.matmul.kernel_parts import (
    COLUMNS,
    EXPONENT64,
    F32,
    F64,
    I64,
    INEXACT,
    OVERFLOW,
    PAIR,
    ROWS,
    SATURATION,
    SIGN64,
    UNDERFLOW,
    round64,
    size,
    size64,
)

# ---- accumulators of any format


@njit(inline="always")
def _stored(value, x, rounding):
    """A rounded sum as the accumulator holds it; x where x was infinite."""
    top, beyond = spread(rounding[2]), bits(spread(rounding[3]))
    limit = from_bits(bit_or(bit_and(bits(value), spread(SIGN64)), beyond))
    bounded = select(greater(size64(value), top), limit, value)
    return select(greater(size64(x), spread(F64(1.7976931348623157e308))), x, bounded)


def _sums_of(dtype, counting):
    """The function that adds x and `every` products and rounds once, for one dtype of operands.

    Args:
        dtype: "float32" or "float64": of A and B.
        counting: whether it is wanted where sums are exact.
    """

    @njit(inline="always")
    def as_double(x):
        return widen(x) if dtype == "float32" else x

    @njit(nogil=True)
    def exact_sum(a, row, b, column, n, every, x, rounding):
        """The rounded sum, where it is exact, and where the sum is beyond the largest value.

        In pairs of float64 that hold every partial sum exactly (Knuth's addition): the engine sees
        to it that 100 bits are enough.
        """
        high, low = x, spread(F64(0))
        for step in range(every):
            p = mul(as_double(spread_at(a, row + step)), as_double(load(b, column + step * n)))
            total = add(high, p)
            back = sub(total, high)
            error = add(sub(high, sub(total, back)), sub(p, back))
            high, low = total, add(low, error)
        # A zero keeps the sign that the additions gave it.
        total = select(different(low, spread(F64(0))), add(high, low), high)
        back = sub(total, high)
        low = add(sub(high, sub(total, back)), sub(low, back))
        # Rounded to odd, so that the second rounding sees on which side the sum lies.
        word, one = bits(total), spread(I64(1))
        is_even = equal(bit_and(word, one), spread(I64(0)))
        outward = greater(bit_xor(word, bits(low)), spread(I64(-1)))  # both of one sign
        moved = select(outward, add(word, one), sub(word, one))
        odd = from_bits(select(both(different(low, spread(F64(0))), is_even), moved, word))
        value = round64(odd, rounding[0], rounding[1])
        beyond = greater(size64(odd), spread(rounding[2]))
        return _stored(value, x, rounding), equal(value, odd), beyond

    @njit(nogil=True)
    def rounded_sum(a, row, b, column, n, every, x, rounding):
        """What `exact_sum` returns (where it is exact only if counting), in float64.

        In float64, whose error has a bound. If the sum lies farther than that from where the
        rounding turns, it rounds like the exact sum. Else it is added again, exactly.

        Args:
            x: float64. rounding: (significand bits, exponent of the smallest normal value, largest
                value, what lies beyond, bound of the error in float64, and how near, in shares of
                the magic number, a sum may come to a tie, and to a value, before it is in doubt).
        """
        precision, lowest, top, _, error, near_tie, near_exact = rounding
        s = x
        for step in range(every):
            p, q = as_double(spread_at(a, row + step)), as_double(load(b, column + step * n))
            s = fma(p, q, s)
        least = spread(I64((lowest + 1023) << 52))
        one_and_a_half = spread(I64(((53 - precision) << 52) | (1 << 51)))
        power = largest(bit_and(bits(s), spread(EXPONENT64)), least)
        magic = from_bits(add(power, one_and_a_half))
        rounded = bits(sub(add(s, magic), magic))
        new = from_bits(bit_or(rounded, bit_and(bits(s), spread(SIGN64))))
        off = size64(sub(s, new))
        doubtful = greater(fma(magic, spread(near_tie), off), spread(-error))
        beyond = opposite(greater(spread(top), size64(s)))
        doubtful = either(doubtful, beyond)
        exact = equal(s, new)
        if counting:
            near = greater(fma(magic, spread(near_exact), spread(error)), off)
            doubtful = either(doubtful, near)
        if any_lane(doubtful):
            new, exact, beyond = exact_sum(a, row, b, column, n, every, x, rounding)
        return new, exact, beyond

    return rounded_sum


_sum_of_doubles, _counted_sum_of_doubles = (_sums_of("float64", c) for c in (False, True))
sum_of_singles, counted_sum_of_singles = (_sums_of("float32", c) for c in (False, True))


@lru_cache(maxsize=64)
def rounded_sums(every, counting):
    """The kernel of an accumulator that rounds to nearest even, in float64.

    Args:
        every: products between two roundings.
        counting: whether to count.

    A, B and C are float64; `rounding` is as in `_sums_of`.
    """

    @njit(nogil=True, cache=True)
    def kernel(operands, c, first_row, last_row, rounding, tally):
        a, b = operands
        n, depth = I64(b.shape[1]), I64(b.shape[0])
        nothing, whole = spread(F64(0)), spread(F64(np.inf))
        overflow = saturation = underflow = inexact = I64(0)
        for left in range(0, n, COLUMNS):
            for start in range(0, depth, every):
                for i in range(first_row, last_row):
                    row = i * depth + start
                    for j in range(left, min(left + COLUMNS, n), LANES):
                        column, at_c = start * n + j, i * n + j
                        old = load(c, at_c)
                        if not counting:
                            new, _, _ = _sum_of_doubles(a, row, b, column, n, every, old, rounding)
                        else:
                            new, exact, beyond = _counted_sum_of_doubles(
                                a, row, b, column, n, every, old, rounding
                            )
                            was_finite = greater(whole, size64(old))
                            lost = both(either(opposite(exact), beyond), was_finite)
                            inexact += count_lanes(lost)
                            underflow += count_lanes(both(lost, equal(new, nothing)))
                            if any_lane(beyond):
                                beyond = both(beyond, was_finite)
                                is_finite = greater(whole, size64(new))
                                overflow += count_lanes(both(beyond, opposite(is_finite)))
                                saturation += count_lanes(both(beyond, is_finite))
                        store(c, at_c, new)
        tally[OVERFLOW] += overflow
        tally[UNDERFLOW] += underflow
        tally[SATURATION] += saturation
        tally[INEXACT] += inexact

    return kernel


# ---- fp16 accumulators on a processor that multiplies and adds halves with one rounding

HALF_STRETCH = 8  # products in one pass over C; LANES is a multiple


@njit(nogil=True, cache=True)
def halves_of(x, halves):
    """float32 as the bits of halves (flat int16, whole vectors); and whether they are the same."""
    same = True
    for i in range(0, x.size, LANES):
        value = load(x, i)
        half = narrow(value)
        store(halves, i, half)
        if any_lane(different(widen(half), value)):
            same = False
    return same


@njit(nogil=True, cache=True)
def singles_of(halves, x):
    """The float32 (flat, whole vectors) of the bits of halves."""
    for i in range(0, x.size, LANES):
        store(x, i, widen(load_f16(halves, i)))


@njit(nogil=True, cache=True)
def half_sums(operands, c, first_row, last_row):
    """The kernel of an fp16 accumulator that rounds every product, in the processor's own fp16.

    A, B and C are the bits of halves, as int16.
    """
    a, b = operands
    n, depth = I64(b.shape[1]), I64(b.shape[0])
    for left in range(0, n, 2 * COLUMNS):
        for start in range(0, depth, HALF_STRETCH):
            for i in range(first_row, last_row, ROWS):
                row0 = i * depth + start
                row1, row2, row3 = row0 + depth, row0 + 2 * depth, row0 + 3 * depth
                for j in range(left, min(left + 2 * COLUMNS, n), PAIR):
                    column, at_c = start * n + j, i * n + j
                    s0, s1 = load_halves(c, at_c), load_halves(c, at_c + n)
                    s2, s3 = load_halves(c, at_c + 2 * n), load_halves(c, at_c + 3 * n)
                    for step in range(HALF_STRETCH):
                        y = load_halves(b, column + step * n)
                        s0 = fma(spread_half(a, row0 + step), y, s0)
                        s1 = fma(spread_half(a, row1 + step), y, s1)
                        s2 = fma(spread_half(a, row2 + step), y, s2)
                        s3 = fma(spread_half(a, row3 + step), y, s3)
                    store(c, at_c, s0)
                    store(c, at_c + n, s1)
                    store(c, at_c + 2 * n, s2)
                    store(c, at_c + 3 * n, s3)


@njit(nogil=True, cache=True)
def counted_half_sums(operands, c, first_row, last_row, tally):
    """The same, counting; operands come in float32, too.

    Next to the sum in fp16 stands the one in float32. Where they differ, the first is inexact.
    Where they agree, it is exact unless float32 has rounded as well: then it is looked at closely.
    """
    a, b, a32, b32 = operands
    n, depth = I64(b.shape[1]), I64(b.shape[0])
    nothing, whole = spread(F32(0)), spread(F32(np.inf))
    for left in range(0, n, COLUMNS):
        for start in range(0, depth, HALF_STRETCH):
            for i in range(first_row, last_row):
                row = i * depth + start
                for j in range(left, min(left + COLUMNS, n), LANES):
                    column, at_c = start * n + j, i * n + j
                    s = load_f16(c, at_c)
                    before = widen(s)
                    for step in range(HALF_STRETCH):
                        x, y = spread_at(a32, row + step), load(b32, column + step * n)
                        near = fma(x, y, before)
                        s = fma(spread_f16(a, row + step), load_f16(b, column + step * n), s)
                        after = widen(s)
                        lost = different(near, after)
                        close = opposite(lost)
                        if any_lane(either(close, equal(size(after), whole))):
                            p, finite = mul(x, y), greater(whole, size(before))
                            exact = equal(sub(after, before), p)
                            exact = both(exact, equal(add(sub(p, after), before), nothing))
                            lost = both(either(lost, opposite(exact)), finite)
                            over = both(equal(size(after), whole), finite)
                            tally[OVERFLOW] += count_lanes(over)
                            tally[UNDERFLOW] += count_lanes(both(lost, equal(after, nothing)))
                        else:
                            tally[UNDERFLOW] += count_lanes(equal(after, nothing))
                        tally[INEXACT] += count_lanes(lost)
                        before = after
                    store(c, at_c, s)
