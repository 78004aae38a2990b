"""A-priori error bounds of a matmul: how far a computed sum can be from the exact one.

Every bound is on |computed - exact|, element by element, where "exact" is the product of the
operands as rounded to their formats and "computed" what `matmul` keeps in the accumulator. With S
the sum of the |a * b| and u the largest relative error of one rounding (2**-p to nearest, else
2**(1 - p)):

- A chain of N roundings to nearest errs by at most N u S, for every N (Jeannerod and Rump 2013,
  "Improved error bounds for inner products in floating-point arithmetic"), and a chain of other
  roundings by ((1 + u)**N - 1) S. Both lie below the classical gamma_N S = N u S / (1 - N u)
  (Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 3.1), which ends at
  N u = 1. A tree counts its levels; one chain after another multiplies the factors 1 + f.
- Kahan's sum errs by (3 u + O(N u**2)) S: the 2 u of Knuth (Higham 2002, section 4.3), and one u
  since a product goes in unrounded; the terms of second order are worked out in `_kahan`.
- If rounding errors are independent and of mean zero, N becomes sqrt(N) (Higham and Mary 2019, "A
  new approach to probabilistic rounding error analysis", theorems 2.4 and 3.1).
- A matrix unit adds up whole chunks: Blanchard, Higham, Lopez, Mary and Pranesh 2020, "Mixed
  precision block fused multiply-add", adapted in `_unit` to terms that are cut at the largest
  exponent. Cutting has a sign of its own, so no sqrt(N) there.
"""

from dataclasses import dataclass
from math import ceil, exp, expm1, inf, log1p, sqrt

import numpy as np

from mpcore.formats.format import FormatError
from mpcore.formats.registry import get_format
from mpcore.formats.rounding import round_to
from mpcore.matmul.accumulators import (
    BLAS,
    Accumulator,
    MatrixUnit,
    check_order,
    get_accumulator,
)
from mpcore.matmul.instructions import Instruction
from mpcore.matmul.operands import operand_array, operand_format
from mpcore.matmul.options import MatmulError, Tile, get_reduction
from mpcore.matmul.units import (
    ZERO_EXPONENT,
    AlignedSum,
    FusedMultiplyAdd,
    PairwiseSum,
)

_NEAREST = ("nearest_even", "nearest_away")
_SLACK = 2.0**-52  # the bounds are themselves computed in float64


@dataclass(frozen=True)
class ErrorBounds:
    """Bounds on |computed - exact|, [..., m, n] float64.

    A bound is infinite where a partial sum may leave the accumulator's range, and NaN where an
    operand is infinite or no number.
    """

    worst: np.ndarray  # never exceeded
    probable: np.ndarray  # exceeded with a probability of at most `failure`, each element
    failure: float  # 0 where no rounding-to-chance argument holds: `probable` is `worst` then
    roundings: int  # the most that one product passes through
    magnitude: np.ndarray  # S, the sum of the |a * b|


@dataclass(frozen=True)
class _Growth:
    """error <= factor * S + cut * R + tiny, with R as S for operands of at least their 2**emin."""

    factor: float
    roundings: int
    tiny: float = 0.0  # what underflow can add
    cut: float = 0.0  # relative to R: what aligning can cut off
    by_chance: tuple[float, int] | None = None  # u, and how many roundings there are to a sum


def error_bounds(
    a,
    b,
    a_format=None,
    b_format=None,
    accumulator="fp32",
    *,
    tile=Tile(),  # noqa: B008 (frozen)
    reduction="sequential",
    lam=5.0,
):
    """Bounds on the error of `matmul(a, b, ...)` before the result is stored in another format.

    Args:
        a: [..., m, K] and b: [..., K, n]; a_format, b_format, accumulator, tile, reduction: as
            `matmul` takes them, without scales. The accumulator may also be an `Instruction`,
            which has its own formats and order, for `mma` with C = 0.
        lam: the lambda of Higham and Mary: `probable` grows with it, and `failure` falls, as
            2 N exp(-lam**2 (1 - u)**2 / 2) for a sum of N roundings.

    Returns:
        `ErrorBounds`. `worst` is
            N (u S + t) for a chain of N roundings to nearest, t half the smallest value if a
            product can lie below it, else 0;
            ((1 + u)**N - 1) S + ... for other roundings, for sums flushed to zero below
            the smallest normal value and, by levels, for trees;
            the product of such factors for "split_k" and for the tiles of a tree;
            (3 u + O(N u**2)) S for "kahan"; and for a matrix unit as `_unit` derives.

    Raises:
        MatmulError: what `matmul` refuses; block scales, of formats or of instructions;
            accumulators without a sign or a zero, or with an intermediate format; "kahan" with
            another rounding than to nearest, or flushed; "blas_fp32" for wider operands.
    """
    if isinstance(lam, bool) or not isinstance(lam, int | float) or not 0 < lam < inf:
        raise MatmulError(f"lam must be a positive number, not {lam!r}")
    if not isinstance(tile, Tile):
        raise MatmulError(f"tile must be a Tile(m, n, k), not {tile!r}")
    order = get_reduction(reduction)
    is_instruction = isinstance(accumulator, Instruction)
    if not is_instruction:
        accumulator = get_accumulator(accumulator)
        check_order(accumulator, order)
    elif order[0] != "sequential" or (a_format, b_format) != (None, None):
        raise MatmulError("an instruction has its own formats and order: leave these out")
    a, a_format = _rounded(a, a_format, accumulator, "a")
    b, b_format = _rounded(b, b_format, accumulator, "b")
    if a.shape[-1] != b.shape[-2]:
        raise MatmulError(f"a is {a.shape} and b is {b.shape}: [m, K] and [K, n] are needed")
    depth = a.shape[-1]
    with np.errstate(all="ignore"):
        sizes = _product(abs(a), abs(b))
        if is_instruction or isinstance(accumulator, MatrixUnit):
            i = accumulator if is_instruction else accumulator.instruction(a_format, b_format)
            growth, held = _unit(i, depth, order[1]), i.d
            reach = _product(_at_least_normal(a, i.a), _at_least_normal(b, i.b))
            lost = _flushed(a, b, i) if getattr(i.unit, "flush", False) else 0.0
        else:
            accumulator = Accumulator() if accumulator == BLAS else accumulator
            tiny = a_format.smallest * b_format.smallest < accumulator.format.smallest
            growth = _emulated(accumulator, order, depth, tile.k, tiny)
            held, reach, lost = accumulator.format, 0.0, 0.0
        worst = growth.factor * sizes + growth.tiny + lost
        worst = worst + growth.cut * reach if growth.cut else worst
        worst = np.where(sizes + 2 * worst > held.max, inf, worst)
        is_known = np.isfinite(a).all(-1)[..., :, None] & np.isfinite(b).all(-2)[..., None, :]
        worst = np.where(is_known, worst, np.nan)
        probable, failure = worst, 0.0
        if growth.by_chance:
            u, count = growth.by_chance
            n = growth.roundings
            likely = expm1(min(lam * sqrt(n) * u + n * u * u / (1 - u), 700))
            probable = np.fmin(likely * sizes + growth.tiny * (1 + likely), worst)
            failure = min(1.0, 2 * count * exp(-(lam**2) * (1 - u) ** 2 / 2))
    return ErrorBounds(worst, probable, failure, growth.roundings, sizes)


def _rounded(x, f, accumulator, name):
    """An operand as `matmul` rounds it, in float64, and its format."""
    x = operand_array(x, name)
    try:
        is_instruction = isinstance(accumulator, Instruction)
        f = getattr(accumulator, name) if is_instruction else f
        f, granularity = operand_format(f, None, x, accumulator)
        if granularity is not None:
            raise MatmulError(f"no error bound for {name} in a format with block scales")
        if accumulator == BLAS and not f.fits_float32:
            raise MatmulError(f'no error bound for "{BLAS}" with {name} in {f}: fp32 is its widest')
        return round_to(x, f, overflow=f.natural_overflow).astype(np.float64), f
    except FormatError as error:
        raise MatmulError(str(error)) from None


def _product(a, b):
    """a @ b of sizes, moved up by what float64 itself may lose."""
    depth = a.shape[-1]
    try:
        return (a @ b) * (1 + (depth + 8) * _SLACK) + depth * 2.0**-1074
    except ValueError:
        raise MatmulError(f"leading axes of {a.shape} and {b.shape} do not broadcast") from None


def _chain(u, count, is_nearest):
    """Worst relative error of a chain of roundings."""
    return max(count, 0) * u if is_nearest else expm1(min(max(count, 0) * log1p(u), 700))


def _then(first, later):
    """Relative error of a sum that errs by `first`, with a later chain that errs by `later`."""
    return first + later * (1 + first)


def _emulated(accumulator, order, depth, tile_k, is_tiny):
    """The growth of errors in an `Accumulator`."""
    f, is_nearest = accumulator.format, accumulator.rounding in _NEAREST
    if not (f.is_signed and f.has_zero):
        raise MatmulError(f"no error bound for sums in {f}, which lacks a sign or a zero")
    if accumulator.intermediate is not None:
        raise MatmulError(f"no error bound for sums by way of {accumulator.intermediate}")
    halved = is_nearest and f.name != "fp64"  # float64 cannot hold half of its own smallest value
    step = f.smallest / (1 + halved) if is_tiny else 0.0
    u = 0.0 if f.kind == "int" else 2.0 ** -(f.precision - (not is_nearest))
    if accumulator.flush_subnormals:  # an addition can lose more than its smaller addend is
        is_nearest, step = False, max(step, f.smallest_normal)
    name, parts = order
    if name == "kahan":
        if not is_nearest:
            how = "flushed" if accumulator.flush_subnormals else f"rounded {accumulator.rounding}"
            raise MatmulError(f'no error bound for "kahan" {how}')
        factor = _kahan(u, depth)
        return _Growth(factor, depth, 4 * depth * step * (1 + factor))
    if name in ("pairwise", "strided_tree"):
        width, later = min(depth, tile_k), ceil(depth / tile_k) - 1
        first = 1 + max(width - 1, 0).bit_length()
        inner = _chain(u, first, False)
        count = 2 * depth
    else:
        longest = ceil(depth / parts)
        first, later = ceil(longest / accumulator.every), parts - 1
        inner = _chain(u, first, is_nearest)
        count = ceil(depth / accumulator.every) + 2 * parts
    factor = _then(inner, _chain(u, later, is_nearest))
    amplified = 1 if is_nearest and not later else 1 + factor
    n = first + max(later, 0)
    chance = (u, count) if is_nearest and f.kind == "float" else None
    return _Growth(factor, n, count * step * amplified, by_chance=chance)


def _kahan(u, depth):
    """Worst relative error of Kahan's sum of exact products, roundings to nearest.

    With t the corrected term, s the sum and c the correction, s + c changes by the product and by
    two errors: of rounding t, and of c where |t| > |s|; (1 + u)**6 u |t| bounds the latter, with
    |t| <= (1 + u) (|c| + |a b|). The sum of the |c| is at most K u (S + E) and a little; what the
    last c holds is lost. Solved for E.
    """
    w = (1 + u) ** 6
    v, rest = u * (1 + w), 1 - u * w
    left = 1 - u - v * depth * u / rest if rest > 0 else 0.0
    return (u + v + v * (depth * u + u * w) / rest) / left if left > 0 else inf


def _unit(i, depth, parts):
    """The growth of errors in a matrix unit, whose K is cut into `parts` stretches.

    One chunk of L products p and the accumulator c: aligning errs by at most
    q_c 2**e_c + q_p 2**e_p, where the exponents are the largest ones, then the store errs by u.
    2**e_c is at most |c| or 2**emin; 2**e_p is at most the largest product of operands that are
    not below 2**emin (2**-126 for zero, as in the reference model): their sum is R. Hence with
    g = (1 + u) (1 + q_c) - 1 over N chunks

        E <= ((1 + g)**N - 1) R + (1 + g)**N ((q_p - q_c) R + N (q_c 2**emin + t)).

    `AlignedSum`: the largest term loses nothing, L others less than 2**-F each: q = L 2**-F.
    CDNA3: the products lose less than 2**-24 each, all their sums and c together what is left of
    L 2**-24, and their sum 2**-31: q_p = L 2**-24 + q_c, q_c = 2**-31.
    """
    unit, d = i.unit, i.d
    if i.scale is not None:
        raise MatmulError(f"no error bound for {i}, which has block scales")
    length = min(unit.length, i.k)
    count = ceil(ceil(depth / parts) / length)
    nearest = 2.0**-d.precision
    if isinstance(unit, FusedMultiplyAdd):
        return _emulated(Accumulator(d), ("split_k", parts), depth, 1, True)
    if isinstance(unit, PairwiseSum):
        step = d.smallest_normal if unit.flush else d.smallest
        tree = _chain(nearest, (length - 1).bit_length(), False)
        n, q_p, q_c, u = count + parts - 1, 0.0, 0.0, nearest
        factor = _then(tree, _chain(nearest, n, not unit.flush))
        every = 2 * (depth + length * parts)  # roundings of one sum
        chance = None if unit.flush else (nearest, every)
        n += (length - 1).bit_length()
        return _Growth(factor, n, every * step * (1 + factor), by_chance=chance)
    if isinstance(unit, AlignedSum):
        stored = d if d.name == "fp16" else get_format(unit.wide)
        u = nearest if d.name == "fp16" else 2.0 ** (1 - stored.precision)
        q_c = q_p = length * 2.0**-unit.fraction
    else:  # FlooredSum, InterleavedSum
        stored, u = d, nearest
        q_c = 2.0**-31
        q_p = length * 2.0**-unit.fraction + q_c
    grown = expm1(min(count * (log1p(u) + log1p(q_c)), 700))
    step = stored.smallest + q_c * d.smallest_normal
    later = _chain(nearest, parts - 1, True)
    cut = (grown + (1 + grown) * (q_p - q_c)) * (1 + later)
    tiny = parts * count * step * (1 + grown) * (1 + later)
    return _Growth(later, count + parts - 1, tiny, cut)


def _at_least_normal(x, f):
    """|x|, a subnormal as the smallest normal value, and zero as units see its exponent."""
    return np.where(x == 0, 2.0**ZERO_EXPONENT, np.maximum(abs(x), f.smallest_normal))


def _flushed(a, b, i):
    """Sums of the |a b| in which CDNA2 takes a subnormal operand for zero."""
    a_is, b_is = (abs(x) < f.smallest_normal for x, f in ((a, i.a), (b, i.b)))
    a, b = abs(a), abs(b)
    return _product(a * a_is, b) + _product(a * ~a_is, b * b_is)
