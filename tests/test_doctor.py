"""The environment check: every check can fail, says what to do, and none of them can raise."""

from __future__ import annotations

import re
import sys
import time
from collections import namedtuple
from importlib import metadata
from pathlib import Path

import pytest
from fake_model import NAME, write_fake_model

from mpcore.cli import main
from mpcore.paths import ROOT
from mpcore.workbook import doctor
from mpcore.workbook.doctor import CHECKS, Check, Examination, examine
from mpcore.workloads.checkpoint import WEIGHTS

GOOD = Check("one", "ok", "there")
WARNING = Check("two", "warning", "slow", "python -m pip install it")
BAD = Check("three", "failure", "a < b & c", "mpcore fetch it")


@pytest.fixture
def found(monkeypatch, tmp_path):
    """Runs one check by its name, in an environment in which all is well but the model."""
    monkeypatch.setenv("MPCORE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("MPCORE_NOTEBOOKS", str(tmp_path / "notebooks"))
    monkeypatch.setattr(doctor, "REPORTS", tmp_path / "reports")
    return lambda name: doctor._examined(name, CHECKS[name])


def attended(check: Check, status: str, *said: str) -> None:
    """The check has this status, says what was found, and what to do."""
    assert check.status == status
    assert check.fix
    for text in said:
        assert text in f"{check.found} | {check.fix}"
    assert str(ROOT) not in check.found and sys.prefix not in check.found


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in ("model", "packages")])
def test_what_is_in_place_is_found_so(found, name):
    check = found(name)
    assert (check.status, check.fix) == ("ok", "")


def test_a_numba_that_is_switched_off_is_told(found, monkeypatch):
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    attended(found("arithmetic"), "warning", "Numba is off", "unset NUMBA_DISABLE_JIT")


@pytest.mark.parametrize("version", [(3, 10, 12), (3, 14, 0)])
def test_another_python_is_a_failure(found, monkeypatch, version):
    monkeypatch.setattr(doctor.sys, "version_info", version)
    attended(found("Python"), "failure", f"3.{version[1]}", ">=3.11,<3.14", "-m venv .venv")


def test_a_package_that_differs_or_is_missing_is_a_failure(found, monkeypatch):
    version = metadata.version

    def other(name):
        if name == "scipy":
            raise metadata.PackageNotFoundError(name)
        return "9.9" if name == "numpy" else version(name)

    monkeypatch.setattr(doctor.metadata, "version", other)
    said = ("numpy 9.9 instead of 2.", "scipy is missing", "pip install -r requirements.txt")
    attended(found("packages"), "failure", *said)


def test_another_python_than_the_installed_one_is_a_failure(found, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda _: str(tmp_path))
    attended(found("environment"), "failure", "not the one that mpcore is installed in")


def test_the_systems_python_is_a_warning(found, monkeypatch):
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setattr(doctor.sys, "base_prefix", sys.prefix)
    attended(found("environment"), "warning", "-m venv .venv")


def test_numpy_that_multiplies_wrongly_is_a_failure(found, monkeypatch):
    monkeypatch.setattr("numpy.eye", lambda n, dtype: __import__("numpy").ones((n, n), dtype))
    attended(found("arithmetic"), "failure", "multiplies wrongly")


@pytest.mark.parametrize("error", [RuntimeError("no locator available"), ImportError("llvmlite")])
def test_numba_that_cannot_work_is_a_warning(found, monkeypatch, error):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr("numba.njit", broken)
    attended(found("arithmetic"), "warning", str(error), "NUMBA_CACHE_DIR")


@pytest.mark.parametrize("missing", ["anywidget", "@jupyter-widgets/jupyterlab-manager"])
def test_a_missing_part_of_the_browsers_is_a_failure(found, monkeypatch, tmp_path, missing):
    share = Path(sys.prefix) / "share" / "jupyter"
    (tmp_path / "share" / "jupyter" / "labextensions" / "@jupyter-widgets").mkdir(parents=True)
    for part in ("lab", *(f"labextensions/{name}" for name in doctor.LABEXTENSIONS)):
        if not part.endswith(missing):
            (tmp_path / "share" / "jupyter" / part).symlink_to(share / part)
    monkeypatch.setattr(doctor.sys, "prefix", str(tmp_path))
    attended(found("JupyterLab"), "failure", f"part of {missing}", "--force-reinstall")


def test_a_model_that_is_absent_or_damaged_is_a_warning(found, tmp_path):
    attended(found("model"), "warning", "not here yet", "mpcore fetch smollm2-135m")
    weights = write_fake_model(tmp_path / "models") / WEIGHTS
    assert doctor.MODEL == NAME and found("model").status == "ok"
    weights.write_bytes(weights.read_bytes()[:-4])
    attended(found("model"), "warning", "damaged", "mpcore fetch smollm2-135m")


def test_a_full_disk_is_a_warning(found, monkeypatch):
    usage = namedtuple("Usage", "free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage(4e8))
    attended(found("disk space"), "warning", "0.4 GB free", "1 GB")


def test_a_folder_that_cannot_be_written_is_a_failure(found, tmp_path):
    (tmp_path / "notebooks").write_text("a file")
    attended(found("folders"), "failure", "of notebooks cannot", "MPCORE_NOTEBOOKS")


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_that_breaks_is_a_failure_with_its_reason(monkeypatch, name):
    def broken():
        raise KeyError(f"{ROOT}/x\nin two lines")

    monkeypatch.setitem(CHECKS, name, broken)
    [check] = [check for check in examine() if check.name == name]
    attended(check, "failure", "KeyError", "./x")


def test_it_takes_no_more_than_two_seconds():
    examine()  # importing NumPy and Numba is not what is measured
    start = time.perf_counter()
    assert [check.name for check in examine()] == list(CHECKS)
    assert time.perf_counter() - start < 2


def test_the_first_line_counts_what_needs_attention():
    assert str(Examination([GOOD])).splitlines()[0] == "Everything is in place."
    assert str(Examination([GOOD, BAD])).splitlines()[0] == "1 thing needs attention"
    examination = Examination([GOOD, WARNING, BAD])
    assert str(examination).splitlines()[0] == "2 things need attention"
    assert repr(examination) == str(examination)
    assert "do: python -m pip install it" in str(examination)


def test_the_table_can_be_read_aloud_and_in_every_colour():
    html = Examination([GOOD, WARNING, BAD])._repr_html_()
    assert re.search(r"<caption[^>]*>2 things need attention</caption>", html)
    assert html.count('scope="col"') == 4 and html.count('scope="row"') == 3
    for text in ("in place", "warning", "failure", "python -m pip install it", "mpcore fetch it"):
        assert text in html
    assert "a &lt; b &amp; c" in html
    assert set(re.findall(r"(?<![\w-])color: (\w+)", html)) == {"inherit"}
    assert "background" not in html


@pytest.mark.parametrize(
    ("checks", "status", "line"),
    [
        ([GOOD], 0, ""),
        ([GOOD, WARNING], 0, ""),
        ([WARNING, BAD], 2, "mpcore: not everything that is needed is in place: three\n"),
    ],
)
def test_the_exit_status_is_2_where_something_fails(monkeypatch, capsys, checks, status, line):
    monkeypatch.setattr(doctor, "examine", lambda: Examination(checks))
    assert main(["doctor"]) == status
    shown = capsys.readouterr()
    assert shown.out == f"{Examination(checks)}\n"
    assert shown.err == line
