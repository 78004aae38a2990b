"""What the command line shows while something runs: a progress bar, or now and then a plain line.

Everything here goes to standard error, so that standard output holds results only.
"""

from __future__ import annotations

import sys
import time
from typing import Self

_QUIET_S = 5.0  # without a terminal: at most one line in so many seconds


class Display:
    """A watcher with two levels: cells of a notebook, and the finest-grained message within one.

    On a terminal it shows bars that vanish at the end; elsewhere sparse plain lines, so that a log
    stays readable. Use it as a context manager.
    """

    def __init__(self, title: str):
        self._title = title
        self._bars = None
        self._tasks: dict[str, int] = {}
        self._cell = ""
        self._last_line = float("-inf")

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bars = _bars()
            self._bars.start()
        return self

    def __exit__(self, *_) -> None:
        if self._bars:
            self._bars.stop()

    def cell(self, number: int, count: int) -> None:
        """Cell `number` of `count` starts."""
        self._cell = f"cell {number} of {count}"
        if self._bars:
            self._show("cell", f"{self._title}: {self._cell}", number - 1, count)
        else:
            self._line(self._cell)

    def detail(self, text: str, done: int, total: int) -> None:
        """`done` of `total` is reached in what `text` describes."""
        if self._bars:
            self._show("detail", text, done, total)
        else:
            share = f" {100 * done / total:.0f} %" if total else ""
            self._line(", ".join(filter(None, [self._cell, text + share])))

    def _show(self, level: str, text: str, done: int, total: int) -> None:
        from rich.markup import escape

        if level not in self._tasks:
            self._tasks[level] = self._bars.add_task(escape(text), total=total)
        self._bars.update(self._tasks[level], description=escape(text), completed=done, total=total)

    def _line(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last_line >= _QUIET_S:
            self._last_line = now
            print(f"{self._title}: {text}", file=sys.stderr, flush=True)


def _bars():
    """Bars on standard error that are gone once the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
