"""The picture of the primary metric over policy revisions."""

from __future__ import annotations

import textwrap

from matplotlib.ticker import FuncFormatter, MaxNLocator

from mpcore.records import Packet
from mpcore.report import numbers
from mpcore.report.marks import halo, marker, tick
from mpcore.report.picture import COLOUR, SMALL, WIDTH, Canvas, Picture, empty_picture, styled
from mpcore.report.reading import threshold_of


def figure_trend(packet: Packet) -> Picture:
    """Loss on the worst slice and modelled tokens per second, over the policy revisions."""
    points = sorted(packet.trend, key=lambda point: point.revision)
    threshold = threshold_of(packet)
    title = "The metric over policy revisions"
    if not points:
        return empty_picture("trend", title, "No revision was run.")
    names = [
        line
        for point in points
        for line in textwrap.wrap(
            f"{point.revision}: {point.policy} ({'holds' if point.holds else 'broken'})",
            52,
            subsequent_indent="    ",
        )
    ]
    with styled():
        canvas = Canvas("trend", title, 322 + 13 * len(names))
        canvas.text(6, 38, "Loss added per token, worst slice, nats", size=SMALL)
        upper = canvas.axes(52, 48, WIDTH - 112, 104)
        canvas.text(6, 176, "Tokens a second, modelled", size=SMALL)
        lower = canvas.axes(52, 186, WIDTH - 112, 88)
        places = list(range(len(points)))
        for axes in (upper, lower):
            axes.set_xlim(-0.5, len(points) - 0.5)
            axes.set_xticks(places, [str(point.revision) for point in points])
            axes.grid(axis="y", color=COLOUR["line"], linewidth=0.6)
            axes.set_axisbelow(True)
        for place, point in zip(places, points, strict=True):
            run = "fix" if point.holds else "failing"
            for axes, figure, label in (
                (upper, point.delta_nll, numbers.loss(point.delta_nll.value)),
                (lower, point.tokens_per_s, numbers.number(point.tokens_per_s.value)),
            ):
                axes.plot([place] * 2, [figure.low, figure.high], color=COLOUR[run], linewidth=2)
                axes.plot([place], [figure.value], **marker(run))
                axes.annotate(
                    label,
                    (place, figure.value),
                    (8, 5),
                    textcoords="offset points",
                    size=SMALL,
                    bbox=halo(),
                )
        highest = max([threshold, *(point.delta_nll.high for point in points)])
        lowest = min([0.0, *(point.delta_nll.low for point in points)])
        upper.set_ylim(min(lowest * 1.1, -0.03 * highest), highest * 1.15)
        upper.axhline(threshold, color=COLOUR["fg"], linewidth=1, linestyle=(0, (4, 3)))
        upper.annotate(
            f"guardrail\n{threshold:g}",
            (1, threshold),
            (4, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            size=SMALL,
            va="center",
        )
        lower.set_ylim(0, 1.18 * max(point.tokens_per_s.high for point in points))
        lower.yaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.count(value)))
        upper.yaxis.set_major_formatter(FuncFormatter(tick))
        for axes in (upper, lower):
            axes.yaxis.set_major_locator(MaxNLocator(4))
        canvas.text(6, 306, "Policy revision", size=SMALL, weight="bold")
        for index, line in enumerate(names):
            canvas.text(6, 320 + 13 * index, line, size=SMALL)
        listed = "; ".join(
            f"revision {point.revision}, {point.policy}: {numbers.loss_estimate(point.delta_nll)} "
            f"on {numbers.words(point.worst_slice)}, {'holds' if point.holds else 'broken'}, "
            f"{numbers.estimate(point.tokens_per_s)} tokens a second modelled"
            for point in points
        )
        alt = f"Loss on the worst slice and modelled speed over policy revisions: {listed}."
        caption = (
            "Bars are intervals (loss) and modelling bands (speed). Speed counts only where the "
            "loss stays under the guardrail: a cross marks a revision that does not."
        )
        return canvas.picture(alt, caption)
