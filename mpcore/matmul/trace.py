"""One element of a matmul, addition by addition: whole numbers, in the order that is asked for.

The readable account of every reduction order. `reference.py` takes its sums from here, and the
vectorised `accumulate.py` is tested against them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import isfinite

from mpcore.formats.reference import round_ratio
from mpcore.matmul.accumulators import Accumulator, check_order, get_accumulator
from mpcore.matmul.options import MatmulError, get_reduction, split_bounds


@dataclass(frozen=True, slots=True)
class PartialSum:
    """A partial sum, just rounded to the accumulator's format."""

    value: float  # a value of the format, or infinite or NaN
    exact: float  # the same products summed without any rounding, to float64's precision
    products: Sequence[int]  # which products (indices along K) it holds
    left: Sequence[int] = ()  # those that the first summand held
    right: Sequence[int] = ()  # those that the others held: what was added
    swamped: bool = False  # what was added is not zero, and the sum is still its first summand


def trace_sum(products, accumulator="fp32", reduction="sequential", tile_k=64):
    """Every partial sum of one element, in the order in which they are rounded.

    Args:
        products: exact products along K, as floats or Fractions: finite, binary fractions.
        accumulator: an `Accumulator` or the name of a format.
        reduction: a key of `REDUCTIONS`.
        tile_k: products in one k-tile (trees).

    Returns:
        A list of `PartialSum`; the last one is the result. Empty for no products. Under "kahan"
        a sum is the total after each product, without what is carried.

    Raises:
        MatmulError: an unknown option, an accumulator that the order cannot use, or a product
            that is not finite.
    """
    accumulator, (name, parts) = get_accumulator(accumulator), get_reduction(reduction)
    check_order(accumulator, (name, parts))
    if not isinstance(accumulator, Accumulator):
        raise MatmulError(f'"{accumulator}" sums in an order of its own: it has no trace')
    if accumulator.rounding == "stochastic":
        raise MatmulError("a trace needs a rounding mode without chance, not stochastic")
    tracer = _Tracer(products, accumulator)
    if name == "kahan":
        return list(tracer.kahan())
    if name in ("pairwise", "strided_tree"):
        return list(tracer.trees(name, tile_k))
    return list(tracer.split(parts))


class _Tracer:
    """Sums of given products under one accumulator.

    Inside, a number is a whole multiple of one unit that divides every product and every value of
    the format, so that exact sums are sums of whole numbers. What is no longer finite is a float.
    """

    def __init__(self, products, accumulator):
        self.accumulator = accumulator
        try:
            ratios = [Fraction(product).as_integer_ratio() for product in products]
        except (ValueError, OverflowError, TypeError) as error:
            raise MatmulError(f"a trace needs finite products ({error})") from None
        if any(denominator & (denominator - 1) for _, denominator in ratios):
            raise MatmulError("a trace needs products that are binary fractions")
        finest = max((denominator for _, denominator in ratios), default=1)
        formats = [f for f in (accumulator.format, accumulator.intermediate) if f is not None]
        finest_step = max(2 ** max(0, -f.tiny_exponent) for f in formats)
        self.unit = max(finest, finest_step)  # 1 / unit
        self.products = [n * (self.unit // denominator) for n, denominator in ratios]

    def round(self, *terms):
        """The exact sum, rounded once; a term that is no longer finite adds as a float."""
        special = [term for term in terms if isinstance(term, float)]
        if special:
            return sum(special)
        a = self.accumulator
        value = round_ratio(sum(terms), self.unit, a.format, a.rounding, a.overflow)
        if a.flush_subnormals and abs(value) < a.format.smallest_normal:
            return 0
        return self.whole(value)

    def in_intermediate(self, terms):
        """Products as one term, rounded to the intermediate format where there is one."""
        f = self.accumulator.intermediate
        if f is None:
            return terms
        value = round_ratio(sum(terms), self.unit, f, "nearest_even", f.natural_overflow)
        return [self.whole(value)]

    def whole(self, value):
        """A value as a multiple of the unit; a float where it is not finite."""
        if not isfinite(value):
            return value
        numerator, denominator = value.as_integer_ratio()
        return numerator * (self.unit // denominator)

    def partial_sum(self, value, exact, left, right, products, swamped):
        """What is recorded of a sum whose value and exact value are multiples of the unit."""
        value = value if isinstance(value, float) else value / self.unit
        return PartialSum(value, exact / self.unit, products, left, right, swamped)

    def in_order(self, start, stop):
        """`every` products after `every` products into one sum that starts at zero.

        Yields (value, exact, the record of the sum).
        """
        value, exact, every = 0, 0, self.accumulator.every
        for first in range(start, stop, every):
            last = min(first + every, stop)
            terms = self.products[first:last]
            before, value = value, self.round(value, *self.in_intermediate(terms))
            exact += sum(terms)
            swamped = any(terms) and value == before
            done, new = range(start, first), range(first, last)
            sums = self.partial_sum(value, exact, done, new, range(start, last), swamped)
            yield value, exact, sums

    def added(self, a, b):
        """Two sums (value, exact, record) -> their sum, likewise."""
        value, exact = self.round(a[0], b[0]), a[1] + b[1]
        left, right = a[2].products, b[2].products
        swamped = b[0] != 0 and value == a[0]
        record = self.partial_sum(value, exact, left, right, (*left, *right), swamped)
        return value, exact, record

    def split(self, parts) -> Iterator[PartialSum]:
        """`parts` stretches of K, each in order; then their sums, in order."""
        sums = []
        for start, stop in pairwise(split_bounds(len(self.products), parts)):
            last = _NOTHING
            for last in self.in_order(start, stop):
                yield last[2]
            sums.append(last)
        total = sums[0]
        for part in sums[1:]:
            total = self.added(total, part)
            yield total[2]

    def trees(self, name, tile_k) -> Iterator[PartialSum]:
        """A tree over each k-tile, and the tiles' sums in order."""
        total = _NOTHING
        for start in range(0, len(self.products), tile_k):
            level = []
            for k in range(start, min(start + tile_k, len(self.products))):
                exact = self.products[k]
                value = self.round(*self.in_intermediate([exact]))
                level.append((value, exact, self.partial_sum(value, exact, (), (k,), (k,), False)))
                yield level[-1][2]
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
                    level.append(self.added(left, right))
                    yield level[-1][2]
                level += rest
            total = self.added(total, level[0])
            yield total[2]

    def kahan(self) -> Iterator[PartialSum]:
        """In order, with what the last addition left out carried into the next."""
        total, carried, exact = 0, 0, 0
        for k, product in enumerate(self.products):
            term = self.round(carried, *self.in_intermediate([product]))
            new = self.round(total, term)
            carried = self.round(term, -self.round(new, -total))
            exact += product
            swamped = term != 0 and new == total
            total = new
            done, one = range(k), range(k, k + 1)
            yield self.partial_sum(total, exact, done, one, range(k + 1), swamped)


_NOTHING = (0, 0, PartialSum(0.0, 0.0, ()))
"""The sum of no products: value, exact value, record."""
