"""Which values share a scale: every granularity is a partition of a matrix into blocks."""

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mpcore.errors import InputError
from mpcore.formats import BLOCK_FORMATS, BlockFormat, get_format


class ScalingError(InputError):
    """A granularity, axis, scale or tensor that this room cannot use."""


GRANULARITIES = {
    "per_tensor": "one scale for all values",
    "per_channel": "one scale for each index along the axis that is kept",
    "per_token": "one scale for each row of a [tokens, features] activation",
    "per_block:RxC": "one scale for each block of R rows and C columns, as per_block:128x128",
    "mx": "a power of two for 32 values of a row (OCP MX; fp8, fp6, fp4 and int8)",
    "nvfp4": "an e4m3 scale for 16 values of a row, all under one fp32 scale (fp4)",
}

_BLOCK = re.compile(r"per_block:(?:([0-9]{1,9})x)?([0-9]{1,9})")


@dataclass(frozen=True)
class Partition:
    """Blocks of a [rows, columns] matrix: groups of rows times groups of equal numbers of columns.

    The last block of a row or column may be smaller than the others.
    """

    row_starts: np.ndarray  # int64 [row groups + 1]: where each group begins, then the row count
    columns: int  # columns in one block
    shape: tuple  # (rows, columns) of the matrix

    @property
    def grid(self):
        """(row groups, column groups): the shape of the array of scales."""
        return len(self.row_starts) - 1, max(1, -(-self.shape[1] // self.columns))

    def spread(self, per_block):
        """Repeat one value per block [row groups, column groups] over the matrix it belongs to.

        Returns a [rows or 1, columns or 1] array that broadcasts against the matrix.
        """
        if self.grid[0] > 1:
            per_block = np.repeat(per_block, np.diff(self.row_starts), axis=0)
        if self.grid[1] > 1:
            per_block = np.repeat(per_block, self.columns, axis=1)[:, : self.shape[1]]
        return per_block


def check_granularity(granularity):
    """The block shape (R, C) of the granularities that have one, or None for the others.

    Raises:
        ScalingError: no granularity has that name, or a block side is zero.
    """
    if granularity in ("per_tensor", "per_channel", "per_token"):
        return None
    if granularity in ("mx", "nvfp4"):
        return (1, 32) if granularity == "mx" else (1, 16)
    match = _BLOCK.fullmatch(granularity) if isinstance(granularity, str) else None
    block = (int(match[1] or 1), int(match[2])) if match else (0, 0)
    if min(block) < 1:
        raise ScalingError(
            f"no granularity is called {granularity!r}; valid are {', '.join(GRANULARITIES)} "
            "with R and C at least 1"
        )
    return block


def elements_and_granularity(f, granularity, default):
    """The format of the elements and the granularity that a format and a granularity stand for.

    A block format has its own; another format takes the granularity given, or the default.

    Raises:
        ScalingError: another granularity than a block format's own, or "mx" or "nvfp4" with a
            format that they do not have.
        FormatError: an unknown format.
    """
    f = get_format(f)
    if isinstance(f, BlockFormat):
        if granularity not in (None, own_granularity(f)):
            raise ScalingError(
                f"{f} has its own scales, {own_granularity(f)}; granularity {granularity!r} is "
                f"for its elements' format, {f.element}"
            )
        return f.element, own_granularity(f)
    granularity = default if granularity is None else granularity
    if granularity in ("mx", "nvfp4"):
        block_format(f, granularity)
    return f, granularity


def own_granularity(f):
    """The granularity of a `BlockFormat`."""
    if f.has_tensor_scale:
        return f.name
    return "mx" if f.scale.name == "e8m0" else f"per_block:{f.rows}x{f.block}"


def block_format(element, granularity):
    """The `BlockFormat` of elements of a format under the granularity "mx" or "nvfp4".

    Raises:
        ScalingError: there is none.
    """
    of_kind = {f.element: f for f in BLOCK_FORMATS.values() if own_granularity(f) == granularity}
    if element not in of_kind:
        raise ScalingError(f'"{granularity}" takes {", ".join(map(str, of_kind))}, not {element}')
    return of_kind[element]


def partition(shape, granularity, segments=None):
    """Cut a [rows, columns] matrix into the blocks that share a scale.

    Args:
        shape: (rows, columns).
        granularity: a key of `GRANULARITIES`; "per_channel" keeps the rows here, as "per_token".
        segments: row offsets [segments + 1] from 0 to rows: rows of different segments never
            share a scale (one request is one tensor). None is one segment.

    Raises:
        ScalingError: an unknown granularity, or offsets that do not rise from 0 to rows.
    """
    rows, columns = shape
    block = check_granularity(granularity)
    offsets = np.array([0, rows]) if segments is None else np.asarray(segments)
    if (
        offsets.ndim != 1
        or offsets.size < 1
        or offsets.dtype.kind not in "ui"
        or (offsets[0], offsets[-1]) != (0, rows)
        or (np.diff(offsets.astype(np.int64)) < 0).any()
    ):
        raise ScalingError(f"segments must be integer offsets that rise from 0 to {rows} (rows)")
    if granularity == "per_tensor":
        row_starts, width = offsets, columns
    elif block is None:
        row_starts, width = np.arange(rows + 1), columns
    else:
        inner = [np.arange(a, b, block[0]) for a, b in pairwise(offsets)]
        row_starts, width = np.concatenate([*inner, [rows]]), block[1]
    return Partition(row_starts.astype(np.int64), max(1, min(width, columns)), (rows, columns))
