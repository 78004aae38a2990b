"""JupyterLab as `mpcore lab` starts it: our settings take effect, and explorers can be moved."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import nbformat
import pytest
from lab import MOVES, LabPage, lab_page, lab_server
from nbformat.v4 import new_code_cell, new_notebook, new_output
from stand_in import CONTROLS

from mpcore.cli import main
from mpcore.paths import ROOT
from mpcore.workbook import launch
from mpcore.workbook.launch import FIRST, LaunchError

STATE = {"0": {"model_name": "M", "model_module": "m", "model_module_version": "0", "state": {}}}
WIDGETS = {"application/vnd.jupyter.widget-state+json": {"version_major": 2, "state": STATE}}
SHOWN = {
    "application/vnd.jupyter.widget-view+json": {"model_id": "0", "version_major": 2},
    "image/svg+xml": "<svg><text>the picture</text></svg>",
    "text/plain": "only words",
}
CELLS = {
    "moved.ipynb": ["from stand_in import StandIn", "x = StandIn()\nx", ""],
    "broken.ipynb": ["1 + 1", "raise ValueError('this cell fails')", "2"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("lab")
    notebooks = tmp / "my notebooks"
    notebooks.mkdir()
    for name, cells in CELLS.items():
        write_notebook(notebooks / name, [new_code_cell(source) for source in cells])
    output = new_output("display_data", SHOWN)
    write_notebook(notebooks / "shown.ipynb", [new_code_cell("x", outputs=[output])], WIDGETS)
    (tmp / "config").mkdir()
    (tmp / "config" / "jupyter_server_config.py").write_text("c.ServerApp.base_url = '/theirs/'")
    with lab_server(notebooks, tmp, {"PYTHONPATH": str(Path(__file__).parent)}) as found:
        yield found


@pytest.fixture(scope="module")
def page(server, chromium):
    with lab_page(server, chromium) as found:
        found.open("moved.ipynb")
        found.run_all()
        yield found


@pytest.fixture
def explorer(page):
    [found] = page.explorers()
    return found


def write_notebook(path: Path, cells: list, widgets: dict | None = None) -> None:
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}}
    metadata |= {"widgets": widgets} if widgets else {}
    nbformat.write(new_notebook(cells=cells, metadata=metadata), path)


def fetched(server, path: str) -> str:
    with urlopen(Request(server.url + path, headers={"Referer": server.url})) as answer:
        return answer.read().decode()


@pytest.mark.browser
def test_every_kind_of_control_answers_to_keyboard_and_mouse(page, explorer, server):
    controls = {control.kind: control for control in page.controls(explorer)}
    assert tuple(controls) == CONTROLS
    for kind, by in MOVES:
        if (kind, by) == ("radio", "mouse"):  # the other one: the last is chosen already
            controls[kind] = page.controls(explorer, kind)[0]
        milliseconds = page.change(controls[kind], by, text=by if kind == "text" else None)
        assert 0 < milliseconds < 5000
        assert f"seen {kind}=" in explorer.locator("svg text").text_content()
    assert page.page_errors == []
    assert page.external_requests == []
    assert "without encryption" not in server.log.read_text()


@pytest.mark.browser
def test_a_control_that_does_not_answer_is_noticed(page, explorer, monkeypatch):
    [select] = page.controls(explorer, "select")
    monkeypatch.setattr(page, "patience_ms", 500)
    select.locator.evaluate("node => delete node.dataset.lmSuppressShortcuts")
    with pytest.raises(Exception, match="no new picture was shown"):
        page.change(select, "keyboard")  # JupyterLab goes to the next cell instead
    select.locator.evaluate("node => node.dataset.lmSuppressShortcuts = 'true'")
    assert page.change(select, "keyboard") < 500


@pytest.mark.browser
def test_what_a_page_must_not_do_is_noticed(page, server):
    other = LabPage(page.page.context.browser.new_page(), server)
    other.page.evaluate(
        "() => { console.error('wrong'); fetch('http://example.org/').catch(Boolean) }"
    )
    other.page.wait_for_timeout(100)
    assert "wrong" in other.page_errors
    assert other.external_requests == ["http://example.org/"]
    other.page.close()


@pytest.mark.browser
def test_screenshots_follow_the_theme_and_the_width(page, tmp_path):
    page.scroll_to_cell(1)
    sizes, backgrounds = [], []
    for dark, width in ((False, 1280), (True, 640)):
        path = tmp_path / f"{width}.png"
        page.screenshot(path, dark=dark, width=width)
        sizes.append(int.from_bytes(path.read_bytes()[16:20], "big"))
        colour = "getComputedStyle(document.querySelector('.jp-Notebook')).backgroundColor"
        backgrounds.append(sum(map(int, re.findall(r"\d+", page.page.evaluate(colour))[:3])))
    assert sizes == [1280, 640]
    assert backgrounds[0] > 600 > 200 > backgrounds[1]


@pytest.mark.browser
def test_a_cell_that_fails_is_told(page, server):
    other = LabPage(page.page.context.browser.new_page(), server)
    other.open("broken.ipynb")
    with pytest.raises(AssertionError, match="ValueError: this cell fails"):
        other.run_all()
    other.close()


def test_exports_show_the_picture_and_not_the_widget(server):
    html = fetched(server, "nbconvert/html/shown.ipynb")
    assert 'data-mime-type="image/svg+xml"' in html and 'class="jupyter-widgets' not in html


def test_nobody_is_asked_about_news(server):
    settings = json.loads(fetched(server, "lab/api/settings"))["settings"]
    [row] = [r for r in settings if r["id"] == "@jupyterlab/apputils-extension:notification"]
    assert row["schema"]["properties"]["fetchNews"]["default"] == "false"
    assert row["schema"]["properties"]["checkForUpdates"]["default"] is False


def test_what_a_person_has_configured_applies_as_well(server):
    assert server.url.endswith("/theirs/")


def test_our_kernel_is_the_one_that_ipykernel_installs_but_quiet():
    ours = json.loads((launch.SETTINGS / "kernels" / "python3" / "kernel.json").read_text())
    installed = Path(sys.prefix) / "share" / "jupyter" / "kernels" / "python3" / "kernel.json"
    *argv, quiet = ours.pop("argv")
    theirs = json.loads(installed.read_text())
    assert quiet == "--IPKernelApp.log_level=ERROR" and argv[1:] == theirs.pop("argv")[1:]
    assert ours == theirs


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Runs `mpcore lab` without JupyterLab; returns what would have been started."""
    calls = []

    class Process(subprocess.Popen):
        def __init__(self, command, env):
            calls.append((command, env))
            super().__init__([sys.executable, "-c", "raise SystemExit(3)"])

    monkeypatch.setattr("mpcore.cli.subprocess.Popen", Process)
    monkeypatch.setattr("mpcore.cli.signal.signal", lambda *_: None)
    monkeypatch.setattr("mpcore.workbook.launch.os.geteuid", lambda: 1000, raising=False)
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setattr("mpcore.paths.NOTEBOOKS", tmp_path / "shipped")
    monkeypatch.setenv("MPCORE_NOTEBOOKS", str(tmp_path / "mine"))
    (tmp_path / "shipped" / "lessons").mkdir(parents=True)
    for name in (FIRST, "lessons/01_a b.ipynb", "lessons/02_c.ipynb"):
        write_notebook(tmp_path / "shipped" / name, [new_code_cell("1")])

    def start(*arguments):
        status = main(["lab", *arguments])
        return status, *(calls.pop() if calls else (None, None))

    start.folder = tmp_path / "mine"
    return start


def test_lab_opens_the_working_copies_at_the_first_notebook(started, capsys):
    status, command, environment = started("--port", "8899", "--no-browser")
    assert status == 3  # JupyterLab's own
    assert (
        capsys.readouterr().err == "notebooks: 3 notebooks copied to mine; work there as you like\n"
    )
    assert command[:4] == [sys.executable, "-m", "jupyterlab", str(started.folder.resolve())]
    assert command[4:] == [
        f"--LabApp.default_url=/lab/tree/{FIRST}",
        "--port",
        "8899",
        "--no-browser",
    ]
    assert environment["JUPYTER_PREFER_ENV_PATH"] == "1"


@pytest.mark.parametrize(
    "name", ["01_a b", "lessons/01_a b.ipynb", "notebooks/lessons/01_a b", "01"]
)
def test_lab_opens_the_notebook_that_is_named(started, name):
    _, command, _ = started(name, "--no-browser")
    assert command[4:] == ["--LabApp.default_url=/lab/tree/lessons/01_a%20b.ipynb", "--no-browser"]


def test_a_notebook_that_is_unknown_is_told_with_those_there_are(started, capsys):
    assert started("03")[:2] == (2, None)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("mpcore: notebook '03' is unknown; there are 00_start_here.ipynb, less")


def test_a_name_that_fits_two_notebooks_is_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_notebook(tmp_path / folder / "x.ipynb", [])
    write_notebook(tmp_path / "b" / "xy.ipynb", [])
    with pytest.raises(LaunchError, match=r"'x' fits several notebooks; there are a/x\.ipynb, b/x"):
        launch.find(tmp_path, "x")
    assert launch.find(tmp_path, "xy") == launch.find(tmp_path, "b/xy") == "b/xy.ipynb"
    assert launch.find(tmp_path, "b/x") == "b/x.ipynb"  # a whole name goes before a beginning


CONFIGURED = "c.ServerApp.allow_root = True"


@pytest.mark.parametrize(
    ("options", "configured", "starts"),
    [
        ([], None, False),
        (["02", "--no-browser"], None, False),
        ([], "c.ServerApp.allow_root = False", False),
        ([], "c.ServerApp.", False),
        (["--allow-root"], None, True),
        (["--ServerApp.allow_root=True"], None, True),
        ([], CONFIGURED, True),
    ],
)
def test_root_is_told_at_once_what_jupyterlab_would_say_later(
    started, monkeypatch, capsys, tmp_path, options, configured, starts
):
    monkeypatch.setattr("mpcore.workbook.launch.os.geteuid", lambda: 0, raising=False)
    if configured:
        (tmp_path / "jupyter").mkdir()
        (tmp_path / "jupyter" / "jupyter_server_config.py").write_text(configured)
    status, command, _ = started(*options)
    assert status == (3 if starts else 2) and bool(command) == starts
    if not starts:
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("mpcore: JupyterLab does not run as root") and "--allow-root" in line
        assert not started.folder.exists()


@pytest.mark.skipif(not shutil.which("make"), reason="asks make")
@pytest.mark.parametrize(("user", "options"), [("0", ""), ("0", "--allow-root"), ("1000", "")])
def test_make_tells_root_before_it_installs(tmp_path, user, options):
    (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (tmp_path / "id").chmod(0o755)
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    for outer in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):  # of `make test`
        environment.pop(outer, None)
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "pyproject.toml").touch()
    done = subprocess.run(
        ["make", "-n", "lab", f"ARGS={options}"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    if user == "0" and not options:
        assert done.returncode == 2 and done.stdout == ""
        [line] = done.stderr.splitlines()
        assert "does not run as root; in a container: make lab ARGS=--allow-root" in line
    else:
        assert done.returncode == 0
        assert done.stdout.rstrip().endswith(f"mpcore lab {options}".rstrip())


def test_a_page_of_ones_own_goes_before_ours(tmp_path):
    command = launch.command(tmp_path, options=["--LabApp.default_url=/tree"])
    assert [text for text in command if "default_url" in text] == ["--LabApp.default_url=/tree"]
    assert launch.command(tmp_path)[-1] == "--LabApp.default_url=/lab"


def test_folders_that_a_person_gives_jupyter_are_kept():
    given = {"JUPYTER_PATH": "data", "JUPYTER_CONFIG_PATH": "config", "OTHER": "1"}
    environment = launch.environment(given)
    assert environment["JUPYTER_PATH"].endswith("data") and environment["OTHER"] == "1"
    assert environment["JUPYTER_CONFIG_PATH"].startswith("config")
