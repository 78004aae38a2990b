"""How far a long piece of work has come, told to whoever started it.

The environment variable MPCORE_PROGRESS names a file; each report appends one JSON line to it, and
the command line follows that file. Without the variable a report does nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""(what is being done, how much is done, how much there is) -> None."""


def report(text: str, done: int, total: int) -> None:
    """Say that `done` of `total` is reached in the work that `text` describes."""
    path = os.environ.get("MPCORE_PROGRESS")
    if not path:
        return
    line = json.dumps({"text": text, "done": int(done), "total": int(total)}, ensure_ascii=False)
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError:
        pass  # a report that nobody can read is no reason to stop the work
