"""From a case to its report: validate, fetch the model, run the notebook, write the files.

Nothing half-written is ever seen: the notebook runs in a scratch folder beside the place that the
report goes to, and the report's folder appears when all of it exists.
"""

from __future__ import annotations

import glob
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from mpcore.paths import REPORTS, ROOT, errors_name, resolved
from mpcore.policy import fill_in
from mpcore.records import Case, Packet, RecordError, digest_of, load_case
from mpcore.records.case import find_case
from mpcore.report.bundle import check_target, write_bundle
from mpcore.report.errors import ReportError
from mpcore.workloads.fetch import make_present

ROOM = 16 << 20
"""Bytes that have to be free: a report of 1.2 MB, an older one beside it, and what a kernel keeps.

It is better to hear of a full disk before the work than after it.
"""


IN_USE = "in_use.lock"
"""In a scratch folder: locked as long as its run lives."""

JUST_MADE_S = 10
"""A scratch folder that is younger may not have its lock yet."""


class Watcher(Protocol):
    """Who is told how far a report has come."""

    def cell(self, number: int, count: int) -> None:
        """Cell `number` of `count` starts."""

    def detail(self, text: str, done: int, total: int) -> None:
        """Within it (or before the first cell), `done` of `total` is reached in `text`."""


class Silent:
    """A watcher that does not look."""

    def cell(self, number: int, count: int) -> None:
        pass

    def detail(self, text: str, done: int, total: int) -> None:
        pass


def produce(
    case_name: str | Path,
    given: dict[str, Any] | None = None,
    profile: str = "default",
    out: Path | None = None,
    watcher: Watcher | None = None,
) -> Path:
    """Produce a case's report and return the folder that holds it.

    Args:
        case_name: A case in data/cases, or the path of a case file.
        given: Parameter values, as text or typed; they are checked before anything runs.
        profile: "default", or one of the case's profiles.
        out: The folder for report.html, report.ipynb, packet.json, policy.csv, summary.md,
            SHA256SUMS and packet.zip. Default: reports/CASE, with eight digits of a digest behind
            the name where profile or parameters are not the defaults.
        watcher: Is told how far things have come.

    Raises:
        InputError: a case, parameter, model or folder that cannot be used.
        papermill.PapermillExecutionError: a cell of the notebook failed.
    """
    watcher = watcher or Silent()
    case = load_case(case_name)
    values = case.values(profile, **(given or {}))
    for side in (case.failing, case.comparator):
        fill_in(side.policy, values)  # what is wrong there is told before anything is fetched
    notebook = find_notebook(case, find_case(case_name))
    out = resolved(Path(out or REPORTS / default_name(case, profile, values)))
    with scratch_beside(out) as scratch:
        if case.workload.kind == "language_model":
            make_present(case.workload.model, watcher.detail)
        packet, executed = _run(case, notebook, {**values, "profile": profile}, scratch, watcher)
        made = scratch / "made"
        made.mkdir()
        return write_bundle(out, _files(case, packet, executed))


def default_name(case: Case, profile: str, values: dict[str, Any]) -> str:
    """`CASE`, or `CASE-1a2b3c4d` where something else than the defaults was asked for."""
    if profile == "default" and values == case.values():
        return case.name
    return f"{case.name}-{digest_of({'profile': profile, 'values': values})[:8]}"


def find_notebook(case: Case, case_file: Path) -> Path:
    """The notebook that a case names, seen from the case's file or from the project's folder."""
    for base in (case_file.parent, ROOT, ROOT / "notebooks"):
        if (base / case.notebook).is_file():
            return (base / case.notebook).resolve()
    raise ReportError(f"{case_file.name}: notebook {case.notebook!r} is not there")


@contextmanager
def scratch_beside(out: Path) -> Iterator[Path]:
    """A scratch folder on the disk that `out` is on; it goes, whatever happens.

    Raises:
        ReportError: `out` is not a place for a report, or the disk is full.
        OSError: the place cannot be written to.
    """
    check_target(out)
    parent = out.parent
    absent = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    scratch = None
    try:
        with errors_name(out):
            parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(parent).free
            if free < ROOM:
                raise ReportError(
                    f"{out}: {free / 1e6:.1f} MB free where a report needs {ROOM / 1e6:.0f} MB; "
                    "make room, or name a folder on another disk"
                )
            _remove_leftovers(out)
            scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}.run-", suffix=".part", dir=parent))
        with FileLock(scratch / IN_USE):
            yield scratch
    finally:
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)
        for folder in absent:  # innermost first; one that holds the report stays
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _remove_leftovers(out: Path) -> None:
    """Remove the scratch folders of runs that were killed: nobody holds their locks any more."""
    for folder in out.parent.glob(f".{glob.escape(out.name)}.run-*.part"):
        with suppress(OSError, Timeout):
            if time.time() - folder.stat().st_mtime > JUST_MADE_S:
                with FileLock(folder / IN_USE, timeout=0):
                    pass
                shutil.rmtree(folder, ignore_errors=True)


def _run(case: Case, notebook: Path, parameters, scratch: Path, watcher: Watcher):
    """Run the notebook; returns the packet that it left and the notebook as run."""
    from mpcore.report.notebook_run import execute

    progress = scratch / "progress.jsonl"
    progress.touch()
    environment = {"MPCORE_PROGRESS": str(progress), "MPCORE_PACKET": str(scratch)}
    with followed(progress, watcher):
        executed = execute(notebook, parameters, environment, scratch, watcher.cell)
    if not (scratch / "packet.json").is_file():
        raise ReportError(f"{notebook.name}: ended without leaving a packet")
    try:
        return Packet.read(scratch / "packet.json"), executed
    except RecordError as error:
        what = str(error).removeprefix(str(scratch / "packet.json")).lstrip(": ")
        raise ReportError(f"{notebook.name}: left a packet that is none ({what})") from None


@contextmanager
def followed(progress: Path, watcher: Watcher) -> Iterator[None]:
    """Tell the watcher about the lines that appear at the end of a progress file."""
    stop = threading.Event()

    def follow() -> None:
        rest = ""
        with open(progress, encoding="utf-8") as file:
            while not stop.wait(0.2):
                *lines, rest = (rest + file.read()).split("\n")
                if lines:
                    # Anyone can write into the file: what is no report is passed over.
                    with suppress(ValueError, KeyError, TypeError):
                        last = json.loads(lines[-1])
                        watcher.detail(str(last["text"]), int(last["done"]), int(last["total"]))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _files(case: Case, packet: Packet, executed) -> dict[str, bytes]:
    """Every file of the report: name -> content."""
    from mpcore.report.export import notebook_to_html
    from mpcore.report.notebook_format import nbformat
    from mpcore.report.sections import reproduce_command
    from mpcore.report.summary import policy_csv, summary_markdown

    texts = {
        "report.html": notebook_to_html(executed, case.title, reproduce_command(packet)),
        "report.ipynb": nbformat.writes(executed) + "\n",
        "packet.json": packet.to_json(),
        "policy.csv": policy_csv(packet),
        "summary.md": summary_markdown(packet),
    }
    return {name: text.encode() for name, text in texts.items()}
