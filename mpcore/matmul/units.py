"""How matrix units sum: the few arithmetics that all instructions of `instructions.py` share.

Readable NumPy on whole matrices; the reference for the compiled engine. An operand x is a pair
(significand, exponent): a normal number has 1 <= |significand| < 2, a subnormal keeps the exponent
of the smallest normal one, and zero has the exponent -126 in every format (as in the reference
model; no silicon check has confirmed that). The exponent of a product is the sum of the operands',
and its significand is not normalised. "Aligned" means: every term is cut to a multiple of
2**(emax - F), where emax is the largest exponent among the terms and F the fraction bits kept.

A unit is called with the `Operands` of one chunk: as many products as it adds at once (`length`).
It returns the sum, [cases, m, n] float64, and where bits were lost on the way: in a term, in the
sum or in the store. Longer sums are chained (`chained`), each chunk's sum the next one's C. A unit
that `is_ieee` adds with IEEE operations, which make their own infinities and NaN; of the others a
plain float64 sum decides about these.
"""

from dataclasses import dataclass, replace

import numpy as np

from mpcore.formats.counts import Counts
from mpcore.formats.format import Format
from mpcore.formats.registry import get_format
from mpcore.formats.rounding import round_to
from mpcore.matmul.exact import add_to_odd, fused_multiply_add

ZERO_EXPONENT = -126
_FP32 = get_format("fp32")
_LARGEST_SHIFT = 62


@dataclass(frozen=True)
class Operands:
    """What a unit works on, as float64 values.

    a is [cases, m, k], b [cases, k, n] and c [cases, m, n]. Scales are exact values, one for each
    block of `block` products: [cases, m, k / block] and [cases, k / block, n].
    """

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    a_format: Format
    b_format: Format
    d_format: Format  # of c, too
    a_scale: np.ndarray | None = None
    b_scale: np.ndarray | None = None
    scale_format: Format | None = None
    block: int = 0

    @property
    def depth(self):
        """How many products each element has."""
        return self.a.shape[2]

    def chunk(self, start, stop, c):
        """The operands of products start to stop, with another accumulator."""
        part = replace(self, a=self.a[:, :, start:stop], b=self.b[:, start:stop], c=c)
        if self.a_scale is None:
            return part
        blocks = slice(start // self.block, -(-stop // self.block))
        return replace(part, a_scale=self.a_scale[:, :, blocks], b_scale=self.b_scale[:, blocks])

    def products(self):
        """The `Terms` of the products of every element, [cases, m, n] each."""
        a, b = terms(self.a, self.a_format), terms(self.b, self.b_format)
        found = [a[:, :, k, None] * b[:, None, k, :] for k in range(self.depth)]
        if self.a_scale is None or self.scale_format.precision > 1:
            return found
        scale = self.scales()  # powers of two: they move the exponent
        return [p.moved(scale[k // self.block].exponent) for k, p in enumerate(found)]

    def scales(self):
        """The `Terms` of the product of the scales of each block."""
        a, b = terms(self.a_scale, self.scale_format), terms(self.b_scale, self.scale_format)
        return [a[:, :, k, None] * b[:, None, k, :] for k in range(self.a_scale.shape[2])]

    def plain_sum(self):
        """The sum in float64 arithmetic, which decides about infinity and NaN; None if it cannot.

        It cannot where every operand is finite.
        """
        arrays = [self.a, self.b, self.c, self.a_scale, self.b_scale]
        if all(np.isfinite(x).all() for x in arrays if x is not None):
            return None
        a, b, total = self.a, self.b, self.c.copy()
        with np.errstate(invalid="ignore", over="ignore"):
            if self.a_scale is not None:
                a = a * np.repeat(self.a_scale, self.block, axis=2)
                b = b * np.repeat(self.b_scale, self.block, axis=1)
            for k in range(self.depth):
                total += a[:, :, k, None] * b[:, None, k, :]
        return total


@dataclass(frozen=True)
class Terms:
    """Finite numbers: significand * 2**(exponent - fraction), both whole."""

    significand: np.ndarray  # int64, signed
    exponent: np.ndarray  # int64
    fraction: int  # fraction bits of the significand

    def __mul__(self, other):
        return Terms(
            self.significand * other.significand,
            self.exponent + other.exponent,
            self.fraction + other.fraction,
        )

    def __getitem__(self, index):
        return Terms(self.significand[index], self.exponent[index], self.fraction)

    def moved(self, exponent):
        """The numbers times 2**exponent."""
        return replace(self, exponent=self.exponent + exponent)

    def aligned(self, emax, fraction, cut):
        """The numbers in units of 2**(emax - fraction), cut to whole ones; and where bits are lost.

        Args:
            emax: array that broadcasts. fraction: bits kept below 2**emax.
            cut: `toward_zero` or `floored`.
        """
        shift = fraction - self.fraction + self.exponent - emax
        right = np.clip(-shift, 0, _LARGEST_SHIFT)
        kept = cut(self.significand, right) << np.clip(shift, 0, _LARGEST_SHIFT)
        lost = (self.significand & ((np.int64(1) << right) - 1)) != 0
        return kept, lost


def toward_zero(significand, shift):
    """significand / 2**shift, cut toward zero."""
    return np.sign(significand) * (np.abs(significand) >> shift)


def floored(significand, shift):
    """significand / 2**shift, rounded down."""
    return significand >> shift


def terms(values, f):
    """The `Terms` of an array of values of a format; infinity and NaN count as zero."""
    values = np.where(np.isfinite(values), values, 0.0)
    exponent = np.frexp(values)[1].astype(np.int64) - 1
    exponent = np.where(values == 0, ZERO_EXPONENT, np.maximum(exponent, f.emin))
    significand = np.ldexp(values, f.mantissa_bits - exponent).astype(np.int64)
    return Terms(significand, exponent, f.mantissa_bits)


def largest_exponent(numbers):
    """Elementwise largest exponent of several `Terms`."""
    return np.maximum.reduce([x.exponent for x in numbers])


def aligned_sum(numbers, emax, fraction, cut):
    """The sum of several `Terms` aligned to emax, as int64, and where bits are lost."""
    parts = [x.aligned(emax, fraction, cut) for x in numbers]
    return sum(kept for kept, _ in parts), np.logical_or.reduce([lost for _, lost in parts])


def stored(total, exponent, f, rounding):
    """total * 2**exponent (total int64, below 2**53) in a format, and where that is inexact.

    Args:
        rounding: "toward_zero", which gives infinity from 2**128 on, or "nearest_even".
    """
    exact = np.ldexp(total.astype(np.float64), exponent) + 0.0  # no -0
    value = round_to(exact, f, rounding, "infinity")
    if rounding == "toward_zero":
        value = np.where(np.abs(exact) < 2.0**128, value, np.copysign(np.inf, exact))
    return value, value != exact


@dataclass(frozen=True)
class AlignedSum:
    """NVIDIA: the accumulator and `length` products, aligned, cut toward zero and summed exactly.

    The sum is cut to fp32, to 13 fraction bits (`wide` = "e8m13"), or rounded to fp16.
    """

    length: int
    fraction: int
    wide: str = "fp32"
    is_ieee = False

    def __call__(self, x):
        """The sum of one chunk and where bits were lost."""
        numbers = [terms(x.c, x.d_format), *x.products()]
        emax = largest_exponent(numbers)
        total, lost = aligned_sum(numbers, emax, self.fraction, toward_zero)
        if x.d_format.name == "fp16":
            value, inexact = stored(total, emax - self.fraction, x.d_format, "nearest_even")
        else:
            f = get_format(self.wide)
            value, inexact = stored(total, emax - self.fraction, f, "toward_zero")
        return value, lost | inexact


@dataclass(frozen=True)
class ScaledGroupSum:
    """Blackwell with 4-bit operands: exact groups of `group` products, scaled, aligned with c, cut.

    The significand of a group is its sum times the scales' significands; its exponent is that of
    the scales alone.
    """

    length: int
    group: int
    fraction: int
    is_ieee = False

    def __call__(self, x):
        """The sum of one chunk and where bits were lost."""
        a, b = terms(x.a, x.a_format), terms(x.b, x.b_format)
        scales, numbers = x.scales(), [terms(x.c, x.d_format)]
        for start in range(0, x.depth, self.group):
            total = 0
            for k in range(start, min(start + self.group, x.depth)):
                p = a[:, :, k, None] * b[:, None, k, :]
                exponent = np.where(p.significand == 0, 0, p.exponent)  # e2m1 has none below 0
                total = total + (p.significand << exponent)
            s = scales[start // x.block]
            numbers.append(Terms(total * s.significand, s.exponent, p.fraction + s.fraction))
        emax = largest_exponent(numbers)
        total, lost = aligned_sum(numbers, emax, self.fraction, toward_zero)
        value, inexact = stored(total, emax - self.fraction, x.d_format, "toward_zero")
        return value, lost | inexact


@dataclass(frozen=True)
class FusedMultiplyAdd:
    """One product added with a single rounding to nearest even."""

    length = 1
    is_ieee = True

    def __call__(self, x):
        """The sum and where it is inexact."""
        return fused_multiply_add(x.a, x.b, x.c, x.d_format)


@dataclass(frozen=True)
class PairwiseSum:
    """CDNA1 and CDNA2: fp32 products, a balanced tree over `length` of them, then c + the tree.

    Every step is fp32 arithmetic, to nearest even. With `flush` (CDNA2) subnormal operands count as
    +0, and every result below 2**-126 becomes a zero of its sign.
    """

    length: int
    flush: bool = False
    is_ieee = True

    def __call__(self, x):
        """The sum of one chunk and where a step was inexact."""
        lost = []

        def step(exact):  # float64 holds a product exactly, and tells whether a sum was rounded
            result = exact.astype(np.float32)
            if self.flush:
                tiny = np.abs(result) < np.float32(_FP32.smallest_normal)
                result = np.where(tiny, np.copysign(np.float32(0), result), result)
            lost.append(result != exact)
            return result

        def add(p, q):
            return step(add_to_odd(p.astype(np.float64), q.astype(np.float64)))

        a, b, c = (
            self._operand(v, f)
            for v, f in ((x.a, x.a_format), (x.b, x.b_format), (x.c, x.d_format))
        )
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            level = [step(a[:, :, k, None] * b[:, None, k, :]) for k in range(x.depth)]
            while len(level) > 1:
                level = [add(p, q) for p, q in zip(level[::2], level[1::2], strict=True)]
            result = add(c, level[0]).astype(np.float64)
        return result, np.logical_or.reduce(lost)

    def _operand(self, values, f):
        return np.where(np.abs(values) < f.smallest_normal, 0.0, values) if self.flush else values


@dataclass(frozen=True)
class FlooredSum:
    """CDNA3: `length` products are aligned and cut; their sum and c are floored, and added."""

    length: int
    fraction: int = 24
    is_ieee = False

    def __call__(self, x):
        """The sum of one chunk and where bits were lost."""
        products = x.products()
        emax = largest_exponent(products)
        total, cut = aligned_sum(products, emax, self.fraction, toward_zero)
        value, lost = add_floored(Terms(total, emax, self.fraction), terms(x.c, x.d_format))
        return _with_overflowing_products(value, x), lost | cut


@dataclass(frozen=True)
class InterleavedSum:
    """CDNA3 with 8-bit operands: even and odd products are aligned apart, then as `FlooredSum`.

    c vanishes where it lies more than 25 binades below.
    """

    length: int
    fraction: int = 24
    is_ieee = False

    def __call__(self, x):
        """The sum of one chunk and where bits were lost."""
        products, halves, lost = x.products(), [], False
        for half in (products[::2], products[1::2]):
            emax = largest_exponent(half)
            total, cut = aligned_sum(half, emax, self.fraction, toward_zero)
            halves.append(Terms(total, emax, self.fraction))
            lost = lost | cut
        emax = largest_exponent(halves)
        total, cut = aligned_sum(halves, emax, self.fraction, floored)
        c = terms(x.c, x.d_format)
        value, inexact = add_floored(Terms(total, emax, self.fraction), c, farthest=25)
        return value, lost | cut | inexact


def add_floored(total, c, farthest=None):
    """A sum of products and the accumulator, floored where the larger exponent says so, in fp32.

    Args:
        total: `Terms` of the products' sum, with their largest exponent.
        c: `Terms` of the accumulator; where given, it vanishes more than `farthest` binades below.

    Returns:
        The sum, to nearest even, and where bits were lost.
    """
    emax = largest_exponent([total, c])
    kept, lost = total.aligned(emax, 31, floored)
    added, lost_of_c = c.aligned(emax, 24, floored)
    if farthest is not None:
        added = np.where(c.exponent < emax - farthest, 0, added)
    value, inexact = stored(kept + (added << 7), emax - 31, _FP32, "nearest_even")
    return value, lost | lost_of_c | inexact


def _with_overflowing_products(result, x):
    """The sum with every product from 2**128 on infinite: both signs make NaN."""
    if x.a_format.emin > ZERO_EXPONENT or x.b_format.emin > ZERO_EXPONENT:
        return result
    infinite = np.zeros(result.shape)
    with np.errstate(invalid="ignore"):
        for k in range(x.depth):
            p = x.a[:, :, k, None] * x.b[:, None, k, :]
            beyond = np.isfinite(p) & (np.abs(p) >= 2.0**128)
            infinite = np.where(beyond, infinite + np.copysign(np.inf, p), infinite)
    return np.where(infinite == 0, result, infinite)


def chained(x, unit, instruction_k, counting=False):
    """A whole sum: chunk after chunk, each one's sum the next one's accumulator.

    Args:
        x: `Operands`; their depth is a multiple of instruction_k.
        unit: an arithmetic of this file.
        instruction_k: products of one instruction; no chunk reaches beyond.
        counting: whether to count what happened at each chunk's sum.

    Returns:
        D, [cases, m, n] float64, and its `Counts`: one rounding for each chunk of each element;
        inexact where bits were lost on the way, underflow where nothing but zero is left then.
    """
    d, counts, length = x.c, Counts(), min(unit.length, instruction_k)
    for start in range(0, x.depth, length):
        part = x.chunk(start, start + length, d)
        d, lost = unit(part)
        plain = None if unit.is_ieee else part.plain_sum()
        if plain is not None:
            special = ~np.isfinite(plain)
            d, lost = np.where(special, plain, d), lost & ~special
        if counting:
            counts += _chunk_counts(d, lost, plain)
    return d, counts


def _chunk_counts(d, lost, plain):
    infinite = np.isinf(d) if plain is None else np.isinf(d) & np.isfinite(plain)
    return Counts(
        total=d.size,
        overflow=int(np.count_nonzero(infinite)),
        underflow=int(np.count_nonzero(lost & (d == 0))),
        nan=int(np.count_nonzero(np.isnan(d))),
        inexact=int(np.count_nonzero((lost | infinite) & ~np.isnan(d))),
    )
