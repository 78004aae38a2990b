"""How words and code of an exercise look in a notebook."""

from __future__ import annotations

from html import escape

_BOX = "border-left:4px solid {colour};padding:4px 12px;margin:4px 0;max-width:760px"
# Against what JupyterLab does to any <pre>; the box is as wide as the page at most.
_UNBROKEN = "white-space:pre;word-break:normal;overflow-wrap:normal;overflow-x:auto"


def text_html(text: str, colour: str = "currentColor", head: str = "") -> str:
    """A paragraph with a coloured edge; `head` comes first, in bold: colour alone says nothing."""
    strong = f"<strong>{escape(head)}</strong> " if head else ""
    return f'<div style="{_BOX.format(colour=colour)}">{strong}{escape(text)}</div>'


def code_html(source: str) -> str:
    """Source code, as it is: a line too long for the page is scrolled to, not broken."""
    style = f"{_BOX.format(colour='currentColor')};{_UNBROKEN}"
    return f'<pre style="{style}"><code style="{_UNBROKEN}">{escape(source)}</code></pre>'
