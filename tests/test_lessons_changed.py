"""Strict nbval sees every stored number that a sentence rests on, once it is changed."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import nbformat
import pytest
from test_lessons import LESSON_FILES, changed, claims_of, numbers_in, sections_of

from mpcore.workbook.authoring import as_stored

FIRST = [path for path in LESSON_FILES if path.stem == "01_formats"]


def with_outputs_changed(notebook) -> list[int]:
    """Change one stored number that a sentence states in each cell that has one; which cells."""
    code = [cell.id for cell in notebook.cells if cell.cell_type == "code"]
    touched = []
    for cells in sections_of(notebook):
        claims = claims_of(cells)
        for cell in cells:
            for output in cell.get("outputs", []):
                rests = sorted(numbers_in(output.text) & claims, key=len)
                if rests:
                    number = rests[-1]
                    where = rf"(?<![\w.]){re.escape(number)}(?![\w.]*\d)"
                    output.text = re.sub(where, changed(number), output.text, count=1)
                    touched.append(code.index(cell.id))
    return touched


def failing_cells(path) -> list[int]:
    """Code cells of a notebook, counted from 0, that strict nbval calls wrong."""
    options = [
        "--nbval",
        "--nbval-current-env",
        "--nbval-cell-timeout=60",
        "-p",
        "no:cacheprovider",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-rf", *options, path.name],
        cwd=path.parent,
        env=os.environ | {"MPCORE_NOTEBOOKS": str(path.parent / "mine")},
        capture_output=True,
        text=True,
    )
    return sorted(int(n) for n in re.findall(r"^FAILED .*::Cell (\d+)", run.stdout, re.MULTILINE))


def check(path, tmp_path):
    notebook = nbformat.read(path, 4)
    touched = with_outputs_changed(notebook)
    assert touched
    copy = tmp_path / path.name
    copy.write_text(as_stored(notebook), encoding="utf-8")
    assert failing_cells(copy) == touched


@pytest.mark.parametrize("path", FIRST, ids=lambda path: path.stem)
def test_each_changed_output_is_noticed(path, tmp_path):
    check(path, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    "path", [path for path in LESSON_FILES if path not in FIRST], ids=lambda path: path.stem
)
def test_each_changed_output_of_the_other_lessons_is_noticed(path, tmp_path):
    check(path, tmp_path)
