"""Pictures of where in the model: effects layer by layer, and incidence by operator kind."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from mpcore.records import Packet
from mpcore.report import numbers
from mpcore.report.picture import COLOUR, SMALL, WIDTH, Canvas, Picture, styled
from mpcore.report.reading import (
    KIND_LABEL,
    KINDS,
    activation_incidence,
    effect_grid,
    layer_and_kind,
    layers_of,
    short_operator,
)

STEPS = 7  # colours of the heat map, two a decade
CELL = 11.0  # points a layer


def figure_layers(packet: Packet) -> Picture:
    """Heat map layer × operator kind of the KL that the fault causes there alone."""
    layers = layers_of(packet)
    grid = effect_grid(packet)
    members = {layer_and_kind(name) for name in packet.diagnosis.operators}
    top_step = _top_step([effect.kl for effect in grid.values()])
    height = CELL * layers
    with styled():
        canvas = Canvas("layers", "Where the fault hurts on its own", height + 148)
        axes = canvas.axes(34, 52, 206, height)
        for layer in range(layers):
            for column, kind in enumerate(KINDS):
                _cell(axes, layer, column, grid.get((layer, kind)), top_step)
        for layer, kind in sorted(members, key=str):
            if layer is not None and kind in KINDS:
                _member(axes, layer, KINDS.index(kind), grid.get((layer, kind)), top_step)
        axes.set_xlim(-0.05, len(KINDS) + 0.05)
        axes.set_ylim(layers + 0.05, -0.05)
        axes.xaxis.tick_top()
        axes.set_xticks([i + 0.5 for i in range(len(KINDS))], [KIND_LABEL[k] for k in KINDS])
        axes.set_yticks([i + 0.5 for i in range(0, layers, 5)], map(str, range(0, layers, 5)))
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        canvas.text(6, 46, "layer", size=SMALL)
        _outlier_strip(canvas, packet, height)
        _scale(canvas, top_step, height + 66)
        ranked = sorted(packet.diagnosis.effects, key=lambda effect: -effect.kl)[:5]
        listed = "; ".join(
            f"{short_operator(one.operator)} {numbers.number(one.kl)}" for one in ranked
        )
        named = ", ".join(short_operator(name) for name in packet.diagnosis.operators) or "none"
        alt = (
            "Divergence (KL, nats a token) when the fault is put into one operator of the clean "
            f"run, {len(packet.diagnosis.effects)} operators screened. Largest: {listed}. "
            f"Members of the repaired set S: {named}."
        )
        caption = (
            "Each cell is one matmul of one layer, with the fault in it alone; darker (in dark "
            "mode: lighter) is worse. S marks the operators that together must be repaired. "
            "Right: how much coarser one scale is than the typical token needs, at the "
            "down-projection (log scale)."
        )
        return canvas.picture(alt, caption)


def figure_incidence(packet: Packet) -> Picture:
    """Share of activations that became zero: a strip a kind of operator, by layer."""
    layers = layers_of(packet)
    rows = activation_incidence(packet)
    shares: dict[tuple[int | None, str], float] = {
        layer_and_kind(row.operator): row.underflow / max(row.elements, 1) for row in rows
    }
    kinds = [kind for kind in KINDS if any(key[1] == kind for key in shares)]
    members = {layer_and_kind(name) for name in packet.diagnosis.operators}
    with styled():
        height = 46.0 * max(len(kinds), 1)
        canvas = Canvas("incidence", "Activations that became zero", height + 80)
        step = rows[0].step_kind if rows else "prefill"
        canvas.text(6, 33, f"share of inputs that rounded to zero, failing run, {step}", size=SMALL)
        spoken = []
        for index, kind in enumerate(kinds):
            axes = canvas.axes(58, 44 + 46 * index, WIDTH - 122, 34)
            values = [shares.get((layer, kind), math.nan) for layer in range(layers)]
            known = [value for value in values if not math.isnan(value)]
            colours = [
                COLOUR["failing" if (layer, kind) in members else "comparator"]
                for layer in range(layers)
            ]
            axes.bar(range(layers), values, width=0.8, color=colours)
            axes.set_ylim(0, 1)
            axes.set_xlim(-0.7, layers - 0.3)
            axes.set_yticks([0, 1], ["0", "1"])
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
            axes.tick_params(axis="y", labelsize=7, length=2)
            axes.xaxis.set_major_locator(FixedLocator(range(0, layers, 5)))
            axes.tick_params(axis="x", length=2, labelbottom=index == len(kinds) - 1)
            canvas.text(6, 60 + 46 * index, KIND_LABEL[kind], size=SMALL)
            mean = sum(known) / len(known)
            spoken.append(
                f"{KIND_LABEL[kind]} {numbers.share(mean)}, largest {numbers.share(max(known))}"
            )
            canvas.text(WIDTH - 58, 60 + 46 * index, "mean", size=7.5)
            canvas.text(WIDTH - 58, 72 + 46 * index, numbers.share(mean), size=SMALL)
        canvas.text(58 + (WIDTH - 122) / 2, height + 68, "layer", size=SMALL, ha="center")
        alt = (
            "Share of activations that were not zero and became zero, mean over layers: "
            + "; ".join(spoken)
            + "."
        )
        caption = (
            "A value below half a step of its scale becomes zero. One huge value in the group "
            "makes the step large for all of them. Coloured: operators of the set S."
        )
        return canvas.picture(alt, caption)


def _top_step(values: list[float]) -> int:
    largest = max((value for value in values if value > 0), default=1.0)
    return math.floor(math.log10(largest))


def _step(value: float, top_step: int) -> int:
    """0 (faintest) … STEPS − 1: two a decade, everything below the range in the faintest."""
    if value <= 0:
        return 0
    return max(0, STEPS - 1 + min(0, math.floor(2 * math.log10(value)) - top_step))


def _cell(axes: Axes, layer: int, column: int, effect: object, top_step: int) -> None:
    box = {
        "xy": (column + 0.04, layer + 0.05),
        "width": 0.92,
        "height": 0.9,
        "linewidth": 0,
        "clip_on": False,
    }
    if effect is None:
        axes.add_patch(Rectangle(**box, facecolor=COLOUR["bg"], hatch="/////"))
    else:
        axes.add_patch(Rectangle(**box, facecolor=COLOUR[f"heat{_step(effect.kl, top_step)}"]))


def _member(axes: Axes, layer: int, column: int, effect: object, top_step: int) -> None:
    axes.add_patch(
        Rectangle(
            (column, layer), 1, 1, fill=False, edgecolor=COLOUR["failing"], linewidth=1.8, zorder=3
        )
    )
    dark = effect is not None and _step(effect.kl, top_step) >= 4
    axes.text(
        column + 0.5,
        layer + 0.53,
        "S",
        size=7.5,
        weight="bold",
        ha="center",
        va="center",
        color=COLOUR["bg" if dark else "fg"],
        zorder=4,
    )


def _outlier_strip(canvas: Canvas, packet: Packet, height: float) -> None:
    ratios = {
        layer: effect.outlier_ratio
        for (layer, kind), effect in effect_grid(packet).items()
        if kind == "down_proj" and effect.outlier_ratio
    }
    canvas.text(252, 34, "largest ÷", size=SMALL)
    canvas.text(252, 46, "typical token", size=SMALL)
    axes = canvas.axes(254, 52, 50, height)
    layers = layers_of(packet)
    axes.set_ylim(layers + 0.05, -0.05)
    if ratios:
        axes.barh(
            [layer + 0.5 for layer in ratios],
            [ratio - 1 for ratio in ratios.values()],
            height=0.7,
            color=COLOUR["comparator"],
            left=1,
        )
        axes.set_xscale("log")
        axes.set_xlim(1, max(10, 1.1 * max(ratios.values())))
        step = 10 if max(ratios.values()) < 100 else 100  # labels of every decade would collide
        axes.xaxis.set_major_locator(FixedLocator([step**i for i in range(4)]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlim(1, max(10, 1.1 * max(ratios.values())))
        for layer in sorted(ratios, key=ratios.__getitem__)[-3:]:
            axes.annotate(
                f"{numbers.number(ratios[layer], 2)}×",
                (ratios[layer], layer + 0.5),
                (2, 0),
                textcoords="offset points",
                size=7.5,
                va="center",
                annotation_clip=False,
            )
    axes.set_yticks([])


def _scale(canvas: Canvas, top_step: int, top: float) -> None:
    """The colour key: a box half a decade, with the value at its lower edge."""
    canvas.text(34, top + 14, "KL, nats a token: each colour is half a decade, from", size=SMALL)
    axes = canvas.axes(34, top + 20, 206, 26)
    axes.set_axis_off()
    axes.set(xlim=(0, STEPS), ylim=(26, 0))
    for step in range(STEPS):
        axes.add_patch(
            Rectangle(
                (step + 0.03, 0),
                0.94,
                10,
                facecolor=COLOUR[f"heat{step}"],
                linewidth=0.4,
                edgecolor=COLOUR["line"],
            )
        )
        exponent = top_step - (STEPS - 1) + step
        label = "less" if step == 0 else _edge(exponent)
        axes.text(step + 0.5, 19, label, size=7.5, ha="center", va="center")
    key = canvas.axes(34, top + 50, 200, 14)
    key.set_axis_off()
    key.set(xlim=(0, 200), ylim=(14, 0))
    key.add_patch(Rectangle((1, 2), 26, 10, fill=False, edgecolor=COLOUR["failing"], linewidth=1.8))
    key.text(14, 7.4, "S", size=7.5, weight="bold", ha="center", va="center")
    key.text(32, 7.4, "in the set S", size=SMALL, va="center")
    key.add_patch(Rectangle((104, 2), 26, 10, facecolor=COLOUR["bg"], hatch="/////", linewidth=0))
    key.text(134, 7.4, "not screened", size=SMALL, va="center")


def _edge(step: int) -> str:
    """The lower edge of half a decade: 1, 0.3, 0.1, 0.03 … or 3 × 10⁻⁴."""
    decade, upper_half = divmod(step, 2)
    leading = 3 if upper_half else 1
    if decade >= -3:
        return f"{leading * 10.0**decade:g}"
    return f"{'3·' if upper_half else ''}10{numbers.superscript(decade)}"
