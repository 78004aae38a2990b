"""Between values and codes: `encode` rounds and packs, `decode` unpacks exactly."""

from dataclasses import dataclass
from functools import lru_cache
from math import ldexp

import numpy as np

from mpcore.formats.format import FormatError
from mpcore.formats.registry import get_element_format
from mpcore.formats.rounding import (
    CHUNK,
    as_float,
    check_out,
    round_to,
    widen,
)

_TABLE_BITS = 16  # up to this width, decoding is one look-up


@dataclass(frozen=True)
class Container:
    """An IEEE float whose bits are taken apart as an unsigned integer."""

    float_dtype: np.dtype
    uint_dtype: np.dtype
    mantissa_bits: int
    bias: int

    @property
    def sign_bit(self):
        """Position of the sign bit."""
        return self.uint_dtype.itemsize * 8 - 1

    def bits_of(self, value):
        """The bit pattern of one value, as a Python int."""
        return int(self.float_dtype.type(value).view(self.uint_dtype))


FLOAT32 = Container(np.dtype(np.float32), np.dtype(np.uint32), 23, 127)
FLOAT64 = Container(np.dtype(np.float64), np.dtype(np.uint64), 52, 1023)


def encode(
    x, f, rounding="nearest_even", overflow="saturate", out=None, rng=None, flush_subnormals=False
):
    """Codes of the values of `x` in the format `f`, rounded once as by `round_to`.

    Args:
        x: array of any shape.
        f: a `Format` or anything that `get_format` takes.
        rounding, overflow, rng, flush_subnormals: as in `round_to`.
        out: array of the result's shape and dtype to write into.

    Returns:
        One unsigned code per element: uint8, uint16, uint32 or uint64, the narrowest that holds a
        code; the unused high bits are zero. Integers are two's complement. NaN becomes the quiet
        NaN of the same sign; where the format has none, a float gives a zero of the other sign
        (as ml_dtypes) and an integer 0. Formats without -0 give +0.

    Raises:
        FormatError: as `round_to`.
    """
    f, x = get_element_format(f), as_float(x)
    if x.dtype == np.float32 and not f.fits_float32:
        x = widen(x, np.float64)
    result = check_out(out, x.shape, f.code_dtype)
    rounded = round_to(x, f, rounding, overflow, rng, None, flush_subnormals)
    rounded = np.asarray(rounded).reshape(-1)
    codes = np.empty(x.size, f.code_dtype)
    for start in range(0, x.size, CHUNK):
        codes[start : start + CHUNK] = _pack(rounded[start : start + CHUNK], f)
    result[...] = codes.reshape(x.shape)
    return result if out is not None or x.ndim else result[()]


def _pack(values, f):
    """Codes of values that the format holds exactly (or that are infinite or NaN)."""
    if f.kind == "int":
        return (values.astype(np.int64) & (2**f.bits - 1)).astype(f.code_dtype)
    c = FLOAT32 if values.dtype == np.float32 else FLOAT64
    u = c.uint_dtype.type
    if not f.has_zero:
        _, exponent = np.frexp(values)
        code = exponent - 1 + f.bias
        return np.where(np.isnan(values), _nan_code(f), code).astype(f.code_dtype)
    bits = values.view(c.uint_dtype)
    magnitude = bits & u((1 << c.sign_bit) - 1)
    significand, shift = _split(magnitude, f, c)
    below_normal = significand >> np.minimum(shift, c.mantissa_bits + 1).astype(c.uint_dtype)
    kept = magnitude >> u(c.mantissa_bits - f.mantissa_bits)
    normal = kept - u((c.bias - f.bias) << f.mantissa_bits)  # wraps where it is not used
    code = np.where(magnitude >= u(c.bits_of(f.smallest_normal)), normal, below_normal)
    if f.has_infinity:
        code = np.where(np.isinf(values), u(f.max_code + 1), code)
    code = code.astype(f.code_dtype)
    if f.has_nan:
        code = np.where(np.isnan(values), f.code_dtype.type(_nan_code(f)), code)
    if f.is_signed:
        sign = (bits >> u(c.sign_bit)).astype(f.code_dtype)
        code = code | (sign << f.code_dtype.type(f.bits - 1))
    return code


def _split(magnitude, f, c):
    """Take container bits (without sign) apart for a format.

    Returns:
        The significand as an integer (implicit one included), and by how many bits the step of the
        format at this magnitude lies above the step of the container (not negative).
    """
    u = c.uint_dtype.type
    field = (magnitude >> u(c.mantissa_bits)).astype(np.int32)
    trailing = magnitude & u((1 << c.mantissa_bits) - 1)
    significand = trailing | ((field > 0).astype(c.uint_dtype) << u(c.mantissa_bits))
    exponent = np.maximum(field, 1) - c.bias
    is_normal = magnitude >= u(c.bits_of(ldexp(1.0, f.emin)))
    step = np.where(is_normal, exponent - f.mantissa_bits, f.tiny_exponent)
    return significand, np.maximum(step - (exponent - c.mantissa_bits), 0)


def _nan_code(f):
    """The NaN that `encode` writes, without its sign."""
    if f.nan == "negative_zero":
        return 1 << (f.bits - 1)
    if f.nan == "all_ones":
        return f.max_code + 1
    return f.max_code + 1 + (1 << (f.mantissa_bits - 1))  # quiet: the leading trailing bit is set


def decode(codes, f, out=None):
    """Values of the codes, exactly.

    Args:
        codes: integer array of any shape; bits above the format's width must be zero.
        f: a `Format` or anything that `get_format` takes.
        out: array of the result's shape and dtype to write into.

    Returns:
        float32 where the format's values all fit float32, else float64. Every NaN code becomes
        the quiet NaN of its sign.

    Raises:
        FormatError: an unknown format, codes that are not integers or that the format lacks.
    """
    f = get_element_format(f)
    codes = np.asarray(codes)
    if codes.dtype.kind not in "ui":
        raise FormatError(f"codes must be unsigned integers, not {codes.dtype}")
    if codes.size and not 0 <= int(codes.min()) <= int(codes.max()) < 2**f.bits:
        raise FormatError(f"codes of {f} lie in 0..{2**f.bits - 1}; {codes.max()} was given")
    result = check_out(out, codes.shape, f.value_dtype)
    if f.bits <= _TABLE_BITS:
        result[...] = _table(f)[codes]
    else:
        result[...] = _unpack(codes.reshape(-1), f).reshape(codes.shape)  # one code, too
    return result if out is not None or codes.ndim else result[()]


@lru_cache(maxsize=64)
def _table(f):
    table = _unpack(np.arange(2**f.bits), f).astype(f.value_dtype)
    table.flags.writeable = False
    return table


def _unpack(codes, f):
    """Values of codes, as float64, from the definition of the format."""
    codes = codes.astype(np.uint64)
    sign_weight = np.uint64(1 << (f.bits - 1))
    negative = (codes & sign_weight).astype(bool) & f.is_signed
    magnitude = np.where(negative, codes & (sign_weight - np.uint64(1)), codes)
    if f.kind == "int":
        return magnitude.astype(np.float64) - np.where(negative, float(sign_weight), 0.0)
    field = (magnitude >> np.uint64(f.mantissa_bits)).astype(np.int32)
    if not f.has_zero:
        return np.where(magnitude > f.max_code, np.nan, np.ldexp(1.0, field - f.bias))
    trailing = magnitude & np.uint64((1 << f.mantissa_bits) - 1)
    implicit_one = (field > 0).astype(np.uint64) << np.uint64(f.mantissa_bits)
    significand = (trailing | implicit_one).astype(np.float64)
    if not f.has_subnormals:
        significand[field == 0] = 0.0
    exponent = np.maximum(field, 1) - f.bias - f.mantissa_bits
    with np.errstate(over="ignore"):  # the codes beyond the largest value are replaced below
        value = np.ldexp(significand, exponent)
    if f.has_infinity:
        value[magnitude == f.max_code + 1] = np.inf
        value[magnitude > f.max_code + 1] = np.nan
    elif f.nan == "all_ones":
        value[magnitude > f.max_code] = np.nan
    elif f.nan == "negative_zero":
        value[codes == sign_weight] = np.nan
    return np.copysign(value, np.where(negative, -1.0, 1.0))
