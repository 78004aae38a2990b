"""The map of the workbook: every notebook, three ways through, and how far a learner has come."""

from __future__ import annotations

import tomllib
from functools import cache
from html import escape
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from pydantic import Field

from mpcore.paths import DATA
from mpcore.records.base import Record
from mpcore.workbook import my_progress
from mpcore.workbook.lesson import LESSONS, lesson
from mpcore.workbook.table_html import nowrap, table_html

NOTHING = "—"
EXPORT = (
    "from mpcore.workbook import my_progress",
    'my_progress.export("progress.csv")',
)


class Notebook(Record):
    """One notebook; `path` is seen from the notebooks' folder."""

    path: str
    title: str
    afterwards: str = Field(description="completes: afterwards you can …")
    minutes: int = Field(gt=0)


class Step(Record):
    """A notebook on a route."""

    notebook: str
    how: str = Field("", description="which part of it, where not the whole is read")


class Route(Record):
    """A way through the notebooks, in order."""

    name: str
    steps: list[Step]

    def position(self, path: str) -> str:
        """`2`, `1 (its report)`, or a dash for a notebook that is not on the way."""
        for number, step in enumerate(self.steps, 1):
            if step.notebook == path:
                return f"{number} ({step.how})" if step.how else str(number)
        return NOTHING


class Workbook(Record):
    """What data/workbook.toml says."""

    notebooks: list[Notebook]
    routes: list[Route]
    reports: dict[str, dict[str, str]] = Field(description="case -> profile -> how long, in words")


@cache
def workbook() -> Workbook:
    """The notebooks, routes and durations as data/workbook.toml has them."""
    text = (DATA / "workbook.toml").read_text(encoding="utf-8")
    return Workbook.parse(tomllib.loads(text), "workbook.toml")


def workbook_map() -> WorkbookMap:
    """The map as it stands now; the value of a cell in 00_start_here.ipynb."""
    try:
        progress = my_progress.read()
    except my_progress.ProgressError:  # the map leads on without it
        progress = {kind: {} for kind in my_progress.KINDS}
    return WorkbookMap(progress)


class WorkbookMap:
    """Notebooks, routes and progress as a table; links lead from the notebooks' own folder.

    `progress` is what `my_progress.read()` returns.
    """

    def __init__(self, progress: dict[str, Any]) -> None:
        self._rows = [(one, progress_in(one, progress)) for one in workbook().notebooks]

    def __repr__(self) -> str:
        lines = []
        for one, done in self._rows:
            on = [f"{r.name} {r.position(one.path)}" for r in workbook().routes]
            on = [text for text in on if not text.endswith(NOTHING)]
            lines.append(f"{one.path}: {one.title} ({one.minutes} minutes)")
            lines.append(f"  afterwards you can {one.afterwards}")
            lines.append(f"  routes: {', '.join(on) or NOTHING}; progress: {done}")
        return "\n".join([*lines, f"take your progress along: {'; '.join(EXPORT)}"])

    def _repr_html_(self) -> str:
        routes = workbook().routes
        head = ["Notebook", "Minutes", *(f"Route: {escape(r.name)}" for r in routes), "Progress"]
        rows = (
            [
                _linked(one),
                str(one.minutes),
                *(escape(route.position(one.path)) for route in routes),
                escape(done),
            ]
            for one, done in self._rows
        )
        return table_html(_caption(), head, rows)


def progress_in(notebook: Notebook, progress: dict[str, Any]) -> str:
    """`3 of 5 exercises, 2 of 3 predictions`; a dash for a notebook that asks nothing."""
    name = PurePosixPath(notebook.path).stem
    if name not in LESSONS:
        return NOTHING
    asked = lesson(name)
    solved, locked = progress["exercises"], progress["predictions"]
    parts = [
        _counted("exercise", [_is(solved.get(e.name), "solved") for e in asked.exercises.values()]),
        _counted("prediction", [p.name in locked for p in asked.predictions.values()]),
    ]
    return ", ".join(filter(None, parts)) or NOTHING


def _is(entry: object, what: str) -> bool:
    return isinstance(entry, dict) and bool(entry.get(what))


def _counted(what: str, done: list[bool]) -> str:
    return f"{sum(done)} of {len(done)} {what}{'s'[: len(done) != 1]}" if done else ""


def _linked(notebook: Notebook) -> str:
    address, title = quote(notebook.path), escape(notebook.title)
    then = f"Afterwards you can {escape(notebook.afterwards)}."
    return f'<a href="{address}">{title}</a><br><span style="font-weight: normal">{then}</span>'


def _caption() -> str:
    code = nowrap(f"<code>{escape('; '.join(EXPORT))}</code>")
    return (
        "The workbook, and three routes through it: the numbers say what comes first, second, …"
        '<br><span style="font-weight: normal">Your progress stays on this machine. As a table: '
        f"{code}</span>"
    )
