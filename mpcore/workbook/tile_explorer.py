"""The tile explorer: one element of a real matmul, summed step by step along K."""

from __future__ import annotations

import traitlets

from mpcore.matmul import Tile
from mpcore.workbook.explorer import Explorer, Whole, play, select, slider
from mpcore.workbook.tile_picture import tile_picture, words_for
from mpcore.workbook.tile_trace import Trace, trace_of

ACCUMULATORS = ("fp32", "tf32", "fp16", "bf16")
TILES = {
    f"{m} × {n} × {k}": Tile(m, n, k)
    for m, n, k in [(4, 4, 16), (4, 4, 64), (2, 2, 64), (4, 4, 256), (1, 4, 512)]
}
ORDERS = ("sequential", "pairwise", "strided_tree", "split_k:2", "split_k:4", "split_k:16", "kahan")
OPERANDS = ("fp16", "bf16", "fp8_e4m3", "fp32")

PLAYED_IN = 80  # pictures from one end of K to the other


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
        step: roundings done, from 1 on; a tree rounds each product before it adds.
    """

    inputs = ("row", "column", "operands", "accumulator", "order", "tile", "step")

    row = Whole(0, min=0, max=3).tag(sync=True)
    column = Whole(1, min=0, max=3).tag(sync=True)
    operands = traitlets.Enum(OPERANDS, "fp16").tag(sync=True)
    accumulator = traitlets.Enum(ACCUMULATORS, "bf16").tag(sync=True)
    order = traitlets.Enum(ORDERS, "sequential").tag(sync=True)
    tile = traitlets.Enum(list(TILES), "4 × 4 × 64").tag(sync=True)
    step = Whole(1536, min=1).tag(sync=True)

    title = traitlets.Unicode("Tile explorer: one element of a matmul along K").tag(sync=True)

    def controls_of(self):
        return [
            select("operands", "operands in", OPERANDS),
            select("accumulator", "accumulator", ACCUMULATORS),
            select("order", "reduction order", ORDERS),
            select("tile", "tile m × n × k", list(TILES)),
            slider("step", "steps done", 1, self.step),
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
        """Every rounding of the chosen element."""
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
        arithmetic = f"{self.operands} × {self.operands}, {self.accumulator} accumulator"
        self.picture = tile_picture(
            trace,
            step,
            TILES[self.tile],
            (self.row, self.column),
            self.order,
            arithmetic,
            self.spoken,
        )
