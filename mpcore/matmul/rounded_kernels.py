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
    count_bits,
    count_lanes,
    different,
    differing,
    either,
    equal,
    fma,
    fma_down,
    fma_up,
    from_bits,
    greater,
    largest,
    load,
    load_f16,
    load_halves,
    mul,
    narrow,
    opposite,
    reaching,
    select,
    spread,
    spread_at,
    spread_half,
    store,
    sub,
    widen,
)
from mpcore.matmul.kernel_parts import (
    COLUMNS,
    EXPONENT64,
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
def counted_half_sums(operands, c, first_row, last_row, marks, tally):
    """The same, counting: a sum that is not exact differs when it is rounded up and down.

    Args:
        marks: halves, 0, infinity and what a sum has to reach before a stretch of products can
            take it beyond the largest half.
    """
    a, b = operands
    n, depth = I64(b.shape[1]), I64(b.shape[0])
    nothing, endless, high = spread_half(marks, 0), spread_half(marks, 1), spread_half(marks, 2)
    overflow = saturation = underflow = inexact = I64(0)
    for left in range(0, n, 2 * COLUMNS):
        for start in range(0, depth, HALF_STRETCH):
            for i in range(first_row, last_row, ROWS):
                row0 = i * depth + start
                row1, row2, row3 = row0 + depth, row0 + 2 * depth, row0 + 3 * depth
                for j in range(left, min(left + 2 * COLUMNS, n), PAIR):
                    column, at_c = start * n + j, i * n + j
                    s0, s1 = load_halves(c, at_c), load_halves(c, at_c + n)
                    s2, s3 = load_halves(c, at_c + 2 * n), load_halves(c, at_c + 3 * n)
                    is_high = reaching(s0, high) | reaching(s1, high) != 0
                    is_high |= reaching(s2, high) | reaching(s3, high) != 0
                    for step in range(HALF_STRETCH):
                        y = load_halves(b, column + step * n)
                        x0, x1 = spread_half(a, row0 + step), spread_half(a, row1 + step)
                        x2, x3 = spread_half(a, row2 + step), spread_half(a, row3 + step)
                        up0, down0, s0 = fma_up(x0, y, s0), fma_down(x0, y, s0), fma(x0, y, s0)
                        up1, down1, s1 = fma_up(x1, y, s1), fma_down(x1, y, s1), fma(x1, y, s1)
                        up2, down2, s2 = fma_up(x2, y, s2), fma_down(x2, y, s2), fma(x2, y, s2)
                        up3, down3, s3 = fma_up(x3, y, s3), fma_down(x3, y, s3), fma(x3, y, s3)
                        lost0 = differing(up0, down0) | differing(up1, down1) << 32
                        lost2 = differing(up2, down2) | differing(up3, down3) << 32
                        inexact += count_bits(lost0) + count_bits(lost2)
                        other0 = differing(s0, nothing) | differing(s1, nothing) << 32
                        other2 = differing(s2, nothing) | differing(s3, nothing) << 32
                        underflow += count_bits(lost0 & ~other0) + count_bits(lost2 & ~other2)
                        if is_high:
                            beyond0 = reaching(up0, endless) | reaching(down0, endless)
                            beyond0 |= (reaching(up1, endless) | reaching(down1, endless)) << 32
                            beyond2 = reaching(up2, endless) | reaching(down2, endless)
                            beyond2 |= (reaching(up3, endless) | reaching(down3, endless)) << 32
                            new0 = reaching(s0, endless) | reaching(s1, endless) << 32
                            new2 = reaching(s2, endless) | reaching(s3, endless) << 32
                            overflow += count_bits(lost0 & new0) + count_bits(lost2 & new2)
                            saturation += count_bits(lost0 & beyond0 & ~new0)
                            saturation += count_bits(lost2 & beyond2 & ~new2)
                    store(c, at_c, s0)
                    store(c, at_c + n, s1)
                    store(c, at_c + 2 * n, s2)
                    store(c, at_c + 3 * n, s3)
    tally[OVERFLOW] += overflow
    tally[UNDERFLOW] += underflow
    tally[SATURATION] += saturation
    tally[INEXACT] += inexact
