"""What a learner has solved and predicted: one small local file that leaves no machine."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from mpcore.errors import InputError
from mpcore.paths import my_notebooks, part_of, resolved

SCHEMA = "mpcore.progress/1"
PATIENCE_S = 5.0  # for another kernel that is writing
KINDS = ("exercises", "predictions")

_lock = threading.Lock()


class ProgressError(InputError):
    """A progress file that cannot be written, or a target that cannot be exported to."""


def progress_file() -> Path:
    """Where the progress is kept; MPCORE_NOTEBOOKS moves it, with the learner's notebooks."""
    return my_notebooks() / "progress.json"


def read() -> dict[str, Any]:
    """Everything recorded: `{"exercises": {name: entry}, "predictions": {name: entry}}`.

    A file that holds something else is put aside beside its place, never overwritten. Raises
    ProgressError where the file system does not let it be read; nothing is changed then.
    """
    file = progress_file()
    try:
        found = json.loads(file.read_text(encoding="utf-8-sig"))
        if isinstance(found, dict) and all(isinstance(found.get(kind), dict) for kind in KINDS):
            return found
    except FileNotFoundError:
        return _empty()
    except OSError as error:
        raise ProgressError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        pass
    _put_aside(file)
    return _empty()


def entry(kind: str, name: str) -> dict[str, Any] | None:
    """What is recorded of one exercise or prediction; None for nothing."""
    found = read()[kind].get(name)
    return found if isinstance(found, dict) else None


def note_attempt(name: str, correct: bool) -> None:
    """Count an attempt at an exercise. What was once solved stays solved."""

    def change(found):
        before = found["exercises"].get(name)
        before = before if isinstance(before, dict) else {}
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
        if not isinstance(found["predictions"].get(name), dict):
            found["predictions"][name] = {"answer": answer, "right": right, "last": _now()}
        return found["predictions"][name]

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
    path = Path(path).expanduser()
    found = read()
    if path.suffix == ".json":
        text = _as_json(found)
    elif path.suffix == ".csv":
        text = _as_csv(found)
    else:
        raise ProgressError(f"{path}: name a file that ends in .json or .csv")
    try:
        with open(path, "x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError:
        raise ProgressError(f"{path}: exists already; name a new file") from None
    except OSError as error:
        raise ProgressError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def _empty() -> dict[str, Any]:
    return {"schema": SCHEMA, **{kind: {} for kind in KINDS}}


def _change(change) -> Any:
    file = resolved(progress_file())  # what a link leads to is written, the link stays
    part = part_of(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # two kernels of one learner write in turn
        with _lock, FileLock(file.with_name(f".{file.name}.lock"), timeout=PATIENCE_S):
            found = read()
            result = change(found)
            part.write_text(_as_json(found), encoding="utf-8", newline="\n")
            os.replace(part, file)
    except (OSError, UnicodeError) as error:
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
