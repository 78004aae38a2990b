"""One element of a matmul, addition by addition: exact fractions, in the order that is asked for.

The readable account of every reduction order. `reference.py` takes its sums from here, and the
vectorised `accumulate.py` is tested against them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import isfinite

from mpcore.formats.reference import round_value
from mpcore.matmul.options import (
    MatmulError,
    check_order,
    get_accumulator,
    get_reduction,
    split_bounds,
)


@dataclass(frozen=True)
class PartialSum:
    """A partial sum, just rounded to the accumulator's format."""

    value: float | Fraction  # a value of the format; infinite or NaN as a float
    exact: Fraction  # the same products summed without any rounding
    products: Sequence[int]  # which products (indices along K) it holds
    left: Sequence[int] = ()  # those that the first summand held
    right: Sequence[int] = ()  # those that the others held: what was added
    swamped: bool = False  # what was added is not zero, and the sum is still its first summand

    @property
    def error(self):
        """Rounded minus exact, as a float; NaN once the sum is infinite or NaN."""
        if isinstance(self.value, float) and not isfinite(self.value):
            return float("nan")
        return float(Fraction(self.value) - self.exact)


def trace_sum(products, accumulator="fp32", reduction="sequential", tile_k=64):
    """Every partial sum of one element, in the order in which they are rounded.

    Args:
        products: exact products along K, as Fractions (or floats that hold them exactly).
        accumulator: an `Accumulator` or the name of a format.
        reduction: a key of `REDUCTIONS`.
        tile_k: products in one k-tile (trees).

    Returns:
        A list of `PartialSum`; the last one is the result. Empty for no products. Under "kahan"
        a sum is the total after each product, without what is carried.

    Raises:
        MatmulError: an unknown option, or an accumulator that the order cannot use.
    """
    accumulator, (name, parts) = get_accumulator(accumulator), get_reduction(reduction)
    check_order(accumulator, (name, parts))
    if isinstance(accumulator, str):
        raise MatmulError(f'"{accumulator}" sums in an order of its own: it has no trace')
    tracer = _Tracer([Fraction(p) for p in products], accumulator)
    if name == "kahan":
        return list(tracer.kahan())
    if name in ("pairwise", "strided_tree"):
        return list(tracer.trees(name, tile_k))
    return list(tracer.split(parts))


class _Tracer:
    """Sums of given products under one accumulator."""

    def __init__(self, products, accumulator):
        self.products = products
        self.accumulator = accumulator

    def round(self, *terms):
        """The exact sum, rounded once; a term that is no longer finite adds as a float."""
        special = [term for term in terms if isinstance(term, float) and not isfinite(term)]
        if special:
            return sum(special)
        total = sum((Fraction(term) for term in terms), Fraction(0))
        a = self.accumulator
        return round_value(total, a.format, a.rounding, a.overflow)

    def leaf(self, k):
        """One product, rounded for itself."""
        return PartialSum(self.round(self.products[k]), self.products[k], (k,), (), (k,))

    def add(self, left, right):
        """Two partial sums -> one."""
        value = self.round(left.value, right.value)
        swamped = right.value != 0 and value == left.value
        return PartialSum(
            value,
            left.exact + right.exact,
            (*left.products, *right.products),
            left.products,
            right.products,
            swamped,
        )

    def in_order(self, start, stop) -> Iterator[PartialSum]:
        """`every` products after `every` products into one sum that starts at zero."""
        value, exact, every = 0.0, Fraction(0), self.accumulator.every
        for first in range(start, stop, every):
            last = min(first + every, stop)
            terms = self.products[first:last]
            before, value = value, self.round(value, *terms)
            exact += sum(terms)
            swamped = any(terms) and value == before
            done, new = range(start, first), range(first, last)
            yield PartialSum(value, exact, range(start, last), done, new, swamped)

    def split(self, parts) -> Iterator[PartialSum]:
        """`parts` stretches of K, each in order; then their sums, in order."""
        sums = []
        for start, stop in pairwise(split_bounds(len(self.products), parts)):
            last = PartialSum(0.0, Fraction(0), ())
            for last in self.in_order(start, stop):
                yield last
            sums.append(last)
        total = sums[0]
        for part in sums[1:]:
            total = self.add(total, part)
            yield total

    def trees(self, name, tile_k) -> Iterator[PartialSum]:
        """A tree over each k-tile, and the tiles' sums in order."""
        total = PartialSum(0.0, Fraction(0), ())
        for start in range(0, len(self.products), tile_k):
            level = []
            for k in range(start, min(start + tile_k, len(self.products))):
                level.append(self.leaf(k))
                yield level[-1]
            while len(level) > 1:
                half, odd = divmod(len(level), 2)
                if name == "pairwise":
                    pairs = [(level[2 * i], level[2 * i + 1]) for i in range(half)]
                    rest = level[2 * half :]
                else:
                    pairs = [(level[i], level[i + half + odd]) for i in range(half)]
                    rest = level[half : half + odd]
                level = []
                for left, right in pairs:
                    level.append(self.add(left, right))
                    yield level[-1]
                level += rest
            total = self.add(total, level[0])
            yield total

    def kahan(self) -> Iterator[PartialSum]:
        """In order, with what the last addition left out carried into the next."""
        total, carried, exact = 0.0, 0.0, Fraction(0)
        for k, product in enumerate(self.products):
            term = self.round(carried, product)
            new = self.round(total, term)
            carried = self.round(term, -self.round(new, -total))
            exact += product
            swamped = term != 0 and new == total
            total = new
            yield PartialSum(total, exact, range(k + 1), range(k), range(k, k + 1), swamped)
