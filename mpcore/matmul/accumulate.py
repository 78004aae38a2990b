"""Emulated accumulation in NumPy: the vector twin of `reference.py`, a tile of the result at once.

Partial sums are float64 arrays that hold values of the accumulator's format. Every rounding goes
through `Rounder`, which rounds the exact sum once and counts what happened.
"""

from itertools import pairwise

import numpy as np

from mpcore.formats.counts import Counts, count_events
from mpcore.formats.rounding import round_to
from mpcore.matmul.accumulators import Accumulator
from mpcore.matmul.engine import aligned_sum, rounded_sum
from mpcore.matmul.exact import (
    add_to_odd,
    expansion_to_nearest,
    expansion_to_odd,
    grow,
    two_product,
)
from mpcore.matmul.options import split_bounds
from mpcore.matmul.units import Operands, chained

FLOAT64_PRECISION = 53
BLOCK = 128  # rows and columns of the result that NumPy works on at a time


class Rounder:
    """Rounds exact sums to an accumulator's format, and adds up the counts.

    An fp64 accumulator is rounded by float64 arithmetic itself: of its sums only NaN is counted.
    """

    def __init__(self, accumulator, exact_products, counting, rng=None):
        self.accumulator = accumulator
        self.exact_products = exact_products  # whether a product of operands fits float64
        self.counting = counting
        self.rng = rng  # for an accumulator that rounds stochastically
        self.counts = Counts()
        self.is_wide = accumulator.format.precision == FLOAT64_PRECISION

    def round(self, exact):
        """Round float64 values (exact, or rounded to odd) to the format."""
        if self.is_wide:
            nan = np.count_nonzero(np.isnan(exact)) if self.counting else 0
            self.counts += Counts(total=exact.size, nan=int(nan))
            return exact
        a = self.accumulator
        rounded = round_to(
            exact, a.format, a.rounding, a.overflow, self.rng, flush_subnormals=a.flush_subnormals
        )
        return self._counted(exact, rounded, a.format)

    def round_between(self, exact, f):
        """Round to the format of an intermediate or of a stored part: to nearest even."""
        rounded = round_to(exact, f, overflow=f.natural_overflow)
        return self._counted(exact, rounded, f)

    def _counted(self, exact, rounded, f):
        if self.counting:
            self.counts += count_events(exact, rounded, f)
        return rounded

    def add(self, a, b):
        """round(a + b)."""
        return self.round(a + b if self.is_wide else add_to_odd(a, b))

    def product(self, a, b):
        """round(a * b)."""
        return self.multiply_add(np.zeros(()), [(a, b)])

    def multiply_add(self, c, pairs):
        """round(c + a * b + ...) over the pairs (a, b), exact inside, or in the intermediate."""
        intermediate = self.accumulator.intermediate
        if intermediate is not None:
            inside = self._sum(np.zeros(()), pairs, expansion_to_odd)
            return self.add(*np.broadcast_arrays(c, self.round_between(inside, intermediate)))
        if len(pairs) == 1 and self.exact_products:
            return self.add(*np.broadcast_arrays(c, pairs[0][0] * pairs[0][1]))
        fold = expansion_to_nearest if self.is_wide else expansion_to_odd
        return self.round(self._sum(c, pairs, fold))

    def _sum(self, c, pairs, fold):
        expansion = [c]
        for a, b in pairs:
            if self.exact_products:
                expansion = grow(expansion, a * b)
            else:
                product, error = two_product(a, b)
                expansion = grow(grow(expansion, error), product)
        return fold(expansion)

    def in_order(self, a, b):
        """Sums over k, ascending, from zero, [m, n]: compiled where a kernel can, else in NumPy."""
        finite_rows, finite_columns = np.isfinite(a).all(1), np.isfinite(b).all(0)
        if finite_rows.all() and finite_columns.all():
            found = self.compiled(a, b)
            if found is None:
                return self._in_blocks(a, b)
            c, counts = found
            self.counts += counts
            return c
        c = np.empty((a.shape[0], b.shape[1]))
        rest = ~finite_rows
        if rest.any():
            c[rest] = self._in_blocks(a[rest], b)
        special = self._in_blocks(a[finite_rows], b[:, ~finite_columns])
        c[np.ix_(finite_rows, ~finite_columns)] = special
        c[np.ix_(finite_rows, finite_columns)] = self.in_order(a[finite_rows], b[:, finite_columns])
        return c

    def _in_blocks(self, a, b):
        """`in_numpy`, a block of the result at a time: its temporaries stay in the cache."""
        a, b = _as_float64(a, b)
        c = np.empty((a.shape[0], b.shape[1]))
        for top in range(0, a.shape[0], BLOCK):
            for left in range(0, b.shape[1], BLOCK):
                rows, columns = slice(top, top + BLOCK), slice(left, left + BLOCK)
                c[rows, columns] = self.in_numpy(a[rows], b[:, columns])
        return c

    def compiled(self, a, b):
        """(sums, counts) of finite operands by a kernel, or None."""
        return rounded_sum(a, b, self.accumulator, self.counting)

    def in_numpy(self, a, b):
        """The same in NumPy, in float64: `every` products between two roundings."""
        c = np.zeros((a.shape[0], b.shape[1]))
        every = self.accumulator.every
        for start in range(0, a.shape[1], every):
            stop = min(start + every, a.shape[1])
            c = self.multiply_add(c, [(a[:, k, None], b[None, k]) for k in range(start, stop)])
        return c


class UnitRounder(Rounder):
    """The same for a matrix unit: sums over k are the unit's, other additions its format's."""

    def __init__(self, unit, a_format, b_format, counting):
        super().__init__(Accumulator(unit.format), True, counting)
        self.instruction = unit.instruction(a_format, b_format)

    def compiled(self, a, b):
        """(sums, counts) of finite operands by a kernel, or None."""
        return aligned_sum(a, b, self.instruction, self.counting)

    def in_numpy(self, a, b):
        """The same in NumPy; K is filled up with zeros to whole instructions."""
        i = self.instruction
        missing = -a.shape[1] % i.k
        a, b = np.pad(a, ((0, 0), (0, missing))), np.pad(b, ((0, missing), (0, 0)))
        c = np.zeros((a.shape[0], b.shape[1]))
        operands = Operands(a[None], b[None], c[None], i.a, i.b, i.d)
        d, counts = chained(operands, i.unit, i.k, self.counting)
        self.counts += counts
        return d[0]


def accumulate(a, b, rounder, reduction, tile_k, partial_format=None):
    """Sum of a[:, k] * b[k, :] over k under a reduction order, [m, n] float64.

    Args:
        a: [m, k] and b: [k, n], float32 or float64.
        rounder: a `Rounder` or `UnitRounder`.
        reduction: (name, parts) of `get_reduction`.
        tile_k: products in one k-tile.
        partial_format: the format in which the sums of a split K are stored before they are added.
    """
    name, parts = reduction
    if name not in ("sequential", "split_k"):
        a, b = _as_float64(a, b)
    if name == "kahan":
        return _kahan(a, b, rounder)
    if name in ("pairwise", "strided_tree"):
        total = np.zeros((a.shape[0], b.shape[1]))
        for start in range(0, a.shape[1], tile_k):
            k = slice(start, start + tile_k)
            total = rounder.add(total, _tree(a[:, k], b[k], rounder, name))
        return total
    sums = [
        rounder.in_order(a[:, start:stop], b[start:stop])
        for start, stop in pairwise(split_bounds(a.shape[1], parts))
    ]
    if partial_format is not None:
        sums = [rounder.round_between(*_as_float64(part), partial_format) for part in sums]
    total = sums[0]
    for part in sums[1:]:
        total = rounder.add(*_as_float64(total, part))
    return total


def _as_float64(*arrays):
    return [x.astype(np.float64, copy=False) for x in arrays]


def _tree(a, b, rounder, name):
    level = rounder.product(a.T[:, :, None], b[:, None, :])
    while len(level) > 1:
        half = len(level) // 2
        if name == "pairwise":
            left, right = level[0 : 2 * half : 2], level[1 : 2 * half : 2]
            rest = level[2 * half :]
        else:
            left, right = level[:half], level[len(level) - half :]
            rest = level[half : len(level) - half]
        level = np.concatenate([rounder.add(left, right), rest])
    return level[0]


def _kahan(a, b, rounder):
    total = np.zeros((a.shape[0], b.shape[1]))
    carried = np.zeros_like(total)  # what the last addition left out
    for k in range(a.shape[1]):
        term = rounder.multiply_add(carried, [(a[:, k, None], b[None, k])])
        new_total = rounder.add(total, term)
        carried = rounder.add(term, -rounder.add(new_total, -total))
        total = new_total
    return total
