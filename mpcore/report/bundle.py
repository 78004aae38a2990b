"""A report's folder, written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from mpcore.paths import errors_name, resolved
from mpcore.report.errors import ReportError

SUMS, ARCHIVE = "SHA256SUMS", "packet.zip"
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # the format's earliest: the archive says nothing of when


def write_bundle(folder: str | Path, files: dict[str, bytes]) -> Path:
    """Write `files`, their SHA256SUMS and packet.zip into `folder`, replacing an older bundle.

    Everything is written and synced beside the folder first and then swapped in; whatever
    happens (a full disk, an interrupt), the folder holds either the old bundle or the new one.
    Files in the folder that no bundle wrote are kept.

    Args:
        folder: where; made if absent. A folder that holds other things than a bundle is refused.
        files: relative POSIX path → content.

    Returns:
        The folder's absolute path.

    Raises:
        ReportError: a name that leaves the folder, or a folder that is not a bundle's.
        OSError: as the file system says.
    """
    target = resolved(Path(folder))
    everything = with_sums_and_archive(files)
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=target.parent))
    try:
        with errors_name(target):
            for name, content in everything.items():
                _write(fresh / name, content)
            if target.exists():
                _keep_others(target, fresh, set(everything) | _listed(target))
            fresh.chmod(0o755)
            _sync_folder(fresh)
            _swap(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def with_sums_and_archive(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files with SHA256SUMS and packet.zip beside them; the same bytes for the same files."""
    for name in files:
        path = PurePosixPath(name)
        unsafe = path.is_absolute() or ".." in path.parts or "\\" in name or str(path) != name
        if unsafe or name in (SUMS, ARCHIVE):
            raise ReportError(f"bundle file name {name!r}: a plain relative path is allowed")
    names = sorted(files)
    sums = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in names)
    listed = {name: files[name] for name in names} | {SUMS: sums.encode()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in listed.items():
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.create_system = 3  # Unix, on every platform
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content, compresslevel=6)
    return listed | {ARCHIVE: buffer.getvalue()}


def check_target(target: Path) -> None:
    """Raise ReportError where a bundle may not be written.

    That is a file or below one, a folder of other things, and one that cannot be swapped.
    """
    there = next(path for path in (target, *target.parents) if path.exists())
    if not there.is_dir():
        raise ReportError(f"{there}: is a file; name a folder for the report")
    if there != target:
        return
    if any(target.iterdir()) and not (target / SUMS).is_file():
        raise ReportError(
            f"{target}: holds files that no report wrote; name an empty or a new folder"
        )
    if os.path.ismount(target) or os.path.samefile(target, os.curdir):
        what = "a mount point" if os.path.ismount(target) else "the folder that you are in"
        raise ReportError(f"{target}: is {what} and cannot be replaced; name a folder inside it")


def _listed(folder: Path) -> set[str]:
    """Names that the folder's bundle wrote."""
    try:
        text = (folder / SUMS).read_text(encoding="utf-8")
    except OSError:
        return {SUMS, ARCHIVE}
    return {line.partition("  ")[2] for line in text.splitlines()} | {SUMS, ARCHIVE}


def _keep_others(old: Path, fresh: Path, ours: set[str]) -> None:
    """Copy what people put beside the report (a signature, notes) into the new folder."""
    for path in sorted(old.rglob("*")):
        name = path.relative_to(old).as_posix()
        if name in ours or (path.is_dir() and not path.is_symlink()):
            continue
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, fresh / name, follow_symlinks=False)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _swap(fresh: Path, target: Path) -> None:
    """Put `fresh` where `target` is; the old folder goes only once the new one stands."""
    if not target.exists():
        os.rename(fresh, target)
        _sync_folder(target.parent)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    try:
        try:
            os.rename(target, old / "bundle")
            os.rename(fresh, target)
        except BaseException:
            if not target.exists():
                os.rename(old / "bundle", target)
            raise
        _sync_folder(target.parent)
    finally:
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    # Windows cannot open a folder; there the rename alone has to do.
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
