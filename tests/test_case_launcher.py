"""The case launcher: a form from a case, a report in the background, cancelled or to its end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree

import pytest
from fake_model import write_fake_model
from mini_case import write_mini_case

from mpcore import driven
from mpcore.errors import InputError
from mpcore.paths import ROOT
from mpcore.records import load_case
from mpcore.workbook.case_launcher import CaseLauncher

HERE = {"models", "mini.toml", "mini.ipynb", "packet_of_the_test.json"}
SLOW = "import os, time\nopen('kernel.pid', 'w').write(str(os.getpid()))\ntime.sleep(60)"
WORKING = (
    "import time\nfrom mpcore.progress import report\nreport('half of it', 1, 2)\ntime.sleep(0.6)"
)
CASE = "int8_outliers"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a fake model, named as a launcher's process finds it."""
    write_fake_model(tmp_path / "models")
    for name, value in {"MPCORE_MODELS": tmp_path / "models", "TMPDIR": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def appears(path, seconds=30):
    end = time.monotonic() + seconds
    while not (path.exists() and path.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    return path.read_text()


def is_gone(process_id, seconds=5):
    """Whether a process ends soon; one that nobody waits for counts as ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(process_id, 0)
            with open(f"/proc/{process_id}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except ProcessLookupError:
            return True
        except FileNotFoundError:  # no /proc here, or it went in between
            pass
        time.sleep(0.05)
    return False


def test_the_form_is_made_from_the_parameters():
    launcher, case = CaseLauncher(CASE), load_case(CASE)
    controls = {control["name"]: control for control in launcher.controls}
    assert list(controls) == ["profile", *(f"p_{name}" for name in case.parameters), ""]
    for name, parameter in case.parameters.items():
        assert parameter.help in controls[f"p_{name}"]["label"]
    kinds = {name: control["kind"] for name, control in controls.items()}
    assert kinds["p_granularity"] == "select"
    assert kinds["p_tokens"] == kinds["p_guardrail"] == "text"
    assert kinds["p_slices"] == "checkboxes"
    assert "a number, at least 0.001, at most 5" in controls["p_guardrail"]["label"]
    assert [value for value, _ in controls["p_slices"]["options"]] == case.scope.slices
    profiles = dict(map(tuple, controls["profile"]["options"]))
    assert list(profiles) == ["default", "test", "full"]
    assert profiles["test"].startswith("test: about a minute; tokens 160; slices arithmetic,")
    assert launcher.values() == case.values()
    assert launcher.off == ["cancel"] and launcher.problem == ""


@pytest.mark.parametrize(
    ("trait", "value", "said"),
    [
        ("p_tokens", "12.5", "'12.5' is not valid; a whole number, at least 0, at most 100000"),
        ("p_tokens", "", "'' is not valid; a whole number"),
        ("p_guardrail", "-1", "'-1' is not valid; a number, at least 0.001, at most 5"),
        ("p_slices", [], "[] is not valid; one or more of english_prose"),
        ("p_granularity", "per_foo", "'per_foo' is not valid; one of per_tensor"),
    ],
)
def test_what_is_not_valid_is_told_at_once_and_cannot_be_run(trait, value, said):
    launcher = CaseLauncher(CASE)
    before = getattr(launcher, trait)
    setattr(launcher, trait, value)
    assert launcher.problem.startswith(f"parameter {trait[2:]}: {said}")
    assert set(launcher.off) == {"run", "cancel"}
    assert launcher.problem in launcher.static_html().replace("&#x27;", "'")
    with pytest.raises(InputError):
        launcher.press("run")
    setattr(launcher, trait, before)
    assert launcher.problem == "" and launcher.off == ["cancel"]


def test_what_cannot_be_a_launcher_is_refused():
    absent = [{"case": "absent"}, {"profile": "fast"}, {"tokens": -1}, {"tokns": 1}]
    no_such_thing = [{"case": None}, {"case": 5}, {"case": ""}, {"case": "x" * 999}, {"out": 5}]
    for wrong in (
        *absent,
        *no_such_thing,
        {"profile": None},
        {"profile": []},
        {"tokens": "9" * 999},
    ):
        with pytest.raises(InputError) as error:
            CaseLauncher(**{"case": CASE} | wrong)
        assert "\n" not in str(error.value) and len(str(error.value)) < 200
    launcher = CaseLauncher(CASE)
    for wrong in ("cancel", "fly"):
        with pytest.raises(InputError):
            launcher.press(wrong)
    with pytest.raises(InputError, match="not one of default, test, full"):
        launcher.profile = "fast"


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({}, "mpcore report int8_outliers"),
        ({"p_tokens": "512"}, "mpcore report int8_outliers"),
        ({"p_tokens": " 64 "}, "mpcore report int8_outliers -p tokens=64"),
        (
            {"p_slices": ["french", "arithmetic", "source_code", "english_prose"]},
            "mpcore report int8_outliers",
        ),
        ({"profile": "test"}, "mpcore report int8_outliers --profile test"),
        (
            {"p_granularity": "per_block:1x64", "p_slices": ["french", "arithmetic"]},
            "mpcore report int8_outliers -p granularity=per_block:1x64 -p slices=french,arithmetic",
        ),
        (
            {"p_tokens": "64", "profile": "test"},
            "mpcore report int8_outliers --profile test -p tokens=64",
        ),
    ],
)
def test_the_command_line_says_what_differs(changes, command):
    launcher = CaseLauncher(CASE)
    for trait, value in changes.items():
        setattr(launcher, trait, value)
    assert launcher.plan().command == command
    assert command in launcher.spoken and command in launcher.static_html()
    text = " ".join(ElementTree.fromstring(launcher.picture).itertext())
    assert command in text.replace(" \\ ", " ")


def test_a_profile_moves_what_it_sets_and_back():
    launcher = CaseLauncher(CASE)
    launcher.profile = "test"
    assert (launcher.p_tokens, launcher.p_slices) == ("160", ["arithmetic", "source_code"])
    launcher.p_tokens = "64"
    launcher.profile = "default"
    assert launcher.p_tokens == "64" and launcher.p_slices == load_case(CASE).values()["slices"]


def test_the_report_lies_where_the_command_line_puts_it():
    assert CaseLauncher(CASE).plan().place == "reports/int8_outliers/report.html"
    assert CaseLauncher(CASE, "test").plan().place.startswith("reports/int8_outliers-")
    assert "profile test" in CaseLauncher(CASE, "test").static_html().replace("--", "")


def test_a_run_is_followed_to_its_end_and_the_next_one_can_be_cancelled(place):
    launcher = CaseLauncher(write_mini_case(place, WORKING), tokens=64, out=place / "made")
    seen = []
    launcher.observe(lambda change: seen.append((change.new, launcher.spoken)), "picture")
    launcher.press("run")
    assert launcher.off == [*launcher.inputs, "run"]
    other = CaseLauncher(place / "mini.toml")  # its cell was run again meanwhile
    with pytest.raises(InputError, match="is being made"):
        other.press("run")
    assert launcher.wait(60)
    assert launcher.problem == "" and launcher.off == ["cancel"]
    assert launcher.spoken.startswith(("Done. release: ", "Done. hold: ", "Done. roll_back: "))
    assert launcher.plan().place in launcher.spoken and launcher.plan().command in launcher.spoken
    page = (place / "made" / "report.html").read_text(encoding="utf-8")
    assert launcher.result.replace('<base href="about:srcdoc">', "") == page
    assert any(spoken.startswith("Running, cell 4 of 5") for _, spoken in seen)
    pictures = ["|".join(ElementTree.fromstring(picture).itertext()) for picture, _ in seen]
    assert any("cell 4 of 5, 60 %|step|half of it, 50 %|0:0" in text for text in pictures)
    assert other.wait(10) and other.result == launcher.result
    assert names_in(place) == HERE | {"made"}

    launcher.p_tokens = "128"
    assert launcher.spoken.startswith("Ready.") and "tokens=64" in launcher.spoken
    write_mini_case(place, SLOW)
    launcher.press("run")
    assert launcher.result == ""
    is_cancelled_and_gone(launcher, place)
    assert names_in(place) == HERE | {"made", "kernel.pid"}
    assert (place / "made" / "report.html").read_text(encoding="utf-8") == page


def is_cancelled_and_gone(launcher, place):
    """Cancel once the notebook is running; the process, its group and the kernel end with it."""
    kernel, group = int(appears(place / "kernel.pid")), launcher._run.process_id
    if os.name != "nt":
        assert os.getpgid(group) == group != os.getpgid(0)
    started = time.monotonic()
    launcher.press("cancel")
    assert launcher.spoken.startswith("Cancelling") and "cancel" in launcher.off
    assert launcher.wait(10) and time.monotonic() - started < 5
    assert launcher.spoken.startswith("Cancelled; nothing was left behind. Ready.")
    assert launcher.problem == "" and launcher.off == ["cancel"]
    if os.name != "nt":
        with pytest.raises(ProcessLookupError):
            os.killpg(group, 0)
    assert is_gone(kernel)


def test_a_run_that_fails_gives_the_one_line_of_the_command_line(place):
    launcher = CaseLauncher(write_mini_case(place), out=place / "made")
    (place / "mini.ipynb").write_text("hello", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(launcher.plan().command)],
        capture_output=True,
        text=True,
    )
    launcher.press("run")
    assert launcher.wait(30)
    assert f"mpcore: {launcher.problem}\n" == done.stderr
    assert launcher.problem.startswith("mini.ipynb: not a notebook")
    assert launcher.off == ["cancel"] and launcher.result == ""
    assert names_in(place) == HERE
    launcher.p_tokens = "17"
    assert launcher.problem == ""


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_a_killed_kernel_leaves_no_report_running(place):
    write_mini_case(place, SLOW)
    code = (
        "import time\nfrom mpcore.workbook.case_launcher import CaseLauncher\n"
        "launcher = CaseLauncher('mini.toml', out='made')\nlauncher.press('run')\n"
        "open('report.pid', 'w').write(str(launcher._run.process_id))\ntime.sleep(60)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=place, env=environment) as process:
        kernel = int(appears(place / "kernel.pid"))
        process.send_signal(signal.SIGKILL)
    assert is_gone(int((place / "report.pid").read_text())) and is_gone(kernel)
    assert names_in(place) == HERE | {"kernel.pid", "report.pid"}


def test_a_driven_command_tells_json_lines_and_another_line_is_none():
    heard = []

    class Listener:
        def cell(self, number, count):
            heard.append((number, count))

        def detail(self, text, done, total):
            heard.append((text, done, total))

    for told in ({"cell": 3, "count": 9}, {"text": "what-ifs “é”", "done": 1, "total": 8}):
        assert driven.heard(driven.line(**told), Listener())
    for other in ("mpcore: no such case", "[1]", "{}", "3", '{"cell": 1}', ""):
        assert not driven.heard(other, Listener())
    assert heard == [(3, 9), ("what-ifs “é”", 1, 8)]
