"""Where the project's own data and its produced files lie."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpcore.errors import InputError, quoted

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
NOTEBOOKS = ROOT / "notebooks"
PASSAGES = DATA / "passages"
REPORTS = ROOT / "reports"


def models_folder() -> Path:
    """Downloaded and converted models; MPCORE_MODELS moves it to another disk."""
    return Path(os.environ.get("MPCORE_MODELS", DATA / "models"))


def my_notebooks() -> Path:
    """A person's working copies of the notebooks; MPCORE_NOTEBOOKS moves them elsewhere.

    Raises InputError where that begins with a `~` which leads nowhere.
    """
    given = os.environ.get("MPCORE_NOTEBOOKS")
    return expanded(given, "MPCORE_NOTEBOOKS = ") if given else ROOT / "my_notebooks"


def expanded(path: str | Path, where: str = "") -> Path:
    """A path with the folder that a leading `~` stands for; raises InputError where it is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        what = "nobody has that home folder; write it out"
        raise InputError(f"{where}{quoted(str(path))}: {what}") from None


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Errors of the file system name `path`, which was asked for; their own is a part, or none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def resolved(path: Path) -> Path:
    """The absolute path behind any links; raises InputError where there is none."""
    try:
        return path.resolve()
    except FileNotFoundError:
        what = "the folder that this runs in is gone; change to another"
        raise InputError(f"{path}: {what}") from None
    except (OSError, RuntimeError):  # before Python 3.13 the latter
        raise InputError(f"{path}: its symbolic links lead in a circle") from None
    except ValueError as error:
        raise InputError(f"{str(path)!r}: not the path of a file ({error})") from None


def part_of(path: Path) -> Path:
    """Beside a file: where this process writes what is to replace it."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")
