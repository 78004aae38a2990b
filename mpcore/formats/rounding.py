"""Rounding to a format: the one rounding core, in NumPy bit arithmetic.

A value is held in a *container*, float32 or float64, whose bits are read as integers. Rounding
keeps the significand bits that the format has and decides from the rest (the remainder) whether to
step up. `reference.py` says the same with pencil and paper; `kernels.py` is the compiled twin.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import inf, ldexp, nan

import numpy as np

from mpcore.formats.format import OVERFLOW_BEHAVIOURS, ROUNDING_MODES, FormatError
from mpcore.formats.registry import get_format

CHUNK = 1 << 15  # values per pass: the temporaries of one chunk stay in the cache
COMPILED_FROM = 1 << 14  # below this many values NumPy is done before Numba is imported


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


@dataclass(frozen=True)
class Outcomes:
    """What a value beyond the range becomes: each a pair (positive, negative)."""

    overflow: tuple  # a finite value that rounds beyond the largest finite one
    infinity: tuple  # an infinite input
    nan: tuple  # a NaN input


@lru_cache(maxsize=1024)
def outcomes(f, rounding, overflow):
    """The `Outcomes` of a format under a rounding mode and an overflow behaviour.

    Rounding that goes toward zero never leaves the range (IEEE 754, 7.4), whatever the behaviour.
    """
    limits = (f.max, f.min)
    infinities = (inf, -inf)
    nans = (-nan, -nan) if f.nan == "negative_zero" else (nan, -nan)
    if not f.has_nan:
        # ml_dtypes' choice where a float has no NaN: a zero of the other sign.
        nans = (-0.0, 0.0) if f.kind == "float" else (0.0, 0.0)
    beyond = {
        "saturate": limits,
        "infinity": infinities if f.has_infinity else nans if f.has_nan else limits,
        "nan": nans,
    }[overflow]
    toward_zero = {
        "toward_zero": (True, True),
        "to_odd": (True, True),
        "toward_positive": (False, True),
        "toward_negative": (True, False),
    }.get(rounding, (False, False))
    finite = tuple(limits[i] if toward_zero[i] else beyond[i] for i in (0, 1))
    endless = infinities if overflow == "nan" and f.has_infinity else beyond
    return Outcomes(finite, endless, nans)


def round_to(x, f, rounding="nearest_even", overflow="saturate", rng=None, out=None):
    """Round every value of `x` to the nearest (by `rounding`) value of the format `f`, once.

    Args:
        x: array of any shape. float32 (and narrower floats) give float32, all else float64.
        f: a `Format` or anything that `get_format` takes.
        rounding: a key of `ROUNDING_MODES`.
        overflow: a key of `OVERFLOW_BEHAVIOURS`; by default ±inf becomes the largest value.
            NaN stays NaN; a float format without NaN gives a zero of the other sign (as
            ml_dtypes does), an integer 0.
        rng: `numpy.random.Generator`, for (and only for) rounding="stochastic".
        out: array of the result's shape and dtype to write into; may be `x` itself, or overlap it.

    Returns:
        The rounded values. Without `out`, `x` is never changed. Where the format is wider than
        float32, a float32 result can still be infinite.

    Raises:
        FormatError: an unknown format, mode or behaviour; a missing rng; an unsuitable array.
    """
    f = get_format(f)
    check_modes(f, rounding, overflow, rng)
    x = as_float(x)
    result = check_out(out, x.shape, x.dtype)
    source = x
    if x.dtype == np.float32 and not f.fits_float32:
        source = widen(x, np.float64)  # exact; the rounded value fits float32 again
    flat_source = np.ascontiguousarray(source).reshape(-1)
    if result.flags.c_contiguous and result.dtype == source.dtype and not _overlap(source, result):
        _round_flat(flat_source, result.reshape(-1), f, rounding, overflow, rng)
    else:
        flat = np.empty(x.size, source.dtype)
        _round_flat(flat_source, flat, f, rounding, overflow, rng)
        with np.errstate(over="ignore"):
            result[...] = flat.reshape(x.shape)
    return result if out is not None or x.ndim else result[()]


def check_modes(f, rounding, overflow, rng=None):
    """Raise FormatError unless the mode and the behaviour exist and fit the format."""
    for word, value, valid in (
        ("rounding mode", rounding, ROUNDING_MODES),
        ("overflow behaviour", overflow, OVERFLOW_BEHAVIOURS),
    ):
        if not isinstance(value, str) or value not in valid:
            raise FormatError(f'no {word} is called "{value}"; valid are {", ".join(valid)}')
    if rounding == "stochastic" and not hasattr(rng, "random"):
        raise FormatError('rounding="stochastic" needs rng=numpy.random.default_rng(seed)')
    if overflow == "nan" and not f.has_nan:
        raise FormatError(f'{f} has no NaN: overflow="nan" is not possible; use "saturate"')


def as_float(x):
    """`x` as a float32 or float64 array: narrower floats widen to float32, all else to float64."""
    try:
        x = np.asarray(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"an array of real numbers is needed ({error})") from None
    if x.dtype in (np.float32, np.float64):
        return x
    if x.dtype.kind not in "biufVOc" or (x.dtype.kind == "O" and None in x.ravel().tolist()):
        raise FormatError(f"an array of real numbers is needed, not dtype {x.dtype}")
    if x.dtype.kind == "c":
        raise FormatError(f"an array of real numbers is needed, not dtype {x.dtype}")
    narrow_float = x.dtype.itemsize <= 2 and x.dtype.kind in "fV"  # kind V: ml_dtypes
    try:
        return widen(x, np.float32 if narrow_float else np.float64)
    except (TypeError, ValueError, OverflowError):
        raise FormatError(f"an array of real numbers is needed, not dtype {x.dtype}") from None


def widen(x, dtype):
    """`x` in a wider dtype, without NumPy's warning about signalling NaN."""
    with np.errstate(invalid="ignore"):
        return x.astype(dtype)


def check_out(out, shape, dtype):
    """`out` if it is a fitting array, or a new array where it is None."""
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != dtype:
        given = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise FormatError(f"out must be an array of {dtype} {shape}, not {given}")
    if not out.flags.writeable:
        raise FormatError("out is read-only; give an array that can be written")
    return out


def _overlap(source, result):
    """Whether writing `result` would change parts of `source` that are still to be read."""
    same = source.ctypes.data == result.ctypes.data and source.strides == result.strides
    return not same and np.may_share_memory(source, result)


def compiled_kernels():
    """The Numba kernels, or None where Numba is missing or has nowhere to keep compiled code.

    NumPy then does all the work, with the same results.
    """
    try:
        from mpcore.formats import kernels
    except (ImportError, RuntimeError):
        return None
    return kernels


def _round_flat(x, result, f, rounding, overflow, rng):
    if x.dtype == np.float32 and x.size >= COMPILED_FROM and rounding != "stochastic":
        kernels = compiled_kernels()
        if kernels is not None:
            parameters = kernel_parameters(f, rounding, overflow)
            kernels.round_flat(x.view(np.int32), result.view(np.int32), parameters)
            return
    if f.name == "fp32" and (rounding, overflow) == ("nearest_even", "infinity"):
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            result[...] = x.astype(np.float32)  # the processor's own cast is this rounding
        return
    for start in range(0, x.size, CHUNK):
        chunk = slice(start, start + CHUNK)
        result[chunk] = round_numpy(x[chunk], f, rounding, overflow, rng)


def round_numpy(x, f, rounding, overflow, rng=None):
    """The rounding core on a float32 or float64 array whose dtype contains the format."""
    c = FLOAT32 if x.dtype == np.float32 else FLOAT64
    bits = x.view(c.uint_dtype)
    negative = (bits >> c.uint_dtype.type(c.sign_bit)).astype(bool)
    magnitude = bits & c.uint_dtype.type((1 << c.sign_bit) - 1)
    infinity = c.uint_dtype.type(c.bits_of(inf))

    significand, shift = split(magnitude, f, c)
    # From mantissa_bits + 2 on, nothing but a remainder below one half is left.
    cut = np.minimum(shift, c.mantissa_bits + 2).astype(c.uint_dtype)
    quotient = significand >> cut
    remainder = significand - (quotient << cut)
    up = _steps_up(rounding, quotient, remainder, cut, negative, shift, rng)
    # Adding to the bits carries from the significand into the exponent, as it should. Where the
    # remainder reaches the implicit one, the result is zero or the smallest value.
    tiny = c.uint_dtype.type(c.bits_of(f.smallest))
    rounded = np.where(
        shift <= c.mantissa_bits,
        magnitude - remainder + (up.astype(c.uint_dtype) << np.minimum(cut, c.mantissa_bits)),
        up * tiny,
    )

    value = (rounded | (negative.astype(c.uint_dtype) << c.uint_dtype.type(c.sign_bit))).view(
        x.dtype
    )
    if not f.has_negative_zero:
        value[rounded == 0] = 0.0
    special = outcomes(f, rounding, overflow)
    limit = np.where(
        negative, c.uint_dtype.type(c.bits_of(abs(f.min))), c.uint_dtype.type(c.bits_of(f.max))
    )
    is_nan = magnitude > infinity
    for where, pair in (
        (rounded > limit, special.overflow),
        (magnitude == infinity, special.infinity),
        (is_nan, special.nan),
    ):
        if where.any():
            replacement = np.where(negative, x.dtype.type(pair[1]), x.dtype.type(pair[0]))
            value = np.where(where, replacement, value)
    return value


def split(magnitude, f, c):
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


def _steps_up(rounding, quotient, remainder, cut, negative, shift, rng):
    """Where the magnitude steps up to the next value of the format."""
    inexact = remainder != 0
    odd = (quotient & quotient.dtype.type(1)).astype(bool)
    if rounding == "toward_zero":
        return np.zeros(inexact.shape, bool)
    if rounding == "toward_positive":
        return inexact & ~negative
    if rounding == "toward_negative":
        return inexact & negative
    if rounding == "to_odd":
        return inexact & ~odd
    if rounding == "stochastic":
        return rng.random(inexact.shape) < np.ldexp(remainder.astype(np.float64), -shift)
    twice, step = remainder << quotient.dtype.type(1), quotient.dtype.type(1) << cut
    if rounding == "nearest_away":
        return inexact & (twice >= step)
    return (twice > step) | (inexact & (twice == step) & odd)


# What the compiled kernel adds to the remainder before it cuts, as switches for: one less than
# half a step; the odd bit; half a step; and one less than a step for positive values, for negative
# values, and for an even quotient.
_ADDENDS = {
    "nearest_even": (1, 1, 0, 0, 0, 0),
    "nearest_away": (0, 0, 1, 0, 0, 0),
    "toward_zero": (0, 0, 0, 0, 0, 0),
    "toward_positive": (0, 0, 0, 1, 0, 0),
    "toward_negative": (0, 0, 0, 0, 1, 0),
    "to_odd": (0, 0, 0, 0, 0, 1),
}


@lru_cache(maxsize=1024)
def kernel_parameters(f, rounding, overflow):
    """What `kernels.round_bits` needs to know: three tuples of int32 (switches, format, outcomes).

    For a format that fits float32, and every rounding mode but "stochastic".
    """
    special = outcomes(f, rounding, overflow)

    def bits(value):
        return np.float32(value).view(np.int32)

    return (
        tuple(np.int32(-switch) for switch in _ADDENDS[rounding]),
        (
            np.int32(FLOAT32.mantissa_bits - f.mantissa_bits),
            bits(ldexp(1.0, f.emin)),
            np.int32(f.tiny_exponent),
            bits(f.smallest),
            bits(f.max),
            bits(abs(f.min)),
            np.int32(-f.has_negative_zero),
        ),
        tuple(bits(v) for pair in (special.overflow, special.infinity, special.nan) for v in pair),
    )
