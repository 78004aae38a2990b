"""Every widget of every lesson in a real JupyterLab: moved by mouse and by keyboard."""

from __future__ import annotations

import pytest
from lab import lab_page, lab_server

from mpcore.paths import NOTEBOOKS
from mpcore.workbook.authoring import lessons
from mpcore.workbook.copies import refresh

LESSONS = [path.relative_to(NOTEBOOKS).as_posix() for path in lessons()]
TYPED = {
    "value": ("-0.3", "2**-9"),
    "answer": ("12", "34"),
    "p_guardrail": ("0.4", "0.5"),
    "p_tokens": ("600", "700"),
}
RUNS = ("run", "cancel")  # buttons that start minutes of work: tests/test_case_launcher.py
PLAY = "Play"
PARTS = 4  # of the parts of a picture that can be pressed, so many are
# Moved and moved back before the first picture is there: the widget has to go on answering.
THERE_AND_BACK = """e => { const at = Number(e.value);
    for (const value of [at - 1, at + 1, at, at + 1, at - 1, at]) {
        e.value = value; e.dispatchEvent(new Event('input', {bubbles: true})); } }"""
WAYS = ("keyboard", "mouse")
# Pairs of controls that stand beside each other: how far apart what is seen of them is, and how
# far the lower edges of what can be moved are; then how far a note is above or below its label.
LAYOUT = """e => {
    const edge = (one, side) => one.getBoundingClientRect()[side];
    const seen = (box) => [...box.querySelectorAll('.mp-label, .mp-note, input, select, button')];
    const moved = (box) => Math.max(...[...box.querySelectorAll('input, select, button')]
        .map((one) => edge(one, 'bottom')));
    const boxes = [...e.querySelectorAll('.mp-control')], pairs = [];
    boxes.slice(1).forEach((right, i) => {
        const left = boxes[i];
        if (edge(right, 'left') < edge(left, 'right')) return; // the row is broken here
        pairs.push([edge(right, 'left') - Math.max(...seen(left).map((one) => edge(one, 'right'))),
            Math.abs(moved(left) - moved(right))]);
    });
    const notes = [...e.querySelectorAll('.mp-note')].filter((one) => one.textContent)
        .map((one) => Math.abs(edge(one, 'top') - edge(one.previousElementSibling, 'top')));
    return [pairs, notes]; }"""


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


def moved(page, explorer, latencies: list[float], most: int | None = None) -> None:
    """Move the controls of an explorer in both ways; its picture has to follow.

    From the last to the first: the first ones choose formats, under which others may do nothing.
    `most` takes only so many.
    """
    picture = explorer.locator(".mp-picture")
    seen: dict[str, int] = {}
    for control in list(reversed(page.controls(explorer)))[:most]:
        seen[control.kind] = seen.get(control.kind, 0) + 1
        if control.name in RUNS or (control.kind == "part" and seen["part"] > PARTS):
            continue
        if control.locator.evaluate("e => e.options?.length === 1"):
            continue  # there is no other choice
        if control.kind == "range":
            control.locator.evaluate(THERE_AND_BACK)
            page.settle(explorer)
        # what answers once is moved by mouse and by keyboard in turn
        once = control.kind in ("radio", "part")
        for way in [WAYS[seen[control.kind] % 2]] if once else WAYS:
            if control.locator.is_disabled():
                continue
            before = picture.inner_html()
            if control.kind == "button" and PLAY in control.locator.inner_text():
                played(page, explorer, control.locator, way)
            else:
                text = TYPED[control.name][WAYS.index(way)] if control.kind == "text" else None
                latencies.append(page.change(control, way, text))
            if before:
                assert picture.inner_html() != before, control.name


def is_in_line(explorer) -> None:
    """Controls of a row stand close together and in line; a slider's value beside its label."""
    pairs, notes = explorer.evaluate(LAYOUT)
    assert all(gap <= 20 and skew <= 10 for gap, skew in pairs), pairs
    assert all(offset < 2 for offset in notes), notes


def predicted(page, explorer) -> None:
    """Lock an answer and reveal the truth, by keyboard alone: what is next has the focus."""
    lock, reveal = page.controls(explorer, "button")
    spoken = explorer.locator(".mp-spoken")
    assert reveal.locator.is_disabled()
    page.change(lock, "keyboard")
    assert "press Reveal" in spoken.inner_text() and lock.locator.is_disabled()
    assert reveal.locator.evaluate("e => e === document.activeElement")
    page.change(reveal, "keyboard")
    assert "You said" in spoken.inner_text() and "press Reveal" not in spoken.inner_text()


def played(page, explorer, button, way: str) -> None:
    """Start playing, and stop after a few pictures."""
    press = {"keyboard": lambda: button.press("Enter"), "mouse": button.click}[way]
    before = int(explorer.locator(".mp-picture").get_attribute("data-shown"))
    press()
    shown = "([one, more]) => Number(one.querySelector('.mp-picture').dataset.shown) >= more"
    page.page.wait_for_function(shown, arg=[explorer.element_handle(), before + 4], timeout=10_000)
    press()
    page.settle(explorer)
    assert PLAY in button.inner_text()


@pytest.mark.browser
@pytest.mark.parametrize("name", LESSONS)
def test_every_widget_follows_mouse_and_keyboard(page, name):
    page.open(name)
    page.run_all()
    latencies: list[float] = []
    explorers = page.explorers()
    titles = [explorer.locator(".mp-title").inner_text() for explorer in explorers]
    for i, explorer in enumerate(explorers):
        is_in_line(explorer)
        if titles[i].startswith("Run the case"):  # else the next line would start a run
            assert set(RUNS) <= {control.name for control in page.controls(explorer, "button")}
        comes_again = titles[i] in titles[i + 1 :]
        moved(page, explorer, latencies, 4 if comes_again else None)
        if titles[i].startswith("Predict:"):
            predicted(page, explorer)
    assert latencies
    assert page.page_errors == []
    assert page.external_requests == []
