"""Pictures as SVG text, put together shape by shape: what the explorers draw with.

Plots come from Matplotlib (`report.picture`). Here is what is no plot: bits, number lines, tiles.
Colours are variables, so that one picture follows the light or dark scheme around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

from mpcore.report.palette import FONTS, PALETTE

WIDTH = 640.0  # units of the drawing; about pixels where there is room
TEXT, SMALL = 14.0, 12.5

COLOUR = {name: f"var(--mp-{name},{light})" for name, (_, light, _) in PALETTE.items()}
BLUE, ORANGE = COLOUR["fix"], COLOUR["failing"]
FG, MUTED, LINE, BG = (COLOUR[name] for name in ("fg", "muted", "line", "bg"))


class Drawing:
    """A drawing of a given height, in units from its top left corner."""

    def __init__(self, height: float, width: float = WIDTH) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    def add(self, tag: str, text: str | None = None, **attributes: object) -> None:
        """Any SVG element; `stroke_width=2` becomes `stroke-width="2"`."""
        opening = f"<{tag}{_written(attributes)}"
        self._parts.append(f"{opening}/>" if text is None else f"{opening}>{escape(text)}</{tag}>")

    def text(
        self, x: float, y: float, text: str, size: float = TEXT, fill: str = FG, **style: object
    ) -> None:
        """Text whose baseline starts at a point (`text_anchor` "middle" or "end" moves it)."""
        self.add("text", text, x=x, y=y, font_size=size, fill=fill, **style)

    def text_on_top(
        self, x: float, y: float, text: str, size: float = TEXT, fill: str = FG, **style: object
    ) -> None:
        """Text with a rim in the colour of the background: readable across lines and boxes."""
        rim = {"stroke": BG, "stroke_width": 3.5, "stroke_linejoin": "round"}
        self.text(x, y, text, size, fill, paint_order="stroke", **rim, **style)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str = MUTED, **style: object
    ) -> None:
        """A straight line."""
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, **style)

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str = "none", **style: object
    ) -> None:
        """A box; one too narrow to be seen is drawn half a unit wide."""
        self.add("rect", x=x, y=y, width=max(width, 0.5), height=height, fill=fill, **style)

    def path(self, points: list[tuple[float, float]], stroke: str, **style: object) -> None:
        """A line through points."""
        steps = "L".join(f"{_number(x)} {_number(y)}" for x, y in points)
        self.add("path", d=f"M{steps}", stroke=stroke, fill="none", **style)

    @contextmanager
    def group(self, **attributes: object) -> Iterator[None]:
        """What is drawn meanwhile becomes one group."""
        self._parts.append(f"<g{_written(attributes)}>")
        yield
        self._parts.append("</g>")

    def button(self, key: str, label: str, **attributes: object):
        """What is drawn meanwhile can be pressed, by mouse or keyboard; `label` is read aloud."""
        return self.group(
            role="button",
            tabindex=0,
            data_press=key,
            data_key=key,
            aria_label=label,
            data_lm_suppress_shortcuts="true",  # JupyterLab's own keys stay out
            **attributes,
        )

    def svg(self, label: str, has_buttons: bool = False) -> str:
        """The drawing; `label` is its text alternative."""
        role = "group" if has_buttons else "img"  # the parts of an image are not read
        attributes = {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {_number(self.width)} {_number(self.height)}",
            "role": role,
            "aria_label": label,
            "font_family": FONTS,
        }
        return f"<svg{_written(attributes)}>{''.join(self._parts)}</svg>"


def _written(attributes: dict[str, object]) -> str:
    return "".join(
        f' {name.replace("_", "-")}="{escape(_number(value), quote=True)}"'
        for name, value in attributes.items()
        if value is not None
    )


def _number(value: object) -> str:
    """A length to a hundredth, without idle zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
