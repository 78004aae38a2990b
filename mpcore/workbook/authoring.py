"""Keeping the shipped lessons: `python -m mpcore.workbook.authoring [NOTEBOOK …]`.

Runs each lesson, writes its stubs from their solutions, stores exactly the outputs that nbval
compares, and takes everything else out with nbstripout: what is committed differs only where the
lesson does.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import nbstripout

from mpcore.errors import InputError
from mpcore.paths import NOTEBOOKS
from mpcore.report.notebook_format import NotebookNode, nbformat
from mpcore.workbook.lesson import LESSONS, lesson

KEPT, IGNORED = "keep_output", "nbval-ignore-output"  # tags that nbstripout and nbval know
STUB = "stub-"  # a cell with the id stub-NAME holds the stub of exercise NAME
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_VOLATILE = [
    "metadata.widgets",
    "cell.metadata.execution",
    "cell.metadata.scrolled",
    "cell.metadata.collapsed",
    "cell.metadata.ExecuteTime",
    "cell.metadata.trusted",
]


def lessons() -> list[Path]:
    """The notebooks whose stored outputs nbval compares."""
    found = sorted((NOTEBOOKS / "lessons").glob("*.ipynb"))
    return [NOTEBOOKS / "00_start_here.ipynb", *found]


def clean(notebook: NotebookNode) -> NotebookNode:
    """The notebook without traces of a run; outputs stay where the cell is tagged `keep_output`."""
    notebook = nbstripout.strip_output(
        nbformat.from_dict(notebook), False, False, True, extra_keys=list(_VOLATILE)
    )
    notebook.metadata = nbformat.from_dict(METADATA)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):
        # nbval takes a cell with outputs and without a number for one that was never run
        cell.execution_count = number if cell.outputs else None
    return notebook


def as_stored(notebook: NotebookNode) -> str:
    """The one way in which a notebook is written to a file."""
    return nbformat.writes(notebook, indent=1, ensure_ascii=False) + "\n"


def with_stubs(notebook: NotebookNode, name: str) -> NotebookNode:
    """The notebook with its stubs as their solutions say."""
    exercises = lesson(name).exercises if name in LESSONS else {}
    for cell in notebook.cells:
        if cell.id.startswith(STUB):
            asked = cell.id.removeprefix(STUB)
            if asked not in exercises:
                known = ", ".join(exercises) or "none"
                raise InputError(f"{name}: cell {cell.id}: no such exercise; there are {known}")
            cell.source = exercises[asked].stub_source().rstrip()
    return notebook


def run(path: Path) -> NotebookNode:
    """The notebook as it comes out of a run, with a progress file of its own."""
    from nbclient import NotebookClient

    notebook = with_stubs(nbformat.read(path, 4), path.stem)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"MPCORE_NOTEBOOKS": folder}
        client = NotebookClient(
            notebook,
            timeout=60,
            resources={"metadata": {"path": path.parent}},
            extra_arguments=["--IPKernelApp.log_level=ERROR"],  # ipykernel 7 warns about TCP
        )
        client.execute(env=environment)
    return notebook


def with_kept_outputs(notebook: NotebookNode) -> NotebookNode:
    """Tag the cells whose outputs are stored: all that have one and are not ignored by nbval."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
            tags = [tag for tag in cell.metadata.get("tags", []) if tag != KEPT]
            if cell.outputs and IGNORED not in tags:
                tags.append(KEPT)
            if tags:
                cell.metadata["tags"] = tags
            else:
                cell.metadata.pop("tags", None)
    return notebook


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Printed text in one piece: how a kernel cuts it depends on the moment."""
    joined: list[NotebookNode] = []
    for output in outputs:
        before = joined[-1] if joined else {}
        if output.output_type == "stream" and before.get("name") == output.get("name"):
            before.text += output.text
        else:
            joined.append(output)
    return joined


def main(arguments: list[str] | None = None) -> int:
    """Run and store the given notebooks, by default all lessons."""
    parser = argparse.ArgumentParser(prog="python -m mpcore.workbook.authoring")
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK")
    parser.add_argument(
        "--filter", action="store_true", help="clean standard input, for git: CONTRIBUTING.md"
    )
    asked = parser.parse_args(arguments)
    if asked.filter:
        text = sys.stdin.buffer.read().decode()
        sys.stdout.buffer.write(as_stored(clean(nbformat.reads(text, 4))).encode())
        return 0
    for path in asked.notebooks or lessons():
        try:
            stored = as_stored(clean(with_kept_outputs(run(path))))
            changed = path.read_text(encoding="utf-8") != stored
        except (InputError, OSError, nbformat.reader.NotJSONError) as error:
            print(f"authoring: {path.name}: {' '.join(str(error).split())}", file=sys.stderr)
            return 2
        if changed:
            path.write_text(stored, encoding="utf-8", newline="\n")
        print(f"{path.name}: {'stored' if changed else 'as it was'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
