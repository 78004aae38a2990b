"""Marks that several pictures share: intervals, markers, the guardrail line, the axis of loss."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from mpcore.records import Estimate
from mpcore.report import numbers
from mpcore.report.picture import COLOUR, MARKER, SMALL, WIDTH, Canvas, verbatim

LOSS_AXIS = "loss added per token, nats (0 = the fp32 oracle)"
STEEP = 40  # a loss this many times the threshold would squeeze the guardrail into the axis


def legend(canvas: Canvas, runs: list[str], top: float) -> None:
    """Marker and name of each run, on one line."""
    left = 10.0
    layer = canvas.axes(0, 0, WIDTH, canvas.height)
    layer.set_axis_off()
    layer.set(xlim=(0, WIDTH), ylim=(canvas.height, 0))
    layer.patch.set_visible(False)
    for run in runs:
        layer.plot([left], [top - 3], **marker(run))
        layer.text(left + 8, top, verbatim(run), size=SMALL)
        left += 24 + 6.4 * len(run)


def interval(axes: Axes, figure: Estimate, y: float, run: str) -> None:
    """A value as a marker on its interval."""
    colour = COLOUR.get(run, COLOUR["fg"])
    axes.plot([figure.low, figure.high], [y, y], color=colour, linewidth=2)
    axes.plot([figure.value], [y], **marker(run))


def marker(run: str) -> dict[str, object]:
    """How a run's value is drawn."""
    # The rim in the background's colour keeps the shape apart from the interval behind it.
    return {
        "marker": MARKER.get(run, "s"),
        "color": COLOUR.get(run, COLOUR["fg"]),
        "linestyle": "",
        "markersize": 9 if run == "failing" else 7.5,
        "markeredgecolor": COLOUR["bg"],
        "markeredgewidth": 0.9,
    }


def right_text(axes: Axes, y: float, text: str) -> None:
    """Text in the column right of the axes."""
    axes.text(1.025, y, text, transform=axes.get_yaxis_transform(), size=SMALL, va="center")


def halo() -> dict[str, object]:
    """A box in the background's colour behind a text."""
    # Text over the guardrail line: the line must not strike it through.
    return {"facecolor": COLOUR["bg"], "edgecolor": "none", "pad": 1.2}


def guardrail(axes: Axes, threshold: float) -> None:
    """The dashed line that a loss must not reach."""
    axes.axvline(threshold, color=COLOUR["fg"], linewidth=1, linestyle=(0, (4, 3)), zorder=0.6)
    axes.annotate(
        f"guardrail {threshold:g}",
        (threshold, 1),
        (-2, 7),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        size=SMALL,
        ha="left",
        va="center",
    )


def loss_axis(axes: Axes, lowest: float, highest: float, threshold: float) -> None:
    """A horizontal axis of loss: linear, or logarithmic beyond the threshold for huge losses."""
    top = max(highest, 1.5 * threshold)
    if top > STEEP * threshold:
        axes.set_xscale("symlog", linthresh=threshold)
        axes.set_xlim(min(lowest, -0.3 * threshold), 1.5 * top)
        decades = range(1 + math.floor(math.log10(top / threshold)))
        axes.xaxis.set_major_locator(FixedLocator([0, *(threshold * 10**d for d in decades)]))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(min(lowest - 0.015 * top, -0.035 * top), 1.04 * top)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(tick))
    axes.axvline(0, color=COLOUR["line"], linewidth=0.8, zorder=0.5)
    axes.set_xlabel(LOSS_AXIS, size=SMALL)
    bare_y(axes)


def tick(value: float, _: object) -> str:
    """A tick label with a real minus."""
    return f"{value:g}".replace("-", numbers.MINUS)


def bare_y(axes: Axes) -> None:
    """No vertical axis: rows are labelled inside."""
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
