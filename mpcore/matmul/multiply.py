"""`matmul`: operands to their formats, products through the accumulator, the result to its own."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from mpcore.formats.counts import Counts, count_events
from mpcore.formats.format import Format, FormatError
from mpcore.formats.registry import get_element_format, get_format
from mpcore.formats.rounding import as_float, check_out, round_to
from mpcore.matmul.accumulate import FLOAT64_PRECISION, Rounder, UnitRounder, accumulate
from mpcore.matmul.accumulators import (
    BLAS,
    Accumulator,
    MatrixUnit,
    check_order,
    get_accumulator,
)
from mpcore.matmul.operands import operand_array, operand_format, prepared, zero_point_array
from mpcore.matmul.options import MatmulError, Tile, get_reduction
from mpcore.scaling import ScalingError


@dataclass(frozen=True)
class MatmulCounts:
    """`Counts` of every rounding of a matmul, by where it happened."""

    a: Counts = field(default_factory=Counts)  # operand a (or a / scale) into its format
    b: Counts = field(default_factory=Counts)  # operand b (or b / scale) into its format
    partial: Counts = field(default_factory=Counts)  # partial sums, scaled K-blocks too
    store: Counts = field(default_factory=Counts)  # the result into out_format

    @property
    def total(self):
        """All of them together."""
        return self.a + self.b + self.partial + self.store

    def __add__(self, other):
        return MatmulCounts(
            self.a + other.a,
            self.b + other.b,
            self.partial + other.partial,
            self.store + other.store,
        )


@dataclass(frozen=True)
class MatmulResult:
    """The product and what happened on the way."""

    value: np.ndarray  # [..., m, n]: values of `format`; float32 where they all fit it, or float64
    format: Format  # the format of the result
    counts: MatmulCounts | None  # None where they were not asked for


@dataclass(frozen=True)
class _Arithmetic:
    """How the products of every matrix of a batch are summed."""

    formats: tuple  # of the operands' elements
    is_scaled: bool
    accumulator: Accumulator | MatrixUnit | str
    order: tuple  # of `get_reduction`
    tile: Tile
    partial_format: Format | None
    corrects_zero_points: bool
    counting: bool
    rng: np.random.Generator | None  # of an accumulator that rounds stochastically

    @property
    def held(self):
        """The format that finished sums are in."""
        f = get_format("fp32") if self.accumulator == BLAS else self.accumulator.format
        return f if not self.is_scaled or f.name == "fp64" else get_format("fp32")


def matmul(
    a,
    b,
    a_format=None,
    b_format=None,
    accumulator="fp32",
    out_format=None,
    tile=Tile(),  # noqa: B008 (frozen)
    reduction="sequential",
    a_granularity=None,
    b_granularity=None,
    counts=True,
    *,
    bias=None,
    partial_format=None,
    a_zero_point=None,
    b_zero_point=None,
    zero_point_correction=True,
    out=None,
):
    """a @ b with emulated operand formats, accumulator, reduction order and scaling.

    Operands are rounded to nearest even into their formats; a format with infinities overflows to
    infinity, another one saturates. With a granularity they are divided by their scales first, and
    the sums are scaled back by the product of the scales (rounded to fp32): each stretch of K with
    one pair of scales is summed from zero, then added to an fp32 master as round(sum * scale +
    master). An fp64 accumulator has fp64 scales and an fp64 master.

    Zero points make it sum((a - za) * (b - zb)), as integer kernels do: the accumulator sums a * b,
    then takes za * sum(b) + zb * sum(a) - K * za * zb off, with one rounding.

    Args:
        a: [..., m, K] and b: [..., K, n]; leading axes broadcast as in `numpy.matmul`.
        a_format, b_format: a `Format` or anything that `get_format` takes; None is the operand's
            own (fp32 or fp64), under a matrix unit the unit's (fp8: e4m3). The blocks of a block
            format ("nvfp4") lie along K.
        accumulator: a format: c <- round(a * b + c), one rounding per product, k ascending; an
            `Accumulator`, which rounds after every n products; a matrix unit, as
            "Arch.input[:accumulate]" ("Hopper.fp16", "Ada.fp8:fp16"), bit for bit as `mma`, from
            +0 with K filled up with zeros; or "blas_fp32": summed in fp32 by
            BLAS in its own order: fast, not the same to the last bit on every machine, and without
            counts of partial sums. Its products are exact where the operands' precisions add up to
            at most 24 bits.
        out_format: format of the stored result; None is the accumulator's (fp32 for a scaled sum
            in an integer accumulator).
        tile: a `Tile`. It never changes a "sequential" result.
        reduction: a key of `REDUCTIONS`.
        a_granularity, b_granularity: a key of `GRANULARITIES` for the scales of an operand, or
            None for no scales. "per_channel" and "per_token" keep the rows of a and the columns of
            b. In "per_block:RxC" R counts rows of a, or columns of b, and C counts products (K).
            An unsigned integer format has zero points from the data, too, as in `quantize`.
        counts: whether to count events.
        bias: added to the finished, scaled sums with one rounding, before the store; broadcasts to
            the result ([n] is one value a column).
        partial_format: with "split_k:n", the format in which the parts' sums are stored before
            they are added; None is the accumulator's.
        a_zero_point, b_zero_point: whole numbers that broadcast to [..., m, 1] and [..., 1, n], for
            operands that are codes of an integer format.
        zero_point_correction: False leaves the correction out, to see what that does.
        out: array of the result's shape and dtype to write the value into.

    Returns:
        `MatmulResult` with `.value`, `.format` and `.counts`.

    Raises:
        MatmulError: shapes that do not fit; an unknown format, accumulator, reduction, tile or
            granularity; formats that a matrix unit cannot take; an unsuitable out.
    """
    a, b = operand_array(a, "a"), operand_array(b, "b")
    if a.shape[-1] != b.shape[-2]:
        raise MatmulError(
            f"inner dimensions differ: a is {a.shape} and b is {b.shape}, so K is {a.shape[-1]} "
            f"in a and {b.shape[-2]} in b"
        )
    if not isinstance(tile, Tile):
        raise MatmulError(f"tile must be a Tile(m, n, k), not {tile!r}")
    accumulator, order = get_accumulator(accumulator), get_reduction(reduction)
    check_order(accumulator, order)
    try:
        a_format, a_granularity = operand_format(a_format, a_granularity, a, accumulator)
        b_format, b_granularity = operand_format(b_format, b_granularity, b, accumulator)
        seed = getattr(accumulator, "seed", None)
        arithmetic = _Arithmetic(
            (a_format, b_format),
            a_granularity is not None or b_granularity is not None,
            accumulator,
            order,
            tile,
            _partial_format(partial_format, accumulator, order),
            zero_point_correction,
            counts,
            None if seed is None else np.random.default_rng(seed),
        )
        stored = get_element_format(arithmetic.held if out_format is None else out_format)
        *lead, m, n = shape = _result_shape(a, b)
        a_zero = zero_point_array(a_zero_point, (*lead, m, 1), a_format, a_granularity, "a")
        b_zero = zero_point_array(b_zero_point, (*lead, 1, n), b_format, b_granularity, "b")
        bias = _broadcast_bias(bias, shape)
        value = check_out(out, shape, stored.value_dtype)
        is_apart = out is None or not any(np.may_share_memory(out, x) for x in (a, b))
        result = value if is_apart else np.empty_like(value)
        happened = MatmulCounts()
        a = np.broadcast_to(a, (*lead, *a.shape[-2:]))
        b = np.broadcast_to(b, (*lead, *b.shape[-2:]))
        for i in np.ndindex(*lead):
            zeros = None if a_zero is None else a_zero[i]
            left = prepared(a[i], a_format, a_granularity, zeros, counts)
            zeros = None if b_zero is None else b_zero[i].T
            right = prepared(b[i].T, b_format, b_granularity, zeros, counts)
            sums, partial = _multiply(left, right, arithmetic)
            if bias is not None:
                sums, added = _with_bias(sums, bias[i], arithmetic)
                partial += added
            result[i], store = _stored(sums, stored, arithmetic)
            if counts:
                happened += MatmulCounts(left.counts, right.counts, partial, store)
        if not is_apart:
            value[...] = result
    except (FormatError, ScalingError) as error:
        raise MatmulError(str(error)) from None
    return MatmulResult(value, stored, happened if counts else None)


def _result_shape(a, b):
    try:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise MatmulError(f"leading axes of {a.shape} and {b.shape} do not broadcast") from None
    return (*lead, a.shape[-2], b.shape[-1])


def _partial_format(f, accumulator, order):
    if f is not None and (order[0] != "split_k" or accumulator == BLAS):
        raise MatmulError('partial_format is for the parts of reduction="split_k:n"')
    return None if f is None else get_element_format(f)


def _broadcast_bias(bias, shape):
    if bias is None:
        return None
    bias = as_float(bias).astype(np.float64)
    try:
        return np.broadcast_to(bias, shape)
    except ValueError:
        raise MatmulError(f"bias {bias.shape} does not broadcast to the result {shape}") from None


def _with_bias(sums, bias, arithmetic):
    """Sums and bias, added with one rounding; and its counts."""
    held = arithmetic.held
    rounder = Rounder(Accumulator(held), True, arithmetic.counting)
    with np.errstate(all="ignore"):
        return rounder.add(sums.astype(np.float64), bias), rounder.counts


def _stored(sums, f, arithmetic):
    """Sums in the format of the result, and the counts of the store."""
    if f == arithmetic.held:  # they are
        counts = Counts(sums.size, nan=int(np.isnan(sums).sum())) if arithmetic.counting else None
        return sums, counts
    stored = round_to(sums, f, overflow=f.natural_overflow)
    return stored, count_events(sums, stored, f) if arithmetic.counting else None


def _multiply(left, right, arithmetic):
    """Sums [m, n] before they are stored, and the counts of partial sums."""
    length = left.values.shape[1]
    if not arithmetic.is_scaled:
        return _corrected_sum(left, right, slice(0, length), arithmetic)
    master = Rounder(Accumulator(arithmetic.held), False, arithmetic.counting)
    bounds = sorted({*range(0, length, left.block), *range(0, length, right.block), length})
    total, partial = np.zeros((len(left.values), len(right.values))), Counts()
    for start, stop in pairwise(bounds):
        sums, happened = _corrected_sum(left, right, slice(start, stop), arithmetic)
        partial += happened
        ours, theirs = (
            np.ones((1, 1)) if x.scales is None else x.at(x.scales, start) for x in (left, right)
        )
        scale = round_to(ours * theirs.T, arithmetic.held)
        with np.errstate(all="ignore"):
            total = master.multiply_add(total, [(sums, scale)])
    return total, partial + master.counts


def _corrected_sum(left, right, k, arithmetic):
    """Sums over a stretch of K, less what zero points add to them; and the counts."""
    sums, counts = _sum(left.values[:, k], right.values[:, k], arithmetic)
    has_zero_points = left.zero_points is not None or right.zero_points is not None
    if not has_zero_points or not arithmetic.corrects_zero_points:
        return sums, counts
    ours, theirs = (
        0.0 if x.zero_points is None else x.at(x.zero_points, k.start) for x in (left, right)
    )
    theirs = np.transpose(theirs)
    a_sums = left.values[:, k].sum(axis=1, dtype=np.float64)[:, None]
    b_sums = right.values[:, k].sum(axis=1, dtype=np.float64)[None]
    correction = ours * b_sums + theirs * a_sums - (k.stop - k.start) * ours * theirs
    is_plain = isinstance(arithmetic.accumulator, Accumulator)
    f = arithmetic.accumulator if is_plain else Accumulator("fp32")
    rounder = Rounder(f, True, arithmetic.counting, arithmetic.rng)
    with np.errstate(all="ignore"):
        corrected = rounder.add(*np.broadcast_arrays(sums.astype(np.float64), -correction))
    return corrected, counts + rounder.counts


def _sum(left, right, arithmetic):
    """left @ right.T through the accumulator, [m, n]; and the counts of partial sums."""
    accumulator, (a_format, b_format) = arithmetic.accumulator, arithmetic.formats
    if accumulator == BLAS:
        with np.errstate(all="ignore"):
            product = left.astype(np.float32) @ right.astype(np.float32).T
        return product.astype(np.float64), Counts()
    if isinstance(accumulator, MatrixUnit):
        rounder = UnitRounder(accumulator, a_format, b_format, arithmetic.counting)
    else:
        exact_products = a_format.precision + b_format.precision <= FLOAT64_PRECISION
        counting, rng = arithmetic.counting, arithmetic.rng
        rounder = Rounder(accumulator, exact_products, counting, rng)
    return _in_tiles(left, right, rounder, arithmetic), rounder.counts


def _in_tiles(left, right, rounder, arithmetic):
    order, tile, partial = arithmetic.order, arithmetic.tile, arithmetic.partial_format
    with np.errstate(all="ignore"):  # infinities and NaN are counted, not warned about
        if order[0] in ("sequential", "split_k"):  # the tile does not matter to these
            return accumulate(left, right.T, rounder, order, tile.k, partial)
        result = np.empty((len(left), len(right)))
        for top in range(0, len(left), tile.m):
            rows = slice(top, top + tile.m)
            for start in range(0, len(right), tile.n):
                columns = slice(start, start + tile.n)
                result[rows, columns] = accumulate(
                    left[rows], right[columns].T, rounder, order, tile.k
                )
    return result
