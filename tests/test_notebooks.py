"""House rules of the notebooks, and that a case's notebook and its TOML say the same."""

from __future__ import annotations

import ast

import nbformat
import pytest

from mpcore.paths import DATA, ROOT
from mpcore.records import load_case

NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
CASE_NOTEBOOKS = [path for path in NOTEBOOKS if path.parent.name == "cases"]
CASES = sorted(path.stem for path in (DATA / "cases").glob("*.toml"))


def code_cells(path):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_cell_is_short_and_only_an_exercise_defines_something(path):
    for cell in code_cells(path):
        assert len(cell.source.splitlines()) <= 12, cell.id
        is_stub = "exercise" in cell.metadata.get("tags", [])
        for node in ast.walk(ast.parse(cell.source)):
            defines = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)
            assert not defines or is_stub, cell.id
            assert not (isinstance(node, ast.ImportFrom) and node.names[0].name == "*"), cell.id


@pytest.mark.parametrize("path", CASE_NOTEBOOKS, ids=lambda path: path.name)
def test_a_case_is_stored_without_outputs_or_traces_of_a_run(path):
    notebook = nbformat.read(path, 4)
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    for cell in code_cells(path):
        assert cell.outputs == []
        assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_headings_descend_one_level_at_a_time(path):
    level = 0
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "markdown":
            for line in cell.source.splitlines():
                if line.startswith("#"):
                    found = len(line) - len(line.lstrip("#"))
                    assert found <= level + 1, line
                    level = found


@pytest.mark.parametrize("name", CASES)
def test_a_case_and_its_notebook_have_the_same_defaults(name):
    case = load_case(name)
    cell = next(
        c for c in code_cells(ROOT / case.notebook) if "parameters" in c.metadata.get("tags", [])
    )
    stored = {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse(cell.source).body
    }
    assert stored.pop("profile") == "default"
    assert stored == case.values()
    assert case.guardrail.threshold == case.values()["guardrail"]
