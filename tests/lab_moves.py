"""One move of each kind of control, by mouse and by keyboard, as a person makes it.

A move gets the page, the control's locator, `arm` (called when all that is left to do is the part
that counts: the clock starts with the next event) and the text to type, or None.
"""

from __future__ import annotations

import pytest

AT_LAST = {
    "select": "e => e.selectedIndex >= e.options.length - 1",
    "range": "e => Number(e.value) >= Number(e.max || 100)",
    "number": "e => e.max !== '' && Number(e.value) >= Number(e.max)",
}
"""Kind -> whether its value is the last one, so that only the other direction leads on."""

# Where the thumb is, as a share of the way, once its own width of about 16 px is taken off.
SHARE = "e => (e.value - (e.min || 0)) / ((e.max || 100) - (e.min || 0))"
THUMB = 16
OTHER_NUMBER = """e => String(e.max !== '' && Number(e.value) >= Number(e.max)
    ? Number(e.value) - Number(e.step || 1) : Number(e.value) + Number(e.step || 1))"""


def _arrow(kind: str, onward: str, back: str):
    """Focus, then one arrow key that changes the value."""

    def move(page, control, arm, _):
        control.focus()
        key = back if control.evaluate(AT_LAST[kind]) else onward
        arm()
        page.keyboard.press(key)

    return move


def _press(key: str):
    """Focus, then a key."""

    def move(page, control, arm, _):
        control.focus()
        arm()
        page.keyboard.press(key)

    return move


def _click(_page, control, arm, _):
    arm()
    control.click(timeout=5000)  # at its middle, where nothing may lie on top of it


def _drag(page, control, arm, _):
    """The thumb, with the mouse, to the quarter of the way that is farther off."""
    box, share = control.bounding_box(), control.evaluate(SHARE)
    y, way = box["y"] + box["height"] / 2, box["width"] - THUMB

    def x(part: float) -> float:
        return box["x"] + THUMB / 2 + part * way

    page.mouse.move(x(share), y)
    arm()
    page.mouse.down()
    page.mouse.move(x(0.25 if share > 0.5 else 0.75), y, steps=8)
    page.mouse.up()


def _choose(page, control, arm, _):
    """A click opens the list; no browser without a screen draws it, so a key has to choose."""
    control.click(timeout=5000)
    key = "ArrowUp" if control.evaluate(AT_LAST["select"]) else "ArrowDown"
    arm()
    page.keyboard.press(key)
    page.keyboard.press("Enter")


def _type(page, control, arm, text):
    """Over what is there, whatever was done to select it, and Enter."""
    if text is None:
        if control.get_attribute("type") == "text":
            pytest.fail("a text box needs text= to be typed")
        text = control.evaluate(OTHER_NUMBER)
    arm()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def _type_after_keys(page, control, arm, text):
    control.focus()
    page.keyboard.press("ControlOrMeta+a")
    _type(page, control, arm, text)


def _type_after_clicks(page, control, arm, text):
    control.click(click_count=3, timeout=5000)
    _type(page, control, arm, text)


MOVES = {
    ("select", "keyboard"): _arrow("select", "ArrowDown", "ArrowUp"),
    ("select", "mouse"): _choose,
    ("range", "keyboard"): _arrow("range", "ArrowRight", "ArrowLeft"),
    ("range", "mouse"): _drag,
    ("number", "keyboard"): _arrow("number", "ArrowUp", "ArrowDown"),
    ("number", "mouse"): _type_after_clicks,
    ("text", "keyboard"): _type_after_keys,
    ("text", "mouse"): _type_after_clicks,
    ("checkbox", "keyboard"): _press("Space"),
    ("checkbox", "mouse"): _click,
    ("radio", "keyboard"): _press("Space"),
    ("radio", "mouse"): _click,
    ("button", "keyboard"): _press("Enter"),
    ("button", "mouse"): _click,
    ("part", "keyboard"): _press("Enter"),
    ("part", "mouse"): _click,
}
"""(kind, by) -> the move."""
