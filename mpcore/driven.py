"""A command that another program drives: how it tells its progress, and when it has to end.

With MPCORE_DRIVEN=1 in its environment a command
- writes its progress to standard error as JSON lines, in place of what people are shown:
  `{"cell": 3, "count": 22}` where a cell of a notebook starts, and within it
  `{"text": "what-ifs", "done": 1, "total": 8}`;
- ends and cleans up, as on SIGTERM, when its standard input does: when the other program closes
  it, or is gone, however that went.
Results on standard output, the one line about a failure and the exit status are as ever.
"""

from __future__ import annotations

import _thread
import json
import os
import signal
import threading
from contextlib import suppress
from typing import Protocol

DRIVEN = "MPCORE_DRIVEN"

_on = False


class Listener(Protocol):
    """Who is told: anything with the methods of `report.produce.Watcher`."""

    def cell(self, number: int, count: int) -> None: ...

    def detail(self, text: str, done: int, total: int) -> None: ...


def begin() -> None:
    """Be driven from now on, where the environment says so; programs started from here are not."""
    global _on
    if os.environ.pop(DRIVEN, "") == "1":
        _on = True
        threading.Thread(target=_end_with_standard_input, daemon=True).start()


def is_on() -> bool:
    """Whether another program drives this one."""
    return _on


def line(**told: str | int) -> str:
    """What is told, as one line."""
    return json.dumps(told)  # ASCII: right in every encoding


def heard(text: str, listener: Listener) -> bool:
    """Tell the listener what a line says; False for a line that says something else."""
    with suppress(ValueError, KeyError, TypeError):
        told = json.loads(text)
        if "cell" in told:
            listener.cell(int(told["cell"]), int(told["count"]))
        else:
            listener.detail(str(told["text"]), int(told["done"]), int(told["total"]))
        return True
    return False


def _end_with_standard_input() -> None:
    with suppress(OSError):  # one that was never open has ended
        while os.read(0, 4096):
            pass
    if os.name == "nt":  # there a signal to oneself ends the process without cleaning up
        _thread.interrupt_main(signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)  # wakes the main thread from whatever it waits for
