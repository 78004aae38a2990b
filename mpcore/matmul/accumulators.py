"""How partial sums are held: in a format, by a matrix unit, or as BLAS does."""

import re
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral

from mpcore.formats.format import ROUNDING_MODES, Format, FormatError
from mpcore.formats.registry import get_element_format, get_format
from mpcore.matmul.instructions import ARCHITECTURES, INSTRUCTIONS
from mpcore.matmul.options import MatmulError

BLAS = "blas_fp32"  # products exact in fp32, summed by BLAS in its own order


@dataclass(frozen=True)
class Accumulator:
    """How partial sums are held: c <- round(c + the next `every` products), exact inside.

    With an intermediate format those products are summed by themselves first and rounded to it,
    saturating: `Accumulator("int32", every=2, intermediate="int16")` is x86's vpmaddubsw.
    """

    format: Format | str = "fp32"
    every: int = 1  # products between two roundings
    rounding: str = "nearest_even"
    overflow: str = "infinity"  # NaN, else the largest value, where the format has no infinity
    intermediate: Format | str | None = None
    flush_subnormals: bool = False  # whether sums below the smallest normal value become zero
    seed: int | None = None  # of the random bits, for rounding="stochastic"

    def __post_init__(self):
        for name in ("format", "intermediate"):
            try:
                if getattr(self, name) is not None:
                    object.__setattr__(self, name, get_element_format(getattr(self, name)))
            except FormatError as error:
                raise MatmulError(f"accumulator: {error}") from None
        if isinstance(self.every, bool) or not isinstance(self.every, Integral) or self.every < 1:
            raise MatmulError(f"every must be an integer of at least 1, not {self.every!r}")
        if self.rounding not in ROUNDING_MODES:
            raise MatmulError(
                f'an accumulator cannot round "{self.rounding}"; valid are '
                f"{', '.join(ROUNDING_MODES)}"
            )
        if (self.rounding == "stochastic") != (self.seed is not None):
            raise MatmulError('a seed (a whole number) goes with rounding="stochastic"')
        if self.seed is not None and (not isinstance(self.seed, Integral) or self.seed < 0):
            raise MatmulError(f"seed must be a whole number of at least 0, not {self.seed!r}")
        if self.overflow not in ("infinity", "saturate"):
            raise MatmulError(
                f'an accumulator cannot overflow to "{self.overflow}"; valid are infinity, saturate'
            )
        # The emulation holds exact sums rounded to odd in 53 bits, which needs two bits to spare.
        is_fp64 = self.format.name == "fp64" and self.rounding == "nearest_even"
        if self.format.precision > 51 and not (is_fp64 and not self.flush_subnormals):
            raise MatmulError(
                f"an accumulator needs at most 51 significand bits, or fp64 with nearest_even; "
                f"{self.format} has {self.format.precision}"
            )
        if self.intermediate is not None and self.intermediate.precision > 51:
            raise MatmulError(f"an intermediate needs at most 51 bits, not {self.intermediate}")


@dataclass(frozen=True)
class MatrixUnit:
    """The matrix unit of an architecture as an accumulator: "Hopper.fp16", "Hopper.fp8:fp16"."""

    arch: str
    input: str  # of the operands: a name of `UNIT_INPUTS`
    accumulate: str  # "fp32", "fp16" or "fp64": what partial sums are kept in

    def __str__(self):
        return f"{self.arch}.{self.input}:{self.accumulate}"

    @property
    def format(self):
        """The format of partial sums and of the result."""
        return get_format(self.accumulate)

    @property
    def input_format(self):
        """The format that operands take where none is given."""
        return _candidates(self.arch, self.input, self.accumulate)[0].a

    def instruction(self, a_format, b_format):
        """The `Instruction` that the unit runs for operands of two formats.

        Operands are taken as the unit's input format, which has to hold all of their values.

        Raises:
            MatmulError: the formats do not fit the unit's input.
        """
        candidates = _candidates(self.arch, self.input, self.accumulate)
        fitting = [i for i in candidates if _holds(i.a, a_format) and _holds(i.b, b_format)]
        if not fitting:
            taken = " or ".join(dict.fromkeys(i.a.name for i in candidates))
            raise MatmulError(
                f"{self} takes {taken}, which cannot hold all values of {a_format} and "
                f"{b_format}; give a_format and b_format"
            )
        return fitting[0]


UNIT_INPUTS = {
    "fp64": ("fp64",),
    "fp32": ("fp32",),
    "tf32": ("tf32",),
    "bf16": ("bf16",),
    "fp16": ("fp16",),
    "fp8": ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz"),
}
"""Input of a unit's name -> the formats that its instructions may take."""


@lru_cache(maxsize=256)
def _candidates(arch, inputs, accumulate):
    """Instructions without block scales, the newest kind and the largest k first."""
    kinds = ("wgmma", "tcgen05mma", "mma", "mfma")
    formats = UNIT_INPUTS[inputs]
    found = [
        i
        for i in INSTRUCTIONS.values()
        if i.arch == arch
        and i.kind in kinds
        and {i.a.name, i.b.name} <= set(formats)
        and i.c == i.d == get_format(accumulate)
    ]
    return sorted(found, key=lambda i: (kinds.index(i.kind), -i.k))


def _holds(wide, narrow):
    """Whether every value of a format is a value of another."""
    return (
        wide.kind == narrow.kind
        and narrow.precision <= wide.precision
        and narrow.tiny_exponent >= wide.tiny_exponent
        and narrow.max <= wide.max
        and (wide.has_infinity or not narrow.has_infinity)
    ) or (narrow.kind == "int" and max(narrow.max, -narrow.min) <= 2.0**wide.precision)


def _matrix_unit(name):
    """The `MatrixUnit` that "Arch.input[:accumulate]" stands for."""
    arch, _, rest = name.strip().rpartition(".")
    inputs, _, accumulate = rest.lower().partition(":")
    key = re.sub(r"[\s_-]", "", arch).lower()
    known = {a.replace(" ", "").lower(): a for a in ARCHITECTURES} | {"ada": "Ada Lovelace"}
    if key not in known:
        valid = ", ".join(ARCHITECTURES)
        raise MatmulError(f'no architecture is called "{arch}"; valid are {valid}')
    inputs = "tf32" if inputs == "xf32" else inputs
    wide = "fp64" if inputs == "fp64" else "fp32"
    offered = [
        f"{x}:{y}"
        for x in UNIT_INPUTS
        for y in ("fp64", "fp32", "fp16")
        if _candidates(known[key], x, y)
    ]
    if f"{inputs}:{accumulate or wide}" not in offered:
        raise MatmulError(
            f'{known[key]} has no unit "{rest}"; it has {", ".join(offered)} (:fp32 is the default)'
        )
    return MatrixUnit(known[key], inputs, accumulate or wide)


def get_accumulator(x):
    """The `Accumulator` or `MatrixUnit` that `x` names, or `BLAS`.

    Args:
        x: an `Accumulator`, a format or its name, "blas_fp32", or a matrix unit as
            "Arch.input[:accumulate]": "Hopper.fp16", "Ampere.bf16", "Hopper.fp8:fp16". fp32 is
            accumulated by default; case and spaces of the architecture are free.

    Raises:
        MatmulError: an unknown name.
    """
    if isinstance(x, Accumulator | MatrixUnit) or (isinstance(x, str) and x == BLAS):
        return x
    if isinstance(x, str) and re.fullmatch(r"(?!torch\.)[A-Za-z][\w -]*\.[\w:]+", x.strip()):
        return _matrix_unit(x)
    return Accumulator(x)


def check_order(accumulator, order):
    """Raise MatmulError unless an accumulator can sum in a reduction order (of `get_reduction`)."""
    if accumulator == BLAS:
        if order[0] != "sequential":
            raise MatmulError(f'"{BLAS}" sums in its own order: leave reduction="sequential"')
    elif isinstance(accumulator, MatrixUnit):
        if order[0] not in ("sequential", "split_k"):
            raise MatmulError(f'{accumulator} needs reduction "sequential" or "split_k:n"')
    elif accumulator.every > 1 and order[0] not in ("sequential", "split_k"):
        raise MatmulError(f'every={accumulator.every} needs reduction "sequential" or "split_k:n"')
