"""A report made by a process of its own, while the notebook's kernel goes on listening.

The process is `mpcore report`, driven as `mpcore.driven` describes: it tells its progress, and it
ends and cleans up when its standard input is closed. That is how it is cancelled, and what happens
by itself when the kernel ends, is restarted or is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from mpcore import driven
from mpcore.paths import ROOT
from mpcore.report.errors import ReportError

PATIENCE_S = 10.0
"""So long a cancelled process may clean up before it is killed."""

Outcome = Literal["running", "done", "cancelled", "failed"]


class Progress(NamedTuple):
    """How far it has come: in cells, and in what the present cell last told."""

    cell: int = 0  # from 1; 0 before the first
    count: int = 0
    text: str = ""
    done: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        """How much of the cells is done, 0 to 1."""
        return max(self.cell - 1, 0) / self.count if self.count else 0.0

    @property
    def detail(self) -> float:
        """How much is done of what `text` says, 0 to 1."""
        return min(max(self.done / self.total, 0.0), 1.0) if self.total > 0 else 0.0


class Plan(NamedTuple):
    """What a person is told of a report before it is made."""

    command: str  # the same on the command line
    place: str  # of the HTML file
    usual: str  # how long it takes, in words; "" where nobody knows


class BackgroundReport:
    """One run of `mpcore report`.

    Attributes:
        plan: what was said of it beforehand.
        progress: how far it has come.
        outcome: "running" until `ended` is set.
        line: the decision where it is done, the command line's one line where it failed.
        page: the report's HTML file, where it is done.
        was_killed: whether it ended without cleaning up; the next report at its place does that.
    """

    def __init__(self, arguments: list[str], plan: Plan) -> None:
        """Start it. `arguments` follow `mpcore`; raises ReportError where no process starts."""
        self.plan = plan
        self.progress = Progress()
        self.outcome: Outcome = "running"
        self.line = ""
        self.page: Path | None = None
        self.was_killed = False
        self.ended = threading.Event()
        self._is_cancelled = False
        self._started, self._seconds = time.monotonic(), 0.0
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mpcore", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                cwd=ROOT,  # a notebook's folder may hold modules of any name
                env=os.environ | {driven.DRIVEN: "1", "PYTHONIOENCODING": "utf-8"},
                start_new_session=True,  # an interrupt of the kernel is none of the report
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
        except OSError as error:
            raise ReportError(f"the report's process does not start ({error.strerror})") from None
        threading.Thread(target=self._follow, name="mpcore report", daemon=True).start()

    @property
    def seconds(self) -> float:
        """How long it has been running, or ran."""
        return self._seconds if self.ended.is_set() else time.monotonic() - self._started

    @property
    def is_ending(self) -> bool:
        """Whether it was cancelled and is cleaning up."""
        return self._is_cancelled and not self.ended.is_set()

    @property
    def process_id(self) -> int:
        """The process, which on POSIX leads a group of its own."""
        return self._process.pid

    def cancel(self) -> None:
        """Have it end and clean up; returns at once, `ended` is set when nothing is left."""
        self._is_cancelled = True
        with suppress(OSError):
            self._process.stdin.close()
        last_resort = threading.Timer(PATIENCE_S, self._kill)
        last_resort.daemon = True
        last_resort.start()

    def cell(self, number: int, count: int) -> None:
        """A cell starts: `driven.heard` tells so."""
        self.progress = Progress(number, count)

    def detail(self, text: str, done: int, total: int) -> None:
        """Something within a cell, or before the first: `driven.heard` tells so."""
        self.progress = self.progress._replace(text=text, done=done, total=total)

    def _follow(self) -> None:
        """Listen until the process has ended; whatever happens becomes an outcome."""
        try:
            last = ""
            with self._process as process:
                for line in process.stderr:
                    if not driven.heard(line, self):
                        last = line.strip() or last
                printed = process.stdout.read().splitlines()
            self._end(process.returncode, printed, last)
        except Exception as error:  # nobody sees what a thread raises
            self._kill()
            self.outcome, self.line = "failed", f"{type(error).__name__}: {error}"
        self._seconds = time.monotonic() - self._started
        self.ended.set()

    def _end(self, status: int, printed: list[str], last: str) -> None:
        self.was_killed = status < 0
        if status == 0:
            self.line, page = printed[-2:]
            self.outcome, self.page = "done", Path(page)
        elif self._is_cancelled:
            self.outcome = "cancelled"
        else:
            self.outcome = "failed"
            if self.was_killed:  # it could say nothing itself
                last = (
                    f"a signal ended the report ({signal.strsignal(-status)}); often memory ran out"
                )
            self.line = last.removeprefix("mpcore: ") or f"the report ended with status {status}"

    def _kill(self) -> None:
        if self._process.poll() is None:
            with suppress(OSError):
                if os.name == "nt":
                    self._process.kill()
                else:
                    os.killpg(self._process.pid, signal.SIGKILL)
