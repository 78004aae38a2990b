"""The matmul that the tile explorer and lesson 02 follow: captured, small, summed in full view."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mpcore.formats import get_element_format, round_to
from mpcore.matmul.trace import PartialSum, trace_sum
from mpcore.workloads.captured import captured

ACTIVATIONS, WEIGHTS = "down_proj_11_input", "down_proj_11_weight"
ROWS = [f"token {token}" for token in (0, 1, 8, 16)]
COLUMNS = [f"channel {channel}" for channel in range(4)]
TENSOR = "layers.11.mlp.down_proj of SmolLM2-135M (captured, K = 1536)"


@dataclass(frozen=True)
class Trace:
    """Every rounding of one element, as arrays for drawing."""

    sums: tuple[PartialSum, ...]
    values: np.ndarray  # [steps] the partial sum after each, float64
    exact: np.ndarray  # [steps] the same products summed exactly
    error: np.ndarray  # [steps] |value - exact|
    swamped: np.ndarray  # [steps] bool: an addition that changed nothing
    touched: np.ndarray  # [steps] products that are in some partial sum: the first so many
    length: int  # K


@lru_cache(maxsize=128)
def trace_of(
    row: int, column: int, operands: str, accumulator: str, order: str, tile_k: int
) -> Trace:
    """The `Trace` of element (row, column); raises MatmulError for options that do not fit."""
    f = get_element_format(operands)
    a = round_to(captured(ACTIVATIONS).values[row], f, overflow=f.natural_overflow)
    b = round_to(captured(WEIGHTS).values[column], f, overflow=f.natural_overflow)
    products = (a.astype(np.float64) * b.astype(np.float64)).tolist()
    sums = tuple(trace_sum(products, accumulator, order, tile_k))
    values = np.array([one.value for one in sums])
    exact = np.array([one.exact for one in sums])
    return Trace(
        sums,
        values,
        exact,
        abs(values - exact),
        np.array([one.swamped for one in sums]),
        np.maximum.accumulate([one.right[-1] + 1 for one in sums]),
        len(products),
    )
