"""Whether this environment has what the notebooks and reports need, and what to do where not.

Only the standard library is imported at once, so that a missing package is found, not met.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Literal

from mpcore.errors import InputError
from mpcore.paths import REPORTS, ROOT, models_folder, my_notebooks
from mpcore.workbook.table_html import nowrap, table_html

MODEL = "smollm2-135m"
LABEXTENSIONS = ("anywidget", "@jupyter-widgets/jupyterlab-manager")
FREE_BYTES = 10**9  # a report takes some MB, a fetched model 0.64 GB
INSTALL = "python -m pip install -r requirements.txt"
VENV = "python -m venv .venv (then as README.md has it)"

Status = Literal["ok", "warning", "failure"]
Finding = tuple[Status, str, str]
_WORDS = {"ok": "✓ in place", "warning": "! warning", "failure": "✗ failure"}


class NotReadyError(InputError):
    """The environment lacks something that is needed."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    found: str
    fix: str = ""
    """A command or an instruction; empty where all is well."""


class Examination(list[Check]):
    """All checks; a notebook shows them as a table, a terminal as lines."""

    @property
    def attention(self) -> list[Check]:
        """What is not in place, failures first."""
        return sorted((c for c in self if c.status != "ok"), key=lambda c: c.status != "failure")

    @property
    def headline(self) -> str:
        """The first line of both displays."""
        if [check.name for check in self.attention] == ["model"]:
            return "Ready for the lessons; the case needs the model"
        match len(self.attention):
            case 0:
                return "Everything is in place."
            case 1:
                return "1 thing needs attention"
            case count:
                return f"{count} things need attention"

    def require(self) -> None:
        """Raise NotReadyError naming the failures, where there are any; warnings are none."""
        if failures := [check.name for check in self if check.status == "failure"]:
            raise NotReadyError(f"not everything that is needed is in place: {', '.join(failures)}")

    def __str__(self) -> str:
        width = max((len(check.name) for check in self), default=0)
        lines = [self.headline]
        for check in self:
            lines.append(f"  {_WORDS[check.status]:<10}  {check.name:<{width}}  {check.found}")
            if check.fix:
                lines.append(f"  {'':<10}  {'':<{width}}  do: {check.fix}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = (
            [
                escape(check.name),
                nowrap(_WORDS[check.status]),
                escape(check.found),
                escape(check.fix),
            ]
            for check in self
        )
        return table_html(self.headline, ("What", "Status", "Found", "What to do"), rows)


def examine() -> Examination:
    """Look at everything, in a second or two; a check that breaks is a failure, never an error."""
    return Examination(_examined(name, look) for name, look in CHECKS.items())


def _examined(name: str, look: Callable[[], Finding]) -> Check:
    try:
        return Check(name, *look())
    except Exception as error:
        fix = f"{INSTALL} (if that does not help, it is a defect of mpcore)"
        return Check(name, "failure", f"could not be checked ({_told(error)})", fix)


def _told(error: Exception) -> str:
    """One short line for an error, without this machine's folders: notebooks are passed on."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    for place, name in ((sys.prefix, "ENVIRONMENT"), (str(ROOT), "."), (str(Path.home()), "~")):
        text = text.replace(place, name)
    return text[:200]


def _python() -> Finding:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = table["project"]["requires-python"]
    lowest, above = (
        tuple(int(part) for part in re.search(rf"{sign}([\d.]+)", wanted)[1].split("."))
        for sign in (">=", "<")
    )
    found = f"Python {'.'.join(map(str, sys.version_info[:3]))}"
    if lowest <= tuple(sys.version_info) < above:
        return "ok", found, ""
    return "failure", f"{found}, where {wanted} is needed", f"with a fitting Python: {VENV}"


def _environment() -> Finding:
    # The checkout's own egg-info, on the path wherever Python starts there, proves nothing.
    site = sysconfig.get_path("purelib")
    name = Path(sys.prefix).name
    if not any(metadata.distributions(name="mpcore", path=[site])):
        return (
            "failure",
            f"this Python ({name}) is not the one that mpcore is installed in",
            "mpcore lab (not another JupyterLab), or: python -m pip install --no-deps -e .",
        )
    if sys.prefix == sys.base_prefix and not os.environ.get("CONDA_PREFIX"):
        return "warning", f"mpcore is installed, but in the system's Python ({name})", VENV
    return "ok", f"mpcore is installed in this Python's own environment ({name})", ""


def _packages() -> Finding:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    differing = []
    for name, wanted in pins:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            differing.append(f"{name} is missing")
            continue
        if found != wanted.strip():
            differing.append(f"{name} {found} instead of {wanted.strip()}")
    if differing:
        return "failure", ", ".join(differing), INSTALL
    return "ok", f"all {len(pins)} in the pinned versions", ""


def _numbers() -> Finding:
    import numpy as np

    a = np.arange(4096, dtype=np.float32).reshape(64, 64) % 7
    product = a @ np.eye(64, dtype=np.float32)
    if not np.array_equal(product, a):
        return "failure", "NumPy multiplies wrongly", f"{INSTALL} --force-reinstall"
    try:
        from numba import config, njit

        if config.DISABLE_JIT:
            return "warning", "NumPy multiplies; slow, Numba is off", "unset NUMBA_DISABLE_JIT"
        njit("int64(int64)", cache=True)(_one_more)(1)
    except (ImportError, RuntimeError) as error:  # as mpcore.formats goes on without it
        return (
            "warning",
            f"NumPy multiplies; slow without Numba ({_told(error)})",
            f"{INSTALL}; set NUMBA_CACHE_DIR to a folder that can be written",
        )
    return "ok", "NumPy multiplies, Numba compiles and keeps what it compiled", ""


def _one_more(number: int) -> int:
    return number + 1


def _jupyterlab() -> Finding:
    share = Path(sys.prefix) / "share" / "jupyter"
    parts = {"JupyterLab": share / "lab" / "static" / "index.html"}
    parts |= {name: share / "labextensions" / name / "package.json" for name in LABEXTENSIONS}
    missing = [name for name, file in parts.items() if not file.is_file()]
    if missing:
        fix = "python -m pip install --force-reinstall --no-deps -c requirements.txt "
        fix += "jupyterlab anywidget jupyterlab_widgets"
        return "failure", f"without the browser's part of {', '.join(missing)}", fix
    extensions = [f"{name} {_version_in(parts[name])}" for name in LABEXTENSIONS]
    return "ok", ", ".join([f"JupyterLab {metadata.version('jupyterlab')}", *extensions]), ""


def _version_in(package: Path) -> str:
    return json.loads(package.read_text(encoding="utf-8"))["version"]


def _model() -> Finding:
    from mpcore.workloads.checkpoint import (
        CheckpointError,
        ModelMissing,
        check_quickly,
        model_facts,
        read_index,
    )

    folder, fix = models_folder() / MODEL, f"mpcore fetch {MODEL}"
    try:
        check_quickly(MODEL, folder, read_index(MODEL, folder, model_facts(MODEL)))
    except ModelMissing:
        return "warning", f"{MODEL} is not here yet; only reports need it", fix
    except CheckpointError:
        return "warning", f"{MODEL} is damaged; only reports need it", fix
    return "ok", f"{MODEL} is here and converted", ""


def _space() -> Finding:
    free = shutil.disk_usage(ROOT).free
    found = f"{free / 1e9:,.1f} GB free"
    if free < FREE_BYTES:
        return "warning", found, f"free some: {FREE_BYTES / 1e9:.0f} GB is needed at times"
    return "ok", found, ""


def _folders() -> Finding:
    folders = {"reports": REPORTS, "notebooks": my_notebooks()}
    closed = [what for what, folder in folders.items() if not _is_writable(folder)]
    if closed:
        return (
            "failure",
            f"the folder of {' and of '.join(closed)} cannot be written",
            "make it writable; or mpcore report -o DIR, and MPCORE_NOTEBOOKS for the notebooks",
        )
    return "ok", "the folders of reports and of notebooks can be written", ""


def _is_writable(folder: Path) -> bool:
    """Whether a file can be made there, or where the folder would be made."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": _python,
    "environment": _environment,
    "packages": _packages,
    "arithmetic": _numbers,
    "JupyterLab": _jupyterlab,
    "model": _model,
    "disk space": _space,
    "folders": _folders,
}
"""What is looked at, in the order of display."""
