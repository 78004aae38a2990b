"""Numba's kernels: loaded where Numba is, kept on disk, and never older than their sources.

`kernels("mpcore.matmul.half_kernels")` is the module, or None: then NumPy does the work, with the
same results. Floor 0.
"""

import sys
import threading
import warnings
from functools import lru_cache
from importlib import import_module
from pathlib import Path

PACKAGE = Path(__file__).parent
PATIENCE = 1.0  # seconds of a compilation before a terminal is told why it waits


def kernels(module):
    """A module of kernels by its dotted name; None where Numba is missing or cannot keep code."""
    if not _is_ready():
        return None
    return import_module(module)


@lru_cache(maxsize=1)
def _is_ready():
    """Whether kernels can be had. Said once if not."""
    try:
        _forget_stale_code()
        import_module("mpcore.formats.kernels")
        _tell_of_compilations()
    except (ImportError, RuntimeError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(
            f"without Numba's kernels everything is computed in NumPy, 10 to 1000 times slower, "
            f"with the same results ({told}); mpcore doctor says how to mend it",
            RuntimeWarning,
            stacklevel=4,
        )
        return False
    return True


def _forget_stale_code():
    """Remove compiled code that is older than any source of kernels.

    Numba compares it with the kernel's own file only; what that imports is compiled into it, too.
    """
    sources = [*PACKAGE.rglob("*kernel*.py"), *PACKAGE.rglob("*lanes.py")]
    newest = max(source.stat().st_mtime for source in sources)
    for folder in {source.parent for source in sources}:
        for index in folder.glob("__pycache__/*.nbi"):
            try:
                if index.stat().st_mtime < newest:
                    index.unlink()
            except OSError:  # another process was faster, or the folder is read-only
                continue


def _tell_of_compilations():
    """Say on a terminal why the first call of a kernel takes seconds."""
    from numba.core import event

    timers = {}

    class Listener(event.Listener):
        def on_start(self, happening):
            function = happening.data["dispatcher"].py_func
            if function.__module__.startswith("mpcore.") and sys.stderr.isatty():
                timers[function] = timer = threading.Timer(PATIENCE, _say_compiling)
                timer.daemon = True
                timer.start()

        def on_end(self, happening):
            timer = timers.pop(happening.data["dispatcher"].py_func, None)
            if timer:
                timer.cancel()

    event.register("numba:compile", Listener())


@lru_cache(maxsize=1)
def _say_compiling():
    print("mpcore: compiling for this processor, once; a few seconds", file=sys.stderr, flush=True)
