"""How `mpcore lab` starts JupyterLab: in the working copies, with three settings of ours.

The folder `jupyter/` beside this file is a folder of Jupyter's configuration and of its data:

- `jupyter_server_config.json`: "Save and Export Notebook As" prefers pictures to widget views,
  which would be empty without a kernel;
- `labconfig/default_setting_overrides.json`: no question about news, no look-up of new versions;
- `kernels/python3/kernel.json`: the kernel as ipykernel installs it, but quiet: ipykernel 7 warns
  at every start that it talks to JupyterLab over TCP.

Whatever else a person has configured applies as always.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from mpcore.errors import InputError
from mpcore.paths import my_notebooks
from mpcore.workbook.copies import notebooks_below

SETTINGS = Path(__file__).resolve().parent / "jupyter"
FIRST = "00_start_here.ipynb"
_PAGE = "--LabApp.default_url"
_ALLOWS = "allow_root"  # an option of JupyterLab, also written --allow-root


class LaunchError(InputError):
    """JupyterLab cannot be started on what was asked for."""


def refuse_root(options: Sequence[str]) -> None:
    """Say at once what JupyterLab would say after its start.

    Raises:
        LaunchError: JupyterLab would run as root, and neither the options nor Jupyter's own
            configuration allow it.
    """
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    is_allowed = any(_ALLOWS in text.replace("-", "_") for text in options)
    if is_root and not is_allowed and not _configured_for_root():
        raise LaunchError(
            "JupyterLab does not run as root; in a container: mpcore lab --allow-root "
            "(or make lab ARGS=--allow-root)"
        )


def _configured_for_root() -> bool:
    """Whether a person's configuration of Jupyter lets root run it."""
    from jupyter_core.paths import jupyter_config_path
    from traitlets.config import JSONFileConfigLoader, PyFileConfigLoader

    loaders = {".py": PyFileConfigLoader, ".json": JSONFileConfigLoader}
    for folder in jupyter_config_path():
        for name in ("jupyter_config", "jupyter_server_config", "jupyter_lab_config"):
            for ending, loader in loaders.items():
                with suppress(Exception):  # none is there; what is wrong with one, JupyterLab says
                    found = loader(name + ending, folder).load_config()
                    if any(found[app].get(_ALLOWS) for app in ("ServerApp", "LabApp")):
                        return True
    return False


def command(copies: Path, notebook: str | None = None, options: Sequence[str] = ()) -> list[str]:
    """The command that opens JupyterLab in `copies`.

    Args:
        copies: The folder of working copies; nothing above it is seen in JupyterLab.
        notebook: The notebook to open, as `find` takes it; default 00_start_here, or the folder.
        options: JupyterLab's own; a page of theirs goes before ours.

    Raises:
        LaunchError: no such notebook.
    """
    first = find(copies, notebook) if notebook else FIRST
    page = f"/lab/tree/{quote(first)}" if (copies / first).is_file() else "/lab"
    # JupyterLab refuses to be told twice.
    ours = [] if any(text.startswith(_PAGE) for text in options) else [f"{_PAGE}={page}"]
    return [sys.executable, "-m", "jupyterlab", str(copies), *ours, *options]


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """`given`, and where Jupyter finds our settings and this environment's kernel."""
    return dict(given) | {
        # This environment's kernel goes before a person's own of the same name.
        "JUPYTER_PREFER_ENV_PATH": "1",
        "MPCORE_NOTEBOOKS": str(my_notebooks().absolute()),  # kernels run in its subfolders
        "JUPYTER_PATH": _joined(str(SETTINGS), given.get("JUPYTER_PATH")),
        "JUPYTER_CONFIG_PATH": _joined(given.get("JUPYTER_CONFIG_PATH"), str(SETTINGS)),
    }


def find(copies: Path, name: str) -> str:
    """The path below `copies`, with slashes, of a notebook that a person names.

    `01_formats`, `lessons/01_formats.ipynb`, `notebooks/lessons/01_formats.ipynb` all do, and so
    does the beginning of a name, such as `01`, that no other one has.

    Raises:
        LaunchError: none is meant, or several are.
    """
    there = [path.as_posix() for path in notebooks_below(copies)]
    wanted = Path(name).as_posix().removesuffix(".ipynb")
    if f"{wanted}.ipynb" in there:
        return f"{wanted}.ipynb"
    ends = [path for path in there if f"/{wanted}.ipynb".endswith(f"/{path}")]
    fitting = sorted(ends, key=len)[-1:] or [
        path for path in there if f"/{path}".endswith(f"/{wanted}.ipynb")
    ]
    fitting = fitting or [path for path in there if f"/{wanted}" in f"/{path}"]
    if len(fitting) == 1:
        return fitting[0]
    problem = "fits several notebooks" if fitting else "is unknown"
    raise LaunchError(f"notebook {name!r} {problem}; there are {', '.join(fitting or there)}")


def _joined(*folders: str | None) -> str:
    return os.pathsep.join(filter(None, folders))
