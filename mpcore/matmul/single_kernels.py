"""Compiled sums through an accumulator in float32: the fast twin of `accumulate.Rounder`.

For operands whose products are exact in float32 (24 bits or fewer). Each kernel works on some rows
of C = A @ B, in place, from operands that `engine.py` has laid out as for `aligned_kernels.py`.
"""

from numba import njit

from mpcore.formats.lanes import (
    LANES,
    add,
    both,
    count_bits,
    equal,
    fma,
    lanes_of,
    load,
    mul,
    opposite,
    spread,
    spread_at,
    store,
    sub,
)
from mpcore.matmul.kernel_parts import (
    COLUMNS,
    F32,
    I64,
    INEXACT,
    ROWS,
    UNDERFLOW,
)

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


@njit(inline="always")
def _lost(before, s, p):
    """Where a float32 sum of two parts is not exact: taking them off again leaves something."""
    exact = equal(sub(s, before), p)
    return opposite(both(exact, equal(add(sub(p, s), before), spread(F32(0)))))


@njit(nogil=True, cache=True)
def counted_single_sums(operands, c, first_row, last_row, tally):
    """The same, counting; no sum is infinite."""
    a, b = operands
    n, depth = I64(b.shape[1]), I64(b.shape[0])
    nothing = spread(F32(0))
    underflow = inexact = I64(0)
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
                        x0, x1 = spread_at(a, row0 + step), spread_at(a, row1 + step)
                        x2, x3 = spread_at(a, row2 + step), spread_at(a, row3 + step)
                        old0, old1, old2, old3 = s0, s1, s2, s3
                        s0, s1, s2, s3 = (
                            fma(x0, y, s0),
                            fma(x1, y, s1),
                            fma(x2, y, s2),
                            fma(x3, y, s3),
                        )
                        lost = lanes_of(
                            _lost(old0, s0, mul(x0, y)),
                            _lost(old1, s1, mul(x1, y)),
                            _lost(old2, s2, mul(x2, y)),
                            _lost(old3, s3, mul(x3, y)),
                        )
                        inexact += count_bits(lost)
                        zero = lanes_of(
                            equal(s0, nothing),
                            equal(s1, nothing),
                            equal(s2, nothing),
                            equal(s3, nothing),
                        )
                        underflow += count_bits(lost & zero)
                    store(c, at_c, s0)
                    store(c, at_c + n, s1)
                    store(c, at_c + 2 * n, s2)
                    store(c, at_c + 3 * n, s3)
    tally[UNDERFLOW] += underflow
    tally[INEXACT] += inexact
