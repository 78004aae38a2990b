"""Every widget of every lesson in a real JupyterLab: moved by mouse and by keyboard."""

from __future__ import annotations

import pytest
from lab import lab_page, lab_server

from mpcore.paths import NOTEBOOKS
from mpcore.workbook.authoring import lessons
from mpcore.workbook.copies import refresh

LESSONS = [path.relative_to(NOTEBOOKS).as_posix() for path in lessons()]
TYPED = {"value": ("-0.3", "2**-9"), "answer": ("12", "34")}
PARTS = 3  # of the parts of a picture that can be pressed, so many are
WAYS = ("keyboard", "mouse")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("lessons")
    refresh(NOTEBOOKS, tmp / "copies")
    with lab_server(tmp / "copies", tmp, {"MPCORE_NOTEBOOKS": str(tmp / "copies")}) as found:
        yield found


@pytest.fixture(scope="module")
def page(server, chromium):
    with lab_page(server, chromium) as found:
        yield found


def moved(page, explorer, latencies: list[float]) -> None:
    """Move every control of an explorer in both ways; its picture has to follow."""
    seen: dict[str, int] = {}
    for control in page.controls(explorer):
        seen[control.kind] = seen.get(control.kind, 0) + 1
        if control.kind == "part" and seen["part"] > PARTS:
            continue
        # a radio button answers once: every other one is moved by mouse
        for way in [WAYS[seen["radio"] % 2]] if control.kind == "radio" else WAYS:
            if control.locator.is_disabled():
                continue
            before = explorer.locator(".mp-picture").inner_html()
            text = TYPED[control.name][WAYS.index(way)] if control.kind == "text" else None
            latencies.append(page.change(control, way, text))
            if before:
                assert explorer.locator(".mp-picture").inner_html() != before, control.name


@pytest.mark.browser
@pytest.mark.parametrize("name", LESSONS)
def test_every_widget_follows_mouse_and_keyboard(page, name):
    page.open(name)
    page.run_all()
    latencies: list[float] = []
    for explorer in page.explorers():
        moved(page, explorer, latencies)
    assert latencies
    assert page.page_errors == []
    assert page.external_requests == []
