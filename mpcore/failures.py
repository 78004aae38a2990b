"""Which exit status and which one line an exception becomes on the command line.

2: something given cannot be used, or the disk or the network stood in the way; the line says what
and where. 130: interrupted. 1: a defect of ours; the line says where the details are kept.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
import traceback

import typer

from mpcore.errors import InputError

BAD_INPUT, INTERRUPTED, DEFECT = 2, 130, 1

_ROOMS_WITH_ERRORS = (
    "formats",
    "records",
    "scaling",
    "matmul",
    "sparsity",
    "machines",
    "workloads.checkpoint",
    "policy",
    "flow",
    "evidence",
    "diagnosis",
    "report.errors",
    "workbook.my_progress",
)
_OS_ERROR = re.compile(r"\[Errno \d+\] (?P<why>[^:]*)(?:: (?P<where>.*))?", re.DOTALL)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def explain(error: BaseException) -> tuple[int, str]:
    """(exit status, the one line) for an exception that ended a command."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED, "interrupted; nothing was left behind"
    if isinstance(error, typer.TyperException):
        command = getattr(getattr(error, "ctx", None), "command_path", "mpcore")
        return (
            BAD_INPUT,
            f"{one_line(error.format_message())} ({command} --help shows what there is)",
        )
    if isinstance(error, InputError):
        return BAD_INPUT, one_line(error)
    if isinstance(error, OSError) and error.strerror:
        where = error.filename2 or error.filename or "input or output"
        return BAD_INPUT, one_line(f"{where}: {error.strerror}")
    if hasattr(error, "ename") and hasattr(error, "evalue"):
        return _of_a_cell(error)
    if type(error).__name__ == "DeadKernelError" or "Kernel died" in str(error):
        return _defect(error, "the notebook's kernel died; often memory or disk space ran out")
    return _defect(error, f"{type(error).__name__}: {error}")


def one_line(message: object) -> str:
    """A message without line breaks."""
    return " ".join(str(message).split())


def _of_a_cell(error) -> tuple[int, str]:
    """For a failing notebook cell, of whose exception only the class name and message are known."""
    if error.ename == "KeyboardInterrupt":
        return INTERRUPTED, "interrupted; nothing was left behind"
    if error.ename in _input_error_names():
        return BAD_INPUT, one_line(error.evalue)
    if match := _OS_ERROR.match(error.evalue):
        where = (match["where"] or "input or output").rpartition(" -> ")[2].strip("'")
        return BAD_INPUT, one_line(f"{where}: {match['why']}")
    return _defect(error, f"a cell of the notebook failed: {error.ename}: {error.evalue}")


def _input_error_names() -> set[str]:
    """Names of every InputError class; the rooms that define them are imported to find them."""
    for room in _ROOMS_WITH_ERRORS:
        try:
            importlib.import_module(f"mpcore.{room}")
        except ImportError:
            continue  # a room that cannot be imported raised nothing in the notebook either
    names, waiting = set(), [InputError]
    while waiting:
        kind = waiting.pop()
        names.add(kind.__name__)
        waiting.extend(kind.__subclasses__())
    return names


def _defect(error: BaseException, what: str) -> tuple[int, str]:
    """Keep the traceback in a file (and show it where MPCORE_DEBUG is 1)."""
    details = _COLOURS.sub("", "".join(traceback.format_exception(error)))
    if os.environ.get("MPCORE_DEBUG") == "1":
        print(details, file=sys.stderr)
    try:
        handle, path = tempfile.mkstemp(prefix="mpcore-error-", suffix=".txt")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(details)
    except OSError:
        path = "nowhere: no temporary file could be written; MPCORE_DEBUG=1 shows them"
    return DEFECT, one_line(f"internal error: {one_line(what)[:300]}; details are in {path}")
