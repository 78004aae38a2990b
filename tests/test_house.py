"""How the house is built: rooms import from lower floors only, and files stay readable."""

from __future__ import annotations

import ast
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

import mpcore

PACKAGE = Path(mpcore.__file__).parent
ROOT = PACKAGE.parent

FLOORS = {
    "errors": -1,
    "paths": 0,
    "progress": 0,
    "driven": 0,
    "compiled": 0,
    "threads": 0,
    "formats": 1,
    "records": 1,
    "scaling": 2,
    "matmul": 3,
    "sparsity": 3,
    "machines": 3,
    "workloads": 4,
    "policy": 4,
    "flow": 5,
    "evidence": 6,
    "diagnosis": 7,
    "report": 8,
    "workbook": 9,
    "sweep": 10,
    "console": 10,
    "failures": 10,
    "cli": 10,
    "__main__": 11,
}
"""Room (or single file) in mpcore -> its floor; `mpcore/__init__.py` imports nothing at once."""

MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = sorted(
    path
    for folder in (PACKAGE, ROOT / "tests", ROOT / "bench")
    for path in folder.rglob("*.py")
    if "__pycache__" not in path.parts
)
TEXTS = [
    *SOURCES,
    *(path for suffix in ("md", "toml", "txt", "ipynb") for path in ROOT.glob(f"*.{suffix}")),
    *(path for path in (ROOT / "docs").rglob("*") if path.suffix == ".md"),
    *(path for path in (ROOT / "data").rglob("*.toml") if "models" not in path.parts),
    *(path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_" not in str(path)),
    ROOT / "Makefile",
    ROOT / ".ci" / "run",
]
INVENTED = r"(?!(?:ada|bob|eve|alice)\b)"  # people in tests of redaction
MACHINE_PATHS = re.compile(
    rf"{re.escape(str(ROOT))}|(?<![\w.~*$}}])(?:/root/|/mnt/|(?:/home|/Users|\\Users)[/\\]+{INVENTED}\w)"
)


def room_of(module: str) -> str | None:
    """`mpcore.flow.lowering` -> `flow`; None for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def imported_modules(path: Path) -> set[str]:
    """Modules that a file imports, anywhere in it, type checking included."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} line {node.lineno}: a relative import"
            from_package = node.module == "mpcore"
            modules |= {f"mpcore.{a.name}" for a in node.names} if from_package else {node.module}
    return modules


def imported_rooms(path: Path) -> set[str]:
    """Rooms that a file imports."""
    inside = {name for name in imported_modules(path) if name.split(".")[0] == "mpcore"}
    return {room for room in map(room_of, inside) if room}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_from_lower_floors(path):
    own = room_of(".".join(["mpcore", *path.relative_to(PACKAGE).with_suffix("").parts]))
    if own == "__init__":
        assert imported_rooms(path) == set()
        return
    assert own in FLOORS, f"{own} has no floor yet: add it to FLOORS"
    for room in imported_rooms(path) - {own}:
        assert room in FLOORS, f"{path.name} imports {room}, which has no floor"
        together = FLOORS[room] == FLOORS[own] == FLOORS["cli"]  # one room in several files
        assert FLOORS[room] < FLOORS[own] or together, f"{own} imports {room}, which is not below"


def test_every_room_is_on_a_floor():
    rooms = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    rooms |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms <= set(FLOORS)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_fits_on_a_few_screens(path):
    few = 400 if path.is_relative_to(ROOT / "mpcore") else 500  # tests read down, not across
    assert len(path.read_text(encoding="utf-8").splitlines()) <= few


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_names_a_path_of_one_machine(path):
    if path == Path(__file__):
        return  # it has to name them
    found = MACHINE_PATHS.findall(path.read_text(encoding="utf-8"))
    assert not found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_says_what_it_is_about(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def requirements() -> list[str]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_every_requirement_is_pinned():
    for line in requirements():
        assert re.fullmatch(r"[A-Za-z0-9_-]+==[0-9][0-9a-z.]*", line)


def test_everything_that_is_imported_is_required():
    own = {path.stem for part in ("tests", "bench") for path in (ROOT / part).glob("*.py")}
    own |= {"mpcore"}
    required = {line.partition("==")[0].lower().replace("-", "_") for line in requirements()}
    brought_along = {"pydantic_core", "llvmlite", "jupyter_core"}  # by pydantic, numba, jupyterlab
    distributions = metadata.packages_distributions()
    for path in SOURCES:
        imported = {name.split(".")[0] for name in imported_modules(path)}
        for name in imported - own - sys.stdlib_module_names - brought_along:
            found = {d.lower().replace("-", "_") for d in distributions.get(name, [name])}
            assert found & required, f"{path.name} imports {name}, which is not required"
