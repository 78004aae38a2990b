"""The hot path of scaling: x / scale rounded to a format, kept as floats that BLAS can multiply."""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import numpy as np

from mpcore import compiled
from mpcore.formats.blocks import split_blocks
from mpcore.formats.counts import Counts
from mpcore.formats.rounding import (
    COMPILED_FROM,
    as_float,
    check_modes,
    check_out,
    kernel_parameters,
    round_to,
)
from mpcore.scaling.granularity import (
    Partition,
    ScalingError,
    block_format,
    elements_and_granularity,
    partition,
)


@dataclass(frozen=True)
class ScaledValues:
    """A matrix as values of a low-precision format times one scale per block."""

    values: np.ndarray  # [rows, columns] float32 (float64 for float64 input): on the format's grid
    scales: np.ndarray  # [row groups, column groups], same dtype
    blocks: Partition  # which rows and columns share a scale
    counts: Counts | None = None  # events of the rounding, where they were asked for

    @property
    def row_scales(self):
        """Scales repeated per row: [rows or 1, column groups]. With one column group, a product
        `values @ w` is scaled back by multiplying it with this."""
        if self.scales.shape[0] == 1:
            return self.scales
        return np.repeat(self.scales, np.diff(self.blocks.row_starts), axis=0)

    def dequantize(self):
        """values * scales: the matrix as the format sees it, [rows, columns]."""
        return self.values * self.blocks.spread(self.scales)


def scale_and_round(
    x,
    f,
    granularity=None,
    segments=None,
    scales=None,
    rounding="nearest_even",
    counts=False,
    out=None,
):
    """Divide every block of a matrix by its scale and round the quotients to a format.

    The scale of a block is amax / (largest value of the format), in the dtype of x; 1 where the
    block is all zero, and never below the smallest normal number of that dtype. Quotients are true
    divisions (torch's fake-quantise multiplies by 1 / scale), clamped to ±the largest value (±127
    for int8). Under "mx" and "nvfp4" scales and values are those of `formats.split_blocks`. A block
    that holds NaN or infinity has no scale: its scale and all its values are NaN, so that an
    upstream overflow stays visible.

    Args:
        x: [rows, columns]; float32, or float64 (slower); other dtypes are widened, and float32 is
            for a format that it does not hold.
        f: a format with negative values, or anything that `get_format` takes; a block format
            brings its granularity along.
        granularity: a key of `GRANULARITIES` ("per_channel" keeps the rows), or a `Partition`; None
            is "per_tensor".
        segments: row offsets [segments + 1] from 0 to rows; rows of different segments never share
            a scale, so "per_tensor" is one scale per segment.
        scales: given (static) scales that broadcast to [row groups, column groups], positive; None
            takes amax. With a NaN value and a given scale only that value is NaN.
        rounding: a rounding mode of `round_to` other than "stochastic".
        counts: whether to count saturation, underflow, NaN and inexact roundings of the quotient.
        out: [rows, columns] array for the values, of the dtype of the result; may be x.

    Returns:
        `ScaledValues`.

    Raises:
        ScalingError: x is not a matrix; unsuitable scales, segments, granularity or format.
        FormatError: an unknown format or rounding mode, or an unsuitable out.
    """
    f, granularity = elements_and_granularity(f, granularity, "per_tensor")
    if rounding == "stochastic":
        raise ScalingError("stochastic rounding is not available here; use round_to on x / scale")
    check_modes(f, rounding, "saturate")
    if not f.is_signed:
        raise ScalingError(f"{f} has no negative values; use quantize(x, f, symmetric=False)")
    x = as_float(x)
    if x.ndim != 2:
        raise ScalingError(f"a [rows, columns] matrix is needed, not shape {x.shape}")
    if not f.fits_float32:  # amax ÷ the format's largest value has to be a number
        x = x.astype(np.float64)
    x = np.ascontiguousarray(x)
    blocks = granularity
    if not isinstance(granularity, Partition):
        blocks = partition(x.shape, granularity, segments)
    values = check_out(out, x.shape, x.dtype)
    if granularity in ("mx", "nvfp4") and scales is None:
        if rounding != "nearest_even":
            raise ScalingError(f'"{granularity}" rounds to nearest even, not "{rounding}"')
        kind = block_format(f, granularity)
        return _split_and_round(x, kind, blocks, segments, values, counts)
    kernels = compiled_kernels() if x.dtype == np.float32 and x.size >= COMPILED_FROM else None
    reach = f.max  # a greater quotient counts as saturated
    if scales is None:
        scales = scales_from_amax(block_amax(x, blocks, kernels), f)
        reach = inf  # only the rounding of the quotient can pass the largest value here
    else:
        scales = _given_scales(scales, blocks, x.dtype)
    if kernels is not None and f.fits_float32:
        tally = np.zeros(4, np.int64)
        limits = tuple(np.float32(v) for v in (f.max, reach))
        parameters = kernel_parameters(f, rounding, "saturate")
        result = np.ascontiguousarray(values)  # values itself, unless out has gaps
        kernels.scale_and_round(
            x, blocks.row_starts, blocks.columns, scales, limits, parameters, result, tally
        )
        if result is not values:
            values[...] = result
        underflow, saturation, nan, inexact = map(int, tally)
        found = Counts(x.size, 0, underflow, saturation, nan, inexact)
    else:
        found = _scale_and_round_numpy(x, f, blocks, scales, reach, rounding, values, counts)
    return ScaledValues(values, scales, blocks, found if counts else None)


def block_amax(x, blocks, kernels=None):
    """Largest magnitude of every block, [row groups, column groups]; NaN where a block has NaN."""
    if kernels is not None:
        amax_bits = np.zeros(blocks.grid, np.int32)
        kernels.block_amax(x.view(np.int32), blocks.row_starts, blocks.columns, amax_bits)
        return amax_bits.view(np.float32)
    magnitude = np.abs(x)
    amax = np.zeros(blocks.grid, x.dtype)
    starts = blocks.row_starts
    for column in range(blocks.grid[1]):
        block = magnitude[:, column * blocks.columns : (column + 1) * blocks.columns]
        row_amax = block.max(axis=1, initial=0.0)
        filled = np.flatnonzero(np.diff(starts))  # reduceat has no empty groups
        if filled.size:
            amax[filled, column] = np.maximum.reduceat(row_amax, starts[filled])
    return amax


def scales_from_amax(amax, f):
    """amax / (largest value of the format), with the exceptions that `scale_and_round` names."""
    scales = np.maximum(amax / amax.dtype.type(f.max), np.finfo(amax.dtype).tiny)
    scales[amax == 0] = 1.0
    scales[amax == inf] = np.nan
    return scales


def compiled_kernels():
    """The kernels of this floor, or None."""
    return compiled.kernels("mpcore.scaling.kernels")


def _given_scales(scales, blocks, dtype):
    try:
        given = np.broadcast_to(np.asarray(scales, dtype), blocks.grid)
    except ValueError:
        shape = np.shape(scales)
        raise ScalingError(f"scales of shape {shape} do not broadcast to {blocks.grid}") from None
    if not (given > 0).all():
        raise ScalingError("given scales must all be positive")
    return np.ascontiguousarray(given)


def _scale_and_round_numpy(x, f, blocks, scales, reach, rounding, values, counts):
    """The readable twin of kernels.scale_and_round; returns the Counts where they are wanted."""
    scaled = x / blocks.spread(scales)
    rounded = round_to(np.clip(scaled, -f.max, f.max), f, rounding, "saturate")
    np.copyto(rounded, scaled, where=np.isnan(scaled))
    values[...] = rounded
    return _counted(x, scaled, rounded, reach) if counts else None


def _counted(x, scaled, rounded, reach):
    return Counts(
        total=x.size,
        underflow=int(np.count_nonzero((rounded == 0) & (x != 0))),
        saturation=int(np.count_nonzero(np.abs(scaled) > reach)),
        nan=int(np.count_nonzero(np.isnan(rounded))),
        inexact=int(np.count_nonzero((rounded != scaled) & ~np.isnan(scaled))),
    )


def _split_and_round(x, kind, blocks, segments, values, counts):
    """`ScaledValues` under the scales of a `BlockFormat`."""
    scales, step = np.empty(blocks.grid, x.dtype), x.dtype.type(2.0**kind.step_exponent)
    bounds = (0, len(x)) if segments is None or not kind.has_tensor_scale else segments
    for start, stop in pairwise(bounds):
        found = split_blocks(x[start:stop], kind)
        scales[start:stop] = found.scales * x.dtype.type(found.tensor_scale) * step
        values[start:stop] = found.elements / step
    result = ScaledValues(values, scales, blocks)
    if not counts:
        return result
    with np.errstate(all="ignore"):
        spread = blocks.spread(scales)
        scaled = np.where(spread == 0, x, x / spread)
    return replace(result, counts=_counted(x, scaled, values, kind.element.max))
