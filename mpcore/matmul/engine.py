"""Which compiled kernel can do a sum, how its operands are laid out, and the threads that run it.

`rounded_sum` and `aligned_sum` do what `accumulate.Rounder` and `UnitRounder` do in NumPy, with the
same results and counts, or return None where no kernel can.
"""

from dataclasses import astuple, dataclass
from functools import lru_cache
from math import frexp, inf, log, log1p
from operator import add
from types import SimpleNamespace

import numpy as np

from mpcore import compiled
from mpcore.formats.counts import Counts
from mpcore.matmul.units import AlignedSum
from mpcore.threads import cores, pool

COMPILED_FROM = 1 << 12  # products; below, NumPy is done before a kernel is loaded
IN_THREADS_FROM = 1 << 19  # products; below, one thread is done before two have started
_PAIR_BITS = 100  # what a pair of float64 holds of any sum, with some to spare
_FLOAT32_BITS, _FLOAT64_BITS = 24, 53
_LINE = 64  # bytes of a cache line
_SINGLE_MARGIN = 8  # the same of a float32 sum
_SLACK = 1 + 2.0**-6  # for the roundings of error bounds themselves
_MARGIN = 20  # how much finer than half a step the error of a float64 sum is known to be, in bits


@lru_cache(maxsize=1)
def kernels():
    """The modules of kernels by name; None where there are none."""
    names = "aligned", "half", "integer", "narrow", "rounded", "single"
    found = {name: compiled.kernels(f"mpcore.matmul.{name}_kernels") for name in names}
    found["parts"] = compiled.kernels("mpcore.matmul.kernel_parts")
    return SimpleNamespace(**found) if found["parts"] else None


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
    if accumulator.intermediate is not None:
        return _saturated_sum(a, b, accumulator, work, counting)
    can_overflow = accumulator.overflow == "infinity" and f.has_infinity
    is_nearest = accumulator.rounding == "nearest_even" and not accumulator.flush_subnormals
    if f.name == "fp16" and every == 1 and can_overflow and is_nearest and has_half_arithmetic():
        found = _half_sum(a, b, work, counting)
        if found is not None:
            return found
    a_reach, b_reach = _Reach.of(a), _Reach.of(b)
    product, roundings = a_reach * b_reach, -(-a.shape[1] // every)
    total = product.below + a.shape[1].bit_length()  # every partial sum is less than 2**total
    if _holds_all(f, total, product.last):
        fits_float32 = total - product.last <= _FLOAT32_BITS
        in_range = product.last >= -149 and total < 128
        wide = np.float32 if fits_float32 and in_range else np.float64
        return _exact_sum(a, b, wide, roundings, counting)
    is_plain = f.kind == "float" and f.has_subnormals and f.has_negative_zero and is_nearest
    if not is_plain:
        return None
    in_float32 = product.bits <= _FLOAT32_BITS and product.last >= -149
    if (
        f.name == "fp32"
        and every == 1
        and can_overflow
        and ((in_float32 and total < 128) or not counting)
    ):
        return _single_sum(a, b, work, counting)
    # A sum in float64 has to be finer than the format's steps by the margin.
    is_coarse = f.precision + every.bit_length() + _MARGIN < _FLOAT64_BITS and abs(f.bias) < 900
    chunk = product.below + every.bit_length()
    span = max(min(total, frexp(f.max)[1]) + 1, chunk) - product.last
    if not is_coarse or span > _PAIR_BITS:
        return None
    error = every**2 * 2.0 ** (product.below + 1 - _FLOAT64_BITS)
    near_tie = -(2.0**-_FLOAT64_BITS) / 1.5 * (1 - 2.0**-_MARGIN)
    near_exact = 2.0 ** -(_FLOAT64_BITS + _MARGIN + 1)
    if span < _FLOAT64_BITS:  # every sum is exact
        error, near_tie, near_exact = 0.0, -inf, -inf
    # What becomes NaN is seen as infinite, and left to NumPy.
    is_saturating = accumulator.overflow == "saturate" or not (f.has_infinity or f.has_nan)
    beyond = f.max if is_saturating else inf
    lowest = max(f.emin, -126) if in_float32 else f.emin  # no product or sum lies below
    rounding = f.precision, lowest, f.max, beyond, error, near_tie, near_exact
    # Far enough from the ends of float32 for magic numbers, and for bounds of errors.
    is_inside = max(chunk, total) < 60 and product.last >= -100
    is_inside &= min(a_reach.least, b_reach.least) > -60
    if in_float32 and is_inside and f.precision <= _FLOAT32_BITS - _SINGLE_MARGIN:
        is_exact = span <= _FLOAT32_BITS
        found = _narrow_sum(a, b, every, rounding, is_exact, work, counting)
    else:
        found = _wide_sum(a, b, every, rounding, work, counting)
    return None if beyond == inf and not can_overflow and np.isinf(found[0]).any() else found


def _wide_sum(a, b, every, rounding, work, counting):
    operands = _laid_out(a, b, every, np.float64, -0.0)
    c = _accumulators(*operands, np.float64)
    kernel = kernels().rounded.rounded_sums(every, counting)
    tally = _run(lambda *rows, t: kernel(operands, c, *rows, rounding, t), len(c), work)
    return _result(c, a, b, -(-a.shape[1] // every), tally, counting)


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


def _saturated_sum(a, b, accumulator, work, counting):
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
    c = _accumulators(*operands, np.int32)
    limits = np.int32(inner.min), np.int32(inner.max)
    kernel = kernels().integer.saturated_pair_sums
    tally = _run(lambda *rows, t: kernel(*operands, c, *rows, *limits, t), len(c), work)
    counts = Counts(
        2 * pairs * len(a) * b.shape[1], saturation=int(tally[0]), inexact=int(tally[0])
    )
    return c[: len(a), : b.shape[1]].astype(np.float64), counts if counting else Counts()


def _single_sum(a, b, work, counting):
    single = kernels().single
    operands = _laid_out(a, b, single.STRETCH, np.float32, -0.0)
    c = _accumulators(*operands, np.float32)
    if counting:
        kernel = single.counted_single_sums
        tally = _run(lambda *rows, t: kernel(operands, c, *rows, t), len(c), work)
    else:
        tally = _run(lambda *rows, t: single.single_sums(operands, c, *rows), len(c), work)
    return _result(c, a, b, a.shape[1], tally, counting)


def _narrow_sum(a, b, every, rounding, is_exact, work, counting):
    """Sums in float32, whose error is known well enough to tell when they have to be done again."""
    narrow = kernels().narrow
    stretch = 0 if every == 1 else next(s for s in (8, 2, 1) if every % s == 0)
    left, right = _laid_out(a, b, every, np.float32, -0.0)
    chunks, (precision, _, top) = left.shape[1] // every, rounding[:3]
    a_error = _aligned((len(left), chunks), np.float32, 0)
    b_error = _aligned((chunks, right.shape[1]), np.float32, 0)
    narrow.squares_of_chunks(left, right, every, a_error, b_error)
    # Every partial sum of products is at most |row of A| * |column of B| (Cauchy-Schwarz); the
    # accumulator's own roundings add little to that.
    squares = float(a_error.sum(axis=1).max()) * float(b_error.sum(axis=0).max())
    growth = chunks * log1p(2.0**-precision)
    is_bounded = 0.5 * log(squares * _SLACK + 1e-300) + growth < log(top / 2)
    if stretch and not is_exact:
        # Each sum adds half a step to the error. Both halves of a stretch of 8 are added apart.
        sums = 5 * (every // 8) - 1 if stretch == 8 else every - 1
        np.sqrt(a_error, out=a_error)
        a_error *= np.float32(sums * 2.0**-24 * _SLACK)
        np.sqrt(b_error, out=b_error)
    else:
        a_error[...] = b_error[...] = 0
    own = 2.0 ** (precision - 47) * _SLACK if stretch else 0.0  # half a step of the sum itself
    nearness = np.float32((own + 2.0**-44 - 2.0**-24) / 1.5), np.float32((own + 2.0**-44) / 1.5)
    if is_exact:
        nearness = np.float32(-1), np.float32(-1)
    c = _accumulators(left, right, np.float32)
    kernel = narrow.narrow_sums(stretch, is_bounded, counting)
    operands = left, right, a_error, b_error
    options = every, rounding, nearness
    tally = _run(lambda *rows, t: kernel(operands, c, *rows, *options, t), len(c), work)
    return _result(c, a, b, chunks, tally, counting)


def _half_sum(a, b, work, counting):
    half = kernels().half
    singles = _laid_out(a, b, half.STRETCH, np.float32, -0.0, line=1)
    halves = tuple(_aligned(x.shape, np.int16) for x in singles)
    for x, y in zip(singles, halves, strict=True):
        if not half.halves_of(x.reshape(-1), y.reshape(-1)):
            return None  # operands of another format, which fp16 cannot hold
    c = _accumulators(*halves, np.int16)
    if counting:
        # What is added in a stretch, with its roundings, is less than this.
        growth = 1.1 * half.STRETCH * _largest(a) * _largest(b)
        marks = np.array([0, inf, max(0.0, 65000 / 1.1 - growth)], np.float16).view(np.int16)
        kernel = half.counted_half_sums
        tally = _run(lambda *rows, t: kernel(halves, c, *rows, marks, t), len(c), work)
    else:
        tally = _run(lambda *rows, t: half.half_sums(halves, c, *rows), len(c), work)
    sums = _aligned(c.shape, np.float32)
    half.singles_of(c.reshape(-1), sums.reshape(-1))
    return _result(sums, a, b, a.shape[1], tally, counting)


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
    length, fraction = min(unit.length, instruction.k), unit.fraction
    # Whole instructions: what fills the last one up can turn a zero's sign.
    a32, b32 = _laid_out(a, b, instruction.k, np.float32, 0.0)
    left = _exponents(a32, instruction.a.emin, in_pairs=True)
    right = _exponents(b32, instruction.b.emin)
    least, most, last = (x + y for x, y in zip(left[2], right[2], strict=True))
    # Every product and every sum has to be a normal float32, within reach of the kernel's scale.
    if least <= fraction - 126 or most > 120 or min(last, least - fraction) < -126:
        return None
    is_half = instruction.d.name == "fp16"
    way = "half" if is_half else "cut" if length > 16 and fraction > 13 else None
    cut_mask = -1 << (_FLOAT64_BITS - (14 if unit.wide == "e8m13" else 24))
    operands = (a32, *left[:2], b32, *right[:2])
    c = _accumulators(a32, b32, np.float32)
    kernel = kernels().aligned.aligned_sums(min(length, 8), way, counting)
    options = length, fraction, cut_mask
    tally = _run(lambda *rows, t: kernel(operands, c, *rows, *options, t), len(c), work)
    chunks = a32.shape[1] // length
    return _result(c, a, b, chunks, tally, counting)


def _exponents(x, lowest, in_pairs=False):
    """Exponents and last bits of an array (int16), and [least, largest exponent, least last bit].

    Args:
        lowest: exponent of the format's smallest normal value.
        in_pairs: whether an int32 holds each of them twice: so a processor spreads it over a
            vector while it loads.
    """
    dtype, copies = (np.int32, 1 + (1 << 16)) if in_pairs else (np.int16, 1)
    exponents, lasts = np.empty(x.shape, dtype), np.empty(x.shape, dtype)
    extremes = np.zeros(3, np.int64)
    flat = x.view(np.int32).reshape(-1), np.int32(lowest), np.int32(copies)
    kernels().aligned.exponents_of(*flat, exponents.reshape(-1), lasts.reshape(-1), extremes)
    if extremes[0] > extremes[1]:  # nothing but zeros
        extremes[:] = 0
    return exponents, lasts, extremes.tolist()


def _largest(x):
    return max(float(x.max()), -float(x.min()))


@dataclass(frozen=True)
class _Reach:
    """Where the bits of an operand's values lie, or of products of two."""

    least: int  # every value that is not zero is at least 2**least,
    below: int  # and less than 2**below,
    last: int  # and a multiple of 2**last,
    bits: int  # with so many significant bits

    @staticmethod
    def of(x):
        """The reach of a float32 array."""
        extremes = np.zeros(4, np.int64)
        flat = np.array(x, order="C", copy=None).view(np.int32).reshape(-1)
        kernels().aligned.extremes_of(flat, extremes)
        least, most, last, bits = extremes.tolist()
        return _Reach(least, most + 1, last, bits) if bits else _Reach(0, 1, 0, 1)

    def __mul__(self, other):
        return _Reach(*map(add, astuple(self), astuple(other)))


def _aligned(shape, dtype, filling=None):
    """A new array that begins where a cache line does, so that no vector lies across two."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    x = memory[start : start + size].view(dtype).reshape(shape)
    if filling is not None:
        x[...] = filling
    return x


def _laid_out(a, b, chunk, dtype, zero, line=_LINE):
    """Operands as the kernels want them: whole chunks of K, whole steps of rows and columns.

    a is filled up with `zero`, b with +0: a product of -0 leaves every accumulator as it is. Arrays
    begin at a multiple of `line` bytes.
    """
    lengths = (*a.shape, b.shape[1])
    parts = kernels().parts
    steps = parts.ROWS, chunk, parts.PAIR
    m, depth, n = (-(-x // step) * step for x, step in zip(lengths, steps, strict=True))
    return (
        _filled_up(a, (m, depth), dtype, zero, line),
        _filled_up(b, (depth, n), dtype, 0, line),
    )


def _accumulators(left, right, dtype):
    """The sums of operands as laid out, at zero."""
    return _aligned((len(left), right.shape[1]), dtype, 0)


def _filled_up(x, shape, dtype, filling, line):
    is_plain = x.flags.c_contiguous and x.flags.writeable and x.ctypes.data % line == 0
    if x.shape == shape and x.dtype == dtype and is_plain:  # kernels are compiled for such arrays
        return x
    y = _aligned(shape, dtype, None if x.shape == shape else filling)
    y[: x.shape[0], : x.shape[1]] = x
    return y


def _run(kernel, rows, work):
    """Run a kernel on all rows, in threads where that pays; the sum of their tallies."""
    step = kernels().parts.ROWS
    parts = min(cores(), rows // step) if work >= IN_THREADS_FROM else 1
    bounds = [rows // step * part // parts * step for part in range(parts + 1)]
    tallies = np.zeros((parts, 8), np.int64)  # a cache line each
    spans = zip(bounds[:-1], bounds[1:], tallies, strict=True)
    if parts == 1:
        kernel(0, rows, t=tallies[0])
    else:
        list(pool().map(lambda span: kernel(span[0], span[1], t=span[2]), spans))
    return tallies.sum(axis=0)


def _result(c, a, b, chunks, tally, counting):
    """The wanted part of C, and its `Counts`: one rounding for each chunk of each element."""
    c = c[: len(a), : b.shape[1]]
    if not counting:
        return c, Counts()
    overflow, underflow, saturation, inexact = (int(x) for x in tally[:4])
    return c, Counts(c.size * chunks, overflow, underflow, saturation, 0, inexact)
