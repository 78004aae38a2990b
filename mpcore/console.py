"""What the command line shows: results, and while something runs a bar or now and then a line.

Results alone go to standard output, everything else to standard error.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Self

from mpcore import driven

_QUIET_S = 5.0  # without a terminal: at most one line in so many seconds


def prepare_streams() -> None:
    """Make both outputs writable whatever they are.

    One that is closed leads nowhere, and characters that its encoding lacks are escaped.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        else:
            stream.reconfigure(errors="backslashreplace")


def say(text: object) -> None:
    """Print a result; a reader that has seen enough (`| head`) is no failure, a full disk is."""
    try:
        print(text, flush=True)
    except OSError as error:
        # The interpreter writes what is left in the buffer once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OSError(error.errno, error.strerror, "standard output") from None


def complain(text: str) -> None:
    """Print a line on standard error; that nobody can read it is no reason to stop anything."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class Display:
    """A watcher with two levels: cells of a notebook, and the finest-grained message within one.

    On a terminal that can it shows bars that vanish at the end; elsewhere sparse plain lines, so
    that a log stays readable; a program that drives this one is told everything (`driven`). Use it
    as a context manager.
    """

    def __init__(self, title: str):
        self._title = title
        self._bars = None
        self._tasks: dict[str, int] = {}
        self._cell = ""
        self._last_line = float("-inf")

    def __enter__(self) -> Self:
        if not driven.is_on() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._bars = _bars()
            self._bars.start()
        return self

    def __exit__(self, *_) -> None:
        if self._bars:
            self._bars.stop()

    def cell(self, number: int, count: int) -> None:
        """Cell `number` of `count` starts."""
        self._cell = f"cell {number} of {count}"
        if driven.is_on():
            complain(driven.line(cell=number, count=count))
        elif self._bars:
            self._show("cell", f"{self._title}: {self._cell}", number - 1, count)
        else:
            self._line(self._cell)

    def detail(self, text: str, done: int, total: int) -> None:
        """`done` of `total` is reached in what `text` describes."""
        if driven.is_on():
            complain(driven.line(text=text, done=done, total=total))
        elif self._bars:
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
            complain(f"{self._title}: {text}")


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
