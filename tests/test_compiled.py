"""Compiled kernels: stale code is forgotten, and a terminal is told of a long compilation."""

import os
import sys
import time
from types import SimpleNamespace

import pytest

from mpcore import compiled

pytest.importorskip("numba")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a source of kernels and an index of compiled code."""
    source = tmp_path / "sums_kernels.py"
    index = tmp_path / "__pycache__" / "sums_kernels.sums-1.py311.nbi"
    index.parent.mkdir()
    for file in (source, index):
        file.write_text("")
    monkeypatch.setattr(compiled, "PACKAGE", tmp_path)
    return SimpleNamespace(source=source, index=index)


@pytest.mark.parametrize("seconds", [-10, 10])
def test_code_older_than_a_source_is_compiled_again(package, seconds):
    written = package.source.stat().st_mtime
    os.utime(package.index, (written, written + seconds))
    compiled._forget_stale_code()
    assert package.index.exists() == (seconds > 0)


def test_every_source_of_kernels_counts(package):
    lanes = package.source.parent / "lanes.py"
    lanes.write_text("")
    later = package.index.stat().st_mtime + 10
    os.utime(lanes, (later, later))
    compiled._forget_stale_code()
    assert not package.index.exists()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_long_compilation_is_told_on_a_terminal(is_terminal, monkeypatch, capsys):
    from numba.core import event

    assert compiled.kernels("mpcore.formats.kernels") is not None
    monkeypatch.setattr(compiled, "PATIENCE", 0.01)
    compiled._say_compiling.cache_clear()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)

    def kernel():
        time.sleep(0)

    kernel.__module__ = "mpcore.matmul.half_kernels"
    with event.trigger_event("numba:compile", data={"dispatcher": SimpleNamespace(py_func=kernel)}):
        time.sleep(0.2)
    assert capsys.readouterr().err.count("mpcore: compiling") == is_terminal
