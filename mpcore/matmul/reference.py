"""The matmul that a reader can follow: loops over tiles, exact fractions, one number at a time.

Slow on purpose, and without special values: it is what `accumulate.py` is tested against.
"""

from fractions import Fraction

import numpy as np

from mpcore.matmul.accumulators import get_accumulator
from mpcore.matmul.options import Tile
from mpcore.matmul.trace import trace_sum


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
                    steps = trace_sum(products, accumulator, reduction, tile.k)
                    c[i, j] = steps[-1].value if steps else 0.0
    return c
