"""The picture of the loss scale player: scale and loss over the steps, and one step's signals.

Matplotlib takes about 50 ms for these three panels, too long for a picture at every move. It draws
the frames (axes, ticks, shaded zones), which stay the same while a run is played and are kept;
what moves is put between and on top of them as SVG.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from math import ceil, floor, log2
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from mpcore.formats import Format, get_element_format
from mpcore.report import numbers
from mpcore.report.palette import COLOUR as SENTINEL
from mpcore.report.picture import SMALL, Canvas, styled
from mpcore.workbook.drawing import BG, BLUE, COLOUR, FG, MUTED, ORANGE, Drawing
from mpcore.workloads.digits_training import TrainingRun

WIDTH, HEIGHT = (
    470.0,
    408.0,
)  # points; as wide on a screen, and with as large letters, as the others
LEFT, RIGHT = 38.0, WIDTH - 10  # of every panel, in points
LOWEST, HIGHEST = -40, 40  # binades of the histogram, the same for all formats and runs
TICK_STEPS = (1, 2, 4, 8, 16, 32)  # binades from one tick of the scale to the next
LOSS_STEP = 2.5  # nats; an untrained run starts at ln 10 = 2.3
PEAKS = (0.1, 0.2, 0.3, 0.4, 0.6, 1.0)  # upper ends of the histogram's axis
CHARACTER = 5.2  # points, the mean width of a small one
LEAST_BAR = 1.2  # points: one value too large skips a step, so even one is seen
TITLE = {"size": 10.3, "font_weight": "bold"}
FAINT = 0.4  # opacity of what is yet to come


class Panel(NamedTuple):
    """Where a panel lies, in points, and the ends of its axes in units of its data."""

    top: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, x: float) -> float:
        """The place of a value on the horizontal axis; kept inside the panel."""
        low, high = self.x
        return LEFT + (min(max(x, low), high) - low) / (high - low) * (RIGHT - LEFT)

    def down(self, y: float) -> float:
        """The place of a value on the vertical axis; kept inside the panel."""
        low, high = self.y
        return self.top + (high - min(max(y, low), high)) / (high - low) * self.height

    @property
    def bottom(self) -> float:
        """The place of the horizontal axis."""
        return self.top + self.height


class Zone(NamedTuple):
    """What becomes of magnitudes from 2**low to 2**high in a format."""

    name: str
    low: float
    high: float
    fill: str


def loss_scale_picture(
    run: TrainingRun, oracle: TrainingRun, step: int, outcome: str, label: str
) -> str:
    """The whole picture of a run at a step as SVG; `oracle` is the float32 run, `outcome` says in
    at most 60 characters what became of the step's signals, `label` is the text alternative."""
    d = Drawing(HEIGHT + 18, WIDTH)
    scale, loss, signals = _panels(run, oracle)
    f = get_element_format(run.settings.format)
    for panel in (scale, loss):
        at = panel.across(step)
        d.line(at, panel.top, at, panel.bottom, FG, stroke_width=0.8, stroke_dasharray="2 2")
    _scales(d, scale, run, step)
    _losses(d, loss, run, oracle, step)
    d.text(4, signals.top - 27, outcome, SMALL)
    _signals(d, signals, run, step, f)
    d.text((LEFT + RIGHT) / 2, HEIGHT + 10, _rule(run), SMALL, MUTED, text_anchor="middle")
    opening, _, moving = d.svg(label).partition(">")
    frames = _scale_frame(scale) + _loss_frame(loss) + _signal_frame(signals, f)
    return f'{opening} stroke-linejoin="round">{frames}{moving}'


def power_of_two(exponent: int) -> str:
    """2¹⁶."""
    return f"2{numbers.superscript(exponent)}"


def scale_exponents(run: TrainingRun) -> np.ndarray:
    """int64 [steps]: the player's scales are powers of two; these are their exponents."""
    return np.frexp(run.scale)[1].astype(np.int64) - 1


def zones(f: Format) -> list[Zone]:
    """The zones of a format, from the smallest magnitudes to the largest."""
    zero = f.tiny_exponent - 1  # half of the smallest value, which as a tie goes to the even zero
    edges = [-np.inf, zero, f.emin, overflow_edge(f), np.inf]
    names = {"flushed to zero": "heat1", "subnormal": "heat0", "normal": "bg", "overflow": "heat1"}
    ends = zip(names.items(), pairwise(edges), strict=True)
    return [Zone(name, low, high, fill) for (name, fill), (low, high) in ends]


def overflow_edge(f: Format) -> float:
    """log2 of the magnitude from which on nearest rounding leaves the finite values."""
    last_step = 2.0 ** (floor(log2(f.max)) - f.mantissa_bits)
    return log2(f.max) + log2(1 + last_step / f.max / 2)  # the sum itself may be beyond a float


# --- panels and their frames --------------------------------------------------------------------


def _panels(run: TrainingRun, oracle: TrainingRun) -> tuple[Panel, Panel, Panel]:
    """The panels: their axes hold the whole run, so that nothing jumps while it is played. The
    ends are coarse, so that neighbouring settings share their frames."""
    exponents, steps = scale_exponents(run), (-2.0, len(run.scale) + 1.0)
    low, high = 4 * floor((exponents.min() - 1) / 4), 4 * ceil((exponents.max() + 1) / 4)
    top = LOSS_STEP * max(1, ceil(max(run.loss.max(), oracle.loss.max()) / LOSS_STEP))
    peak = next(end for end in PEAKS if end >= _shares(run).max())
    return (
        Panel(26, 72, steps, (float(low), float(high))),
        Panel(131, 66, steps, (0.0, top)),
        Panel(287, 72, (float(LOWEST), HIGHEST + 1.0), (0.0, peak)),
    )


def _shares(run: TrainingRun) -> np.ndarray:
    """float64 [steps, binades of the picture]: the outermost ones hold all that lies beyond."""
    bins = np.clip(run.bin_exponents, LOWEST, HIGHEST) - LOWEST
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    counts = np.add.reduceat(run.histogram, starts, axis=1)
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def _frame(name: str, panel: Panel, ticks: Callable[[Axes], None], *below: str) -> str:
    with styled():
        canvas = Canvas(f"player-{name}", "", HEIGHT, WIDTH)
        axes = canvas.axes(LEFT, panel.top, RIGHT - LEFT, panel.height)
        axes.set(xlim=panel.x, ylim=panel.y)
        axes.tick_params(length=3)
        axes.patch.set_visible(False)
        ticks(axes)
        for line, text in enumerate(below):
            place = (LEFT + RIGHT) / 2, panel.bottom + 27 + 14 * line
            canvas.text(*place, text, ha="center", size=SMALL)
        return canvas.layer()


def _step_axes(axes: Axes, labelled: bool) -> None:
    ticks = range(0, int(axes.get_xlim()[1]) - 1, 25)  # up to the last step
    axes.set_xticks(ticks, [str(tick) if labelled else "" for tick in ticks])
    axes.grid(axis="y", color=SENTINEL["line"], linewidth=0.6)


@lru_cache(maxsize=64)
def _scale_frame(panel: Panel) -> str:
    def ticks(axes: Axes) -> None:
        low, high = map(int, panel.y)
        every = next(s for s in TICK_STEPS if (high - low) / s <= 5)
        powers = range(every * ceil(low / every), high + 1, every)
        axes.set_yticks(powers, [power_of_two(power) for power in powers])
        _step_axes(axes, labelled=False)

    return _frame("scale", panel, ticks)


@lru_cache(maxsize=16)
def _loss_frame(panel: Panel) -> str:
    def ticks(axes: Axes) -> None:
        axes.set_yticks([panel.y[1] / LOSS_STEP * tick for tick in (0, 1, 2)])
        axes.yaxis.set_major_formatter("{x:g}")
        _step_axes(axes, labelled=True)

    return _frame("loss", panel, ticks, "optimizer step (the first is 0)")


@lru_cache(maxsize=32)
def _signal_frame(panel: Panel, f: Format) -> str:
    def ticks(axes: Axes) -> None:
        for zone in zones(f):
            low, high = np.clip((zone.low, zone.high), *panel.x)
            axes.axvspan(low, high, facecolor=SENTINEL[zone.fill], zorder=0)
            if panel.x[0] < low < high:
                axes.axvline(low, color=SENTINEL["muted"], linewidth=0.7)
        axes.set_yticks([0, panel.y[1] / 2, panel.y[1]])
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}{numbers.THIN}%")
        powers = range(-32, 33, 16)
        axes.set_xticks(powers, [power_of_two(power) for power in powers])

    zero, normal = power_of_two(f.tiny_exponent - 1), power_of_two(f.emin)
    edges = f"{f.name}: zero up to {zero}, normal from {normal}, max {_whole(f.max)}"
    below = "magnitude (the outermost bars hold all beyond)", edges
    return _frame("signals", panel, ticks, *below)


# --- what moves ---------------------------------------------------------------------------------


def _right_text(d: Drawing, y: float, text: str) -> float:
    """Small text that ends at the right margin; returns about where it starts."""
    d.text(RIGHT, y, text, SMALL, text_anchor="end")
    return RIGHT - CHARACTER * len(text)


def _cross(d: Drawing, x: float, y: float, **style: object) -> None:
    """The marker of a skipped step."""
    arms = f"M{x - 3:.2f} {y - 3:.2f}l6 6m0 -6l-6 6"
    d.add("path", d=arms, stroke=ORANGE, stroke_width=2, fill="none", **style)


def _dot(d: Drawing, x: float, y: float) -> None:
    d.add("circle", cx=x, cy=y, r=3.2, fill=BLUE, stroke=BG, stroke_width=0.9)


def _scales(d: Drawing, panel: Panel, run: TrainingRun, step: int) -> None:
    exponents = scale_exponents(run)
    d.text(4, 15, f"Loss scale {scale_words(int(exponents[step]))}", **TITLE)
    skipped = np.flatnonzero(run.overflowed)
    start = _right_text(d, 15, f"skipped (overflow): {(skipped <= step).sum()}")
    if skipped.size:
        _cross(d, start - 4, 12)
    stairs = [
        (panel.across(i + half), panel.down(exponent))
        for i, exponent in enumerate(exponents.tolist())
        for half in (-0.5, 0.5)
    ]
    d.path(stairs[2 * step + 1 :], BLUE, stroke_width=1.6, opacity=FAINT)
    d.path(stairs[: 2 * step + 2], BLUE, stroke_width=1.6)
    for i in skipped.tolist():
        faint = {"opacity": FAINT} if i > step else {}
        _cross(d, panel.across(i), panel.down(exponents[i]), **faint)
    if not run.overflowed[step]:
        _dot(d, panel.across(step), panel.down(exponents[step]))


def _rule(run: TrainingRun) -> str:
    """How the scale moves, for a page without the form."""
    rule = run.settings.loss_scale
    first = f"first scale {power_of_two(int(log2(rule.init)))}"
    if not rule.dynamic:
        return f"{first}, static"
    times = "×" + numbers.THIN
    return (
        f"{first}; {times}{rule.growth:g} after {rule.interval} good steps, "
        f"{times}{rule.backoff:g} after an overflow"
    )


def scale_words(exponent: int) -> str:
    """A scale as a power and in figures: 2¹⁶ = 65 536."""
    return f"{power_of_two(exponent)} = {_whole(2.0**exponent)}"


def _whole(value: float) -> str:
    return numbers.count(value) if 1 <= value <= 2**30 else numbers.number(value)


def _losses(d: Drawing, panel: Panel, run: TrainingRun, oracle: TrainingRun, step: int) -> None:
    y = panel.top - 11
    d.text(4, y, f"Training loss {run.loss[step]:.2f} nats", **TITLE)
    start = _right_text(d, y, f"fp32: {oracle.loss[step]:.2f}")
    dashed = {"stroke_width": 1.4, "stroke_dasharray": "4 2.5"}
    d.line(start - 22, y - 3, start - 3, y - 3, MUTED, **dashed)
    ours, theirs = (
        [(panel.across(i), panel.down(value)) for i, value in enumerate(one.loss.tolist())]
        for one in (run, oracle)
    )
    d.path(ours[step:], BLUE, stroke_width=1.6, opacity=FAINT)
    d.path(ours[: step + 1], BLUE, stroke_width=1.6)
    d.path(theirs, MUTED, **dashed)
    _dot(d, *ours[step])


def _signals(d: Drawing, panel: Panel, run: TrainingRun, step: int, f: Format) -> None:
    d.text(4, panel.top - 41, f"Scaled backward signals, step {step}", **TITLE)
    _right_text(d, panel.top - 41, "share per binade")
    found = zones(f)
    _zone_names(d, panel, found)
    exponents = np.arange(LOWEST, HIGHEST + 1)
    kept = (exponents >= found[0].high) & (exponents < found[-1].low)
    for chosen, fill in ((kept, COLOUR["heat5"]), (~kept, ORANGE)):
        bars = zip(exponents[chosen].tolist(), _shares(run)[step][chosen].tolist(), strict=True)
        d.add("path", d="".join(_bar(panel, *bar) for bar in bars if bar[1]) or None, fill=fill)


def _bar(panel: Panel, exponent: int, share: float) -> str:
    left, right = panel.across(exponent) + 0.4, panel.across(exponent + 1) - 0.4
    top = min(panel.down(share), panel.bottom - LEAST_BAR)
    return f"M{left:.2f} {panel.bottom:.2f}V{top:.2f}H{right:.2f}V{panel.bottom:.2f}z"


def _zone_names(d: Drawing, panel: Panel, found: list[Zone]) -> None:
    """The zones' names in a row above the panel, with a line to a zone too narrow for its name."""
    low, high = panel.x
    free = LEFT - 20.0  # from where on the row is free
    for zone in found:
        if zone.high <= low or zone.low >= high:
            continue
        middle = panel.across((max(zone.low, low) + min(zone.high, high)) / 2)
        half = CHARACTER * len(zone.name) / 2 + 4
        place = max(middle, free + half)
        free = place + half
        d.text(place, panel.top - 11, zone.name, SMALL, text_anchor="middle")
        ends = panel.across(max(zone.low, low)), panel.across(min(zone.high, high))
        if ends[0] <= place - half and place + half <= ends[1]:
            continue  # it stands above its zone, and no other
        d.line(place, panel.top - 8, middle, panel.top + 1, MUTED, stroke_width=0.8)
