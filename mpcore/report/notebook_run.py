"""Running one parameterised notebook in a kernel of this interpreter, without traces of when.

papermill does the running. What is done around it here: the kernel is this very Python (whatever
kernels are installed), people's IPython start-up files stay out, and everything volatile that
papermill writes into the notebook is taken out again.
"""

from __future__ import annotations

import ast
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpcore.paths import ROOT
from mpcore.report.errors import ReportError
from mpcore.report.notebook_format import NotebookNode, nbformat

KERNEL_LOG = "kernel.log"

OnCell = Callable[[int, int], None]
"""(number of the cell that starts, from 1; how many cells there are) -> None."""


def read_notebook(path: Path) -> NotebookNode:
    """A notebook as a file holds it; raises ReportError where the file holds none."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        return notebook
    except (nbformat.ValidationError, ValueError, KeyError, AttributeError, TypeError) as error:
        what = f"{type(error).__name__}: {str(error)[:200]}"
        raise ReportError(f"{path.name}: not a notebook ({what})") from None


def parameter_names(notebook: NotebookNode, where: str) -> set[str]:
    """Names that the cell tagged `parameters` assigns; raises ReportError where there is none."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", []):
            try:
                body = ast.parse(cell.source).body
            except (SyntaxError, ValueError) as error:
                raise ReportError(f"{where}: its parameters cell is no Python ({error})") from None
            return {
                target.id
                for statement in body
                if isinstance(statement, ast.Assign | ast.AnnAssign)
                for target in getattr(statement, "targets", None) or [statement.target]
                if isinstance(target, ast.Name)
            }
    raise ReportError(f"{where}: no cell is tagged 'parameters'")


def execute(
    path: Path,
    parameters: dict[str, Any],
    environment: dict[str, str],
    scratch: Path,
    on_cell: OnCell | None = None,
) -> NotebookNode:
    """Run a notebook in its own folder and return it, cleaned of volatile metadata.

    Args:
        path: The notebook; it is not changed.
        parameters: Plain JSON values for the cell tagged `parameters`.
        environment: Variables for the kernel, beside this process's own.
        scratch: An existing folder for files that the kernel needs only while it runs.
        on_cell: Hears about each cell as it starts.

    Raises:
        papermill.PapermillExecutionError: a cell failed; it carries `ename` and `evalue`.
    """
    import papermill

    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # failures are raised, not logged
    source = read_notebook(path)
    unknown = sorted(set(parameters) - parameter_names(source, path.name))
    if unknown:
        raise ReportError(f"{path.name}: its parameters cell lacks {', '.join(unknown)}")
    count = len(source.cells) + 1  # papermill adds the cell with the values
    started: list = []
    try:
        notebook = papermill.execute_notebook(
            path,
            None,
            parameters,
            kernel_name="python3",
            language="python",
            progress_bar=False,
            log_output=False,
            cwd=path.parent,
            kernel_manager_class=_kernel_manager(environment, scratch, started),
            on_cell_start=lambda cell, cell_index: on_cell and on_cell(cell_index + 1, count),
            record_timing=False,
            store_widget_state=False,
            coalesce_streams=True,
        )
    except Exception as error:
        log = scratch / KERNEL_LOG
        if log.is_file():
            error.add_note(f"the kernel printed:\n{log.read_text(errors='replace')[-4000:]}")
        raise
    finally:
        for manager in started:
            _kill(manager)
    return without_volatile_metadata(notebook)


def without_volatile_metadata(notebook: NotebookNode) -> NotebookNode:
    """Take out times, paths, versions and random ids, so that the same run gives the same bytes."""
    notebook.metadata = NotebookNode(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"},
        language_info={"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
    )
    for cell in notebook.cells:
        for volatile in ("papermill", "execution"):
            cell.metadata.pop(volatile, None)
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.id = "injected-parameters"
    return notebook


def _kernel_manager(environment: dict[str, str], scratch: Path, started: list):
    """A kernel manager class whose kernel is this interpreter; its instances join `started`."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    spec = KernelSpec(
        argv=[
            *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
            "--IPKernelApp.log_level=ERROR",  # ipykernel 7 warns about TCP at every start
            "--HistoryManager.enabled=False",
        ],
        display_name="Python 3",
        language="python",
        env={
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONHASHSEED": "0",
            "IPYTHONDIR": str(scratch / "ipython"),
            # With Agg, as some machines set it, figures would silently be absent.
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            **environment,
        },
    )

    class ThisInterpreter(AsyncKernelManager):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

        @property
        def kernel_spec(self):
            return spec

        async def start_kernel(self, **options):
            # What the kernel process itself prints is no part of the notebook: it is kept, and
            # shown only where the kernel dies.
            with open(scratch / KERNEL_LOG, "ab") as log:
                await super().start_kernel(stdout=log, stderr=log, **options)

    return ThisInterpreter


def _kill(manager) -> None:
    """End a kernel that an interrupt or an error has left running."""
    process = getattr(getattr(manager, "provisioner", None), "process", None)
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()
    with suppress(OSError, RuntimeError):
        manager.cleanup_connection_file()
