"""The picture of one outlier: what enters an operator, token by token, and what its scale loses."""

from __future__ import annotations

from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from mpcore.records import Packet
from mpcore.report import numbers
from mpcore.report.picture import COLOUR, SMALL, WIDTH, Canvas, Picture, empty_picture, styled
from mpcore.report.reading import short_operator

FLOOR = 1e-6
"""Share of the largest value below which nothing is drawn: a median can be zero."""


def figure_outlier(packet: Packet) -> Picture:
    """Largest and median |activation| of every token, and the line below which all becomes zero."""
    profile = packet.diagnosis.profile
    title = "One scale for all tokens"
    if profile is None:
        return empty_picture("outlier", title, "No outlier was looked at.")
    floor = FLOOR * max(profile.largest)
    places = range(len(profile.largest))
    with styled():
        canvas = Canvas("outlier", title, 262)
        where = f"{short_operator(profile.operator)}, {numbers.words(profile.slice)}"
        canvas.text(6, 34, f"|activation| entering {where}, fp32 run", size=SMALL)
        axes = canvas.axes(46, 66, WIDTH - 60, 150)
        axes.set_yscale("log")
        for name, values, marker in (
            ("largest", profile.largest, "o"),
            ("median", profile.median, "_"),
        ):
            colour = COLOUR["failing" if name == "largest" else "comparator"]
            axes.plot(
                places,
                [max(value, floor) for value in values],
                linestyle="",
                marker=marker,
                markersize=4.5,
                markeredgewidth=1.2 if marker == "_" else 0,
                color=colour,
                clip_on=False,
            )
        key = canvas.axes(46, 38, WIDTH - 60, 16)
        key.set_axis_off()
        key.set(xlim=(0, WIDTH - 60), ylim=(16, 0))
        key.plot([4], [9], linestyle="", marker="o", markersize=4.5, color=COLOUR["failing"])
        key.text(12, 12, "largest of a token", size=SMALL)
        key.plot([120], [9], linestyle="", marker="_", markersize=6, color=COLOUR["comparator"])
        key.text(128, 12, "median of a token", size=SMALL)
        alt_line = ""
        if profile.zero_below:
            axes.axhline(profile.zero_below, color=COLOUR["fg"], linewidth=1, linestyle=(0, (4, 3)))
            axes.annotate(
                f"below: all zero in {profile.format}",
                (1, profile.zero_below),
                (0, -8),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                size=SMALL,
                ha="right",
                va="center",
                bbox={"facecolor": COLOUR["bg"], "edgecolor": "none", "pad": 1},
            )
            alt_line = (
                f" Everything below {numbers.number(profile.zero_below)} becomes zero in "
                f"{profile.format}: {numbers.share(profile.share_below or 0)} of the values."
            )
        axes.set_xlim(-1, len(profile.largest))
        axes.set_ylim(min(max(floor, 0.5 * min(profile.median)), max(profile.largest) / 100), None)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.number(value, 1)))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("position of the token in its window", size=SMALL)
        ranked = sorted(places, key=lambda place: -profile.largest[place])[:2]
        largest = " and ".join(
            f"{numbers.number(profile.largest[place])} at position {place}" for place in ranked
        )
        alt = (
            f"Largest and median activation of {len(profile.largest)} tokens entering {where}. "
            f"The two largest: {largest}.{alt_line}"
        )
        caption = (
            "Each dot is the largest value of one token, each dash its median. One scale for all "
            "tokens has to reach the highest dot, so its step is coarse: what lies below the "
            "dashed line (half a step) becomes zero."
            if profile.zero_below
            else "Each dot is the largest value of one token, each dash its median."
        )
        return canvas.picture(alt, caption)
