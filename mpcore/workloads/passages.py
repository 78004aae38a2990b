"""Passages as deployment slices: read, cut into windows by the protocol, and identified by hash."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpcore.errors import InputError
from mpcore.paths import PASSAGES
from mpcore.records import Protocol
from mpcore.workloads.checkpoint import Checkpoint, CheckpointError

LEAST_PASSAGES = 8
"""A slice needs this many independent passages: the bootstrap resamples passages, not tokens."""


CONTENTS = "slices.toml"
"""Beside the slices: how many passages each has, and the digest of them all."""


class PassageError(InputError):
    """A slice or passage that is missing, unreadable or too short: one line."""


@dataclass(frozen=True)
class Window:
    """Consecutive tokens of one passage; all but the first are scored."""

    slice: str
    passage: str
    tokens: np.ndarray  # [length] int64

    @property
    def scored(self) -> int:
        return len(self.tokens) - 1


def slice_names(folder: Path = PASSAGES) -> list[str]:
    """The slices there are, in alphabetical order."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def read_slice(name: str, folder: Path = PASSAGES) -> dict[str, str]:
    """Passage name -> text; raises PassageError where the slice is not usable or not complete.

    A slice that `slices.toml` does not list is taken as it is.
    """
    if name == ".." or Path(name).name != name or not (folder / name).is_dir():
        raise PassageError(f"slice {name!r} is not in {folder}; there are {slice_names(folder)}")
    files = sorted((folder / name).glob("*.txt"))
    if len(files) < LEAST_PASSAGES:
        raise PassageError(
            f"slice {name!r} has {len(files)} passages in {folder / name}; at least "
            f"{LEAST_PASSAGES} are needed (a passage is missing?)"
        )
    texts = {}
    for file in files:
        try:
            texts[file.stem] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PassageError(f"{file}: not readable as UTF-8 text ({error})") from None
    _check_contents(name, texts, folder)
    return texts


def _check_contents(name: str, texts: dict[str, str], folder: Path) -> None:
    contents = folder / CONTENTS
    if not contents.is_file():
        return
    try:
        listed = tomllib.loads(contents.read_text(encoding="utf-8")).get(name)
    except (OSError, ValueError) as error:
        raise PassageError(f"{contents}: not readable as TOML ({error})") from None
    if listed is None:
        return
    found = {"passages": len(texts), "sha256": slice_digest(texts)}
    if not isinstance(listed, dict) or set(listed) != set(found):
        raise PassageError(f"{contents}: [{name}] needs {' and '.join(found)}, and nothing else")
    for key in found:
        if found[key] != listed[key]:
            raise PassageError(
                f"slice {name!r} in {folder / name}: {key} {found[key]} where {listed[key]} is "
                f"expected; restore its files, or change {CONTENTS} where this is meant"
            )


def slice_digest(texts: dict[str, str]) -> str:
    """SHA-256 over the names and texts of a slice's passages."""
    digest = hashlib.sha256()
    for name, text in sorted(texts.items()):
        digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()


def cut_windows(
    name: str, texts: dict[str, str], checkpoint: Checkpoint, protocol: Protocol, tokens: int
) -> list[Window]:
    """Windows that hold at least `tokens` scored tokens, spread evenly over all passages.

    Each passage gives its first tokens, in windows of the protocol's length; `tokens` = 0 takes
    every token. Raises PassageError where the slice is too short for what was asked, or a passage
    has nothing to score or holds what the tokeniser would lose.
    """
    share = -(-tokens // len(texts)) if tokens else None
    length = protocol.window_of(name)
    windows = []
    for passage, text in texts.items():
        try:
            ids = checkpoint.encode(text)
        except CheckpointError as error:
            raise PassageError(f"passage {name}/{passage}.txt: {error}") from None
        if len(ids) < 2:
            raise PassageError(
                f"passage {name}/{passage}.txt: nothing to score (tokens: {len(ids)}; at least 2 "
                "are needed)"
            )
        left = len(ids) if share is None else share
        for start in range(0, len(ids) - 1, length):
            piece = ids[start : start + min(length, left + 1)]
            if left < 1 or len(piece) < 2:
                break
            windows.append(Window(name, passage, piece))
            left -= len(piece) - 1
    found = sum(window.scored for window in windows)
    if found < tokens:
        raise PassageError(
            f"slice {name!r} holds {found} scored tokens of the {tokens} asked for; "
            f"ask for at most {found}, or 0 for all"
        )
    return windows
