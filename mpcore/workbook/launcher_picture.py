"""How the case launcher looks: the command, how far a run has come, and where its report lies."""

from __future__ import annotations

import re

from mpcore.workbook.background_report import BackgroundReport, Plan
from mpcore.workbook.drawing import BLUE, FG, MUTED, SMALL, WIDTH, Drawing

LABEL_X, TEXT_X, LINE_HEIGHT = 0.0, 92.0, 18.0
BAR_HEIGHT, BAR_WIDTH = 12.0, 220.0
COLUMNS = 70  # characters of a fixed width beside a label
MONOSPACED = "ui-monospace,Menlo,Consolas,Liberation Mono,monospace"


def launcher_picture(plan: Plan, run: BackgroundReport | None, spoken: str) -> str:
    """SVG of a plan and, where there is one, of a run's progress; `spoken` is the same in words."""
    lines = command_lines(plan.command)
    is_made = run is not None and run.outcome == "done"
    drawing = Drawing(LINE_HEIGHT * (len(lines) + is_made) + (74 if run else 6))
    y = 13.0
    drawing.text(LABEL_X, y, "command", SMALL, MUTED)
    for line in lines:
        drawing.text(TEXT_X, y, line, SMALL, FG, font_family=MONOSPACED)
        y += LINE_HEIGHT
    if is_made:  # before that, nothing lies there
        drawing.text(LABEL_X, y, "report", SMALL, MUTED)
        drawing.text(TEXT_X, y, plan.place, SMALL, FG, font_family=MONOSPACED)
        y += LINE_HEIGHT
    if run:
        _bars(drawing, y - 4, run)
    return drawing.svg(spoken)


def command_lines(command: str) -> list[str]:
    """A command in lines that a shell takes as they are."""
    lines = [""]
    for part in re.split(r" (?=-)", command):  # an option stays with its value
        if lines[-1] and len(lines[-1]) + len(part) > COLUMNS:
            lines.append("")
        lines[-1] += f" {part}" if lines[-1] else part
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _bars(drawing: Drawing, y: float, run: BackgroundReport) -> None:
    at = run.progress
    whole = 1.0 if run.outcome == "done" else at.share
    cells = f"cell {at.cell} of {at.count}" if at.cell else "starting"
    said = {"done": "done", "cancelled": "cancelled", "failed": "failed"}.get(run.outcome, cells)
    _bar(drawing, y, "notebook", whole, f"{said}, {100 * whole:.0f} %")
    if has_step := run.outcome == "running" and bool(at.text):
        _bar(drawing, y + 20, "step", at.detail, f"{at.text}, {100 * at.detail:.0f} %")
    is_on_its_way = run.plan.usual and run.outcome == "running"
    after = f"; usually {run.plan.usual}" if is_on_its_way else ""
    drawing.text(
        TEXT_X, y + (52 if has_step else 32), f"{clock(run.seconds)} elapsed{after}", SMALL, MUTED
    )


def _bar(drawing: Drawing, y: float, label: str, share: float, text: str) -> None:
    drawing.text(LABEL_X, y + 11, label, SMALL, MUTED)
    drawing.rect(TEXT_X, y, BAR_WIDTH, BAR_HEIGHT, stroke=MUTED, rx=2)
    if share > 0:
        drawing.rect(TEXT_X, y, BAR_WIDTH * share, BAR_HEIGHT, BLUE, rx=2)
    room = WIDTH - TEXT_X - BAR_WIDTH - 10
    drawing.text(TEXT_X + BAR_WIDTH + 10, y + 11, shortened(text, room), SMALL)


def shortened(text: str, room: float) -> str:
    """A text that fits into so many units; its end, with the share, is what stays."""
    most = int(room / (0.55 * SMALL))
    if len(text) <= most:
        return text
    head, _, share = text.rpartition(", ")
    return f"{head[: max(most - len(share) - 3, 1)]}…, {share}"


def clock(seconds: float) -> str:
    """Minutes and seconds: 1:07."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def progress_words(run: BackgroundReport) -> str:
    """What a run is doing, in a sentence."""
    if run.is_ending:
        return "Cancelling: what was begun is being removed."
    at = run.progress
    cells = f"cell {at.cell} of {at.count}" if at.cell else "starting"
    step = f"; {at.text}, {100 * at.detail:.0f} %" if at.text else ""
    return f"Running, {cells}{step}."
