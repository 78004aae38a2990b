"""Pictures of quality: per slice, per what-if, and of the interaction between repairs."""

from __future__ import annotations

import textwrap

from mpcore.records import Estimate, Packet, WhatIf
from mpcore.report import numbers
from mpcore.report.marks import (
    bare_y,
    guardrail,
    halo,
    interval,
    legend,
    loss_axis,
    right_text,
)
from mpcore.report.picture import (
    COLOUR,
    SMALL,
    TEXT,
    WIDTH,
    Canvas,
    Picture,
    empty_picture,
    styled,
    verbatim,
)
from mpcore.report.reading import interaction_of, rows_of, runs_of, threshold_of


def figure_quality(packet: Packet) -> Picture:
    """Loss added per token on every slice, per run, with its interval and the guardrail line."""
    threshold = threshold_of(packet)
    runs = runs_of(packet)
    slices = list(dict.fromkeys(row.slice for row in packet.metrics))
    kind = packet.metrics[0].step_kind
    row_height = 13.0 * len(runs) + 24
    plot = row_height * len(slices)
    with styled():
        canvas = Canvas("quality", "Loss added per token, slice by slice", plot + 98)
        legend(canvas, runs, 36)
        axes = canvas.axes(14, 58, WIDTH - 100, plot)
        shown = [0.0]
        for index, name in enumerate(slices):
            top = index * row_height
            axes.text(
                0.004,
                top + 11,
                verbatim(numbers.words(name)),
                transform=axes.get_yaxis_transform(),
                weight="bold",
                size=TEXT,
                va="center",
                bbox=halo(),
            )
            for place, run in enumerate(runs):
                row = next((r for r in rows_of(packet, run, kind) if r.slice == name), None)
                if row is None:
                    continue
                y = top + 24 + 13 * place
                interval(axes, row.delta_nll, y, run)
                right_text(
                    axes, y, f"{numbers.loss(row.delta_nll.value)} {_verdict(row.guardrail)}"
                )
                shown += [row.delta_nll.low, row.delta_nll.high]
        loss_axis(axes, min(shown), max(shown), threshold)
        axes.set_ylim(plot, 0)
        guardrail(axes, threshold)
        broken = [
            row.slice for row in rows_of(packet, "failing", kind) if row.guardrail == "broken"
        ]
        parts = []
        for run in runs:
            found = ", ".join(
                f"{numbers.words(row.slice)} {numbers.loss_estimate(row.delta_nll)}"
                for row in rows_of(packet, run, kind)
            )
            parts.append(f"{run}: {found}")
        alt = (
            f"Loss added per token with its interval, {kind} steps; the guardrail is "
            f"{numbers.loss(threshold)}. " + ". ".join(parts) + "."
        )
        caption = (
            "Further right is worse. A slice holds when its whole interval lies left of the "
            f"dashed guardrail; the failing run is beyond it on {len(broken)} of {len(slices)} "
            "slices."
        )
        return canvas.picture(alt, caption)


def figure_what_ifs(packet: Packet) -> Picture:
    """Forest plot: each what-if's loss on its worst slice, equal bits apart from more bits."""
    threshold = threshold_of(packet)
    tried = packet.diagnosis.what_ifs
    title = "What if one thing were changed?"
    if not tried:
        return empty_picture("what-ifs", title, "No what-if was run.")
    groups = [
        ("Equal bits: as many as the failing run", [one for one in tried if one.equal_bits]),
        ("More bits", [one for one in tried if not one.equal_bits]),
    ]
    rows: list[tuple[float, str | WhatIf]] = []
    y = 0.0
    for heading, members in groups:
        if members:
            rows.append((y + 12, heading))
            y += 22
        for one in sorted(members, key=lambda one: one.worst_upper):
            lines = textwrap.wrap(one.name, 50)
            rows.append((y + 8, one))
            y += 12 * len(lines) + 22
        y += 4
    with styled():
        canvas = Canvas("what-ifs", title, y + 78)
        axes = canvas.axes(14, 38, WIDTH - 100, y)
        shown = [0.0]
        for top, row in rows:
            if isinstance(row, str):
                axes.text(
                    0.004,
                    top,
                    row,
                    transform=axes.get_yaxis_transform(),
                    size=TEXT,
                    weight="bold",
                    va="center",
                    bbox=halo(),
                )
                continue
            lines = textwrap.wrap(row.name, 50)
            for number, line in enumerate(lines):
                axes.text(
                    0.004,
                    top + 12 * number,
                    verbatim(line),
                    transform=axes.get_yaxis_transform(),
                    size=SMALL,
                    va="center",
                    bbox=halo(),
                )
            place = top + 12 * len(lines)
            worst = _worst(row)
            state = {"holds": "fix", "broken": "failing"}.get(row.verdict, "comparator")
            interval(axes, worst, place, state)
            right_text(axes, place, f"{numbers.loss(worst.value)} {_verdict(row.verdict)}")
            shown += [worst.low, worst.high]
        loss_axis(axes, min(shown), max(shown), threshold)
        axes.set_ylim(y, 0)
        guardrail(axes, threshold)
        listed = "; ".join(
            f"{one.name}: {numbers.loss_estimate(_worst(one))}, "
            f"{_verdict(one.verdict)}, "
            f"{'equal bits' if one.equal_bits else 'more bits'}"
            for one in tried
        )
        alt = f"Loss added per token on the worst slice under each what-if: {listed}."
        caption = (
            "One thing is changed in the failing run at a time; the value is that of its worst "
            "slice. A dot holds the guardrail on every slice, a cross breaks it, a diamond is "
            "undecided. Only a repair at equal bits tells the mechanism: more bits help almost "
            "every fault."
        )
        return canvas.picture(alt, caption)


def figure_interaction(packet: Packet) -> Picture:
    """Loss removed by repairing the set at once, against the sum of single repairs."""
    found = interaction_of(packet)
    title = "The set repaired at once, or one by one"
    if found is None:
        return empty_picture("interaction", title, "Not measured in this packet.")
    with styled():
        rows = [
            ("All members repaired at once", found.whole, "fix"),
            ("Sum of the members repaired one by one", found.singles, "failing"),
            ("Difference", found.difference, "comparator"),
        ]
        canvas = Canvas("interaction", title, 194)
        axes = canvas.axes(14, 30, WIDTH - 84, 108)
        for index, (label, figure, run) in enumerate(rows):
            y = 36 * index
            axes.text(
                0.004,
                y + 9,
                label,
                transform=axes.get_yaxis_transform(),
                size=SMALL,
                va="center",
                bbox=halo(),
            )
            axes.barh(y + 22, figure.value, height=9, color=COLOUR[run], alpha=0.35)
            interval(axes, figure, y + 22, run)
            right_text(axes, y + 22, numbers.loss(figure.value))
        low = min([0.0, *(figure.low for _, figure, _ in rows)])
        high = max([0.0, *(figure.high for _, figure, _ in rows)])
        axes.set_xlim(low - 0.04 * (high - low), high + 0.06 * (high - low))
        axes.set_ylim(108, 0)
        axes.axvline(0, color=COLOUR["muted"], linewidth=0.8)
        axes.set_xlabel(f"loss removed per token, nats; {found.where}", size=SMALL)
        bare_y(axes)
        alt = (
            f"Loss removed per token on {found.where}: "
            + "; ".join(
                f"{label.lower()} {numbers.loss_estimate(figure)}" for label, figure, _ in rows
            )
            + "."
        )
        apart = found.difference.low > 0 or found.difference.high < 0
        caption = "Were the operators independent, the first two bars would be equal. " + (
            "They are not: the operators are repaired as a set, and none of them is blamed alone."
            if apart
            else "The interval of the difference holds 0: whether they interact is not decided."
        )
        return canvas.picture(alt, caption)


def _verdict(guardrail: str) -> str:
    return {"cannot_conclude": "unclear"}.get(guardrail, guardrail)


def _worst(one: WhatIf) -> Estimate:
    return max(one.delta_nll.values(), key=lambda figure: figure.high)
