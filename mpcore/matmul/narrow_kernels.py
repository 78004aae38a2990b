"""Compiled sums through an accumulator that is narrower than float32: float32 with a known error.

For operands whose products are exact in float32 (24 bits or fewer). Each kernel works on some rows
of C = A @ B, in place, from operands that `engine.py` has laid out as for `aligned_kernels.py`.
"""

from functools import lru_cache

import numpy as np
from numba import njit

from mpcore.formats.lanes import (
    LANES,
    add,
    bit_and,
    bit_or,
    bit_xor,
    bits,
    both,
    count_bits,
    count_lanes,
    different,
    either,
    equal,
    first_bit,
    fma,
    from_bits,
    greater,
    lanes_of,
    largest,
    load,
    mul,
    narrow,
    opposite,
    select,
    spread,
    spread_at,
    store,
    sub,
    widen,
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
    OVERFLOW,
    ROWS,
    SATURATION,
    SIGN,
    SIGN64,
    UNDERFLOW,
    size,
)
from mpcore.matmul.rounded_kernels import counted_sum_of_singles, sum_of_singles

ROW_OF_LANES = I64((1 << LANES) - 1)


@njit(inline="always")
def _rounded(s, error, constants):
    """A float32 sum rounded, and where what is not known of it could change the result.

    Args:
        s: the sum. error: a bound of its error, without half a step of its own.
        constants: power of the smallest normal value; what makes a power a magic number; and how
            near, in shares of the magic number, s may come to a tie, and to a value.

    Returns:
        (rounded, where that may be wrong, where s may be a value of the format)
    """
    least, one_and_a_half, to_tie, to_exact = constants
    power = largest(bit_and(bits(s), spread(EXPONENT)), least)
    magic = from_bits(add(power, one_and_a_half))
    rounded = bits(sub(add(s, magic), magic))
    new = from_bits(bit_or(rounded, bit_and(bits(s), spread(SIGN))))
    off = size(sub(s, new))
    wrong = greater(add(fma(magic, to_tie, off), error), spread(F32(0)))
    return new, wrong, opposite(greater(off, fma(magic, to_exact, error)))


@njit(inline="always")
def _products(a, row, depth, b, column, n, every, stretch):
    """Sums of the products of four rows, in float32, both halves of a stretch apart."""
    row1, row2, row3 = row + depth, row + 2 * depth, row + 3 * depth
    p0 = p1 = p2 = p3 = spread(F32(-0.0))  # leaves the sign of a zero as it is
    for start in range(0, every, stretch):
        q0 = q1 = q2 = q3 = spread(F32(-0.0))
        for k in range(start, start + stretch // 2):
            y = load(b, column + k * n)
            p0, p1 = fma(spread_at(a, row + k), y, p0), fma(spread_at(a, row1 + k), y, p1)
            p2, p3 = fma(spread_at(a, row2 + k), y, p2), fma(spread_at(a, row3 + k), y, p3)
        for k in range(start + stretch // 2, start + stretch):
            y = load(b, column + k * n)
            q0, q1 = fma(spread_at(a, row + k), y, q0), fma(spread_at(a, row1 + k), y, q1)
            q2, q3 = fma(spread_at(a, row2 + k), y, q2), fma(spread_at(a, row3 + k), y, q3)
        p0, p1, p2, p3 = add(p0, q0), add(p1, q1), add(p2, q2), add(p3, q3)
    return p0, p1, p2, p3


@njit(nogil=True)
def _sum_of_product(x, y, old, rounding, constants):
    """old + x * y, x * y exact, rounded once; where that is exact; where beyond the largest."""
    p = mul(x, y)
    s = add(old, p)
    back = sub(s, old)
    rest = add(sub(old, sub(s, back)), sub(p, back))
    # Rounded to odd, so that the second rounding sees on which side the sum lies.
    word, one, nothing = bits(s), spread(I32(1)), spread(F32(0))
    is_even = equal(bit_and(word, one), spread(I32(0)))
    outward = greater(bit_xor(word, bits(rest)), spread(I32(-1)))  # both of one sign
    moved = select(outward, add(word, one), sub(word, one))
    odd = from_bits(select(both(different(rest, nothing), is_even), moved, word))
    value, _, _ = _rounded(odd, nothing, constants)
    top, beyond = spread(F32(rounding[2])), bits(spread(F32(rounding[3])))
    limit = from_bits(bit_or(bit_and(bits(value), spread(SIGN)), beyond))
    value, exact = select(greater(size(value), top), limit, value), equal(value, odd)
    was_infinite = equal(size(old), spread(F32(np.inf)))
    return select(was_infinite, old, value), exact, greater(size(odd), top)


@njit(nogil=True)
def _sum_of_one(a, row, b, column, n, every, old, rounding):
    """One element's sum, rounded in float64: (value, whether it is exact, whether both are so)."""
    precision, lowest, top, _, error, near_tie, near_exact = rounding
    total = F64(old)
    for k in range(every):
        total += F64(a[row + k]) * F64(b[column + k * n])
    s = F64(total)
    word = s.view(I64)
    power = max(word & EXPONENT64, I64((lowest + 1023) << 52))
    magic = I64(power + I64(((53 - precision) << 52) | (1 << 51))).view(F64)
    rounded = F64(s + magic - magic).view(I64)
    new = I64(rounded | (word & SIGN64)).view(F64)
    off = abs(s - new)
    is_certain = off + near_tie * magic <= -error and off >= near_exact * magic + error
    return F32(new), s == new, is_certain and abs(s) < top


@lru_cache(maxsize=64)
def narrow_sums(stretch, is_bounded, counting):
    """The kernel of a narrower accumulator that rounds to nearest even.

    `every` products are added in float32, whose error has a bound. If the sum lies farther than
    that from where the rounding turns, it rounds like the exact sum. Else it is added again, after
    all columns of a few rows: a branch that waits for the sum would cost more than the sum.

    Args:
        stretch: products in a piece of straight code, of which `every` is a multiple; 0 where
            every product is rounded.
        is_bounded: whether no sum can come near the format's largest value.
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
        one_and_a_half = spread(I32(((24 - precision) << 23) | (1 << 22)))
        least = spread(I32((lowest + 127) << 23))
        constants = least, one_and_a_half, spread(nearness[0]), spread(nearness[1])
        flat_a, flat_b, flat_c = a.reshape(-1), b.reshape(-1), c.reshape(-1)
        parts = COLUMNS // LANES  # of four rows: a word has a bit for each of their sums
        olds = np.empty(parts * ROWS * LANES, F32)
        doubts, losses, zeros = np.empty(parts, I64), np.empty(parts, I64), np.empty(parts, I64)
        overflow = saturation = underflow = inexact = I64(0)
        for left in range(0, n, COLUMNS):
            right = min(left + COLUMNS, n)
            for chunk in range(chunks):
                start = chunk * every
                for i in range(first_row, last_row, ROWS):
                    row0, bound = i * depth + start, i * chunks + chunk
                    row1, row2, row3 = row0 + depth, row0 + 2 * depth, row0 + 3 * depth
                    bound0, bound1 = spread_at(a_error, bound), spread_at(a_error, bound + chunks)
                    bound2 = spread_at(a_error, bound + 2 * chunks)
                    bound3 = spread_at(a_error, bound + 3 * chunks)
                    for j in range(left, right, LANES):
                        column, at_c, part = start * n + j, i * n + j, (j - left) // LANES
                        at_old = part * ROWS * LANES
                        old0, old1 = load(c, at_c), load(c, at_c + n)
                        old2, old3 = load(c, at_c + 2 * n), load(c, at_c + 3 * n)
                        store(olds, at_old, old0)
                        store(olds, at_old + LANES, old1)
                        store(olds, at_old + 2 * LANES, old2)
                        store(olds, at_old + 3 * LANES, old3)
                        if stretch == 0:
                            y, error = load(b, column), nothing
                            s0 = fma(spread_at(a, row0), y, old0)
                            s1 = fma(spread_at(a, row1), y, old1)
                            s2 = fma(spread_at(a, row2), y, old2)
                            s3 = fma(spread_at(a, row3), y, old3)
                        else:
                            error = load(b_error, chunk * n + j)
                            p0, p1, p2, p3 = _products(a, row0, depth, b, column, n, every, stretch)
                            s0, s1 = add(old0, p0), add(old1, p1)
                            s2, s3 = add(old2, p2), add(old3, p3)
                        new0, doubt0, same0 = _rounded(s0, mul(bound0, error), constants)
                        new1, doubt1, same1 = _rounded(s1, mul(bound1, error), constants)
                        new2, doubt2, same2 = _rounded(s2, mul(bound2, error), constants)
                        new3, doubt3, same3 = _rounded(s3, mul(bound3, error), constants)
                        doubt = lanes_of(doubt0, doubt1, doubt2, doubt3)
                        if stretch != 0:  # the exact sum may have another sign
                            doubt |= lanes_of(
                                greater(mul(bound0, error), size(s0)),
                                greater(mul(bound1, error), size(s1)),
                                greater(mul(bound2, error), size(s2)),
                                greater(mul(bound3, error), size(s3)),
                            )
                        if counting:
                            doubt |= lanes_of(same0, same1, same2, same3)
                            losses[part] = ~lanes_of(
                                equal(s0, new0), equal(s1, new1), equal(s2, new2), equal(s3, new3)
                            )
                            zeros[part] = lanes_of(
                                equal(new0, nothing),
                                equal(new1, nothing),
                                equal(new2, nothing),
                                equal(new3, nothing),
                            )
                        if not is_bounded:
                            doubt |= ~lanes_of(
                                greater(limit, size(s0)),
                                greater(limit, size(s1)),
                                greater(limit, size(s2)),
                                greater(limit, size(s3)),
                            )
                        doubts[part] = doubt
                        store(c, at_c, new0)
                        store(c, at_c + n, new1)
                        store(c, at_c + 2 * n, new2)
                        store(c, at_c + 3 * n, new3)
                    for part in range((right - left) // LANES):
                        doubt = doubts[part]
                        while doubt != 0:
                            bit = first_bit(doubt)
                            r, lane = bit // LANES, bit % LANES
                            j = left + part * LANES
                            row, column, at_c = row0 + r * depth, start * n + j, (i + r) * n + j
                            at_old = (part * ROWS + r) * LANES
                            is_certain = False
                            if stretch != 0:
                                value, is_exact, is_certain = _sum_of_one(
                                    flat_a,
                                    row,
                                    flat_b,
                                    column + lane,
                                    n,
                                    every,
                                    olds[at_old + lane],
                                    rounding,
                                )
                            if is_certain:
                                flat_c[at_c + lane] = value
                                seen = doubt & -doubt
                                if counting:
                                    losses[part] = (losses[part] & ~seen) | seen * (not is_exact)
                                    zeros[part] = (zeros[part] & ~seen) | seen * (value == 0)
                            else:
                                old = load(olds, at_old)
                                seen = ROW_OF_LANES << (r * LANES)
                                if stretch == 0:
                                    x, y = spread_at(a, row), load(b, column)
                                    new, exact, beyond = _sum_of_product(
                                        x, y, old, rounding, constants
                                    )
                                elif counting:
                                    x, exact, beyond = counted_sum_of_singles(
                                        a, row, b, column, n, every, widen(old), rounding
                                    )
                                    new = narrow(x)
                                else:
                                    x, exact, beyond = sum_of_singles(
                                        a, row, b, column, n, every, widen(old), rounding
                                    )
                                    new = narrow(x)
                                store(c, at_c, new)
                                if counting:
                                    was_finite = greater(whole, size(old))
                                    beyond = both(beyond, was_finite)
                                    is_finite = greater(whole, size(new))
                                    overflow += count_lanes(both(beyond, opposite(is_finite)))
                                    saturation += count_lanes(both(beyond, is_finite))
                                    lost = both(either(opposite(exact), beyond), was_finite)
                                    zero = equal(new, nothing)
                                    lost = lanes_of(lost, lost, lost, lost)
                                    zero = lanes_of(zero, zero, zero, zero)
                                    losses[part] = (losses[part] & ~seen) | (lost & seen)
                                    zeros[part] = (zeros[part] & ~seen) | (zero & seen)
                            doubt &= ~seen
                    if counting:
                        for part in range((right - left) // LANES):
                            inexact += count_bits(losses[part])
                            underflow += count_bits(losses[part] & zeros[part])
        tally[OVERFLOW] += overflow
        tally[UNDERFLOW] += underflow
        tally[SATURATION] += saturation
        tally[INEXACT] += inexact

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
