"""The case launcher: a case's parameters as a form, its report made in the background and opened.

What it runs is `mpcore report`, and it shows that very command.
"""

from __future__ import annotations

import shlex
import threading
import time
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

import traitlets

from mpcore.errors import quoted
from mpcore.paths import REPORTS, ROOT, resolved
from mpcore.records import load_case
from mpcore.records.case import Parameter, as_given, find_case
from mpcore.report.errors import ReportError
from mpcore.report.produce import default_name
from mpcore.workbook.background_report import BackgroundReport, Plan
from mpcore.workbook.explorer import Explorer, buttons, checkboxes, select, text_box, validate
from mpcore.workbook.launcher_picture import launcher_picture, progress_words
from mpcore.workbook.table_html import table_html
from mpcore.workbook.verdict_html import code_html, text_html
from mpcore.workbook.workbook_map import workbook

FIELD = "p_"
"""Stands before a parameter's name in the name of its trait: a widget has names of its own."""

TICK_S, SPOKEN_EVERY_S = 0.5, 10.0

_last_run: dict[Path, BackgroundReport] = {}
"""Case file -> the run that this kernel started last: a cell that runs again shows it again."""


class CaseLauncher(Explorer):
    """A case as a form with Run and Cancel; the report opens in place.

    Args:
        case: a case in data/cases, or the path of a case file.
        profile: "default", or one of the case's profiles.
        out: folder for the report; default as `mpcore report` has it.
        given: values of parameters, by their names.

    Attributes:
        profile: moves the parameters that it sets, but those that were changed by hand.
        p_NAME: the parameter NAME, as text; a list of texts where it may have several choices.
    """

    profile = traitlets.Unicode("default").tag(sync=True)

    def __init__(
        self,
        case: str | Path,
        profile: str = "default",
        out: str | Path | None = None,
        **given: Any,
    ) -> None:
        self._lock = threading.RLock()  # the thread that follows a run draws, too
        self.case, self._file, self._name = load_case(case), find_case(case).resolve(), str(case)
        if out is not None and not isinstance(out, str | Path):
            raise ReportError(f"out = {quoted(out)} must be the path of a folder")
        self._out = Path(out) if out else None
        self._said = (-1, 0.0)  # of a run: the cell that was last spoken of, and when
        values = self.case.values(profile, **given)
        fields = {FIELD + name: _trait(p) for name, p in self.case.parameters.items()}
        self.inputs = ("profile", *fields)
        self.add_traits(**fields)
        self._run = _last_run.get(self._file)
        if self._run and self._run.ended.is_set():
            self._run = None
        super().__init__(profile=profile, **self._as_fields(values))
        self.title = f"Run the case {self.case.name}: {self.case.title}"
        self.observe(self._follow_profile, "profile")
        if self._run:
            self._watch()

    @validate("profile")
    def _a_profile(self, proposal):
        self.case.values(proposal["value"])
        return proposal["value"]

    def controls_of(self):
        return [
            select("profile", "profile: how much is scored", self._profiles()),
            *(_control(FIELD + name, name, p) for name, p in self.case.parameters.items()),
            buttons(
                "the run",
                {"run": ("Run", "make the report"), "cancel": ("Cancel", "cancel the run")},
            ),
        ]

    def values(self) -> dict[str, Any]:
        """The parameters as the form has them; raises RecordError where one is not valid."""
        usual, given = self.case.values(self.profile), {}
        for name, parameter in self.case.parameters.items():
            given[name] = getattr(self, FIELD + name)
            if _is_ticked(parameter) and sorted(given[name]) == sorted(usual[name]):
                given[name] = usual[name]  # in which order they were ticked does not count
        return self.case.values(self.profile, **given)

    def plan(self) -> Plan:
        """What Run would do; raises RecordError where a parameter is not valid."""
        out = ["-o", str(self._out)] if self._out else []
        return Plan(
            shlex.join(["mpcore", "report", self._name, *self._options(), *out]),
            _shown(self._folder() / "report.html"),
            workbook().reports.get(self.case.name, {}).get(self.profile, ""),
        )

    def press(self, key):
        """`run` makes the report, `cancel` ends that and leaves nothing behind."""
        if key == "run":
            self._start()
        elif key == "cancel":
            if not self._is_running:
                raise ReportError("nothing is running")
            self._run.cancel()
        else:
            return super().press(key)
        self.redraw()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of a run; returns whether none is running now."""
        if self._run:
            self._run.ended.wait(seconds)
            if not self._is_running:
                self.redraw()
        return not self._is_running

    def draw(self):
        run, is_running = self._run, self._is_running
        self.off = [*self.inputs, "run"] if is_running else ["run", "cancel"]
        plan = self.plan()
        if is_running:
            plan = run.plan
            self.off = [*self.off, "cancel"] if run.is_ending else self.off
        else:
            self.off = ["cancel"]
            self._open_report()
        if run and run.plan != plan:
            run = None  # the form has changed since
        words = self._words(run, plan)
        if self._is_news(run):
            self.spoken = words
        self.picture = launcher_picture(plan, run, words)

    def static_html(self):
        """The form's values, the command and what was decided, for pages without a kernel."""
        if self.problem:
            return text_html(self.problem, head=self.title)
        values = self.values()
        rows = [["profile", escape(self.profile), "how much is scored"]] + [
            [escape(name), escape(as_given(values[name])), escape(parameter.help)]
            for name, parameter in self.case.parameters.items()
        ]
        table = table_html(escape(self.title), ("Parameter", "Value", "What it is"), rows)
        return f"{table}{code_html(self.plan().command)}{text_html(self.spoken)}"

    # Traits change in two threads: the kernel's, and the one that follows a run.

    def redraw(self):
        with self._lock, self.hold_sync():
            super().redraw()
            run = self._run
            if not self.problem and run and run.outcome == "failed" and run.plan == self.plan():
                self.problem = run.line  # and the picture stays: it is right

    def set_state(self, sync_data):
        with self._lock:
            super().set_state(sync_data)

    def notify_change(self, change):
        with self._lock:
            super().notify_change(change)

    @property
    def _is_running(self) -> bool:
        return self._run is not None and not self._run.ended.is_set()

    def _start(self) -> None:
        last = _last_run.get(self._file)
        if last and not last.ended.is_set():
            raise ReportError("a report of this case is being made; wait for it, or cancel it")
        plan = self.plan()
        case = str(self._file) if self._name.endswith(".toml") else self._name
        out = ["-o", str(self._folder())] if self._out else []  # it works in another folder
        run = BackgroundReport(["report", case, *self._options(), *out], plan)
        self._run = _last_run[self._file] = run
        self._said, self.result = (-1, 0.0), ""
        self._watch()

    def _folder(self) -> Path:
        name = default_name(self.case, self.profile, self.values())
        return resolved(self._out or REPORTS / name)

    def _watch(self) -> None:
        """Draw now and then while a run goes on, and once when it has ended."""

        def follow(run: BackgroundReport) -> None:
            while not run.ended.wait(TICK_S):
                self._redraw_quietly()
            self._redraw_quietly()

        threading.Thread(target=follow, args=[self._run], daemon=True).start()

    def _redraw_quietly(self) -> None:
        with suppress(Exception):  # `problem` has it by then; nobody sees what a thread raises
            self.redraw()

    def _open_report(self) -> None:
        run = self._run
        if run and run.page and not self.result:
            try:
                page = run.page.read_text(encoding="utf-8")
            except OSError as error:
                raise ReportError(f"{_shown(run.page)}: {error.strerror}") from None
            # Without a base of its own, links inside the page would lead out of the frame.
            self.result = page.replace("<head>", '<head><base href="about:srcdoc">', 1)

    def _words(self, run: BackgroundReport | None, plan: Plan) -> str:
        ready = f"Ready. The same on the command line: {plan.command}"
        if run is None:
            made_by = self._run.plan.command if self._run and self.result else ""
            return ready + (f" Shown below is what this made: {made_by}" if made_by else "")
        match run.outcome:
            case "running":
                return progress_words(run)
            case "done":
                where = f"The report is shown below and lies in {plan.place}"
                return f"Done. {run.line} {where}; made by: {plan.command}"
            case "cancelled":
                return f"Cancelled; {_left_behind(run)}. {ready}"
            case _:
                return f"The run failed; {_left_behind(run)}."

    def _is_news(self, run: BackgroundReport | None) -> bool:
        """Whether to say it: a screen reader reads out every change, and a run tells hundreds."""
        if run and run.outcome == "running" and not run.is_ending:
            cell, said_at = self._said
            if cell == run.progress.cell and time.monotonic() - said_at < SPOKEN_EVERY_S:
                return False
            self._said = run.progress.cell, time.monotonic()
        return True

    def _options(self) -> list[str]:
        """What differs from the profile's own values."""
        values, usual = self.values(), self.case.values(self.profile)
        options = [] if self.profile == "default" else ["--profile", self.profile]
        for name, value in values.items():
            if value != usual[name]:
                options += ["-p", f"{name}={as_given(value)}"]
        return options

    def _profiles(self) -> dict[str, str]:
        """Profile -> what it means: how long it takes, and what it sets."""
        known = workbook().reports.get(self.case.name, {})
        shown = {}
        for name in ("default", *self.case.profile):
            sets = (f"{p} {as_given(v)}" for p, v in self.case.profile.get(name, {}).items())
            what = "; ".join(filter(None, [known.get(name), *sets]))
            shown[name] = f"{name}: {what}" if what else name
        return shown

    def _follow_profile(self, change) -> None:
        """Parameters that still are as the old profile had them become as the new one has them."""
        before, after = (self._as_fields(self.case.values(p)) for p in (change.old, change.new))
        with self.hold_sync():
            for name, value in after.items():
                if getattr(self, name) == before[name]:
                    setattr(self, name, value)

    def _as_fields(self, values: dict[str, Any]) -> dict[str, Any]:
        return {
            FIELD + name: value if _is_ticked(self.case.parameters[name]) else as_given(value)
            for name, value in values.items()
        }


def _is_ticked(parameter: Parameter) -> bool:
    return parameter.type == "list" and bool(parameter.choices)


def _left_behind(run: BackgroundReport) -> str:
    if run.was_killed:
        return "what it had begun goes when the next report is made there"
    return "nothing was left behind"


def _trait(parameter: Parameter) -> traitlets.TraitType:
    kind = traitlets.List(traitlets.Unicode()) if _is_ticked(parameter) else traitlets.Unicode()
    return kind.tag(sync=True)


def _control(trait: str, name: str, parameter: Parameter) -> dict[str, Any]:
    label = f"{name}: {parameter.help}"
    if not parameter.choices:
        return text_box(trait, f"{label}. Valid: {parameter.valid()}")
    options = [as_given(choice) for choice in parameter.choices]
    return (checkboxes if _is_ticked(parameter) else select)(trait, label, options)


def _shown(path: Path) -> str:
    """A path from the project's folder, where it lies in there."""
    return (path.relative_to(ROOT) if path.is_relative_to(ROOT) else path).as_posix()
