"""`matmul`: operands to their formats, products through the accumulator, the result to its own."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from mpcore.formats.counts import Counts, count_events
from mpcore.formats.format import Format, FormatError
from mpcore.formats.registry import get_format
from mpcore.formats.rounding import as_float, round_to
from mpcore.matmul.accumulate import FLOAT64_PRECISION, Rounder, UnitRounder, accumulate
from mpcore.matmul.accumulators import (
    BLAS,
    Accumulator,
    MatrixUnit,
    check_order,
    get_accumulator,
)
from mpcore.matmul.options import MatmulError, Tile, get_reduction
from mpcore.scaling import ScalingError, scale_and_round


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
class _Operand:
    values: (
        np.ndarray
    )  # [rows, K] on the grid of the format: float32 where that holds it, else float64
    scales: np.ndarray | None  # [rows or 1, K-blocks]
    block: int  # products that share a scale
    counts: Counts


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
):
    """a @ b with emulated operand formats, accumulator, reduction order and scaling.

    Operands are rounded to nearest even into their formats; a format with infinities overflows to
    infinity, another one saturates. With a granularity they are divided by their scales first, and
    the sums are scaled back by the product of the scales (rounded to fp32): each stretch of K with
    one pair of scales is summed from zero, then added to an fp32 master as round(sum * scale +
    master). An fp64 accumulator has fp64 scales and an fp64 master.

    Args:
        a: [..., m, K] and b: [..., K, n]; leading axes broadcast as in `numpy.matmul`.
        a_format, b_format: a `Format` or anything that `get_format` takes; None is the operand's
            own (fp32 or fp64), under a matrix unit the unit's (fp8: e4m3).
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
        counts: whether to count events.

    Returns:
        `MatmulResult` with `.value`, `.format` and `.counts`.

    Raises:
        MatmulError: shapes that do not fit; an unknown format, accumulator, reduction, tile or
            granularity; formats that a matrix unit cannot take.
    """
    a, b = _operand_array(a, "a"), _operand_array(b, "b")
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
        a_format = _operand_format(a_format, a, accumulator)
        b_format = _operand_format(b_format, b, accumulator)
        scaled = a_granularity is not None or b_granularity is not None
        out = _result_format(out_format, accumulator, scaled)
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        value = np.empty((*lead, a.shape[-2], b.shape[-1]), out.value_dtype)
        happened = MatmulCounts()
        a = np.broadcast_to(a, (*lead, *a.shape[-2:]))
        b = np.broadcast_to(b, (*lead, *b.shape[-2:]))
        for index in np.ndindex(*lead):
            left = _operand(a[index], a_format, a_granularity, counts)
            right = _operand(b[index].T, b_format, b_granularity, counts)
            formats = (a_format, b_format)
            sums, partial = _multiply(left, right, formats, accumulator, order, tile, counts)
            if not scaled and accumulator != BLAS and out == accumulator.format:
                value[index] = sums
                store = Counts(sums.size, nan=int(np.isnan(sums).sum())) if counts else None
            else:
                value[index] = stored = round_to(sums, out, overflow=out.natural_overflow)
                store = count_events(sums, stored, out) if counts else None
            if counts:
                happened += MatmulCounts(left.counts, right.counts, partial, store)
    except (FormatError, ScalingError) as error:
        raise MatmulError(str(error)) from None
    except ValueError as error:
        if "broadcast" not in str(error):
            raise
        raise MatmulError(f"leading axes of {a.shape} and {b.shape} do not broadcast") from None
    return MatmulResult(value, out, happened if counts else None)


def _operand_array(x, name):
    try:
        x = as_float(x)
    except FormatError as error:
        raise MatmulError(f"{name}: {error}") from None
    if x.ndim < 2:
        raise MatmulError(f"{name} must have at least 2 axes, not shape {x.shape}")
    return x


def _operand_format(f, x, accumulator):
    if f is not None:
        return get_format(f)
    return accumulator.input_format if isinstance(accumulator, MatrixUnit) else get_format(x.dtype)


def _result_format(out_format, accumulator, scaled):
    if out_format is not None:
        return get_format(out_format)
    held = get_format("fp32") if accumulator == BLAS else accumulator.format
    return get_format("fp32") if scaled and held.kind == "int" else held


def _operand(x, f, granularity, counting):
    """An operand as rows of K products, in its format."""
    if granularity is None:
        # A transposed array is rounded as it lies in memory, and transposed again.
        lying = x.T if x.flags.f_contiguous else x
        values = round_to(lying, f, overflow=f.natural_overflow)
        happened = count_events(lying, values, f) if counting else Counts()
        values = values.T if x.flags.f_contiguous else values
        return _Operand(_narrowest(values, f), None, max(1, x.shape[1]), happened)
    result = scale_and_round(np.ascontiguousarray(x), f, granularity, counts=counting)
    return _Operand(
        _narrowest(result.values, f),
        result.row_scales.astype(np.float64),
        result.blocks.columns,
        result.counts or Counts(),
    )


def _narrowest(values, f):
    return values.astype(np.float32, copy=False) if f.fits_float32 else values


def _multiply(left, right, formats, accumulator, order, tile, counting):
    """Sums [m, n] as float64 before they are stored, and the counts of partial sums."""
    length = left.values.shape[1]
    if left.scales is None and right.scales is None:
        return _sum(left.values, right.values, formats, accumulator, order, tile, counting)
    is_fp64 = accumulator != BLAS and accumulator.format.name == "fp64"
    master = Rounder(Accumulator("fp64" if is_fp64 else "fp32"), False, counting)
    bounds = sorted({*range(0, length, left.block), *range(0, length, right.block), length})
    total, partial = np.zeros((len(left.values), len(right.values))), Counts()
    for start, stop in pairwise(bounds):
        k = slice(start, stop)
        sums, happened = _sum(
            left.values[:, k], right.values[:, k], formats, accumulator, order, tile, counting
        )
        partial += happened
        scale = round_to(
            _scales_at(left, start) * _scales_at(right, start).T, master.accumulator.format
        )
        with np.errstate(all="ignore"):
            total = master.multiply_add(total, [(sums, scale)])
    return total, partial + master.counts


def _scales_at(operand, k):
    """Scales [rows or 1, 1] of the K-block in which product k lies."""
    if operand.scales is None:
        return np.ones((1, 1))
    block = k // operand.block
    return operand.scales[:, block : block + 1]


def _sum(left, right, formats, accumulator, order, tile, counting):
    """left @ right.T through the accumulator, tile by tile: float64 [m, n] and the counts."""
    if accumulator == BLAS:
        with np.errstate(all="ignore"):
            product = left.astype(np.float32) @ right.astype(np.float32).T
        return product.astype(np.float64), Counts()
    if isinstance(accumulator, MatrixUnit):
        rounder = UnitRounder(accumulator, *formats, counting)
        return _in_tiles(left, right, rounder, order, tile), rounder.counts
    exact_products = formats[0].precision + formats[1].precision <= FLOAT64_PRECISION
    rounder = Rounder(accumulator, exact_products, counting)
    return _in_tiles(left, right, rounder, order, tile), rounder.counts


def _in_tiles(left, right, rounder, order, tile):
    result = np.empty((len(left), len(right)))
    with np.errstate(all="ignore"):  # infinities and NaN are counted, not warned about
        if order[0] in ("sequential", "split_k"):  # the tile does not matter to these
            return accumulate(left, right.T, rounder, order, tile.k)
        for top in range(0, len(left), tile.m):
            rows = slice(top, top + tile.m)
            for start in range(0, len(right), tile.n):
                columns = slice(start, start + tile.n)
                result[rows, columns] = accumulate(
                    left[rows], right[columns].T, rounder, order, tile.k
                )
    return result
