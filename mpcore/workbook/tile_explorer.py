"""The tile explorer: one element of a real matmul, summed step by step along K."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import traitlets

from mpcore.formats import get_format, round_to
from mpcore.matmul import Tile
from mpcore.matmul.trace import PartialSum, trace_sum
from mpcore.workbook.explorer import Explorer, play, select, slider
from mpcore.workbook.tile_picture import tile_picture, words_for
from mpcore.workloads.captured import captured

ACCUMULATORS = ("fp32", "tf32", "fp16", "bf16")
TILES = {
    f"{m} × {n} × {k}": Tile(m, n, k)
    for m, n, k in [(4, 4, 16), (4, 4, 64), (2, 2, 64), (4, 4, 256), (1, 4, 512)]
}
ORDERS = ("sequential", "pairwise", "strided_tree", "split_k:2", "split_k:4", "split_k:16", "kahan")
OPERANDS = ("fp16", "bf16", "fp8_e4m3", "fp32")

ACTIVATIONS, WEIGHTS = "down_proj_11_input", "down_proj_11_weight"
TOKENS = (0, 1, 8, 16)  # which tokens the rows of ACTIVATIONS are
PLAYED_IN = 80  # pictures from one end of K to the other


@dataclass(frozen=True)
class Trace:
    """Every addition of one element, as arrays for drawing."""

    sums: tuple[PartialSum, ...]
    values: np.ndarray  # [additions] the partial sum after each, float64
    exact: np.ndarray  # [additions] the same products summed exactly
    error: np.ndarray  # [additions] |value - exact|
    swamped: np.ndarray  # [additions] bool
    touched: np.ndarray  # [additions] products that are in some partial sum: the first so many
    length: int  # K


@lru_cache(maxsize=128)
def trace_of(row: int, column: int, operands: str, accumulator: str, order: str, tile_k: int):
    """The `Trace` of element (row, column) of the captured matmul; raises MatmulError."""
    f = get_format(operands)
    a = round_to(captured(ACTIVATIONS).values[row], f, overflow=f.natural_overflow)
    b = round_to(captured(WEIGHTS).values[column], f, overflow=f.natural_overflow)
    products = (a.astype(np.float64) * b.astype(np.float64)).tolist()
    sums = tuple(trace_sum(products, accumulator, order, tile_k))
    values = np.array([float(s.value) for s in sums])
    exact = np.array([float(s.exact) for s in sums])
    return Trace(
        sums,
        values,
        exact,
        abs(values - exact),
        np.array([s.swamped for s in sums]),
        np.maximum.accumulate([max(s.right) + 1 for s in sums]),
        len(products),
    )


class TileExplorer(Explorer):
    """The K-loop of one element of a real 4 × 4 matmul, addition by addition.

    The operands are captured from layer 11 of the language model: four tokens' inputs of its
    down-projection, and four of its output channels; K is 1536.

    Attributes:
        row, column: the element of the result (0..3).
        operands: format that both operands are rounded to first.
        accumulator: a format of `ACCUMULATORS`, rounded to after every product.
        order: a reduction order of `ORDERS`.
        tile: a key of `TILES` (m × n × k).
        step: additions done, from 1 on.
    """

    inputs = ("row", "column", "operands", "accumulator", "order", "tile", "step")

    row = traitlets.Int(0, min=0, max=3).tag(sync=True)
    column = traitlets.Int(1, min=0, max=3).tag(sync=True)
    operands = traitlets.Enum(OPERANDS, "fp16").tag(sync=True)
    accumulator = traitlets.Enum(ACCUMULATORS, "bf16").tag(sync=True)
    order = traitlets.Enum(ORDERS, "sequential").tag(sync=True)
    tile = traitlets.Enum(list(TILES), "4 × 4 × 64").tag(sync=True)
    step = traitlets.Int(1536, min=1).tag(sync=True)

    title = traitlets.Unicode("Tile explorer: one element of a matmul along K").tag(sync=True)

    def controls_of(self):
        return [
            select("operands", "operands in", OPERANDS),
            select("accumulator", "accumulator", ACCUMULATORS),
            select("order", "reduction order", ORDERS),
            select("tile", "tile m × n × k", list(TILES)),
            slider("step", "additions done", 1, self.step),
            play("step"),
        ]

    def press(self, key):
        """`element:ROW:COLUMN` chooses another element of the result."""
        action, *at = key.split(":")
        if action != "element" or len(at) != 2 or not all(x in "0123" and len(x) == 1 for x in at):
            return super().press(key)
        with self.hold_trait_notifications():
            self.row, self.column = map(int, at)

    def trace(self) -> Trace:
        """All additions of the chosen element; raises MatmulError where they do not go together."""
        chosen = (self.operands, self.accumulator, self.order, TILES[self.tile].k)
        return trace_of(self.row, self.column, *chosen)

    def draw(self):
        trace = self.trace()
        count = len(trace.sums)
        self.limits = {"step": [1, count]}
        self.strides = {"step": -(-count // PLAYED_IN)}
        step = min(self.step, count)
        self.notes = {"step": f"{step} of {count}"}
        self.spoken = words_for(trace, step)
        self.picture = tile_picture(
            trace, step, TILES[self.tile], (self.row, self.column), self._names(), self.spoken
        )

    def _names(self):
        return {
            "rows": [f"token {t}" for t in TOKENS],
            "columns": [f"channel {c}" for c in range(4)],
            "arithmetic": f"{self.operands} × {self.operands}, {self.accumulator} accumulator, "
            f"{self.order}",
            "tensor": "layers.11.mlp.down_proj of SmolLM2-135M (captured, K = 1536)",
        }
