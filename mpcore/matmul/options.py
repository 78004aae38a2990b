"""What a matmul is asked to do: tile and reduction order; and the room's one error."""

import re
from dataclasses import dataclass
from numbers import Integral

from mpcore.errors import InputError


class MatmulError(InputError):
    """Shapes, names or options that a matmul cannot use."""


REDUCTIONS = {
    "sequential": "k ascending; the tile does not matter",
    "pairwise": "within each k-tile a tree of neighbours; the tiles' sums in order",
    "strided_tree": "within each k-tile a tree of i with i + n/2; the tiles' sums in order",
    "split_k:n": "n contiguous parts of K, each in order, then the parts' sums in order",
    "kahan": "k ascending, with the error of each addition carried into the next",
}


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


def split_bounds(length, parts):
    """Bounds of `parts` contiguous parts of range(length), the longer ones first."""
    size, longer = divmod(length, parts)
    bounds = [0]
    for part in range(parts):
        bounds.append(bounds[-1] + size + (part < longer))
    return bounds
