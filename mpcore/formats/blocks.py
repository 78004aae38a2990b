"""Block formats: short runs of values along the last axis that share a scale (OCP MX, NVFP4).

A `BlockFormat` is data, as a `Format` is. `split_blocks` chooses the scales and rounds the values;
`round_blocks` puts them together again. Sources: OCP Microscaling Formats (MX) Specification v1.0;
NVIDIA's description of NVFP4 (scales of 16 values in e4m3 under one fp32 scale per tensor).
"""

from dataclasses import dataclass
from math import floor, log2

import numpy as np

from mpcore.formats.format import Format, FormatError
from mpcore.formats.registry import get_format
from mpcore.formats.rounding import (
    COMPILED_FROM,
    as_float,
    check_out,
    compiled_kernels,
    in_threads,
    round_to,
)

SCALE_RULES = {
    "floor": "the power of two that brings amax into the element's largest binade (OCP)",
    "ceil": "the least power of two under which amax does not saturate",
    "even": "floor, of amax rounded to the element's precision first",
}


@dataclass(frozen=True)
class BlockFormat:
    """Elements of one format in blocks along the last axis, each block under one scale."""

    name: str
    element: Format
    block: int  # values that share a scale
    scale: Format  # e8m0: a power of two; else the scale is amax / (largest element), rounded
    step_exponent: int = 0  # elements are multiples of 2**step_exponent (MXINT8: -6)
    has_tensor_scale: bool = False  # whether scales are themselves under one fp32 scale
    note: str = ""

    def __str__(self):
        return self.name

    @property
    def max(self):
        """Largest element, as a float."""
        return self.element.max * 2.0**self.step_exponent

    @property
    def bits(self):
        """Bits a value, its share of the block's scale included."""
        return self.element.bits + self.scale.bits / self.block


def _mx(name, element, note, step_exponent=0):
    return BlockFormat(name, get_format(element), 32, get_format("e8m0"), step_exponent, note=note)


BLOCK_FORMATS = {
    f.name: f
    for f in (
        _mx("mxfp8_e4m3", "fp8_e4m3", "OCP MXFP8, E4M3 elements"),
        _mx("mxfp8_e5m2", "fp8_e5m2", "OCP MXFP8, E5M2 elements"),
        _mx("mxfp6_e3m2", "fp6_e3m2", "OCP MXFP6, E3M2 elements"),
        _mx("mxfp6_e2m3", "fp6_e2m3", "OCP MXFP6, E2M3 elements"),
        _mx("mxfp4", "fp4_e2m1", "OCP MXFP4"),
        _mx("mxint8", "int8", "OCP MXINT8: elements are whole multiples of 1/64", -6),
        BlockFormat(
            "nvfp4",
            get_format("fp4_e2m1"),
            16,
            get_format("fp8_e4m3"),
            has_tensor_scale=True,
            note="NVIDIA NVFP4",
        ),
    )
}
_OTHER_NAMES = {"mxfp8": "mxfp8_e4m3", "mxfp4_e2m1": "mxfp4", "mxfp6": "mxfp6_e3m2"}


def list_block_formats():
    """Names of the block formats."""
    return list(BLOCK_FORMATS)


def get_block_format(x):
    """The `BlockFormat` that a name stands for.

    Raises:
        FormatError: no block format has that name.
    """
    if isinstance(x, BlockFormat):
        return x
    key = str(x).strip().lower()
    key = _OTHER_NAMES.get(key, key)
    if key not in BLOCK_FORMATS:
        raise FormatError(
            f'no block format is called "{key[:60]}"; valid are {", ".join(BLOCK_FORMATS)}'
        )
    return BLOCK_FORMATS[key]


@dataclass(frozen=True)
class Blocks:
    """Values as elements under scales: element * scale of its block * tensor_scale."""

    elements: np.ndarray  # [..., n]: values of the element format (of MXINT8: times 1/64)
    scales: np.ndarray  # [..., blocks]: values of the scale format
    tensor_scale: float  # 1 where the format has none
    format: BlockFormat

    def joined(self):
        """The values that the elements and scales stand for, [..., n]."""
        last = self.elements.shape[-1]
        scales = self.scales * self.scales.dtype.type(self.tensor_scale)
        return self.elements * np.repeat(scales, self.format.block, axis=-1)[..., :last]


def split_blocks(x, f, rule="floor"):
    """Scales and rounded elements of an array.

    A power-of-two scale is 2**(floor(log2 amax) - emax) under the rule "floor", with emax the
    exponent of the largest element; what lies beyond saturates. An NVFP4 scale is amax of the block
    / 6, under the tensor's scale amax / (448 * 6) in fp32, rounded to e4m3. A block whose amax is 0
    has the smallest scale. A block with NaN or infinity is NaN altogether: its scale is.

    Args:
        x: array of at least one axis; blocks lie along the last, the last one may be shorter.
            float32 is computed in float32, all else in float64.
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
    missing = -x.shape[-1] % f.block
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x
    blocks = padded.reshape(*x.shape[:-1], padded.shape[-1] // f.block, f.block)
    amax = np.abs(blocks).max(axis=-1)  # NaN where a block has one
    real = x.dtype.type
    with np.errstate(all="ignore"):
        if f.has_tensor_scale:
            finite = amax[np.isfinite(amax)]
            tensor_scale = np.float32(finite.max(initial=0) / (f.scale.max * f.element.max))
            tensor_scale = tensor_scale if tensor_scale > 0 else np.float32(1)
            scales = round_to(amax / real(f.max) / real(tensor_scale), f.scale).astype(x.dtype)
        else:
            tensor_scale = np.float32(1)
            exponent = _scale_exponents(amax, f, rule)
            scales = np.ldexp(real(1), np.clip(exponent, -127, 127))
        scales = np.where(np.isfinite(amax), scales, real(np.nan))
        divisor = scales * real(tensor_scale) * real(2.0**f.step_exponent)
        quotients = np.where(divisor[..., None] == 0, real(0), blocks / divisor[..., None])
        low = real(-f.element.max)  # MXINT8 leaves -128 unused, as OCP recommends
        elements = np.maximum(round_to(quotients, f.element), low) * real(2.0**f.step_exponent)
        elements = np.where(np.isnan(scales)[..., None], real(np.nan), elements)
    elements = elements.reshape(padded.shape)[..., : x.shape[-1]]
    return Blocks(elements, scales, float(tensor_scale), f)


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
    is_whole = x.ndim > 0 and x.shape[-1] % f.block == 0 and x.dtype == np.float32
    is_apart = out is x or not np.may_share_memory(x, result)
    are_plain = x.flags.c_contiguous and result.flags.c_contiguous and is_apart
    kernels = _block_kernels() if is_whole and are_plain and x.size >= COMPILED_FROM else None
    if kernels is None or (rule != "floor" and not f.has_tensor_scale):
        result[...] = split_blocks(x, f, rule).joined()
    else:
        _round_compiled(x.reshape(-1), result.reshape(-1), f, kernels)
    return result


def _block_kernels():
    if compiled_kernels() is None:
        return None
    from mpcore.formats import block_kernels

    return block_kernels


def _round_compiled(x, result, f, kernels):
    element = _kernel_format(f.element, 2.0**f.step_exponent)
    if not f.has_tensor_scale:
        exponent = np.int32(floor(log2(f.max)))

        def work(part):
            kernels.round_power_of_two_blocks(x[part], result[part], exponent, element)
    else:
        peaks = []
        in_threads(lambda part: peaks.append(kernels.finite_amax(x[part])), x)
        tensor_scale = np.float32(max(peaks) / np.float32(f.scale.max * f.element.max))
        tensor_scale = tensor_scale if tensor_scale > 0 else np.float32(1)
        scale, top = _kernel_format(f.scale), np.float32(f.max)

        def work(part):
            kernels.round_scaled_blocks(x[part], result[part], top, tensor_scale, scale, element)

    in_threads(work, x)


def _kernel_format(f, step=1.0):
    """What the kernels need to know of a format whose values are multiplied by a power of two."""
    lowest = 2.0**f.emin * step

    def bits(value):
        return np.float32(value).view(np.int32)

    keeps_sign = np.int32(-1 if f.has_negative_zero else 0)
    return np.int32(24 - f.precision), bits(lowest), bits(f.max * step), keeps_sign
