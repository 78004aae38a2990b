"""Which compiled kernel can do a sum, how its operands are laid out, and the threads that run it.

`rounded_sum` and `aligned_sum` do what `accumulate.Rounder` and `UnitRounder` do in NumPy, with the
same results and counts, or return None where no kernel can.
"""

from functools import lru_cache
from math import frexp, inf

import numpy as np

from mpcore.formats.counts import Counts
from mpcore.matmul.units import AlignedSum
from mpcore.threads import cores, pool

COMPILED_FROM = 1 << 12  # products; below, NumPy is done before a kernel is loaded
IN_THREADS_FROM = 1 << 19  # products; below, one thread is done before two have started
_PAIR_BITS = 100  # what a pair of float64 holds of any sum, with some to spare
_FLOAT32_BITS, _FLOAT64_BITS = 24, 53
_MARGIN = 20  # how much finer than half a step the error of a float64 sum is known to be, in bits


@lru_cache(maxsize=1)
def kernels():
    """(rounded, aligned, integer kernels); None where Numba is missing or cannot keep its code."""
    try:
        from mpcore.matmul import aligned_kernels, integer_kernels, rounded_kernels
    except (ImportError, RuntimeError):
        return None
    return rounded_kernels, aligned_kernels, integer_kernels


@lru_cache(maxsize=1)
def has_half_arithmetic():
    """Whether the processor multiplies and adds fp16 with a single rounding."""
    import llvmlite.binding as llvm

    return bool(llvm.get_host_cpu_features().get("avx512fp16"))


def rounded_sum(a, b, accumulator, counting):
    """Sums over k in order, from zero, through an `Accumulator`.

    Args:
        a: [m, K] and b: [K, n], finite float32 or float64 values.
        accumulator: an `Accumulator`.
        counting: whether to count.

    Returns:
        (c, counts), c [m, n] float32 or float64; or None.
    """
    f, every, work = accumulator.format, accumulator.every, a.size * b.shape[1]
    if work < COMPILED_FROM or kernels() is None or not a.dtype == b.dtype == np.float32:
        return None
    rounded, aligned, integer = kernels()
    if accumulator.intermediate is not None:
        return _saturated_sum(a, b, accumulator, integer, work, counting)
    can_overflow = accumulator.overflow == "infinity"
    is_nearest = accumulator.rounding == "nearest_even" and not accumulator.flush_subnormals
    if f.name == "fp16" and every == 1 and can_overflow and is_nearest and has_half_arithmetic():
        found = _half_sum(a, b, rounded, work, counting)
        if found is not None:
            return found
    (_, *a_reach), (_, *b_reach) = (_extremes(x, aligned) for x in (a, b))
    product, last = (x + y for x, y in zip(a_reach, b_reach, strict=True))  # < 2**product
    total = product + a.shape[1].bit_length()  # every partial sum, in any order, is < 2**total
    if _holds_all(f, total, last):
        fits_float32 = total - last <= _FLOAT32_BITS and last >= -149 and total < 128
        wide = np.float32 if fits_float32 else np.float64
        return _exact_sum(a, b, wide, -(-a.shape[1] // every), counting)
    is_plain = f.kind == "float" and f.has_subnormals and f.has_negative_zero and is_nearest
    # The sum in float64 has to be finer than the format's steps by the margin.
    is_coarse = f.precision + every.bit_length() + _MARGIN < _FLOAT64_BITS and abs(f.bias) < 900
    total = min(total, frexp(f.max)[1]) + 1
    if not (is_plain and is_coarse) or max(total, product + every.bit_length()) - last > _PAIR_BITS:
        return None
    error = every**2 * 2.0 ** (product + 1 - _FLOAT64_BITS)
    near_tie = -(2.0**-_FLOAT64_BITS) / 1.5 * (1 - 2.0**-_MARGIN)
    near_exact = 2.0 ** -(_FLOAT64_BITS + _MARGIN + 1)
    if max(total, product + every.bit_length()) - last < _FLOAT64_BITS:  # every sum is exact
        error, near_tie, near_exact = 0.0, -inf, -inf
    rounding = (
        f.precision,
        f.emin,
        f.max,
        inf if can_overflow else f.max,
        error,
        near_tie,
        near_exact,
    )
    operands = _laid_out(a, b, every, np.float64, -0.0)
    c = np.zeros((len(a), operands[1].shape[1]))
    kernel = rounded.rounded_sums(every, counting)
    tally = _run(lambda *rows, t: kernel(operands, c, *rows, rounding, t), len(a), work)
    return _result(c, b, -(-a.shape[1] // every), tally, counting)


def _holds_all(f, total, last):
    """Whether a format holds every multiple of 2**last below 2**total."""
    if f.kind == "int":
        return f.is_signed and last >= 0 and total < f.bits
    is_plain = f.has_subnormals and f.is_signed and last >= f.tiny_exponent
    return is_plain and total - last <= f.precision and total < frexp(f.max)[1]


def _exact_sum(a, b, wide, chunks, counting):
    """Sums that nothing can round, whatever their order: BLAS adds them, in a dtype that holds all.

    Products and sums are multiples of one power of two, so that the dtype's bits decide.
    """
    c = a.astype(wide, copy=False) @ b.astype(wide, copy=False)
    c += 0  # an accumulator starts at +0, which -0 leaves as it is
    return c, Counts(c.size * chunks) if counting else Counts()


def _saturated_sum(a, b, accumulator, integer, work, counting):
    """Pairs of products in saturating int16, added up in int32; None for other arithmetic."""
    inner, depth = accumulator.intermediate, a.shape[1]
    pairs = -(-depth // 2)
    is_pairs = accumulator.every == 2 and inner.kind == "int" and inner.bits <= 16
    if not is_pairs or accumulator.format.name != "int32" or pairs > 1 << 15:
        return None
    operands = tuple(_laid_out(a, b, 2, np.float32, 0.0))
    if any(np.abs(x).max() > 1 << 14 or not np.array_equal(x, np.rint(x)) for x in operands):
        return None
    operands = tuple(x.astype(np.int16) for x in operands)
    c = np.zeros((len(a), operands[1].shape[1]), np.int32)
    limits = np.int32(inner.min), np.int32(inner.max)
    kernel = integer.saturated_pair_sums
    tally = _run(lambda *rows, t: kernel(*operands, c, *rows, *limits, t), len(a), work)
    counts = Counts(
        2 * pairs * len(a) * b.shape[1], saturation=int(tally[0]), inexact=int(tally[0])
    )
    return c[:, : b.shape[1]].astype(np.float64), counts if counting else Counts()


def _half_sum(a, b, rounded, work, counting):
    a16, b16 = a.astype(np.float16), b.astype(np.float16)
    if not (np.array_equal(a16, a) and np.array_equal(b16, b)):
        return None  # operands of another format, which fp16 cannot hold
    chunk = rounded.HALF_STRETCH
    halves = tuple(x.view(np.int16) for x in _laid_out(a16, b16, chunk, np.float16, -0.0))
    c = np.zeros((len(a), halves[1].shape[1]), np.int16)
    if counting:
        operands = *halves, *_laid_out(a, b, chunk, np.float32, -0.0)
        kernel = rounded.counted_half_sums
        tally = _run(lambda *rows, t: kernel(operands, c, *rows, t), len(a), work)
    else:
        tally = _run(lambda *rows, t: rounded.half_sums(halves, c, *rows), len(a), work)
    return _result(c.view(np.float16).astype(np.float32), b, a.shape[1], tally, counting)


def aligned_sum(a, b, instruction, counting):
    """Sums over k in order, from zero, through a matrix unit whose arithmetic is `AlignedSum`.

    Args:
        a: [m, K] and b: [K, n], finite float32 or float64 values of the instruction's formats.
        instruction: an `Instruction`.
        counting: whether to count.

    Returns:
        (c, counts), c [m, n] float32; or None.
    """
    unit, work = instruction.unit, a.size * b.shape[1]
    if not isinstance(unit, AlignedSum) or work < COMPILED_FROM or kernels() is None:
        return None
    _, aligned, _ = kernels()
    length, fraction = min(unit.length, instruction.k), unit.fraction
    a32, b32 = _laid_out(a, b, length, np.float32, 0.0)
    left = _exponents(a32, instruction.a.emin, aligned)
    right = _exponents(b32, instruction.b.emin, aligned)
    least, most, last = (x + y for x, y in zip(left[2], right[2], strict=True))
    # Every product and every sum has to be a normal float32, within reach of the kernel's scale.
    if least <= fraction - 126 or most > 120 or min(last, least - fraction) < -126:
        return None
    is_half = instruction.d.name == "fp16"
    way = "half" if is_half else "cut" if length > 16 and fraction > 13 else None
    cut_mask = -1 << (_FLOAT64_BITS - (14 if unit.wide == "e8m13" else 24))
    operands = (a32, *left[:2], b32, *right[:2])
    c = np.zeros((len(a), b32.shape[1]), np.float32)
    kernel = aligned.aligned_sums(min(length, 8), way, counting)
    options = length, fraction, cut_mask
    tally = _run(lambda *rows, t: kernel(operands, c, *rows, *options, t), len(a), work)
    chunks = -(-a.shape[1] // instruction.k) * (instruction.k // length)
    return _result(c, b, chunks, tally, counting)


def _exponents(x, lowest, aligned):
    """Exponents and last bits of an array (int16), and [least, largest exponent, least last bit].

    Args:
        lowest: exponent of the format's smallest normal value.
    """
    exponents, lasts = np.empty(x.shape, np.int16), np.empty(x.shape, np.int16)
    extremes = np.zeros(3, np.int64)
    flat = x.view(np.int32).reshape(-1)
    aligned.exponents_of(flat, lowest, exponents.reshape(-1), lasts.reshape(-1), extremes)
    if extremes[0] > extremes[1]:  # nothing but zeros
        extremes[:] = 0
    return exponents, lasts, extremes.tolist()


def _extremes(x, aligned):
    """(least exponent, e with |x| < 2**e, exponent of the least last bit) of a float32 array."""
    least, most, last = _exponents(np.array(x, order="C"), -149, aligned)[2]
    return least, most + 1, last


def _laid_out(a, b, chunk, dtype, zero):
    """Operands as the kernels want them: whole chunks of K, whole steps of columns, contiguous.

    a is filled up with `zero`, b with +0: a product of -0 leaves every accumulator as it is.
    """
    (m, depth), n = a.shape, b.shape[1]
    whole_depth, whole_n = (
        -(-depth // chunk) * chunk,
        -(-n // kernels()[0].PAIR) * kernels()[0].PAIR,
    )
    found = []
    for x, shape, filling in ((a, (m, whole_depth), zero), (b, (whole_depth, whole_n), 0.0)):
        as_wanted = x.shape == shape and x.dtype == dtype and x.flags.c_contiguous
        if not (as_wanted and x.flags.writeable):  # kernels are compiled for writable arrays
            y = np.empty(shape, dtype) if x.shape == shape else np.full(shape, filling, dtype)
            y[: x.shape[0], : x.shape[1]] = x
            x = y
        found.append(x)
    return tuple(found)


def _run(kernel, rows, work):
    """Run a kernel on all rows, in threads where that pays; the sum of their tallies."""
    parts = min(cores(), rows) if work >= IN_THREADS_FROM else 1
    bounds = [rows * part // parts for part in range(parts + 1)]
    tallies = np.zeros((parts, 8), np.int64)  # a cache line each
    spans = zip(bounds[:-1], bounds[1:], tallies, strict=True)
    if parts == 1:
        kernel(0, rows, t=tallies[0])
    else:
        list(pool().map(lambda span: kernel(span[0], span[1], t=span[2]), spans))
    return tallies.sum(axis=0)


def _result(c, b, chunks, tally, counting):
    """The wanted part of C, and its `Counts`: one rounding for each chunk of each element."""
    c = c[:, : b.shape[1]]
    if not counting:
        return c, Counts()
    overflow, underflow, inexact = (int(x) for x in tally[:3])
    return c, Counts(c.size * chunks, overflow, underflow, 0, 0, inexact)
