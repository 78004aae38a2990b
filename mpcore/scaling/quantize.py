"""Quantising a tensor of any shape: codes, scales and zero points that give it back."""

from dataclasses import dataclass, field
from math import prod
from numbers import Integral

import numpy as np

from mpcore.formats.codes import decode, encode
from mpcore.formats.format import Format
from mpcore.formats.rounding import as_float
from mpcore.scaling.granularity import (
    Partition,
    ScalingError,
    check_granularity,
    elements_and_granularity,
    partition,
)
from mpcore.scaling.scaled import block_amax, scale_and_round


@dataclass(frozen=True)
class Layout:
    """How a tensor lies as the matrix whose blocks share a scale."""

    shape: tuple  # of the tensor
    axis: int | None  # the axis that was moved to the front, or None
    blocks: Partition  # of the matrix
    scale_shape: tuple  # shape in which the scales are handed out

    def matrix(self, x):
        """The tensor as a matrix."""
        if self.axis is not None:
            x = np.moveaxis(x, self.axis, 0)
        return x.reshape(self.blocks.shape)

    def tensor(self, matrix):
        """The matrix as the tensor again."""
        if self.axis is None:
            return matrix.reshape(self.shape)
        moved = self.shape[self.axis], *np.delete(self.shape, self.axis)
        return np.moveaxis(matrix.reshape(moved), 0, self.axis)


def layout(shape, granularity, axis):
    """The `Layout` of a tensor under a granularity (a key of GRANULARITIES)."""
    block, size, ones = check_granularity(granularity), prod(shape), (1,) * len(shape)
    if granularity == "per_tensor" or not shape:
        return Layout(shape, None, partition((1, size), "per_tensor"), ones)
    if granularity == "per_channel":
        if not isinstance(axis, Integral) or not -len(shape) <= axis < len(shape):
            raise ScalingError(f"axis {axis} does not exist in an array of shape {shape}")
        axis %= len(shape)
        kept = shape[axis]
        scale_shape = (*ones[:axis], kept, *ones[axis + 1 :])
        matrix_shape = kept, prod(shape[:axis] + shape[axis + 1 :])
        return Layout(shape, axis, partition(matrix_shape, "per_channel"), scale_shape)
    columns, rows = shape[-1], prod(shape[:-1])
    if granularity == "per_token":
        return Layout(shape, None, partition((rows, columns), granularity), (*shape[:-1], 1))
    if len(shape) == 1:
        blocks = partition((1, columns), granularity)
        return Layout(shape, None, blocks, blocks.grid[1:])
    # Blocks of rows stop at the end of each matrix of a stack.
    matrices, height = prod(shape[:-2]), shape[-2]
    blocks = partition((rows, columns), granularity, np.arange(matrices + 1) * height)
    scale_shape = (*shape[:-2], -(-height // block[0]), blocks.grid[1])
    return Layout(shape, None, blocks, scale_shape)


@dataclass(frozen=True)
class Quantized:
    """A tensor as codes, and what gives its values back: (decoded code - zero point) * scale."""

    codes: np.ndarray  # unsigned codes of the format, shape of the tensor
    scales: np.ndarray  # same dtype as the tensor; broadcasts against it, save for blocks: one each
    zero_points: np.ndarray  # int32, shape of scales; 0 where quantisation is symmetric
    format: Format
    granularity: str
    layout: Layout = field(repr=False)

    def dequantize(self):
        """The tensor as the codes stand for it, in the dtype of the scales."""
        grid, blocks = self.layout.blocks.grid, self.layout.blocks
        values = self.layout.matrix(decode(self.codes, self.format))
        values = values - blocks.spread(self.zero_points.reshape(grid)).astype(values.dtype)
        values = values * blocks.spread(self.scales.reshape(grid))
        return self.layout.tensor(values.astype(self.scales.dtype, copy=False))


def quantize(x, f, granularity=None, axis=0, symmetric=True):
    """Quantise a tensor to a format, with the scale of each group taken from its range.

    Symmetric: scale = amax / (largest value), codes clipped at ±the largest value (±127 for int8),
    zero point 0. Asymmetric (integers only): scale = (max - min) / (number of codes - 1) over a
    range that is made to include 0, zero point = round(least code - min / scale), so that 0 is
    kept exactly. Rounding is nearest even, of a true quotient x / scale. An all-zero group has
    scale 1.

    Args:
        x: array of any shape with finite values; float32 is computed in float32, all else in
            float64 (narrower floats in float32).
        f: a `Format` or anything that `get_format` takes; a block format ("nvfp4") stands for its
            elements and its granularity.
        granularity: "per_tensor"; "per_channel" (None is that); "per_token" (one scale for each
            vector along the last axis); "per_block:RxC" over the last two axes ("per_block:N" is
            1xN); "mx" and "nvfp4" along the last axis, whose scales and values are those of
            `formats.split_blocks` (an NVFP4 scale comes multiplied by the tensor's).
        axis: the axis that is KEPT by "per_channel"; not used otherwise.
        symmetric: False for zero points.

    Returns:
        `Quantized`.

    Raises:
        ScalingError: NaN or infinity in x; an unknown granularity; an axis that does not exist;
            a format that cannot be used in this way.
        FormatError: an unknown format.
    """
    f, granularity = elements_and_granularity(f, granularity, "per_channel")
    x = as_float(x)
    _check_finite(x)
    where = layout(x.shape, granularity, axis)
    matrix = where.matrix(x)
    if not symmetric:
        if granularity in ("mx", "nvfp4"):
            raise ScalingError(f'"{granularity}" has no zero points: use symmetric=True')
        codes, scales, zero_points = _asymmetric(matrix, f, where.blocks)
    else:
        if not f.is_signed:
            raise ScalingError(f"{f} has no negative values; use symmetric=False")
        scaled = scale_and_round(
            matrix, f, granularity if granularity in ("mx", "nvfp4") else where.blocks
        )
        codes, scales = encode(scaled.values, f), scaled.scales
        zero_points = np.zeros(scales.shape, np.int32)
    return Quantized(
        codes=where.tensor(codes),
        scales=scales.reshape(where.scale_shape),
        zero_points=zero_points.reshape(where.scale_shape),
        format=f,
        granularity=granularity,
        layout=where,
    )


def _check_finite(x):
    finite = np.isfinite(x)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ScalingError(
            f"x is {x[index]} at index {index}: quantize needs finite values; scale_and_round lets "
            "the others through"
        )


def _asymmetric(x, f, blocks):
    """Codes, scales and zero points, so that each block's least to greatest value is covered."""
    if f.kind != "int":
        raise ScalingError(f"{f} is not an integer format: zero points need one, as int8 or uint8")
    greatest, least = _block_max(x, blocks), -_block_max(-x, blocks)
    scales = (greatest / (f.max - f.min)) - (least / (f.max - f.min))  # no overflow on the way
    scales = np.maximum(scales, np.finfo(x.dtype).tiny)
    scales[greatest == least] = 1.0  # both are 0 then
    if not f.fits_float32:  # int32: neither do its codes
        x, least = x.astype(np.float64), least.astype(np.float64)
    zero_points = np.clip(np.rint(f.min - least / scales), f.min, f.max)
    quotients = np.rint(x / blocks.spread(scales)) + blocks.spread(zero_points)
    return encode(quotients, f), scales, zero_points.astype(np.int32)


def _block_max(x, blocks):
    """Greatest value of every block, and at least 0."""
    return block_amax(np.maximum(x, 0.0), blocks)
