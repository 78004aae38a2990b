"""What a matmul is asked to do: tile, accumulator, reduction order; and the room's one error."""

import re
from dataclasses import dataclass
from numbers import Integral

from mpcore.errors import InputError
from mpcore.formats.format import ROUNDING_MODES, Format, FormatError
from mpcore.formats.registry import get_format


class MatmulError(InputError):
    """Shapes, names or options that a matmul cannot use."""


REDUCTIONS = {
    "sequential": "k ascending; the tile does not matter",
    "pairwise": "within each k-tile a tree of neighbours; the tiles' sums in order",
    "strided_tree": "within each k-tile a tree of i with i + n/2; the tiles' sums in order",
    "split_k:n": "n contiguous parts of K, each in order, then the parts' sums in order",
    "kahan": "k ascending, with the error of each addition carried into the next",
}

BLAS = "blas_fp32"  # products exact in fp32, summed by BLAS in its own order


@dataclass(frozen=True)
class Tile:
    """Sizes of one tile of the matmul: m rows and n columns of the result, k products."""

    m: int = 128
    n: int = 128
    k: int = 64

    def __post_init__(self):
        for side in ("m", "n", "k"):
            size = getattr(self, side)
            if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
                raise MatmulError(f"tile {side} must be an integer of at least 1, not {size!r}")


@dataclass(frozen=True)
class Accumulator:
    """How partial sums are held: c <- round(c + the next `every` products), exact inside."""

    format: Format | str = "fp32"
    every: int = 1  # products between two roundings
    rounding: str = "nearest_even"
    overflow: str = "infinity"  # NaN, else the largest value, where the format has no infinity

    def __post_init__(self):
        try:
            object.__setattr__(self, "format", get_format(self.format))
        except FormatError as error:
            raise MatmulError(f"accumulator: {error}") from None
        if isinstance(self.every, bool) or not isinstance(self.every, Integral) or self.every < 1:
            raise MatmulError(f"every must be an integer of at least 1, not {self.every!r}")
        valid = [mode for mode in ROUNDING_MODES if mode != "stochastic"]
        if self.rounding not in valid:
            raise MatmulError(
                f'an accumulator cannot round "{self.rounding}"; valid are {", ".join(valid)}'
            )
        if self.overflow not in ("infinity", "saturate"):
            raise MatmulError(
                f'an accumulator cannot overflow to "{self.overflow}"; valid are infinity, saturate'
            )
        # The emulation holds exact sums rounded to odd in 53 bits, which needs two bits to spare.
        is_fp64 = self.format.name == "fp64" and self.rounding == "nearest_even"
        if self.format.precision > 51 and not is_fp64:
            raise MatmulError(
                f"an accumulator needs at most 51 significand bits, or fp64 with nearest_even; "
                f"{self.format} has {self.format.precision}"
            )


def get_accumulator(x):
    """The `Accumulator` that `x` names, or `BLAS`.

    Args:
        x: an `Accumulator`, a format or its name, or "blas_fp32".

    Raises:
        MatmulError: an unknown name, or a matrix unit such as "Hopper.fp16".
    """
    if isinstance(x, Accumulator) or (isinstance(x, str) and x == BLAS):
        return x
    is_unit = isinstance(x, str) and re.fullmatch(r"(?!torch\.)[A-Za-z][\w ]*\.[\w:]+", x.strip())
    if is_unit:
        raise MatmulError(
            f'"{x}" names a matrix unit, and units are not in this version yet; valid are a format '
            f'("fp32"), Accumulator(format, every=n) and "{BLAS}"'
        )
    return Accumulator(x)


def get_reduction(name):
    """(name, parts) of a reduction order: "split_k:4" is ("split_k", 4), others have one part.

    Raises:
        MatmulError: no reduction order has that name.
    """
    if isinstance(name, str):
        split = re.fullmatch(r"split_k:([1-9]\d*)", name)
        if split:
            return "split_k", int(split[1])
        if name in REDUCTIONS and name != "split_k:n":
            return name, 1
    raise MatmulError(
        f'no reduction order is called "{name}"; valid are {", ".join(REDUCTIONS)} with n >= 1'
    )


def check_order(accumulator, order):
    """Raise MatmulError unless an accumulator can sum in a reduction order (of `get_reduction`)."""
    if accumulator == BLAS:
        if order[0] != "sequential":
            raise MatmulError(f'"{BLAS}" sums in its own order: leave reduction="sequential"')
    elif accumulator.every > 1 and order[0] not in ("sequential", "split_k"):
        raise MatmulError(f'every={accumulator.every} needs reduction "sequential" or "split_k:n"')


def split_bounds(length, parts):
    """Bounds of `parts` contiguous parts of range(length), the longer ones first."""
    size, longer = divmod(length, parts)
    bounds = [0]
    for part in range(parts):
        bounds.append(bounds[-1] + size + (part < longer))
    return bounds
