"""Compiled sums through an accumulator in float32: the fast twin of `accumulate.Rounder`.

For operands whose products are exact in float32 (24 bits or fewer). Each kernel works on some rows
of C = A @ B, in place, from operands that `engine.py` has laid out as for `aligned_kernels.py`.
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
    bits,
    both,
    count_lanes,
    either,
    equal,
    fma,
    from_bits,
    greater,
    largest,
    load,
    mul,
    narrow,
    opposite,
    spread,
    spread_at,
    store,
    sub,
    widen,
)
from mpcore.matmul.kernel_parts import (
    COLUMNS,
    EXPONENT,
    F32,
    I32,
    I64,
    INEXACT,
    OVERFLOW,
    ROWS,
    SIGN,
    UNDERFLOW,
    size,
)
from mpcore.matmul.rounded_kernels import counted_sum_of_singles, sum_of_singles

STRETCH = 8  # products in one pass over C where every one is rounded


@njit(nogil=True, cache=True)
def single_sums(operands, c, first_row, last_row):
    """The kernel of an fp32 accumulator that rounds every product: the processor's own fma."""
    a, b = operands
    n, depth = I64(b.shape[1]), I64(b.shape[0])
    for left in range(0, n, COLUMNS):
        for start in range(0, depth, STRETCH):
            for i in range(first_row, last_row, ROWS):
                row0 = i * depth + start
                row1, row2, row3 = row0 + depth, row0 + 2 * depth, row0 + 3 * depth
                for j in range(left, min(left + COLUMNS, n), LANES):
                    column, at_c = start * n + j, i * n + j
                    s0, s1 = load(c, at_c), load(c, at_c + n)
                    s2, s3 = load(c, at_c + 2 * n), load(c, at_c + 3 * n)
                    for step in range(STRETCH):
                        y = load(b, column + step * n)
                        s0 = fma(spread_at(a, row0 + step), y, s0)
                        s1 = fma(spread_at(a, row1 + step), y, s1)
                        s2 = fma(spread_at(a, row2 + step), y, s2)
                        s3 = fma(spread_at(a, row3 + step), y, s3)
                    store(c, at_c, s0)
                    store(c, at_c + n, s1)
                    store(c, at_c + 2 * n, s2)
                    store(c, at_c + 3 * n, s3)


@njit(nogil=True, cache=True)
def counted_single_sums(operands, c, first_row, last_row, tally):
    """The same, counting: a sum is exact if taking its parts off again leaves nothing."""
    a, b = operands
    n, depth = I64(b.shape[1]), I64(b.shape[0])
    nothing, whole = spread(F32(0)), spread(F32(np.inf))
    for left in range(0, n, COLUMNS):
        for start in range(0, depth, STRETCH):
            for i in range(first_row, last_row):
                row = i * depth + start
                for j in range(left, min(left + COLUMNS, n), LANES):
                    column, at_c = start * n + j, i * n + j
                    s = load(c, at_c)
                    for step in range(STRETCH):
                        x, y = spread_at(a, row + step), load(b, column + step * n)
                        before, s, p = s, fma(x, y, s), mul(x, y)
                        exact = equal(sub(s, before), p)
                        exact = both(exact, equal(add(sub(p, s), before), nothing))
                        lost = both(opposite(exact), greater(whole, size(before)))
                        over = both(equal(size(s), whole), lost)
                        tally[OVERFLOW] += count_lanes(over)
                        tally[UNDERFLOW] += count_lanes(both(lost, equal(s, nothing)))
                        tally[INEXACT] += count_lanes(lost)
                    store(c, at_c, s)


@lru_cache(maxsize=64)
def rounded_single_sums(stretch, counting):
    """The kernel of a narrower accumulator that rounds to nearest even.

    `every` products are added in float32, whose error has a bound. If the sum lies farther than
    that from where the rounding turns, it rounds like the exact sum. Else it is added again, in
    float64.

    Args:
        stretch: products in a piece of straight code, of which `every` is a multiple; 0 where
            every product is rounded.
        counting: whether to count.

    The kernel's operands are A, B, and bounds of the error of a sum of products, as factors: of A
    [m, chunks] and of B [chunks, n]. Its `rounding` is as in `rounded_kernels._sums_of`; `nearness`
    is how near a sum in float32, in shares of the magic number, may come to a tie, and to a value,
    before it is in doubt.
    """

    @njit(nogil=True, cache=True)
    def kernel(operands, c, first_row, last_row, every, rounding, nearness, tally):
        a, b, a_error, b_error = operands
        precision, lowest, top = rounding[:3]
        n, depth = I64(b.shape[1]), I64(b.shape[0])
        chunks = I64(a_error.shape[1])
        limit, nothing, whole = spread(F32(top)), spread(F32(0)), spread(F32(np.inf))
        to_tie, to_exact = spread(nearness[0]), spread(nearness[1])
        least = spread(I32((lowest + 127) << 23))
        one_and_a_half = spread(I32(((24 - precision) << 23) | (1 << 22)))
        sign, field = spread(SIGN), spread(EXPONENT)
        for left in range(0, n, COLUMNS):
            for chunk in range(chunks):
                start = chunk * every
                for i in range(first_row, last_row):
                    row = i * depth + start
                    a_bound = spread_at(a_error, i * chunks + chunk)
                    for j in range(left, min(left + COLUMNS, n), LANES):
                        column, at_c = start * n + j, i * n + j
                        old = load(c, at_c)
                        if stretch == 0:
                            s = fma(spread_at(a, row), load(b, column), old)
                        else:
                            p = nothing
                            for step in range(0, every, stretch):
                                at_a, at_b, q = row + step, column + step * n, nothing
                                for k in range(stretch // 2):
                                    p = fma(spread_at(a, at_a + k), load(b, at_b + k * n), p)
                                for k in range(stretch // 2, stretch):
                                    q = fma(spread_at(a, at_a + k), load(b, at_b + k * n), q)
                                p = add(p, q)
                            s = add(old, p)
                        power = largest(bit_and(bits(s), field), least)
                        magic = from_bits(add(power, one_and_a_half))
                        rounded = bits(sub(add(s, magic), magic))
                        new = from_bits(bit_or(rounded, bit_and(bits(s), sign)))
                        off = size(sub(s, new))
                        nearer = fma(magic, to_tie, off)
                        if stretch != 0:
                            b_bound = load(b_error, chunk * n + j)
                            nearer = fma(a_bound, b_bound, nearer)
                        doubtful = greater(nearer, nothing)
                        doubtful = either(doubtful, opposite(greater(limit, size(s))))
                        if counting:
                            exact = equal(s, new)
                            reach = mul(magic, to_exact)
                            if stretch != 0:
                                reach = fma(a_bound, b_bound, reach)
                            doubtful = either(doubtful, opposite(greater(off, reach)))
                        if any_lane(doubtful):
                            x = widen(old)
                            if counting:
                                x, exact = counted_sum_of_singles(
                                    a, row, b, column, n, every, x, rounding
                                )
                            else:
                                x, _ = sum_of_singles(a, row, b, column, n, every, x, rounding)
                            new = narrow(x)
                        if counting:
                            was_finite = greater(whole, size(old))
                            lost = both(opposite(exact), was_finite)
                            over = both(greater(size(new), limit), was_finite)
                            tally[OVERFLOW] += count_lanes(over)
                            tally[UNDERFLOW] += count_lanes(both(lost, equal(new, nothing)))
                            tally[INEXACT] += count_lanes(lost)
                        store(c, at_c, new)

    return kernel


@njit(nogil=True, cache=True)
def squares_of_chunks(a, b, every, a_squares, b_squares):
    """Sums of `every` squares: of A [m, chunks], of B [chunks, n], added to what is there."""
    for i in range(a.shape[0]):
        for chunk in range(a_squares.shape[1]):
            found = F32(0)
            for k in range(chunk * every, (chunk + 1) * every):
                found += a[i, k] * a[i, k]
            a_squares[i, chunk] += found
    for chunk in range(b_squares.shape[0]):
        for k in range(chunk * every, (chunk + 1) * every):
            for j in range(b.shape[1]):
                b_squares[chunk, j] += b[k, j] * b[k, j]
