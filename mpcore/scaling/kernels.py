"""Compiled scaling of float32 matrices: the twin of the NumPy passes in `scaled.py`.

Only `scaled.compiled_kernels` imports this file, so that everything works without Numba.
"""

import numpy as np
from numba import njit, types

from mpcore.formats.kernels import PARAMETERS, from_bits, round_bits, to_bits

_MAGNITUDE = np.int32(0x7FFFFFFF)
_ZERO, _ONE = np.int32(0), np.int32(1)


# Loops over one line, from 0 to its size: an index that might be negative would wrap around, and
# that check keeps the compiler from vectorising.


@njit
def _line_amax(bits):
    largest = _ZERO
    for k in range(bits.size):
        magnitude = np.int32(bits[k] & _MAGNITUDE)
        largest = magnitude if magnitude > largest else largest
    return largest


@njit(error_model="numpy")
def _scale_line(x, scale, limits, parameters, values, tally):
    high, reach = limits
    underflow, saturation, nan, inexact = _ZERO, _ZERO, _ZERO, _ZERO
    for k in range(x.size):
        scaled = x[k] / scale
        clipped = -high if scaled < -high else scaled
        clipped = high if clipped > high else clipped
        rounded = from_bits(round_bits(to_bits(clipped), parameters))
        rounded = rounded if scaled == scaled else scaled
        values[k] = rounded
        vanished = (rounded == np.float32(0)) & (x[k] != np.float32(0))
        beyond = (scaled > reach) | (scaled < -reach)
        changed = (rounded != scaled) & (scaled == scaled)
        underflow = np.int32(underflow + (_ONE if vanished else _ZERO))
        saturation = np.int32(saturation + (_ONE if beyond else _ZERO))
        nan = np.int32(nan + (_ONE if scaled != scaled else _ZERO))
        inexact = np.int32(inexact + (_ONE if changed else _ZERO))
    tally[0] += underflow
    tally[1] += saturation
    tally[2] += nan
    tally[3] += inexact


# Compiled once each, for any array: a signature per layout and writability would cost seconds.
_ROW_STARTS = types.Array(types.int64, 1, "C", readonly=True)
_BITS_READ = types.Array(types.int32, 2, "C", readonly=True)
_READ = types.Array(types.float32, 2, "C", readonly=True)
_WRITE = types.float32[:, ::1]
_LIMITS = types.UniTuple(types.float32, 2)


@njit(types.void(_BITS_READ, _ROW_STARTS, types.int64, types.int32[:, ::1]), nogil=True, cache=True)
def block_amax(bits, row_starts, columns, amax_bits):
    """Largest magnitude of every block, as float32 bits; as integers, NaN > infinity > the rest."""
    for group in range(row_starts.size - 1):
        for row in range(row_starts[group], row_starts[group + 1]):
            for block in range(amax_bits.shape[1]):
                line = bits[row, block * columns : (block + 1) * columns]
                largest = _line_amax(line)
                amax_bits[group, block] = max(amax_bits[group, block], largest)


@njit(
    types.void(
        _READ, _ROW_STARTS, types.int64, _READ, _LIMITS, PARAMETERS, _WRITE, types.int64[::1]
    ),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def scale_and_round(x, row_starts, columns, scales, limits, parameters, values, tally):
    """values = round(clip(x / scale)), and the tally [underflow, saturation, nan, inexact]."""
    for group in range(row_starts.size - 1):
        for row in range(row_starts[group], row_starts[group + 1]):
            for block in range(scales.shape[1]):
                part = slice(block * columns, (block + 1) * columns)
                scale = scales[group, block]
                _scale_line(x[row, part], scale, limits, parameters, values[row, part], tally)
