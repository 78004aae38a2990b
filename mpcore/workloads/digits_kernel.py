"""Compiled arithmetic of the digits training run: the twin of `digits_training.REFERENCE`.

Only `digits_training.compiled_operations` imports this file, so that everything works without
Numba. Every function equals its NumPy twin bit by bit, on every processor: the order of each sum is
written down here, where a BLAS would choose it by the width of the processor's registers.
"""

import numpy as np
from numba import njit, types

from mpcore.formats.kernels import PARAMETERS, from_bits, round_bits, to_bits

_MANTISSA_BITS, _EXPONENT_FIELD, _BIAS = np.int32(23), np.int32(0xFF), np.int32(127)

# Compiled once each, for any array: a signature per layout and writability would cost seconds.
_ANY = types.Array(types.float32, 2, "A", readonly=True)
_READ = types.Array(types.float32, 2, "C", readonly=True)
_FLAT_READ = types.Array(types.float32, 1, "C", readonly=True)


@njit
def _add_one(a, b, out):
    for j in range(out.size):
        out[j] += a * b[j]


@njit
def _add_eight(a, b, out):
    """Eight products one after the other: the running sums stay in registers, 3 times as fast."""
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for j in range(out.size):
        total = out[j] + a0 * b0[j]
        total = total + a1 * b1[j]
        total = total + a2 * b2[j]
        total = total + a3 * b3[j]
        total = total + a4 * b4[j]
        total = total + a5 * b5[j]
        total = total + a6 * b6[j]
        out[j] = total + a7 * b7[j]


@njit(types.void(_ANY, _READ, types.float32[:, ::1]), nogil=True, cache=True)
def matmul(a, b, out):
    """out[m, n] = a[m, k] @ b[k, n] in float32, k ascending, each product and sum rounded."""
    out[:] = np.float32(0)
    inner = b.shape[0]
    eights = inner - inner % 8
    for i in range(a.shape[0]):
        row = a[i]
        for k in range(0, eights, 8):
            _add_eight(row[k : k + 8], b[k : k + 8], out[i])
        for k in range(eights, inner):
            _add_one(row[k], b[k], out[i])


@njit(types.void(types.float32[::1], PARAMETERS), nogil=True, cache=True)
def round_in_place(x, parameters):
    """Round every value of a flat array to the format that the parameters describe."""
    for i in range(x.size):
        x[i] = from_bits(round_bits(to_bits(x[i]), parameters))


@njit(
    types.UniTuple(types.int64, 2)(
        _FLAT_READ, _FLAT_READ, types.float32, types.int64, types.int32[::1]
    ),
    nogil=True,
    cache=True,
)
def tally(true, rounded, scale, lowest, counts):
    """Counts |true · scale| per binade, and (values that rounding lost, values not zero)."""
    lost, nonzero, last = 0, 0, counts.size - 1
    for i in range(true.size):
        if true[i] != np.float32(0):
            nonzero += 1
            lost += rounded[i] == np.float32(0)
            field = np.int32(to_bits(true[i] * scale) >> _MANTISSA_BITS) & _EXPONENT_FIELD
            counts[min(max(np.int64(field - _BIAS) - lowest, 0), last)] += 1
    return lost, nonzero
