"""`mpcore report` around a notebook: what it writes, what it leaves when something goes wrong."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from fake_model import write_fake_model
from filelock import FileLock
from mini_case import write_mini_case

from mpcore.policy.sheet import PolicyError
from mpcore.progress import report
from mpcore.report.errors import ReportError
from mpcore.report.produce import IN_USE, followed, produce, scratch_beside

FILES = {
    "report.html",
    "report.ipynb",
    "packet.json",
    "policy.csv",
    "summary.md",
    "SHA256SUMS",
    "packet.zip",
}


@pytest.fixture
def place(tmp_path):
    write_fake_model(tmp_path / "models")
    return tmp_path


def command(place, *arguments):
    return {
        "args": [sys.executable, "-m", "mpcore", "report", "mini.toml", "-o", "a/b", *arguments],
        "cwd": place,
        "env": os.environ
        | {"MPCORE_MODELS": str(place / "models"), "TMPDIR": str(place), "MPLBACKEND": "Agg"},
    }


def run(place, *arguments, cell="print(granularity, tokens, profile)"):
    """Write the mini case and report on it."""
    write_mini_case(place, cell)
    given = command(place, *arguments)
    return subprocess.run(**given, capture_output=True, text=True, timeout=120)


def nothing_is_left(place):
    names = {path.name for path in place.iterdir() if "mpcore-error" not in path.name}
    return names == {"models", "mini.toml", "mini.ipynb", "packet_of_the_test.json"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One good run: the process and the report's folder."""
    place = tmp_path_factory.mktemp("place")
    write_fake_model(place / "models")
    done = run(place, "-p", "granularity=per_token", "--profile", "test")
    assert done.returncode == 0, done.stderr
    return done, place / "a" / "b"


def test_a_report_has_all_its_files_and_says_what_was_decided(made):
    done, folder = made
    assert {path.name for path in folder.iterdir()} == FILES
    decision, path = done.stdout.splitlines()
    assert decision.split(":")[0] in ("release", "hold", "roll_back", "cannot_conclude")
    assert path == str(folder.resolve() / "report.html")
    assert [path.name for path in folder.parent.iterdir()] == ["b"]


def test_values_reach_the_notebook_and_no_warning_does(made):
    notebook = nbformat.read(made[1] / "report.ipynb", as_version=4)
    printed = [output.text for cell in notebook.cells for output in cell.get("outputs", [])]
    assert printed == ["per_token 64 test\n"]
    assert "WARNING" not in made[0].stderr and "[IPKernelApp]" not in made[0].stderr


def test_without_a_terminal_progress_is_a_few_plain_lines(made):
    lines = made[0].stderr.splitlines()
    assert 1 <= len(lines) <= 6
    assert all(line.startswith("mini: ") and "\x1b" not in line for line in lines)


def test_the_notebook_holds_nothing_of_when_and_where(made):
    text = (made[1] / "report.ipynb").read_text(encoding="utf-8")
    for volatile in ("papermill", "start_time", "iopub", str(made[1].parent.parent), 'version"'):
        assert volatile not in text


def test_the_same_inputs_give_the_same_bytes(made, place):
    run(place, "-p", "granularity=per_token", "--profile", "test")
    for name in FILES:
        assert (place / "a" / "b" / name).read_bytes() == (made[1] / name).read_bytes(), name


@pytest.mark.parametrize(
    ("cell", "status", "said"),
    [
        ("import mpcore; mpcore.get_format('fp9')", 2, "mpcore: "),
        ("import mpcore; mpcore.load_case('x')", 2, "mpcore: case 'x' is unknown; known cases"),
        ("open('/not/there')", 2, "mpcore: /not/there: No such file or directory"),
        ("raise RuntimeError('boom')", 1, "mpcore: internal error: a cell of the notebook failed"),
        ("import os; os._exit(9)", 1, "mpcore: internal error: the notebook's kernel died"),
        ("raise KeyboardInterrupt", 130, "mpcore: interrupted"),
    ],
)
def test_a_failing_cell_becomes_one_line_and_leaves_nothing(place, cell, status, said):
    done = run(place, cell=cell)
    assert done.returncode == status
    *progress, line = done.stderr.splitlines()
    assert line.startswith(said)
    assert all(text.startswith("mini: ") for text in progress)
    assert nothing_is_left(place)


def test_a_notebook_without_a_parameter_is_refused_before_it_runs(place):
    write_mini_case(place)
    notebook = nbformat.read(place / "mini.ipynb", as_version=4)
    notebook.cells[1].source = 'granularity = "per_tensor"'
    nbformat.write(notebook, place / "mini.ipynb")
    done = subprocess.run(**command(place), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "mpcore: mini.ipynb: its parameters cell lacks profile, tokens\n"
    assert nothing_is_left(place)


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_an_interrupt_ends_the_kernel_and_leaves_nothing(place, name, status):
    write_mini_case(
        place,
        "import os, time\nopen('kernel.pid', 'w').write(str(os.getpid()))\ntime.sleep(60)",
    )
    process = subprocess.Popen(
        **command(place),
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(getattr(signal, name), signal.SIG_DFL),  # under nohup too
    )
    pid_file = place / "kernel.pid"
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, getattr(signal, name))
    errors = process.communicate(timeout=30)[1].decode()
    assert process.returncode == status
    assert errors.splitlines()[-1].endswith("nothing was left behind")
    assert "Traceback" not in errors
    kernel = int(pid_file.read_text())
    pid_file.unlink()
    assert nothing_is_left(place)
    with pytest.raises(ProcessLookupError):
        os.kill(kernel, 0)


@pytest.mark.skipif(os.name == "nt", reason="descriptors are POSIX's")
@pytest.mark.parametrize("redirection", ["2>&-", ">&-", ">&- 2>&- <&-", "| true", "2>&1 | head -1"])
def test_a_report_is_made_whoever_listens(place, redirection):
    write_mini_case(place)
    given = command(place)
    line = f"set -o pipefail; {shlex.join(given.pop('args'))} {redirection}"
    done = subprocess.run(["bash", "-c", line], **given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr + done.stdout
    assert {path.name for path in (place / "a" / "b").iterdir()} == FILES


def test_a_figure_is_drawn_where_another_backend_is_set(place):
    # No alt text: that the picture is refused says that it was drawn, in spite of Agg.
    done = run(place, cell="import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])")
    assert "a picture without alt text" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "not a notebook"),
        ('{"nbformat": 4}', "not a notebook"),
        ("\x00", "not a notebook"),
        (None, "its parameters cell is no Python"),
    ],
)
def test_a_broken_notebook_is_told_before_anything_runs(place, text, said):
    write_mini_case(place)
    if text is None:
        notebook = nbformat.read(place / "mini.ipynb", as_version=4)
        notebook.cells[1].source = "granularity = = 3"
        nbformat.write(notebook, place / "mini.ipynb")
    else:
        (place / "mini.ipynb").write_text(text)
    done = subprocess.run(**command(place), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"mpcore: mini.ipynb: {said}") and done.stderr.count("\n") == 1
    assert nothing_is_left(place)


def test_a_policy_that_cannot_be_filled_in_is_told_before_anything_is_fetched(tmp_path):
    case = write_mini_case(tmp_path)
    text = case.read_text(encoding="utf-8").replace('"per_tensor"', '"{granularty}"', 1)
    case.write_text(text, encoding="utf-8")
    with pytest.raises(PolicyError, match="no parameter is called 'granularty'; there are"):
        produce(case, out=tmp_path / "out")


def test_a_full_disk_is_told_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "shutil.disk_usage", lambda path: SimpleNamespace(total=1 << 30, used=1 << 30, free=1 << 20)
    )
    with pytest.raises(ReportError, match=r"out: 1\.0 MB free where a report needs 17 MB"):
        produce(write_mini_case(tmp_path), out=tmp_path / "far" / "out")
    assert not (tmp_path / "far").exists()


def test_progress_is_a_file_of_json_lines_or_nothing(tmp_path, monkeypatch):
    report("unheard", 1, 2)
    monkeypatch.setenv("MPCORE_PROGRESS", str(tmp_path / "p.jsonl"))
    report("what-ifs", 1, 2)
    assert (tmp_path / "p.jsonl").read_text() == '{"text": "what-ifs", "done": 1, "total": 2}\n'
    monkeypatch.setenv("MPCORE_PROGRESS", str(tmp_path / "absent" / "p.jsonl"))
    report("nobody can read this", 1, 2)


def test_what_a_killed_run_left_is_removed_by_the_next_one(tmp_path):
    def leftover(name: str) -> Path:
        folder = tmp_path / name
        (folder / "ipython").mkdir(parents=True)
        os.utime(folder, (0, 0))
        return folder

    killed, alive = leftover(".out.run-killed.part"), leftover(".out.run-alive.part")
    other = leftover(".another.run-killed.part")
    with FileLock(alive / IN_USE):
        os.utime(alive, (0, 0))
        with scratch_beside(tmp_path / "out") as scratch:
            assert not killed.exists()
            assert set(tmp_path.iterdir()) == {alive, other, scratch}
    assert not scratch.exists()


def test_foreign_lines_in_the_progress_file_are_passed_over(tmp_path):
    file, heard = tmp_path / "progress.jsonl", []
    file.touch()
    watcher = SimpleNamespace(detail=lambda *said: heard.append(said))
    with followed(file, watcher):
        for line in ("no JSON", "[1]", '{"text": "a"}', '{"text": "b", "done": 1, "total": 2}'):
            with open(file, "a", encoding="utf-8") as out:
                out.write(line + "\n")
            time.sleep(0.3)
    assert heard == [("b", 1, 2)]
