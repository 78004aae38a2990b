"""A real JupyterLab in a real browser, for tests: as `mpcore lab` starts it, but apart from people.

    with lab_server(folder, tmp_path, {}) as server, lab_page(server, chromium) as page:
        page.open("lesson.ipynb")
        page.run_all()
        [explorer] = page.explorers()
        [slider] = page.controls(explorer, "range")
        milliseconds = page.change(slider, by="keyboard")

Our explorers promise: a root `.mp-explorer`; in it native controls with `data-name`; a picture
`.mp-picture` whose `data-shown` grows with every new picture; `aria-busy` of the root is "true"
while a change has no picture yet; parts of the picture that can be pressed have `tabindex="0"`,
`role="button"` and `data-key`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

import pytest
from lab_moves import MOVES

from mpcore.workbook import launch

SCRIPT = Path(__file__).with_name("lab.js")
START_S, RUN_MS, PATIENCE_MS, QUIET_MS, REST_MS = 60, 120_000, 10_000, 150, 30_000

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    # Whoever asks for another host is told that there is none.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
OPTIONS = [
    "--no-browser",
    "--ip=127.0.0.1",
    "--port=0",
    "--IdentityProvider.token=",
    "--allow-root",
    "--LabApp.expose_app_in_browser=True",
]
FOLDERS = {
    "JUPYTER_CONFIG_DIR": "config",
    "JUPYTER_DATA_DIR": "data",
    "JUPYTER_RUNTIME_DIR": "runtime",
    "JUPYTERLAB_SETTINGS_DIR": "settings",
    "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    "IPYTHONDIR": "ipython",
}
# All cells are in the page, whether or not they are on the screen; nothing is saved meanwhile.
DEFAULTS = {
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}
KINDS = {
    "select": "select[data-name]",
    "range": "input[type=range][data-name]",
    "number": "input[type=number][data-name]",
    "text": "input[type=text][data-name]",
    "checkbox": "input[type=checkbox][data-name]",
    "radio": "input[type=radio][data-name]",
    "button": "button[data-name]",
    "part": '.mp-picture [tabindex="0"][role="button"]',
}
"""Kind of control -> how it is found in an explorer."""


@dataclass(frozen=True)
class LabServer:
    """A running JupyterLab: its address, ending in a slash, and what it has printed."""

    url: str
    log: Path


@contextmanager
def lab_server(
    notebooks: Path, tmp: Path, environment: Mapping[str, str], command: list[str] | None = None
) -> Iterator[LabServer]:
    """A JupyterLab on a folder, with folders of its own in `tmp`; it and its kernels end with it.

    `command` starts it, without the options above; default what `mpcore lab` would start.
    """
    own = {name: str(tmp / folder) for name, folder in FOLDERS.items()}
    defaults = tmp / "config" / "labconfig" / "default_setting_overrides.json"
    defaults.parent.mkdir(parents=True, exist_ok=True)
    defaults.write_text(json.dumps(DEFAULTS), encoding="utf-8")
    log = tmp / "jupyterlab.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [*(command or launch.command(notebooks)), *OPTIONS],
            env=launch.environment(os.environ) | own | environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            yield LabServer(_address(process, tmp / "runtime", log), log)
        finally:
            process.terminate()  # it ends its kernels first
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # kernels notice, and end
                process.wait()


def _address(process: subprocess.Popen, runtime: Path, log: Path) -> str:
    """Wait until the server says where it listens: it chose the port itself."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            try:
                return json.loads(file.read_text(encoding="utf-8"))["url"]
            except ValueError:
                pass  # it is being written
        time.sleep(0.05)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text(errors='replace')[-2000:]}")


@dataclass(frozen=True)
class Control:
    """One control of an explorer. `locator` finds it again after the picture was replaced."""

    kind: str
    name: str
    locator: object
    explorer: object


class LabPage:
    """A browser's page with one notebook at a time."""

    def __init__(self, page, server: LabServer):
        self.page = page
        self.page_errors: list[str] = []
        self.external_requests: list[str] = []
        self.patience_ms = PATIENCE_MS  # for a picture
        self._server = server
        page.add_init_script(path=str(SCRIPT))
        page.on("pageerror", lambda error: self.page_errors.append(str(error)))
        page.on("console", self._hear)
        page.on("request", self._watch)

    def open(self, notebook: str) -> None:
        """Show a notebook, by its path below the server's folder, and wait for its kernel."""
        if self._has_lab():
            self.page.evaluate("path => { mpLab.open(path) }", notebook)
            there = "path => mpLab.panel()?.context.path === path"
        else:
            self.page.goto(f"{self._server.url}lab/tree/{quote(notebook)}?reset")
            there = "() => window.jupyterapp && mpLab.panel()"
        self.page.wait_for_function(there, arg=notebook, timeout=RUN_MS)
        self.page.wait_for_function("() => mpLab.ready()", timeout=RUN_MS)

    def close(self) -> None:
        """End the kernel of the notebook that is open, if there is one."""
        if self._has_lab():
            self.page.evaluate("() => mpLab.shutDown()")

    def _has_lab(self) -> bool:
        return self.page.evaluate("() => Boolean(window.jupyterapp)")

    def run_all(self, timeout_ms: float = RUN_MS) -> None:
        """Run every cell and wait for the end; AssertionError with the text of a cell's error."""
        self.page.evaluate("() => { mpLab.runAll() }")  # not awaited: the next line has a timeout
        self.page.wait_for_function("() => mpLab.finished()", timeout=timeout_ms)
        errors = [error for _, error in self.page.evaluate("() => mpLab.cells()") if error]
        assert not errors, re.sub(r"\x1b\[[\d;]*m", "", errors[0])

    def explorers(self, at_least: int = 1) -> list:
        """Locators of the explorers, once so many show a picture."""
        shown = """count => { const all = [...document.querySelectorAll('.mp-explorer')];
            return all.length >= count && all.every(one => mpLab.shown(one) > 0) }"""
        self.page.wait_for_function(shown, arg=at_least, timeout=self.patience_ms)
        return self.page.locator(".mp-explorer").all()

    def controls(self, explorer, kind: str | None = None) -> list[Control]:
        """What can be moved in an explorer, in its order; only one kind where `kind` says so."""
        found = explorer.evaluate("(e, kinds) => mpLab.controls(e, kinds)", KINDS)
        return [
            Control(kind_, name, explorer.locator(selector), explorer)
            for kind_, name, selector in found
            if kind in (None, kind_)
        ]

    def change(
        self, control: Control, by: Literal["mouse", "keyboard"], text: str | None = None
    ) -> float:
        """Move a control once, as a person would, and wait for the new picture.

        Returns the milliseconds, measured in the page, from the control's first event to the new
        picture being in the page. `text` is what is typed, where something is typed. Raises
        playwright's Error where no event arrives (something lies on top, or JupyterLab took the
        key for itself), or no picture follows.
        """
        explorer = control.explorer
        control.locator.scroll_into_view_if_needed(timeout=self.patience_ms)

        def arm() -> None:
            explorer.evaluate("(e, patience) => mpLab.arm(e, patience)", self.patience_ms)

        MOVES[control.kind, by](self.page, control.locator, arm, text)
        milliseconds = self.page.evaluate("() => mpLab.move")
        self.settle(explorer)
        return milliseconds

    def settle(self, explorer) -> None:
        """Wait until every change of an explorer has its picture and the kernel is at rest."""
        waiting = "(e, [quiet, patience]) => mpLab.settled(e, quiet, patience)"
        explorer.evaluate(waiting, [QUIET_MS, REST_MS])

    def scroll_to_cell(self, index: int) -> None:
        """Bring a cell to the top of the screen; `index` counts all cells from 0."""
        cell = self.page.locator(".jp-Notebook .jp-Cell").nth(index)
        cell.evaluate("cell => cell.scrollIntoView({block: 'start', behavior: 'instant'})")

    def screenshot(
        self, path: Path, dark: bool = False, width: int = 1280, height: int = 1000
    ) -> None:
        """A PNG of what is on the screen, in JupyterLab's light or dark theme."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.evaluate("name => mpLab.theme(name)", f"JupyterLab {'Dark' if dark else 'Light'}")
        attribute = "() => document.body.dataset.jpThemeLight"
        self.page.wait_for_function(f"({attribute})() === '{str(not dark).lower()}'")
        self.page.evaluate("() => new Promise(done => setTimeout(done, 300))")  # style sheets load
        self.page.screenshot(path=str(path))

    def _hear(self, message) -> None:
        if message.type == "error":
            self.page_errors.append(message.text)

    def _watch(self, request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and not request.url.startswith(self._server.url):
            self.external_requests.append(request.url)


@contextmanager
def lab_page(server: LabServer, chromium: str) -> Iterator[LabPage]:
    """A browser with one page on a server."""
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        try:
            page = LabPage(browser.new_page(viewport={"width": 1280, "height": 1000}), server)
            yield page
            page.close()
        finally:
            browser.close()
