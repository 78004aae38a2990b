"""Working copies of the shipped notebooks: JupyterLab saves by itself, and would change those.

What a person has written is never touched, whatever else is damaged. A copy counts as theirs as
soon as the sources of its cells differ from the shipped version that it was made from; outputs
and metadata do not matter.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from mpcore.errors import InputError
from mpcore.paths import errors_name, part_of, resolved

RECORD = ".shipped.json"


@dataclass
class Origin:
    """What is remembered of one copy: digests of shipped sources, "" where unknown."""

    made_from: str = ""
    offered: str = ""  # the version that was put beside a copy which the person had changed


def refresh(shipped: Path, copies: Path) -> list[str]:
    """Bring the working copies up to date.

    Args:
        shipped: The folder of clean notebooks.
        copies: The folder of copies; made where there is none.

    Returns:
        What a person should know, one line each; empty where nothing happened.

    Raises:
        InputError: the copies would lie among the shipped notebooks, and be copied themselves.
        OSError: the copies cannot be written; its file name is the one concerned.
    """
    if resolved(copies).is_relative_to(resolved(shipped)):
        what = (
            "copies cannot lie among the shipped notebooks; MPCORE_NOTEBOOKS names another folder"
        )
        raise InputError(f"{copies}: {what}")
    with errors_name(copies):
        copies.mkdir(parents=True, exist_ok=True)
    origins = _read(copies / RECORD)
    before = {name: asdict(origin) for name, origin in origins.items()}
    added, lines = 0, []
    for path in notebooks_below(shipped):
        content = (shipped / path).read_bytes()
        if not (digest := sources_digest(content)):
            lines.append(f"{path.as_posix()}: left out; the shipped file is no notebook")
            continue
        content = without_outputs(content)
        copy, origin = copies / path, origins.setdefault(path.as_posix(), Origin())
        if not os.path.lexists(copy):
            _write(copy, content)
            origin.made_from, added = digest, added + 1
            continue
        found = _digest_of_file(copy)
        if found == digest:
            origin.made_from = digest
        elif found and found == origin.made_from:
            _write(copy, content)
            origin.made_from = digest
            lines.append(f"{path.as_posix()}: updated; you had not changed it")
        elif digest not in (origin.made_from, origin.offered):
            beside = _put_beside(copy, content, origin.offered)
            origin.offered = digest
            lines.append(f"{path.as_posix()}: kept as you have it; the new version: {beside.name}")
    if added:
        what = "1 notebook" if added == 1 else f"{added} notebooks"
        lines.insert(0, f"{what} copied to {copies.name}; work there as you like")
    after = {name: asdict(origin) for name, origin in origins.items()}
    if after != before:
        _write(copies / RECORD, (json.dumps(after, indent=1) + "\n").encode())
    return lines


def notebooks_below(folder: Path) -> list[Path]:
    """Relative paths of all notebooks in a folder, sorted; JupyterLab's checkpoints left out."""
    paths = (path.relative_to(folder) for path in folder.rglob("*.ipynb") if path.is_file())
    return sorted(path for path in paths if ".ipynb_checkpoints" not in path.parts)


def without_outputs(content: bytes) -> bytes:
    """A notebook as if nobody had run it: stored results would give the predictions away."""
    notebook = json.loads(content)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def sources_digest(content: bytes) -> str:
    """SHA-256 of the cells' kinds and sources, "" where `content` is no notebook."""
    try:
        cells = [
            (cell["cell_type"], "".join(cell["source"])) for cell in json.loads(content)["cells"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def _digest_of_file(path: Path) -> str:
    try:
        return sources_digest(path.read_bytes())
    except OSError:
        return ""


def _put_beside(copy: Path, content: bytes, offered: str) -> Path:
    """Write `NAME (new).ipynb`; one with the sources `offered`, that nobody changed, makes room."""
    number, beside = 1, copy.with_name(f"{copy.stem} (new).ipynb")
    while os.path.lexists(beside) and not (offered and _digest_of_file(beside) == offered):
        number += 1
        beside = copy.with_name(f"{copy.stem} (new {number}).ipynb")
    _write(beside, content)
    return beside


def _read(record: Path) -> dict[str, Origin]:
    """What is remembered; what cannot be read is forgotten, so that those copies stay as is."""
    try:
        rows = json.loads(record.read_bytes())
        return {str(name): Origin(**row) for name, row in rows.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; its rights are ordinary, however the shipped one's are."""
    part = part_of(path)
    with errors_name(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(content)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
