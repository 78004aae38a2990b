"""The curves of the tile explorer: the partial sum and its error, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpcore.report import numbers
from mpcore.workbook.drawing import (
    BLUE,
    COLOUR,
    FG,
    LINE,
    MUTED,
    ORANGE,
    SMALL,
    WIDTH,
    Drawing,
    round_marks,
)
from mpcore.workbook.format_picture import shown
from mpcore.workbook.tile_trace import Trace

LEFT, RIGHT = 74.0, WIDTH - 12
VALUES, ERRORS = 130.0, 160.0  # heights of the two parts
LINE_HEIGHT = 14.0
DOTS = 360  # points of a curve: more than pixels
SCARCE = 5  # per cent of the errors, the smallest ones: the axis need not reach down to them
LABEL = 15.0  # the height that a label of an axis takes
MARKS, STEPS = 5, 6  # at most so many distances between labels: of the sums, of the steps


def _thinned(count: int) -> np.ndarray:
    """Indices of at most `DOTS` additions, the last one among them."""
    return np.unique(np.linspace(0, count - 1, min(count, DOTS)).round().astype(int))


def sums(d: Drawing, top: float, trace: Trace, step: int) -> None:
    """The newest partial sum after each rounding, and the exact one."""
    d.text(8, top + 18, "The newest partial sum", font_weight=600)
    at, height, base = _thinned(len(trace.values)), VALUES - 44, top + VALUES - 14
    finite = np.concatenate([trace.values, trace.exact])
    finite = finite[np.isfinite(finite)]
    marks = round_marks(min(0.0, float(finite.min())), max(0.0, float(finite.max())), MARKS)
    low, high = marks[0], marks[-1]

    def y(value: float) -> float:
        return base - (value - low) / (high - low) * height

    for value in marks:
        d.line(LEFT, y(value), RIGHT, y(value), LINE)
        d.text(LEFT - 5, y(value) + 4, shown(value, 6), SMALL, MUTED, text_anchor="end")
    _curve(d, trace.exact, at, y, FG, len(trace.exact), stroke_width=1.2, stroke_dasharray="4 3")
    _curve(d, trace.values, at, y, BLUE, step, stroke_width=2)
    _legend(d, top + 18, (("emulated", BLUE, None), ("exact", FG, "4 3")))
    _cursor(d, trace, step, base - height, base)


def decades_of(error: np.ndarray) -> tuple[int, int]:
    """Powers of ten between which the errors of a whole trace lie, all but the smallest ones."""
    found = error[np.isfinite(error) & (error > 0)]
    if not found.size:
        return -2, 0
    low = int(np.floor(np.log10(np.percentile(found, SCARCE))))
    return low, max(int(np.ceil(np.log10(found.max()))), low + 1)


def errors(d: Drawing, top: float, trace: Trace, step: int, names: tuple[str, ...]) -> None:
    """How far each partial sum is off, which additions were swamped (in a row called `names`, a
    line for each), and the axis of both: the steps."""
    d.text(8, top + 18, "Its absolute error", font_weight=600)
    at, height, base = _thinned(len(trace.error)), ERRORS - 76, top + ERRORS - 45
    low, high = decades_of(trace.error)
    decade = height / (high - low)

    def y(value: float) -> float:
        exponent = np.log10(value) if value > 0 else low
        return base - (min(max(float(exponent), low), high) - low) * decade

    d.line(LEFT, base, RIGHT, base, LINE)
    every = int(np.ceil(LABEL / decade))
    for exponent in range(high, low - 1, -every):
        d.line(LEFT, y(10.0**exponent), RIGHT, y(10.0**exponent), LINE)
        text = f"10{numbers.superscript(exponent)}" if exponent else "1"
        d.text(LEFT - 5, y(10.0**exponent) + 4, text, SMALL, MUTED, text_anchor="end")
    _curve(d, trace.error, at, y, ORANGE, step, stroke_width=1.8)
    _cursor(d, trace, step, base - height, base)
    scale = (RIGHT - LEFT) / len(trace.swamped)
    for first, last in spans(np.flatnonzero(trace.swamped[:step])):
        d.rect(LEFT + first * scale, base + 8, (last - first) * scale, 11, fill=COLOUR["heat6"])
    for line, name in enumerate(names):
        y_name = base + 18 + LINE_HEIGHT * line
        d.text(LEFT - 5, y_name, name, SMALL, MUTED, text_anchor="end")
    _steps(d, base + 22 + LINE_HEIGHT * (len(names) - 1), len(trace.values))


def _steps(d: Drawing, top: float, count: int) -> None:
    """The axis that both curves have."""
    d.line(LEFT, top, RIGHT, top, LINE)
    d.text(LEFT - 12, top + 15, "step", SMALL, MUTED, text_anchor="end")
    for step in round_marks(0, count, STEPS):
        if step <= count:
            x = LEFT + step * (RIGHT - LEFT) / count
            d.line(x, top, x, top + 4, MUTED)
            d.text(x, top + 15, f"{step:g}", SMALL, MUTED, text_anchor="middle")


def _curve(d: Drawing, values, at, y, colour, upto: int, **style) -> None:
    scale = (RIGHT - LEFT) / len(values)
    points = [
        (LEFT + (i + 1) * scale, y(float(values[i])))
        for i in at
        if i < upto and np.isfinite(values[i])
    ]
    if len(points) > 1:
        d.path(points, colour, **style)


def _cursor(d: Drawing, trace, step, top: float, bottom: float) -> None:
    x = LEFT + step * (RIGHT - LEFT) / len(trace.values)
    d.line(x, top, x, bottom, MUTED, stroke_width=1.2)


def _legend(d: Drawing, y: float, entries) -> None:
    x = RIGHT - 170
    for text, colour, dashes in entries:
        d.line(x, y - 4, x + 22, y - 4, colour, stroke_width=2, stroke_dasharray=dashes)
        d.text(x + 28, y, text, SMALL, MUTED)
        x += 105


def spans(products: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of neighbouring indices, as (first, one past the last)."""
    if isinstance(products, range):
        return [(products.start, products.stop)] if len(products) else []
    ordered = np.sort(np.asarray(products, dtype=np.int64))
    if not ordered.size:
        return []
    cuts = np.flatnonzero(np.diff(ordered) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(ordered, cuts)]
