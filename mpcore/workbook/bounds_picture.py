"""Measured errors beside their bounds, over the length of a sum: the picture of lesson 03.

The sum is one of a single sign, the squares of captured weights: there errors of one sign add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

import mpcore as mp
from mpcore.report import numbers
from mpcore.report.palette import COLOUR as SENTINEL
from mpcore.report.picture import SMALL, Canvas, styled
from mpcore.workbook.drawing import Drawing
from mpcore.workbook.explorer import figure_html
from mpcore.workloads.captured import captured

DEPTHS = (128, 256, 512, 1024, 2048, 4096, 6144)
PROMOTED = 128  # products between two promotions
FORMAT = "fp8_e4m3"
WIDTH, HEIGHT, LEFT = 470.0, 430.0, 44.0  # points
NAMES = {"fp32": "fp32, to nearest", "unit": "Hopper.fp8", "promoted": "Hopper.fp8, promoted"}


@lru_cache(maxsize=1)
def squares() -> tuple[np.ndarray, np.ndarray]:
    """[1, 6144] and [6144, 1] on the grid of e4m3: captured weights, each beside itself.

    One scale brings the largest to 8, where the squares of nearly all are far from underflow.
    """
    weights = captured("down_proj_11_weight").values.reshape(1, -1).astype(np.float64)
    rounded = mp.round_to(8 * weights / abs(weights).max(), FORMAT).astype(np.float64)
    return rounded, rounded.T


@dataclass(frozen=True)
class Growth:
    """Relative errors of the sums of the first so many squares, and their bounds: [depths]."""

    depths: tuple[int, ...]
    measured: dict[str, np.ndarray]  # by the keys of NAMES
    worst: dict[str, np.ndarray]
    probable: np.ndarray  # of fp32


@lru_cache(maxsize=4)
def error_growth(depths: tuple[int, ...] = DEPTHS) -> Growth:
    """Measure the errors of the sums and compute their bounds."""
    a, b = squares()
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in NAMES}
    for depth in depths:
        parts = f"split_k:{max(1, depth // PROMOTED)}"
        x, y = a[:, :depth], b[:depth]
        for name, unit, reduction in (
            ("fp32", "fp32", "sequential"),
            ("unit", "Hopper.fp8", "sequential"),
            ("promoted", "Hopper.fp8", parts),
        ):
            options = {"accumulator": unit, "reduction": reduction}
            value = mp.matmul(x, y, FORMAT, FORMAT, **options).value
            bounds = mp.error_bounds(x, y, FORMAT, FORMAT, **options)
            found = (abs(value - x @ y), bounds.worst, bounds.probable)
            rows[name].append(tuple(float(z[0, 0] / bounds.magnitude[0, 0]) for z in found))
    columns = {name: np.array(found).T for name, found in rows.items()}
    return Growth(
        depths,
        {name: found[0] for name, found in columns.items()},
        {name: found[1] for name, found in columns.items()},
        columns["fp32"][2],
    )


class BoundsPicture:
    """The picture, as the value of a cell; it reads as its text alternative."""

    def __init__(self, growth: Growth | None = None) -> None:
        self.growth = growth or error_growth()

    @property
    def alt(self) -> str:
        """What the picture shows, with its main figures."""
        g = self.growth
        ends = "; ".join(
            f"{NAMES[name]} {numbers.number(g.measured[name][-1], 2)} where at most "
            f"{numbers.number(g.worst[name][-1], 2)} is possible"
            for name in NAMES
        )
        return (
            f"Relative error over the number of products, {g.depths[0]} to {g.depths[-1]}. At "
            f"{g.depths[-1]} products: {ends}; the square-root bound of fp32 is "
            f"{numbers.number(g.probable[-1], 2)}."
        )

    def __repr__(self) -> str:
        return self.alt

    def svg(self) -> str:
        """The picture."""
        g = self.growth
        with styled():
            canvas = Canvas("bounds", "Relative error over the number of products", HEIGHT, WIDTH)
            canvas.text(6, 40, "Accumulated in fp32, rounded to nearest", weight="bold", size=SMALL)
            upper = _axes(canvas, 52, g.depths)
            _line(upper, g.depths, g.worst["fp32"], "worst case", "fg", "--")
            _line(upper, g.depths, g.probable, "√n bound", "muted", ":")
            _line(upper, g.depths, g.measured["fp32"], "measured", "fix", "-", "o")
            canvas.text(6, 232, "Matrix unit Hopper.fp8, cut off", weight="bold", size=SMALL)
            lower = _axes(canvas, 244, g.depths)
            _line(lower, g.depths, g.worst["unit"], "block bound", "fg", "--")
            _line(lower, g.depths, g.measured["unit"], "measured", "failing", "-", "X")
            _line(lower, g.depths, g.worst["promoted"], "block bound, promoted", "fg", "-.")
            _line(lower, g.depths, g.measured["promoted"], "measured, promoted", "fix", "-", "o")
            canvas.text(LEFT, 421, "products in the sum", size=SMALL)
            layer = canvas.layer()
        opening, _, rest = Drawing(HEIGHT, WIDTH).svg(self.alt).partition(">")
        return f'{opening} stroke-linejoin="round">{layer}{rest}'

    def _repr_html_(self) -> str:
        caption = (
            "Squares of captured weights in e4m3; both axes are logarithmic, so that an exact sum "
            "has no place there. Dashed and dotted: bounds, which no sum can pass (the √n bound: "
            "only rarely)."
        )
        return figure_html(self.svg(), caption)


def _axes(canvas: Canvas, top: float, depths: tuple[int, ...]) -> Axes:
    axes = canvas.axes(LEFT, top, WIDTH - LEFT - 138, 146)
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(depths[0] / 1.1, depths[-1] * 1.06)
    axes.xaxis.set_major_locator(FixedLocator([d for d in depths if d != 4096]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: _power_of_ten(round(np.log10(value))))
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color=SENTINEL["line"], linewidth=0.6)
    return axes


def _power_of_ten(exponent: int) -> str:
    return f"10{numbers.superscript(exponent)}" if exponent else "1"


def _line(axes: Axes, depths, values, label: str, colour: str, dashes: str, mark: str = "") -> None:
    """A line whose name stands at its right end."""
    shown = np.where(values > 0, values, np.nan)
    axes.plot(
        depths, shown, dashes, color=SENTINEL[colour], linewidth=1.6, marker=mark, markersize=5
    )
    place = (depths[-1], values[-1])
    axes.annotate(label, place, (9, -3), textcoords="offset points", size=SMALL)
