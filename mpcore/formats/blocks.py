"""Block formats: values of one format in blocks that share a scale (OCP MX, NVFP4).

`split_blocks` chooses the scales and rounds the values; `round_blocks` puts them together again.
Sources: OCP Microscaling Formats (MX) Specification v1.0; NVIDIA's description of NVFP4 (scales of
16 values in e4m3 under one fp32 scale per tensor); DeepSeek-V3 (128 by 128 weights a scale).
"""

from dataclasses import dataclass
from math import floor, log2

import numpy as np

from mpcore import compiled
from mpcore.formats.format import BlockFormat, FormatError
from mpcore.formats.registry import BLOCK_FORMATS, get_format
from mpcore.formats.rounding import (
    COMPILED_FROM,
    as_float,
    check_out,
    in_threads,
    round_to,
)

SCALE_RULES = {
    "floor": "the power of two that brings amax into the element's largest binade (OCP)",
    "ceil": "the least power of two under which amax does not saturate",
    "even": "floor, of amax rounded to the element's precision first",
}


def get_block_format(x):
    """The `BlockFormat` that `x` is or names.

    Raises:
        FormatError: nothing has that name, or it is a format without blocks.
    """
    f = get_format(x)
    if not isinstance(f, BlockFormat):
        raise FormatError(f"{f} is not a block format; valid are {', '.join(BLOCK_FORMATS)}")
    return f


@dataclass(frozen=True)
class Blocks:
    """Values as elements under scales: element * scale of its block * tensor_scale."""

    elements: np.ndarray  # [..., n]: values of the element format (of MXINT8: times 1/64)
    scales: np.ndarray  # [..., blocks], or [..., blocks of rows, blocks]: values of their format
    tensor_scale: float  # 1 where the format has none
    format: BlockFormat

    def joined(self):
        """The values that the elements and scales stand for, [..., n]."""
        return self.elements * self.spread_scales()

    def spread_scales(self):
        """scale * tensor_scale of every element, [..., n]."""
        scales = self.scales * self.scales.dtype.type(self.tensor_scale)
        if self.format.rows > 1 and self.elements.ndim > 1:
            scales = np.repeat(scales, self.format.rows, axis=-2)[..., : self.elements.shape[-2], :]
        return np.repeat(scales, self.format.block, axis=-1)[..., : self.elements.shape[-1]]


def split_blocks(x, f, rule="floor"):
    """Scales and rounded elements of an array.

    A power-of-two scale is 2**(floor(log2 amax) - emax) under the rule "floor", with emax the
    exponent of the largest element; what lies beyond saturates. Other scales are amax / (largest
    element) rounded to the scale's format; of NVFP4 amax / 6, under the tensor's scale
    amax / (448 * 6) in fp32, rounded to e4m3. A block whose amax is 0 has the smallest scale. A
    block with NaN or infinity is NaN altogether: its scale is.

    Args:
        x: array of at least one axis; blocks lie along the last (and the one before it), those at
            the end may be shorter. float32 is computed in float32, all else in float64.
        f: a `BlockFormat` or its name.
        rule: a key of `SCALE_RULES`, for power-of-two scales.

    Returns:
        `Blocks`.

    Raises:
        FormatError: an unknown block format or rule; an array without axes.
    """
    f, x = get_block_format(f), as_float(x)
    if rule not in SCALE_RULES:
        raise FormatError(f'no scale rule is called "{rule}"; valid are {", ".join(SCALE_RULES)}')
    if x.ndim == 0:
        raise FormatError("blocks need an array with at least one axis")
    matrix = x if x.ndim > 1 else x[None]
    (*lead, height, width), rows = matrix.shape, f.rows if x.ndim > 1 else 1
    missing = [(0, 0)] * len(lead) + [(0, -height % rows), (0, -width % f.block)]
    padded = np.pad(matrix, missing) if any(sum(missing, ())) else matrix
    grid = padded.shape[-2] // rows, padded.shape[-1] // f.block
    blocks = padded.reshape(*lead, grid[0], rows, grid[1], f.block)
    amax = np.abs(blocks).max(axis=(-3, -1))  # NaN where a block has one
    real = x.dtype.type
    with np.errstate(all="ignore"):
        scales, tensor_scale = _scales(amax, f, rule)
        divisor = scales * real(tensor_scale) * real(2.0**f.step_exponent)
        divisor = divisor[..., :, None, :, None]
        quotients = np.where(divisor == 0, real(0), blocks / divisor)
        low = real(-f.element.max)  # MXINT8 leaves -128 unused, as OCP recommends
        elements = np.maximum(round_to(quotients, f.element), low) * real(2.0**f.step_exponent)
        elements = np.where(np.isnan(divisor), real(np.nan), elements)
    elements = elements.reshape(padded.shape)[..., :height, :width].reshape(x.shape)
    scales = scales if x.ndim > 1 else scales[0]
    return Blocks(elements, scales, float(tensor_scale), f)


def _scales(amax, f, rule):
    """(scales of the blocks, tensor scale) from the amax of every block."""
    real, tensor_scale = amax.dtype.type, np.float32(1)
    if f.scale.name == "e8m0":
        exponents = _scale_exponents(amax, f, rule)
        scales = np.ldexp(real(1), np.clip(exponents, -127, 127))
    else:
        if f.has_tensor_scale:
            largest = amax[np.isfinite(amax)].max(initial=0)
            tensor_scale = np.float32(largest / (f.scale.max * f.element.max))
            tensor_scale = tensor_scale if tensor_scale > 0 else np.float32(1)
        scales = round_to(amax / real(f.max) / real(tensor_scale), f.scale).astype(amax.dtype)
    return np.where(np.isfinite(amax), scales, real(np.nan)), tensor_scale


def _scale_exponents(amax, f, rule):
    """Exponents of power-of-two scales; that of an amax of 0 lies below all others."""
    if rule == "ceil":
        fraction, exponent = np.frexp(amax / amax.dtype.type(f.max))
        exponent = exponent - (fraction == 0.5)
    else:
        if rule == "even":
            fraction, exponent = np.frexp(amax)
            steps = 2.0**f.element.precision if f.element.kind == "float" else 2.0**7
            amax = np.ldexp(np.rint(fraction * steps) / steps, exponent)
        exponent = np.frexp(amax)[1] - 1 - floor(log2(f.max))
    return np.where(amax == 0, -10_000, exponent)


def round_blocks(x, f, rule="floor", out=None):
    """Every value as the block format holds it: `split_blocks(x, f, rule).joined()`, at speed.

    Args:
        x, f, rule: as in `split_blocks`.
        out: array of the result's shape and dtype to write into; may be x itself.

    Returns:
        Array of the shape of x, float32 for float32 and narrower, else float64.

    Raises:
        FormatError: as `split_blocks`; an unsuitable out.
    """
    f, x = get_block_format(f), as_float(x)
    result = check_out(out, x.shape, x.dtype)
    has_kernel = f.scale.name == "e8m0" or f.has_tensor_scale
    is_whole = x.ndim > 0 and x.shape[-1] % f.block == 0 and x.dtype == np.float32
    is_apart = out is x or not np.may_share_memory(x, result)
    are_plain = x.flags.c_contiguous and result.flags.c_contiguous and is_apart
    in_kernel = has_kernel and is_whole and are_plain and x.size >= COMPILED_FROM
    code = compiled.kernels("mpcore.formats.block_kernels") if in_kernel else None
    if code is None or (rule != "floor" and not f.has_tensor_scale):
        result[...] = split_blocks(x, f, rule).joined()
    else:
        _round_compiled(x.reshape(-1), result.reshape(-1), f, code)
    return result


def _round_compiled(x, result, f, code):
    element = _kernel_format(f.element, 2.0**f.step_exponent)
    if not f.has_tensor_scale:
        exponent = np.int32(floor(log2(f.max)))

        def work(part):
            code.round_power_of_two_blocks(x[part], result[part], exponent, element)
    else:
        peaks = []
        in_threads(lambda part: peaks.append(code.finite_amax(x[part])), x)
        tensor_scale = np.float32(max(peaks) / np.float32(f.scale.max * f.element.max))
        tensor_scale = tensor_scale if tensor_scale > 0 else np.float32(1)
        scale, top = _kernel_format(f.scale), np.float32(f.max)

        def work(part):
            code.round_scaled_blocks(x[part], result[part], top, tensor_scale, scale, element)

    in_threads(work, x)


def _kernel_format(f, step=1.0):
    """What the kernels need to know of a format whose values are multiplied by a power of two."""
    lowest = 2.0**f.emin * step

    def bits(value):
        return np.float32(value).view(np.int32)

    keeps_sign = np.int32(-1 if f.has_negative_zero else 0)
    return np.int32(24 - f.precision), bits(lowest), bits(f.max * step), keeps_sign
