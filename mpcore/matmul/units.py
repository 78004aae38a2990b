"""How matrix units sum: the few arithmetics that all instructions of `instructions.py` share.

Readable NumPy on whole matrices; the reference for the compiled engine. An operand x is a pair
(significand, exponent): a normal number has 1 <= |significand| < 2, a subnormal keeps the exponent
of the smallest normal one, and zero has the exponent -126 in every format (as in the reference
model; no silicon check has confirmed that). The exponent of a product is the sum of the operands',
and its significand is not normalised. "Aligned" means: every term is cut to a multiple of
2**(emax - F), where emax is the largest exponent among the terms and F the fraction bits kept.
"""

from dataclasses import dataclass

import numpy as np

from mpcore.formats.format import Format
from mpcore.formats.registry import get_format
from mpcore.formats.rounding import round_to
from mpcore.matmul.exact import fused_multiply_add

ZERO_EXPONENT = -126
_FP32 = get_format("fp32")
_LARGEST_SHIFT = 62


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

    def aligned(self, emax, fraction, cut):
        """The numbers in units of 2**(emax - fraction), as int64, cut to whole ones.

        Args:
            emax: array that broadcasts. fraction: bits kept below 2**emax.
            cut: `toward_zero` or `floored`.
        """
        shift = fraction - self.fraction + self.exponent - emax
        left = self.significand << np.clip(shift, 0, _LARGEST_SHIFT)
        return np.where(shift >= 0, left, cut(self.significand, np.clip(-shift, 0, _LARGEST_SHIFT)))


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


@dataclass(frozen=True)
class Operands:
    """What one instruction works on, as float64 values.

    a is [cases, m, k], b [cases, k, n] and c [cases, m, n]. Scales are exact
    values, one for each block of `block` products: [cases, m, k / block] and [cases, k / block, n].
    """

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    a_format: Format
    b_format: Format
    c_format: Format
    d_format: Format
    a_scale: np.ndarray | None = None
    b_scale: np.ndarray | None = None
    scale_format: Format | None = None
    block: int = 0

    def products(self):
        """k -> the `Terms` of the k-th product of every element, [cases, m, n]."""
        a, b = terms(self.a, self.a_format), terms(self.b, self.b_format)
        return lambda k: a[:, :, k, None] * b[:, None, k, :]

    def scales(self):
        """k -> the `Terms` of the product of the scales of the k-th product."""
        a, b = terms(self.a_scale, self.scale_format), terms(self.b_scale, self.scale_format)
        return lambda k: a[:, :, k // self.block, None] * b[:, None, k // self.block, :]

    @property
    def has_special(self):
        """Whether an operand is infinite or NaN."""
        arrays = [self.a, self.b, self.c, self.a_scale, self.b_scale]
        return not all(np.isfinite(x).all() for x in arrays if x is not None)

    def plain_sum(self):
        """The sum in float64 arithmetic: what decides about infinity and NaN."""
        a, b, total = self.a, self.b, self.c.copy()
        with np.errstate(invalid="ignore", over="ignore"):
            if self.a_scale is not None:
                a = a * np.repeat(self.a_scale, self.block, axis=2)
                b = b * np.repeat(self.b_scale, self.block, axis=1)
            for k in range(a.shape[2]):
                total += a[:, :, k, None] * b[:, None, k, :]
        return total


def _with_specials(result, operands):
    """The result with infinity and NaN where the plain sum has them."""
    if not operands.has_special:
        return result
    plain = operands.plain_sum()
    return np.where(np.isfinite(plain), result, plain)


def _from_units(total, exponent):
    """total * 2**exponent as float64: exact, for |total| < 2**53."""
    return np.ldexp(total.astype(np.float64), exponent) + 0.0  # no -0


def _cut_to(value, f):
    """A float64 array cut to a format toward zero; from 2**128 on, infinite."""
    cut = round_to(value, f, "toward_zero")
    return np.where(np.abs(value) < 2.0**128, cut, np.copysign(np.inf, value))


def _store(value, d_format, wide):
    """An exact sum in the accumulator's format: cut in 32 bits, to nearest even in fp16."""
    if d_format.name == "fp16":
        return round_to(value, d_format, overflow="infinity")
    return _cut_to(value, get_format(wide))


@dataclass(frozen=True)
class AlignedSum:
    """NVIDIA: the accumulator and `length` products are aligned, cut and summed exactly.

    Cutting is toward zero. The sum is cut to fp32, to 13 fraction bits (`wide` = "e8m13"), or
    rounded to fp16. Longer sums are chained.
    """

    length: int
    fraction: int
    wide: str = "fp32"

    def __call__(self, operands):
        """D of one instruction, [cases, m, n] float64."""
        c, depth = operands.c, operands.a.shape[2]
        for start in range(0, depth, self.length):
            part = slice_products(operands, start, min(start + self.length, depth), c)
            c = _with_specials(self._chunk(part), part)
        return c

    def _chunk(self, x):
        c, product = terms(x.c, x.c_format), x.products()
        if x.a_scale is not None:
            plain, scale = product, x.scales()

            def product(k):
                p = plain(k)
                return Terms(p.significand, p.exponent + scale(k).exponent, p.fraction)

        depth = x.a.shape[2]
        emax = c.exponent
        for k in range(depth):
            emax = np.maximum(emax, product(k).exponent)
        total = c.aligned(emax, self.fraction, toward_zero)
        for k in range(depth):
            total = total + product(k).aligned(emax, self.fraction, toward_zero)
        return _store(_from_units(total, emax - self.fraction), x.d_format, self.wide)


def slice_products(x, start, stop, c):
    """The operands of products start to stop, with another accumulator (a value of d_format)."""
    scales = {}
    if x.a_scale is not None:
        first, last = start // x.block, -(-stop // x.block)
        scales = {
            "a_scale": x.a_scale[:, :, first:last],
            "b_scale": x.b_scale[:, first:last],
            "scale_format": x.scale_format,
            "block": x.block,
        }
    formats = x.a_format, x.b_format, x.c_format if start == 0 else x.d_format, x.d_format
    return Operands(x.a[:, :, start:stop], x.b[:, start:stop], c, *formats, **scales)


@dataclass(frozen=True)
class ScaledGroupSum:
    """Blackwell with 4-bit operands: groups of products are exact, then scaled and aligned with c.

    The significand of a group is its sum times the scales' significands; its exponent is that of
    the scales alone.
    """

    length: int  # products in a group
    fraction: int

    def __call__(self, x):
        """D of one instruction, [cases, m, n] float64."""
        product, scale, groups = x.products(), x.scales(), []
        for start in range(0, x.a.shape[2], self.length):
            total = 0
            for k in range(start, start + self.length):
                p = product(k)
                exponent = np.where(p.significand == 0, 0, p.exponent)  # of zero: any will do
                total = total + (p.significand << exponent)  # e2m1 has no negative exponent
            s = scale(start)
            groups.append(Terms(total * s.significand, s.exponent, p.fraction + s.fraction))
        c = terms(x.c, x.c_format)
        emax = np.maximum.reduce([c.exponent, *(group.exponent for group in groups)])
        total = sum(g.aligned(emax, self.fraction, toward_zero) for g in [c, *groups])
        result = _cut_to(_from_units(total, emax - self.fraction), x.d_format)
        return _with_specials(result, x)


@dataclass(frozen=True)
class FusedMultiplyAdd:
    """One product after the other, each added with a single rounding to nearest even."""

    def __call__(self, x):
        """D of one instruction, [cases, m, n] float64."""
        c = x.c
        for k in range(x.a.shape[2]):
            c = fused_multiply_add(x.a[:, :, k, None], x.b[:, None, k, :], c, x.d_format)
        return c


@dataclass(frozen=True)
class PairwiseSum:
    """CDNA1 and CDNA2: fp32 products, a balanced tree over `length` of them, then c + the tree.

    Every step is fp32 arithmetic, to nearest even. With `flush` (CDNA2) subnormal operands count as
    +0, and every result below 2**-126 becomes a zero of its sign.
    """

    length: int
    flush: bool = False

    def __call__(self, x):
        """D of one instruction, [cases, m, n] float64."""
        a, b, c = (self._operand(v, f) for v, f in (
            (x.a, x.a_format), (x.b, x.b_format), (x.c, x.c_format)
        ))  # fmt: skip
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for start in range(0, a.shape[2], self.length):
                level = [
                    self._result(a[:, :, k, None] * b[:, None, k, :])
                    for k in range(start, min(start + self.length, a.shape[2]))
                ]
                while len(level) > 1:
                    level = [
                        self._result(p + q) for p, q in zip(level[::2], level[1::2], strict=True)
                    ]
                c = self._result(c + level[0])
        return c.astype(np.float64)

    def _operand(self, values, f):
        values = values.astype(np.float32)
        if not self.flush:
            return values
        return np.where(np.abs(values) < np.float32(f.smallest_normal), np.float32(0), values)

    def _result(self, values):
        if not self.flush:
            return values
        tiny = np.abs(values) < np.float32(_FP32.smallest_normal)
        return np.where(tiny, np.copysign(np.float32(0), values), values)


@dataclass(frozen=True)
class FlooredSum:
    """CDNA3: `length` products are aligned and cut; their sum and c are floored, and added."""

    length: int
    fraction: int = 24

    def __call__(self, x):
        """D of one instruction, [cases, m, n] float64."""
        c, depth = x.c, x.a.shape[2]
        for start in range(0, depth, self.length):
            part = slice_products(x, start, min(start + self.length, depth), c)
            product = part.products()
            ks = range(part.a.shape[2])
            emax = np.maximum.reduce([product(k).exponent for k in ks])
            total = sum(product(k).aligned(emax, self.fraction, toward_zero) for k in ks)
            result = add_floored(total, emax - self.fraction, emax, terms(part.c, part.c_format))
            c = _with_overflowing_products(result, part)
        return c


def add_floored(total, unit, emax, c, drops_far_c=False):
    """total * 2**unit + c, both floored where the larger exponent says so, to nearest even in fp32.

    Args:
        total: int64 sum of products. unit: its exponent. emax: largest exponent of the products.
        c: the `Terms` of the accumulator.
        drops_far_c: whether c vanishes where it lies more than 25 binades below.
    """
    larger = np.maximum(emax, c.exponent)
    kept = Terms(total, unit, 0).aligned(larger, 31, floored)
    added = c.aligned(larger, 24, floored)
    if drops_far_c:
        added = np.where(c.exponent < larger - 25, 0, added)
    exact = (kept + (added << 7)).astype(np.float64)
    return round_to(np.ldexp(exact, larger - 31) + 0.0, _FP32, overflow="infinity")


def _with_overflowing_products(result, x):
    """As `_with_specials`; and a product from 2**128 on is infinite, of both signs NaN."""
    if x.a_format.emin == ZERO_EXPONENT and x.b_format.emin == ZERO_EXPONENT:
        infinite = np.zeros(result.shape)
        for k in range(x.a.shape[2]):
            with np.errstate(invalid="ignore"):
                p = x.a[:, :, k, None] * x.b[:, None, k, :]
                beyond = np.abs(p) >= 2.0**128
                infinite = np.where(beyond, infinite + np.copysign(np.inf, p), infinite)
        result = np.where(infinite == 0, result, infinite)
    return _with_specials(result, x)


@dataclass(frozen=True)
class InterleavedSum:
    """CDNA3 with 8-bit operands: even and odd products are aligned apart, then as `FlooredSum`."""

    length: int
    fraction: int = 24

    def __call__(self, x):
        """D of one instruction, [cases, m, n] float64."""
        c, depth = x.c, x.a.shape[2]
        for start in range(0, depth, self.length):
            part = slice_products(x, start, min(start + self.length, depth), c)
            product, halves = part.products(), []
            for parity in (0, 1):
                ks = range(parity, part.a.shape[2], 2)
                emax = np.maximum.reduce([product(k).exponent for k in ks])
                total = sum(product(k).aligned(emax, self.fraction, toward_zero) for k in ks)
                halves.append((Terms(total, emax - self.fraction, 0), emax))
            emax = np.maximum(halves[0][1], halves[1][1])
            total = sum(half.aligned(emax, self.fraction, floored) for half, _ in halves)
            c_terms = terms(part.c, part.c_format)
            result = add_floored(total, emax - self.fraction, emax, c_terms, drops_far_c=True)
            c = _with_specials(result, part)
        return c
