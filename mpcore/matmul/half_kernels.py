"""Compiled sums through an fp16 accumulator, where the processor adds products in fp16.

Each kernel works on some rows of C = A @ B, in place. A, B and C are the bits of halves, as int16,
as `engine.py` has laid them out. Only for processors with AVX512-FP16, which round a * b + c once.
"""

from numba import njit

from mpcore.formats.half_lanes import (
    differing,
    fma_down,
    fma_up,
    load_f16,
    load_halves,
    reaching,
    spread_half,
)
from mpcore.formats.lanes import (
    LANES,
    any_lane,
    count_bits,
    different,
    fma,
    load,
    narrow,
    store,
    widen,
)
from mpcore.matmul.kernel_parts import (
    COLUMNS,
    I64,
    INEXACT,
    OVERFLOW,
    PAIR,
    ROWS,
    SATURATION,
    UNDERFLOW,
)

STRETCH = 8  # products in one pass over C; LANES is a multiple


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
        for start in range(0, depth, STRETCH):
            for i in range(first_row, last_row, ROWS):
                row0 = i * depth + start
                row1, row2, row3 = row0 + depth, row0 + 2 * depth, row0 + 3 * depth
                for j in range(left, min(left + 2 * COLUMNS, n), PAIR):
                    column, at_c = start * n + j, i * n + j
                    s0, s1 = load_halves(c, at_c), load_halves(c, at_c + n)
                    s2, s3 = load_halves(c, at_c + 2 * n), load_halves(c, at_c + 3 * n)
                    for step in range(STRETCH):
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
        for start in range(0, depth, STRETCH):
            for i in range(first_row, last_row, ROWS):
                row0 = i * depth + start
                row1, row2, row3 = row0 + depth, row0 + 2 * depth, row0 + 3 * depth
                for j in range(left, min(left + 2 * COLUMNS, n), PAIR):
                    column, at_c = start * n + j, i * n + j
                    s0, s1 = load_halves(c, at_c), load_halves(c, at_c + n)
                    s2, s3 = load_halves(c, at_c + 2 * n), load_halves(c, at_c + 3 * n)
                    is_high = reaching(s0, high) | reaching(s1, high) != 0
                    is_high |= reaching(s2, high) | reaching(s3, high) != 0
                    for step in range(STRETCH):
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
