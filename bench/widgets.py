"""How long a widget takes in a real JupyterLab: from a mouse or key event to the new picture.

Opens each lesson in headless Chromium (the tests' own harness), moves every control as
tests/test_lessons_in_lab.py does, and prints the median per explorer. Then 200 updates of each in
this process: what their drawing takes, and how much memory they leave.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from browser import find_chromium
from lab import lab_page, lab_server
from test_lessons_in_lab import LESSONS, moved

from mpcore.paths import NOTEBOOKS
from mpcore.workbook.copies import refresh
from mpcore.workbook.format_explorer import FormatExplorer
from mpcore.workbook.loss_scale_player import LossScalePlayer
from mpcore.workbook.tile_explorer import TileExplorer

ROUNDS = 2


def in_lab() -> None:
    """Medians over every control of every explorer, mouse and keyboard."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tmp = Path(folder)
        refresh(NOTEBOOKS, tmp / "copies")
        environment = {"MPCORE_NOTEBOOKS": str(tmp / "copies")}
        with (
            lab_server(tmp / "copies", tmp, environment) as server,
            lab_page(server, find_chromium()) as page,
        ):
            for lesson in LESSONS:
                page.open(lesson)
                page.run_all()
                for explorer in page.explorers():
                    title = explorer.locator(".mp-title").inner_text().partition(":")[0]
                    for _ in range(ROUNDS if not title.startswith("Predict") else 1):
                        moved(page, explorer, found.setdefault(title, []))
            assert page.page_errors == []
    print("in JupyterLab: event to picture, ms     moves  median  90th percentile")
    for title, times in found.items():
        ninth = statistics.quantiles(times, n=10)[-1]
        print(f"  {title:36} {len(times):7} {statistics.median(times):7.0f} {ninth:16.0f}")


def in_process() -> None:
    """200 updates of each explorer: drawing time, and memory that stays."""
    print("in one process: 200 updates           median ms   memory left, MB")
    for kind, update in (
        (FormatExplorer, lambda e, i: setattr(e, "value", str(0.1 + i))),
        (TileExplorer, lambda e, i: setattr(e, "step", 1 + 7 * i)),
        (LossScalePlayer, lambda e, i: setattr(e, "step", i % 150)),
    ):
        explorer = kind()
        for i in range(20):
            update(explorer, i)
        before, times = resident_mb(), []
        for i in range(200):
            start = time.perf_counter()
            update(explorer, i)
            times.append(1e3 * (time.perf_counter() - start))
        left = resident_mb() - before
        print(f"  {kind.__name__:36} {statistics.median(times):7.1f} {left:16.1f}")


def resident_mb() -> float:
    """Memory of this process now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


if __name__ == "__main__":
    in_process()
    in_lab()
