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
    mul,
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
    EXPONENT64,
    F64,
    I64,
    INEXACT,
    OVERFLOW,
    SATURATION,
    SIGN64,
    UNDERFLOW,
    round64,
    size64,
)


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
