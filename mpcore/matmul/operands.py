"""Operands of a matmul: checked, rounded into their formats, with their scales and zero points."""

from dataclasses import dataclass

import numpy as np

from mpcore.formats.counts import Counts, count_events
from mpcore.formats.format import BlockFormat, FormatError
from mpcore.formats.registry import get_format
from mpcore.formats.rounding import as_float, round_to
from mpcore.matmul.accumulators import MatrixUnit
from mpcore.matmul.options import MatmulError
from mpcore.scaling import elements_and_granularity, quantize, scale_and_round


@dataclass(frozen=True)
class Operand:
    """An operand as rows of K products."""

    values: np.ndarray  # [rows, K] on the grid of its format: float32 where that holds it, or wider
    scales: np.ndarray | None  # [rows or 1, K-blocks]
    zero_points: np.ndarray | None  # [rows or 1, K-blocks]
    block: int  # products that share a scale
    counts: Counts

    def at(self, per_block, k):
        """What belongs to the K-block in which product k lies: [rows or 1, 1]."""
        block = k // self.block
        return per_block[:, block : block + 1]


def operand_array(x, name):
    """An operand as a float32 or float64 array; raises MatmulError."""
    try:
        x = as_float(x)
    except FormatError as error:
        raise MatmulError(f"{name}: {error}") from None
    if x.ndim < 2:
        raise MatmulError(f"{name} must have at least 2 axes, not shape {x.shape}")
    return x


def operand_format(f, granularity, x, accumulator):
    """(format of the elements, granularity or None) of an operand x."""
    if f is None:
        is_unit = isinstance(accumulator, MatrixUnit)
        f = accumulator.input_format if is_unit else x.dtype
    f = get_format(f)
    if granularity is None and not isinstance(f, BlockFormat):
        return f, None
    return elements_and_granularity(f, granularity, None)


def zero_point_array(z, shape, f, granularity, name):
    """Zero points as float64, broadcast to a shape; None stays None. Raises MatmulError."""
    if z is None:
        return None
    if f.kind != "int" or granularity is not None:
        raise MatmulError(
            f"{name}_zero_point goes with codes of an integer format without a granularity"
        )
    z = as_float(z).astype(np.float64)
    if not np.array_equal(z, np.rint(z)):
        raise MatmulError(f"{name}_zero_point must be whole numbers")
    try:
        return np.broadcast_to(z, shape)
    except ValueError:
        raise MatmulError(f"{name}_zero_point {z.shape} does not broadcast to {shape}") from None


def prepared(x, f, granularity, zero_points, counting):
    """The `Operand` of [rows, K] values: in their format, divided by their scales first."""
    if granularity is None:
        # A transposed array is rounded as it lies in memory, and transposed again.
        lying = x.T if x.flags.f_contiguous else x
        values = round_to(lying, f, overflow=f.natural_overflow)
        happened = count_events(lying, values, f) if counting else Counts()
        values = values.T if x.flags.f_contiguous else values
        return Operand(_narrowest(values, f), None, zero_points, max(1, x.shape[1]), happened)
    x = np.ascontiguousarray(x)
    if not f.is_signed:
        return _asymmetric(x, f, granularity, counting)
    found = scale_and_round(x, f, granularity, counts=counting)
    scales = found.row_scales.astype(np.float64)
    values = _narrowest(found.values, f)
    return Operand(values, scales, None, found.blocks.columns, found.counts or Counts())


def _asymmetric(x, f, granularity, counting):
    """An unsigned format covers the range of every block, with a zero point."""
    q = quantize(x, f, granularity, symmetric=False)
    blocks = q.layout.blocks
    scales, zero_points = (y.reshape(blocks.grid) for y in (q.scales, q.zero_points))
    values = q.codes.astype(np.float32)
    happened = Counts()
    if counting:
        quotients = x / blocks.spread(scales) + blocks.spread(zero_points).astype(x.dtype)
        happened = count_events(quotients, values.astype(x.dtype), f)
    if blocks.grid[0] > 1:
        heights = np.diff(blocks.row_starts)
        scales, zero_points = (np.repeat(y, heights, axis=0) for y in (scales, zero_points))
    scales, zero_points = scales.astype(np.float64), zero_points.astype(np.float64)
    return Operand(values, scales, zero_points, blocks.columns, happened)


def _narrowest(values, f):
    return values.astype(np.float32, copy=False) if f.fits_float32 else values
