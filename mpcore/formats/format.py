"""What a number format is: one frozen description, and the facts that follow from it.

A `Format` is data, and so is a `BlockFormat`: values of a `Format` in blocks under scales. How
numbers are rounded lives in `rounding.py` and `blocks.py`, how they become codes in `codes.py`, and
which formats there are in `registry.py`.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ldexp, log10

import numpy as np

from mpcore.errors import InputError


class FormatError(InputError):
    """A format, rounding mode, overflow behaviour or array that this room cannot use."""


ROUNDING_MODES = {
    "nearest_even": "to the nearest value; a tie goes to the even significand",
    "nearest_away": "to the nearest value; a tie goes away from zero",
    "toward_zero": "cut off",
    "toward_positive": "up",
    "toward_negative": "down",
    "to_odd": "an inexact result takes the neighbour with the odd significand",
    "stochastic": "up or down at random, with the distance as the probability",
}

OVERFLOW_BEHAVIOURS = {
    "saturate": "beyond the range: the largest finite value, also for an infinite input",
    "infinity": "beyond the range: infinity; NaN, else the largest value, where there is none",
    "nan": "beyond the range: NaN; an infinite input stays infinite where the format allows it",
}

NAN_CONVENTIONS = {
    "ieee": "exponent all ones and significand not zero (several codes)",
    "all_ones": "every bit but the sign is one (two codes)",
    "negative_zero": "the code that would be -0 (one code; there is no -0)",
    "none": "the format has no NaN",
}


@dataclass(frozen=True)
class Format:
    """One number format, as pure data. A code is `sign | exponent | trailing significand`."""

    name: str  # our name, as in `get_format(name)`
    bits: int  # width of one code
    exponent_bits: int  # width of the exponent field; 0 for integers
    precision: int  # significand bits, the implicit leading one included; all bits for integers
    bias: int  # exponent field of 1.0; 0 for integers
    has_infinity: bool = True  # whether the format has infinities
    nan: str = "ieee"  # which codes are NaN: a key of NAN_CONVENTIONS
    has_subnormals: bool = True  # whether exponent field 0 holds values below the least normal
    is_signed: bool = True  # whether the format has negative values
    has_zero: bool = True  # False for e8m0: powers of two alone, exponent field 0 among them
    kind: str = "float"  # "float", or "int" (two's complement, steps of one)
    note: str = ""  # where the format is defined or met

    def __str__(self):
        return self.name

    @property
    def has_nan(self):
        """Whether some code is NaN."""
        return self.nan != "none"

    @property
    def natural_overflow(self):
        """What a matmul does beyond the range: infinity where there is one, else saturate."""
        return "infinity" if self.has_infinity else "saturate"

    @property
    def has_negative_zero(self):
        """Whether -0 differs from +0."""
        has_sign = self.kind == "float" and self.is_signed
        return has_sign and self.has_zero and self.nan != "negative_zero"

    @property
    def mantissa_bits(self):
        """Significand bits that the code stores (the trailing ones)."""
        return self.precision - 1

    @property
    def emin(self):
        """Exponent of the smallest normal value. Every integer lies in the lowest binade."""
        if self.kind == "int":
            return self.bits - 1
        return self.has_zero - self.bias  # where there is a zero, exponent field 0 is its

    @property
    def tiny_exponent(self):
        """Exponent of the smallest positive value, which is also the step below 2**emin."""
        return self.emin - self.mantissa_bits if self.has_subnormals else self.emin

    @property
    def max_code(self):
        """Code of the largest finite value."""
        if self.kind == "int":
            return 2 ** (self.bits - self.is_signed) - 1
        top = 2 ** (self.exponent_bits + self.mantissa_bits)
        if self.has_infinity:
            return top - 2**self.mantissa_bits - 1
        return top - 2 if self.nan == "all_ones" else top - 1

    @cached_property
    def max(self):
        """Largest finite value, as a float."""
        if self.kind == "int":
            return float(self.max_code)
        field, trailing = divmod(self.max_code, 2**self.mantissa_bits)
        return ldexp(2**self.mantissa_bits + trailing, field - self.bias - self.mantissa_bits)

    @property
    def min(self):
        """Most negative finite value, as a float."""
        if not self.is_signed:
            return 0.0 if self.has_zero else self.smallest
        return -self.max - 1 if self.kind == "int" else -self.max

    @property
    def smallest_normal(self):
        """Smallest positive value with full precision; 1 for integers."""
        return 1.0 if self.kind == "int" else ldexp(1.0, self.emin)

    @property
    def smallest(self):
        """Smallest positive value."""
        return ldexp(1.0, self.tiny_exponent)

    @property
    def epsilon(self):
        """Step between 1 and the next value above it."""
        return 1.0 if self.kind == "int" else ldexp(1.0, -self.mantissa_bits)

    @property
    def finite_values(self):
        """How many finite values there are; +0 and -0 are one."""
        if self.kind == "int":
            return 2**self.bits
        positive = self.max_code + 1 - self.has_zero
        if not self.has_subnormals:
            positive -= 2**self.mantissa_bits - 1
        return positive * (1 + self.is_signed) + self.has_zero

    @property
    def decades(self):
        """Dynamic range: log10 of the largest over the smallest positive value."""
        return log10(self.max) - log10(self.smallest)

    @property
    def code_dtype(self):
        """NumPy dtype that holds one code."""
        width = next(w for w in (8, 16, 32, 64) if self.bits <= w)
        return np.dtype(f"uint{width}")

    @cached_property
    def fits_float32(self):
        """Whether every value of the format is a float32 value."""
        return (
            self.precision <= 24
            and self.tiny_exponent >= -149
            and (self.emin >= -126 or self.precision == 1)  # float32 has 2**-127, a subnormal
            and self.max <= 3.4028234663852886e38
        )

    @property
    def value_dtype(self):
        """NumPy dtype in which `decode` gives the values."""
        return np.dtype(np.float32 if self.fits_float32 else np.float64)


@dataclass(frozen=True)
class BlockFormat:
    """Elements of one format in blocks along the last axis, each block under one scale."""

    name: str  # our name, as in `get_format(name)`
    element: Format
    block: int  # values along the last axis that share a scale
    scale: Format  # e8m0: a power of two; else the scale is amax / (largest element), rounded
    rows: int = 1  # along the axis before it
    step_exponent: int = 0  # elements are multiples of 2**step_exponent (MXINT8: -6)
    has_tensor_scale: bool = False  # whether scales are themselves under one fp32 scale
    note: str = ""

    def __str__(self):
        return self.name

    @property
    def max(self):
        """Largest element, as a float."""
        return self.element.max * 2.0**self.step_exponent

    @property
    def bits(self):
        """Bits a value, its share of the block's scale included."""
        return self.element.bits + self.scale.bits / (self.rows * self.block)
