"""Rounding to a format: the one rounding core, in NumPy.

A value is scaled, exactly, to units of the step that the format has at its magnitude; rounded to a
whole number of steps; and scaled back. `reference.py` says the same with pencil and paper;
`kernels.py` is the compiled twin.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import frexp, inf, ldexp, nan

import numpy as np

from mpcore import compiled
from mpcore.formats.format import (
    OVERFLOW_BEHAVIOURS,
    ROUNDING_MODES,
    BlockFormat,
    FormatError,
)
from mpcore.formats.registry import get_format
from mpcore.threads import pool

CHUNK = 1 << 15  # values per pass: the temporaries of one chunk stay in the cache
COMPILED_FROM = 1 << 14  # below this many values NumPy is done before Numba is imported
PER_THREAD = 1 << 17  # values in one piece of work for a thread: half a megabyte of float32
IN_THREADS_FROM = 2 * PER_THREAD
LEAST_SHARE = -60  # a value below 2**-60 of a step is rounded as if it were about that much
FLOAT32_MANTISSA_BITS = 23


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


def round_to(
    x, f, rounding="nearest_even", overflow="saturate", rng=None, out=None, flush_subnormals=False
):
    """Round every value of `x` to the nearest (by `rounding`) value of the format `f`, once.

    Args:
        x: array of any shape. float32 (and narrower floats) give float32, all else float64.
        f: a `Format`, a `BlockFormat` (blocks along the last axis, to nearest even, saturating; see
            `split_blocks`), or anything that `get_format` takes.
        rounding: a key of `ROUNDING_MODES`.
        overflow: a key of `OVERFLOW_BEHAVIOURS`; by default ±inf becomes the largest value.
            NaN stays NaN; a float format without NaN gives a zero of the other sign (as
            ml_dtypes does), an integer 0.
        rng: for (and only for) rounding="stochastic": a `numpy.random.Generator`, or an array of
            random bits, one unsigned integer per value: a value goes up where bits / 2**width is
            below its distance from the lower neighbour.
        out: array of the result's shape and dtype to write into; may be `x` itself, or overlap it.
        flush_subnormals: whether a result below the smallest normal value becomes a zero of its
            sign, as processors do in flush-to-zero mode.

    Returns:
        The rounded values. Without `out`, `x` is never changed. Where the format is wider than
        float32, a float32 result can still be infinite.

    Raises:
        FormatError: an unknown format, mode or behaviour; a missing rng; an unsuitable array.
    """
    f = get_format(f)
    if isinstance(f, BlockFormat):
        return _round_in_blocks(x, f, rounding, overflow, out, flush_subnormals)
    x = as_float(x)
    if isinstance(rng, np.ndarray):
        rng = GivenBits(rng, x.shape)
    check_modes(f, rounding, overflow, rng)
    result = check_out(out, x.shape, x.dtype)
    source = x
    if x.dtype == np.float32 and not f.fits_float32:
        source = widen(x, np.float64)  # exact; the rounded value fits float32 again
    flat_source = np.ascontiguousarray(source).reshape(-1)
    is_apart = out is None or not _overlap(source, result)
    if result.flags.c_contiguous and result.dtype == source.dtype and is_apart:
        _round_flat(flat_source, result.reshape(-1), f, rounding, overflow, rng)
    else:
        flat = np.empty(x.size, source.dtype)
        _round_flat(flat_source, flat, f, rounding, overflow, rng)
        with np.errstate(over="ignore"):
            result[...] = flat.reshape(x.shape)
    if flush_subnormals:
        below = np.abs(result) < f.smallest_normal
        result[below] *= 0
        if not f.has_negative_zero:
            result[below] = 0
    return result if out is not None or x.ndim else result[()]


def _round_in_blocks(x, f, rounding, overflow, out, flush_subnormals):
    from mpcore.formats.blocks import round_blocks  # which rounds elements with this module

    if (rounding, overflow, flush_subnormals) != ("nearest_even", "saturate", False):
        raise FormatError(
            f'{f} is rounded with rounding="nearest_even", overflow="saturate" and '
            "flush_subnormals=False only"
        )
    return round_blocks(x, f, out=out)


class GivenBits:
    """Random bits handed in, one unsigned integer a value, in the place of a generator."""

    def __init__(self, bits, shape):
        if bits.dtype.kind != "u" or bits.shape != shape:
            raise FormatError(
                f"random bits must be unsigned integers of shape {shape}, not {bits.dtype} "
                f"{bits.shape}"
            )
        self._shares = bits.reshape(-1) / 2.0 ** (8 * bits.dtype.itemsize)
        self._next = 0

    def random(self, shape):
        """The next shares of 1, as `Generator.random` has them."""
        first, self._next = self._next, self._next + int(np.prod(shape))
        return self._shares[first : self._next].reshape(shape)


def check_modes(f, rounding, overflow, rng=None):
    """Raise FormatError unless the mode and the behaviour exist and fit the format."""
    for word, value, valid in (
        ("rounding mode", rounding, ROUNDING_MODES),
        ("overflow behaviour", overflow, OVERFLOW_BEHAVIOURS),
    ):
        if not isinstance(value, str) or value not in valid:
            raise FormatError(f'no {word} is called "{value}"; valid are {", ".join(valid)}')
    if rounding == "stochastic" and not hasattr(rng, "random"):
        raise FormatError('rounding="stochastic" needs rng=numpy.random.default_rng(seed), or bits')
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
    """The kernels of this floor, or None."""
    return compiled.kernels("mpcore.formats.kernels")


def _round_flat(x, result, f, rounding, overflow, rng):
    in_kernel = x.dtype == np.float32 and rounding != "stochastic" and f.has_zero
    if in_kernel and x.size >= COMPILED_FROM:
        code = compiled_kernels()
        if code is not None:
            parameters = kernel_parameters(f, rounding, overflow)
            in_threads(lambda part: _round_part(x[part], result[part], f, code, parameters), x)
            return
    if f.name == "fp32" and (rounding, overflow) == ("nearest_even", "infinity"):
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            result[...] = x.astype(np.float32)  # the processor's own cast is this rounding
        return
    for start in range(0, x.size, CHUNK):
        chunk = slice(start, start + CHUNK)
        result[chunk] = round_numpy(x[chunk], f, rounding, overflow, rng)


def _round_part(x, result, f, code, parameters):
    """Round a part of a flat array with the kernels: in whole vectors as far as they go."""
    is_nearest = parameters[0] == kernel_parameters(f, "nearest_even", "saturate")[0]
    by_integers = f.emin == -126
    # Else by a magic number, which has to be a float32 even at twice the largest value.
    fits = by_integers or frexp(f.max)[1] + 2 + FLOAT32_MANTISSA_BITS - f.mantissa_bits <= 127
    in_vectors = is_nearest and f.has_subnormals and fits
    whole = x.size - x.size % code.LANES if in_vectors else 0
    code.round_nearest_even(x[:whole], result[:whole], by_integers, parameters)
    code.round_flat(x[whole:].view(np.int32), result[whole:].view(np.int32), parameters)


def in_threads(work, x):
    """Call work(slice) on the parts of a flat array, in threads where it is large."""
    if x.size < IN_THREADS_FROM:
        work(slice(None))
    else:
        bounds = range(0, x.size, PER_THREAD)
        list(pool().map(work, [slice(start, start + PER_THREAD) for start in bounds]))


def round_numpy(x, f, rounding, overflow, rng=None):
    """The rounding core on a float32 or float64 array whose dtype contains the format."""
    if not f.has_zero:
        return _round_to_powers(x, f, rounding, overflow, rng)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        fraction, exponent = np.frexp(x)  # 0.5 <= |fraction| < 1
        step = np.where(exponent > f.emin, exponent - f.precision, f.tiny_exponent)
        steps = np.ldexp(fraction, np.maximum(exponent - step, LEAST_SHARE))
        value = np.ldexp(_whole(steps, rounding, rng), step)
    if not f.has_negative_zero:
        value += 0.0  # -0 + 0 is +0
    low, high = x.dtype.type(f.min), x.dtype.type(f.max)
    if not x.size or (value.max() <= high and value.min() >= low):  # the common case
        return value
    special, negative = outcomes(f, rounding, overflow), np.signbit(x)
    for where, pair in (
        ((value > high) | (value < low), special.overflow),
        (np.isinf(x), special.infinity),
        (np.isnan(x), special.nan),
    ):
        replacement = np.where(negative, x.dtype.type(pair[1]), x.dtype.type(pair[0]))
        value = np.where(where, replacement, value)
    return value


def _round_to_powers(x, f, rounding, overflow, rng):
    """Rounding to a format of powers of two alone (e8m0).

    There is no zero to round to: what is positive and below the smallest value becomes that.
    A tie lies halfway between two powers (1.5 times the lower) and goes to the even code.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        fraction, exponent = np.frexp(x)  # 0.5 <= |fraction| < 1
        lower = exponent - 1
        is_odd = (lower + f.bias) % 2 == 1
        above = 2 * fraction - 1  # share of the way to the next power
        if rounding == "stochastic":
            up = rng.random(x.shape) < above
        else:
            up = {
                "nearest_even": (above > 0.5) | ((above == 0.5) & is_odd),
                "nearest_away": above >= 0.5,
                "toward_positive": above > 0,
                "to_odd": (above > 0) & ~is_odd,
            }.get(rounding, False)
        value = np.ldexp(x.dtype.type(1), np.maximum(lower + up, f.emin))
    special = outcomes(f, rounding, overflow)
    value = np.where(value > f.max, x.dtype.type(special.overflow[0]), value)
    value = np.where(x == np.inf, x.dtype.type(special.infinity[0]), value)
    return np.where(x > 0, value, x.dtype.type(nan))  # zero and negative values, too


def _whole(steps, rounding, rng):
    """Values in units of the format's step, each rounded to a whole number of them."""
    if rounding in _WHOLE:
        return _WHOLE[rounding](steps)
    cut = np.trunc(steps)
    rest = np.abs(steps - cut)  # exact
    if rounding == "nearest_away":
        up = rest >= 0.5
    elif rounding == "to_odd":
        half = cut * 0.5
        up = (rest > 0) & (half == np.trunc(half))
    else:
        up = rng.random(steps.shape) < rest
    return cut + np.copysign(up, steps)


_WHOLE = {
    "nearest_even": np.rint,
    "toward_zero": np.trunc,
    "toward_positive": np.ceil,
    "toward_negative": np.floor,
}


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
            np.int32(FLOAT32_MANTISSA_BITS - f.mantissa_bits),
            bits(ldexp(1.0, f.emin)),
            np.int32(f.tiny_exponent),
            bits(f.smallest),
            bits(f.max),
            bits(abs(f.min)),
            np.int32(-f.has_negative_zero),
        ),
        tuple(bits(v) for pair in (special.overflow, special.infinity, special.nan) for v in pair),
    )
