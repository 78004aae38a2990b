"""The matmul that a reader can follow: loops over tiles, exact fractions, one number at a time.

Slow on purpose, and without special values: it is what `accumulate.py` is tested against.
"""

from fractions import Fraction
from math import isfinite

import numpy as np

from mpcore.formats.reference import round_value
from mpcore.matmul.options import Tile, get_accumulator, get_reduction, split_bounds


def matmul_reference(a, b, accumulator="fp32", tile=None, reduction="sequential"):
    """a @ b, tile by tile, with every partial sum rounded to the accumulator.

    Args:
        a: [m, k] and b: [k, n], finite values that are already in their formats.
        accumulator: an `Accumulator` or the name of a format.
        tile: a `Tile`.
        reduction: a key of `REDUCTIONS`.

    Returns:
        [m, n] float64 array of values of the accumulator's format.
    """
    accumulator, tile = get_accumulator(accumulator), tile or Tile()
    order = get_reduction(reduction)
    rows, columns = len(a), b.shape[1]
    c = np.zeros((rows, columns))
    for top in range(0, rows, tile.m):
        for left in range(0, columns, tile.n):
            for i in range(top, min(top + tile.m, rows)):
                for j in range(left, min(left + tile.n, columns)):
                    products = [
                        Fraction(float(x)) * Fraction(float(y))
                        for x, y in zip(a[i], b[:, j], strict=True)
                    ]
                    c[i, j] = sum_products(products, accumulator, order, tile.k)
    return c


def sum_products(products, accumulator, order, tile_k):
    """The sum of exact products (Fractions) under a reduction order, as a float."""
    name, parts = order

    def add(*terms):
        """The exact sum, rounded once; a partial sum that is no longer finite adds as a float."""
        special = [term for term in terms if isinstance(term, float) and not isfinite(term)]
        if special:
            return sum(special)
        total = sum((Fraction(term) for term in terms), Fraction(0))
        return round_value(total, accumulator.format, accumulator.rounding, accumulator.overflow)

    def in_order(terms):
        c = 0.0
        for start in range(0, len(terms), accumulator.every):
            c = add(c, *terms[start : start + accumulator.every])
        return c

    def tree(level):
        while len(level) > 1:
            half, odd = divmod(len(level), 2)
            if name == "pairwise":
                pairs = [(level[2 * i], level[2 * i + 1]) for i in range(half)]
                rest = level[2 * half :]
            else:
                pairs = [(level[i], level[i + half + odd]) for i in range(half)]
                rest = level[half : half + odd]
            level = [add(*pair) for pair in pairs] + rest
        return level[0]

    if name == "kahan":
        total = carried = 0.0
        for product in products:
            term = add(carried, product)
            new_total = add(total, term)
            carried = add(term, -add(new_total, -total))
            total = new_total
        return total
    if name in ("pairwise", "strided_tree"):
        total = 0.0
        for start in range(0, len(products), tile_k):
            total = add(total, tree([add(p) for p in products[start : start + tile_k]]))
        return total
    bounds = split_bounds(len(products), parts)
    sums = [in_order(products[bounds[part] : bounds[part + 1]]) for part in range(parts)]
    total = sums[0]
    for part in sums[1:]:
        total = add(total, part)
    return total
