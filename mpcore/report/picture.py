"""Pictures as SVG text: one plotting style, both colour schemes, the same bytes every time.

Matplotlib draws with sentinel colours, which become CSS variables here, so that one SVG follows
the reader's light or dark scheme, in the offline page as in JupyterLab.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from html import escape

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mpcore.report.errors import ReportError
from mpcore.report.palette import COLOUR, FONTS, PALETTE, variables

WIDTH = 342.0  # points; narrow on purpose: at 390 px wide the text is still about 10 px high
SCREEN_WIDTH = 560  # pixels where there is room
TEXT, SMALL, HEADING = 10.0, 9.2, 11.0

# A run is told by its marker's shape as well as by its colour.
MARKER = {"failing": "X", "fix": "o", "comparator": "D"}

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mpcore",
    "font.family": "DejaVu Sans",  # ships with Matplotlib, and is as wide as screen fonts get
    "font.size": TEXT,
    "text.color": COLOUR["fg"],
    "axes.edgecolor": COLOUR["muted"],
    "axes.labelcolor": COLOUR["fg"],
    "axes.facecolor": COLOUR["bg"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "figure.facecolor": COLOUR["bg"],
    "savefig.facecolor": COLOUR["bg"],
    "xtick.color": COLOUR["muted"],
    "ytick.color": COLOUR["muted"],
    "xtick.labelcolor": COLOUR["fg"],
    "ytick.labelcolor": COLOUR["fg"],
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "hatch.color": COLOUR["muted"],
    "hatch.linewidth": 0.5,
    "path.simplify": False,
}


@dataclass(frozen=True, repr=False)
class Picture:
    """An SVG picture with its text alternative.

    Attributes:
        name: a short identifier; prefixes every id in the SVG, so pictures can share a page.
        svg: the picture, without XML declaration.
        alt: what the picture shows, with its main figures.
        caption: how to read it.
    """

    name: str
    svg: str
    alt: str
    caption: str

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        return (
            {"image/svg+xml": self.svg, "text/plain": self.alt},
            {"image/svg+xml": {"alt": self.alt, "caption": self.caption}},
        )

    def __repr__(self) -> str:
        return self.alt


class Canvas:
    """A figure laid out in points from the top left corner."""

    def __init__(self, name: str, title: str, height: float, width: float = WIDTH) -> None:
        self.name = name
        self.title = title
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / 72, height / 72))
        if title:
            self.text(6, 16, title, size=HEADING, weight="bold")

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes whose box is given in points."""
        bottom = self.height - top - height
        box = (left / self.width, bottom / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(box)

    def text(self, left: float, top: float, text: str, **style: object) -> None:
        """Text whose baseline starts at a point."""
        self.figure.text(left / self.width, 1 - top / self.height, verbatim(text), **style)

    def picture(self, alt: str, caption: str) -> Picture:
        """The finished picture."""
        svg = _alone(_cleaned(self._drawn(), self.name), self.name, alt, self.width, self.height)
        return Picture(self.name, svg, alt, caption)

    def layer(self) -> str:
        """SVG elements for a picture of the same size, which brings the colours' variables, the
        font, the background and what else the layers lie on."""
        self.figure.patch.set_visible(False)
        return _cleaned(self._drawn(), self.name)

    def _drawn(self) -> str:
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        self.figure.savefig(buffer, format="svg", metadata=nothing)
        return buffer.getvalue()


def styled() -> matplotlib.rc_context:
    """The one plotting style, as a context."""
    return matplotlib.rc_context(STYLE)


def empty_picture(name: str, title: str, why: str) -> Picture:
    """A picture that says that there is nothing to show, and why."""
    with styled():
        canvas = Canvas(name, title, 60)
        canvas.text(6, 40, why, size=SMALL)
        return canvas.picture(f"{title}: {why}", "")


def verbatim(text: str) -> str:
    """Text that Matplotlib draws as it is: a dollar sign would start its maths mode."""
    return text.replace("$", r"\$")


def _cleaned(svg: str, name: str) -> str:
    """Matplotlib's SVG → its elements, fit to stand inside a page, with variables as colours."""
    if not re.fullmatch(r"[a-z][a-z-]*", name):
        raise ReportError(f"picture name {name!r}: small letters and hyphens are allowed")
    start = svg.index("<defs>") if "<defs>" in svg else svg.index("<g ")
    body = svg[start : svg.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    # Matplotlib's own <style> only sets joins and caps, for the whole page: scoped below.
    body = re.sub(r"<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    referenced = set(re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", body))
    used = {first or second for first, second in referenced}
    body = re.sub(
        r' id="([^"]+)"', lambda m: f' id="mp-{name}-{m[1]}"' if m[1] in used else "", body
    )
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#mp-{name}-\1)", body)
    body = re.sub(r'(xlink:)?href="#([^"]+)"', rf'href="#mp-{name}-\2"', body)
    body = re.sub(r"<[^>]+>", lambda m: _compact(m[0]), body)
    body = re.sub(r"<g>\s*(<(?:path|use)[^>]*/>)\s*</g>", r"\1", body)
    for variable, (sentinel, light, _) in PALETTE.items():
        body = body.replace(sentinel, f"var(--mp-{variable}, {light})")
    return body.replace("font-family: 'DejaVu Sans'; ", "")


def _alone(body: str, name: str, alt: str, width: float, height: float) -> str:
    """The elements of a picture → one that brings its own colours, in both schemes."""
    selector = f"#mp-{name}"
    title = escape(alt, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" id="mp-{name}" class="mp-figure" role="img" '
        f'aria-label="{title}" width="{SCREEN_WIDTH}" '
        f'height="{SCREEN_WIDTH * height / width:.0f}" viewBox="0 0 {width:g} {height:g}">\n'
        f"<style>{selector}{{{variables('light')}}}{selector} text{{font-family:{FONTS}}}"
        f"{selector} *{{stroke-linejoin:round;stroke-linecap:butt}}"
        "@media screen and (prefers-color-scheme:dark)"
        f"{{{selector}{{{variables('dark')}}}}}</style>\n" + body + "</svg>\n"
    )


def _compact(tag: str) -> str:
    """A tag with lengths to a hundredth of a point, and no rotation by nothing."""
    tag = re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*\)"', "", tag)
    return re.sub(r"\s*\n\s*", " ", tag)
