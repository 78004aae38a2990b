"""How far a long piece of work has come, told to whoever started it.

In the same process `shown_by` names a function that is told. From a kernel it goes through a file:
the environment variable MPCORE_PROGRESS names it, each report appends one JSON line, and the
command line follows. With neither, a report does nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""(what is being done, how much is done, how much there is) -> None."""

_listener: Progress | None = None


@contextmanager
def shown_by(listener: Progress) -> Iterator[None]:
    """While this holds, reports of this process go to `listener`."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def report(text: str, done: int, total: int) -> None:
    """Say that `done` of `total` is reached in the work that `text` describes."""
    if _listener:
        _listener(text, done, total)
        return
    path = os.environ.get("MPCORE_PROGRESS")
    if not path:
        return
    line = json.dumps({"text": text, "done": int(done), "total": int(total)}, ensure_ascii=False)
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError:
        pass  # a report that nobody can read is no reason to stop the work
