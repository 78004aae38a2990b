"""What a learner has solved and predicted: one small local file that leaves no machine."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from mpcore.errors import InputError, quoted
from mpcore.paths import expanded, my_notebooks, part_of, resolved

SCHEMA = "mpcore.progress/1"
PATIENCE_S = 5.0  # for another kernel that is writing
KINDS = ("exercises", "predictions")
ESCAPED = "backslashreplace"  # half a surrogate pair: JSON writes it in the same way

_lock = threading.Lock()


class ProgressError(InputError):
    """A progress file that cannot be written, or a target that cannot be exported to."""


def progress_file() -> Path:
    """Where the progress is kept; MPCORE_NOTEBOOKS moves it, with the learner's notebooks.

    A link is followed: what it leads to is written, and it stays. Raises ProgressError where
    MPCORE_NOTEBOOKS leads nowhere.
    """
    try:
        return resolved(my_notebooks() / "progress.json")
    except InputError as error:
        raise ProgressError(str(error)) from None


def read() -> dict[str, Any]:
    """Everything recorded: `{"exercises": {name: entry}, "predictions": {name: entry}}`.

    Every entry is a dict; what else stands there is left out. A file that holds something else is
    put aside beside its place, never overwritten. Raises ProgressError where the file system does
    not let it be read; nothing is changed then.
    """
    file = progress_file()
    found = _parsed(file)
    if found is None:
        with suppress(OSError, RuntimeError), _locked(file):  # it stays: writing will say so
            found = _sound(file)
    return found or _empty()


def entry(kind: str, name: str) -> dict[str, Any] | None:
    """What is recorded of one exercise or prediction; None for nothing."""
    return read()[kind].get(name)


def note_attempt(name: str, correct: bool) -> None:
    """Count an attempt at an exercise. What was once solved stays solved."""

    def change(found):
        before = found["exercises"].get(name, {})
        attempts = before.get("attempts", 0)
        found["exercises"][name] = {
            "solved": bool(before.get("solved")) or correct,
            "attempts": (attempts if isinstance(attempts, int) else 0) + 1,
            "last": _now(),
        }

    _change(change)


def note_prediction(name: str, answer: str, right: bool) -> dict[str, Any]:
    """Lock a prediction; one that is locked already stays as it is. Returns what is locked."""

    def change(found):
        now = {"answer": answer, "right": right, "last": _now()}
        return found["predictions"].setdefault(name, now)

    return _change(change)


def note_reveal(name: str) -> None:
    """Note that the truth about a locked prediction was asked for."""

    def change(found):
        if isinstance(found["predictions"].get(name), dict):
            found["predictions"][name]["revealed"] = True

    _change(change)


def forget(name: str) -> None:
    """Take back everything recorded under one name, for another try."""

    def change(found):
        for kind in KINDS:
            found[kind].pop(name, None)

    _change(change)


def export(path: str | Path) -> Path:
    """Write the progress to a file: `.json`, or `.csv` for a spreadsheet.

    Raises ProgressError for another ending, a file that exists, or one that cannot be written.
    """
    try:
        path = expanded(path)
    except TypeError:
        raise ProgressError(f"export takes the path of a file, not {quoted(path)}") from None
    except InputError as error:
        raise ProgressError(str(error)) from None
    found = read()
    if path.suffix == ".json":
        text = _as_json(found)
    elif path.suffix == ".csv":
        text = _as_csv(found)
    else:
        raise ProgressError(f"{path}: name a file that ends in .json or .csv")
    try:
        with open(path, "x", encoding="utf-8", newline="", errors=ESCAPED) as file:
            file.write(text)
    except FileExistsError:
        raise ProgressError(f"{path}: exists already; name a new file") from None
    except OSError as error:
        raise ProgressError(f"{path}: cannot be written ({error.strerror})") from None
    except ValueError:
        raise ProgressError(f"{quoted(str(path))}: not the path of a file") from None
    return path


def _empty() -> dict[str, Any]:
    return {"schema": SCHEMA, **{kind: {} for kind in KINDS}}


def _parsed(file: Path) -> dict[str, Any] | None:
    """What a file of progress holds, empty where there is none; None where it is no such file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8-sig"))
        if not isinstance(found, dict):
            return None
        for kind in KINDS:
            found[kind] = {name: e for name, e in found[kind].items() if isinstance(e, dict)}
        _as_json(found)  # nested too deeply, it could not be written again
        return found
    except FileNotFoundError:
        return _empty()
    except OSError as error:
        raise ProgressError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, AttributeError, RecursionError):
        return None


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Two kernels of one learner write in turn.

    Raises OSError where that cannot be had, RuntimeError where the file system knows no locks.
    """
    with _lock, FileLock(file.with_name(f".{file.name}.lock"), timeout=PATIENCE_S):
        yield


def _sound(file: Path) -> dict[str, Any]:
    """What is recorded; an unreadable file is put aside. Only under the lock: another kernel may
    have put it aside meanwhile, and written a sound one."""
    found = _parsed(file)
    if found is None:
        _put_aside(file)
    return found or _empty()


def _change(change) -> Any:
    file = progress_file()
    part = part_of(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(file):
            found = _sound(file)
            result = change(found)
            part.write_text(_as_json(found), encoding="utf-8", newline="\n", errors=ESCAPED)
            with suppress(OSError):  # there is none yet
                shutil.copymode(file, part)
            os.replace(part, file)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        why = getattr(error, "strerror", None) or str(error)
        raise ProgressError(
            f"{file}: progress cannot be kept ({why}); MPCORE_NOTEBOOKS names another folder"
        ) from None
    return result


def _put_aside(file: Path) -> None:
    with suppress(OSError):  # it cannot be moved: writing will say so
        for number in range(1, 1000):
            aside = file.with_name(f"progress.unreadable-{number}.json")
            if not aside.exists():
                os.replace(file, aside)
                return


def _as_json(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _as_csv(found: dict[str, Any]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(["kind", "name", "result", "attempts", "answer", "last"])
    for name, e in sorted(found["exercises"].items()):
        result = "solved" if e.get("solved") else "tried"
        writer.writerow(["exercise", name, result, e.get("attempts", ""), "", e.get("last", "")])
    for name, e in sorted(found["predictions"].items()):
        result = "right" if e.get("right") else "wrong"
        answer = str(e.get("answer", ""))
        if answer.startswith(("=", "+", "-", "@")) and not _is_number(answer):
            answer = f"'{answer}"  # else a spreadsheet would take it for a formula
        writer.writerow(["prediction", name, result, "", answer, e.get("last", "")])
    return buffer.getvalue()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
