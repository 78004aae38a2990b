"""Compiled sums of pairs in saturating 16-bit arithmetic: the fast twin of `Accumulator.every` 2
with `intermediate="int16"`, which is x86's vpmaddubsw.

Only `engine.py` imports this file; nothing here allocates or checks.
"""

import numpy as np
from numba import njit

I32, I64 = np.int32, np.int64


@njit(nogil=True, cache=True)
def saturated_pair_sums(a, b, c, first_row, last_row, low, high, tally):
    """Add sat(a0 * b0 + a1 * b1) over all pairs of products to some rows of C, in int32.

    Args:
        a: int16 [m, K] and b: int16 [K, n], K even. c: int32 [m, n].
        low, high: where pairs saturate. tally: int64; [0] counts how often.
    """
    columns, clipped = b.shape[1], I64(0)
    for i in range(first_row, last_row):
        for k in range(0, a.shape[1], 2):
            x, y = I32(a[i, k]), I32(a[i, k + 1])
            beyond = I32(0)
            for j in range(columns):
                pair = I32(I32(x * I32(b[k, j])) + I32(y * I32(b[k + 1, j])))
                kept = min(max(pair, low), high)
                beyond += I32(pair != kept)
                c[i, j] = I32(c[i, j] + kept)
            clipped += beyond
    tally[0] += clipped
