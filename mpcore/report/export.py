"""An executed notebook → one offline HTML file: no request, no script, accessible, printable."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from jinja2 import FileSystemLoader
from latex2mathml.converter import convert
from nbconvert import TemplateExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from mpcore.report.errors import ReportError
from mpcore.report.notebook_format import NotebookNode, nbformat
from mpcore.report.redact import redact, redact_html

LIMIT = 400_000  # bytes
TEMPLATE = Path(__file__).parent / "template"
FIRST_SCREEN, REMOVE_CELL = "first-screen", "remove-cell"
REMOVE_INPUT = {"remove-input", "parameters", "injected-parameters"}


def notebook_to_html(
    notebook: str | Path | NotebookNode, title: str, command: str = "", language: str = "en"
) -> str:
    """The whole report as text; the same notebook and host give the same bytes.

    Cells tagged `first-screen` show their output under the title, cells tagged `remove-cell` are
    dropped, code is collapsed. Level-one headings of the notebook give way to `title`.

    Args:
        notebook: an executed notebook, or its path.
        title: the page's title and only level-one heading.
        command: shown in the footer as what reproduces the report.
        language: BCP 47 tag of the prose.

    Raises:
        ReportError: unreadable notebook, maths that MathML cannot hold, or a page over 400 kB.
    """
    node = _prepared(notebook)
    headings = _Headings()
    # HTMLExporter would pass the page through an HTML parser that spoils the SVG inside it.
    exporter = TemplateExporter(
        template_file="report.html.j2", extra_loaders=[FileSystemLoader(str(TEMPLATE))]
    )
    exporter.register_filter("markdown2html", lambda text: _markdown(text, headings))
    exporter.register_filter("highlighted", _highlighted)
    exporter.register_filter("svg_picture", _svg_picture)
    exporter.register_filter("alt_text", _alt_text)
    exporter.register_filter("escape_attribute", lambda text: escape(text, quote=True))
    first = [cell for cell in node.cells if cell.metadata.get("mp_first")]
    page = {
        "title": redact(title),
        "command": redact(command),
        "language": language,
        "css": (TEMPLATE / "report.css").read_text(encoding="utf-8"),
        "first": first,
        "contents": _contents(node),
    }
    html, _ = exporter.from_notebook_node(node, resources={"mp": page})
    html = _scrubbed(redact_html(html))
    size = len(html.encode())
    if size > LIMIT:
        raise ReportError(
            f"report {title!r}: {size // 1000} kB, at most {LIMIT // 1000} kB are allowed; "
            f"{_largest(node)}"
        )
    return html


def _prepared(notebook: str | Path | NotebookNode) -> NotebookNode:
    """A copy of the notebook without dropped cells, first-screen cells marked."""
    if isinstance(notebook, NotebookNode):
        node = nbformat.from_dict(notebook)
    else:
        try:
            node = nbformat.read(str(notebook), as_version=4)
        except OSError as error:
            raise ReportError(f"{notebook}: cannot be read ({error.strerror})") from None
        except (ValueError, nbformat.reader.NotJSONError) as error:
            raise ReportError(f"{notebook}: not a notebook ({error})") from None
    cells = []
    for cell in node.cells:
        tags = set(cell.metadata.get("tags", []))
        if REMOVE_CELL in tags:
            continue
        cell = nbformat.from_dict(cell)
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\A\s*# .*\n?", "", cell.source)
        if cell.cell_type == "code":
            cell.metadata["mp_first"] = FIRST_SCREEN in tags
            if tags & REMOVE_INPUT:
                cell.source = ""
        cells.append(cell)
    node.cells = cells
    return node


def _highlighted(source: str) -> str:
    return highlight(source, PythonLexer(), HtmlFormatter(cssclass="highlight"))


class _Headings:
    """Gives each heading its anchor, the same one on every pass over the notebook."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def slug(self, text: str) -> str:
        base = re.sub(r"[^a-z0-9]+", "-", _without_markup(text).lower()).strip("-") or "part"
        base = f"part-{base}"
        number = self.seen[base] = self.seen.get(base, 0) + 1
        return base if number == 1 else f"{base}-{number}"


class _Renderer(IPythonRenderer):
    """Markdown with anchors on headings and maths as MathML; raw HTML is shown, not obeyed."""

    def __init__(self, headings: _Headings) -> None:
        super().__init__(escape=True, exclude_anchor_links=True)
        self.headings = headings

    def heading(self, text: str, level: int, **attributes: object) -> str:
        level = max(2, level)
        return f'<h{level} id="{self.headings.slug(text)}">{text}</h{level}>\n'

    def block_math(self, body: str) -> str:
        return _mathml(body, "block")

    def inline_math(self, body: str) -> str:
        return _mathml(body, "inline")

    def table_cell(
        self, text: str, align: str | None = None, head: bool = False, **attributes: object
    ) -> str:
        style = f' style="text-align:{align}"' if align else ""
        return f'<th scope="col"{style}>{text}</th>' if head else f"<td{style}>{text}</td>"


def _markdown(text: str, headings: _Headings) -> str:
    html = MarkdownWithMath(renderer=_Renderer(headings)).render(text)
    return html.replace("<table>", '<div class="mp-scroll" tabindex="0"><table>').replace(
        "</table>", "</table></div>"
    )


def _mathml(body: str, display: str) -> str:
    try:
        math = convert(body.strip(), display=display)
    except Exception as error:  # latex2mathml raises a dozen unrelated types
        raise ReportError(
            f"maths {body.strip()!r}: {type(error).__name__}, not valid LaTeX"
        ) from None
    if "\\" in math:
        raise ReportError(f"maths {body.strip()!r}: holds a macro that MathML does not know")
    return math


def _contents(node: NotebookNode) -> list[tuple[str, str]]:
    """(anchor, heading) of every level-two heading, in order."""
    headings = _Headings()
    found = []
    for cell in node.cells:
        if cell.cell_type != "markdown":
            continue
        fenced = False
        for line in cell.source.splitlines():
            if line.lstrip().startswith("```"):
                fenced = not fenced
            match = re.fullmatch(r"(#{1,6})\s+(.+?)\s*#*", line)
            if match and not fenced:
                slug = headings.slug(match[2])
                if len(match[1]) <= 2:
                    found.append((slug, _without_markup(match[2])))
    return found


def _without_markup(text: str) -> str:
    return re.sub(r"<[^>]+>|[*_`]", "", text)


def _alt_text(output: NotebookNode, cell: NotebookNode, mime: str) -> str:
    """A picture's text alternative: from the output, else from the cell; never none."""
    metadata = output.get("metadata", {})
    alt = metadata.get(mime, {}).get("alt") or metadata.get("alt") or cell.metadata.get("alt")
    if not alt:
        raise ReportError(f"a picture without alt text, in the cell {cell.source.strip()[:60]!r}")
    return str(alt)


def _svg_picture(output: NotebookNode, cell: NotebookNode) -> str:
    """An SVG named for screen readers, whoever drew it."""
    svg = output.data["image/svg+xml"]
    svg = svg if isinstance(svg, str) else "".join(svg)
    svg = svg[svg.index("<svg") :]
    opening, rest = re.match(r"(<svg[^>]*?)(/?>.*)", svg, re.DOTALL).groups()
    opening = re.sub(r'\s(role|aria-label)="[^"]*"', "", opening)
    label = escape(_alt_text(output, cell, "image/svg+xml"), quote=True)
    return f'{opening} role="img" aria-label="{label}"{rest}'


def _scrubbed(html: str) -> str:
    """One line end, no trailing blanks: the bytes do not depend on the platform."""
    return "\n".join(line.rstrip() for line in html.splitlines()) + "\n"


def _largest(node: NotebookNode) -> str:
    sizes = [
        (len(str(output.get("data", output))), cell.source.strip().split("\n")[0][:60])
        for cell in node.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    size, source = max(sizes, default=(0, ""))
    return f"the largest output has {size // 1000} kB, in the cell {source!r}"
