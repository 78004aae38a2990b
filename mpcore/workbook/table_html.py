"""How a table looks in a notebook: in the colours around it, light or dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_CELL = "border-bottom: 1px solid currentColor; padding: 0.3em 0.8em; text-align: left"


def table_html(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose every text is HTML (escape what is not); a row's first cell is its header."""
    columns = "".join(f'<th scope="col" style="{_CELL}">{text}</th>' for text in head)
    return (
        '<table style="border-collapse: collapse; color: inherit">'
        f'<caption style="text-align: left; font-weight: bold">{caption}</caption>'
        f"<thead><tr>{columns}</tr></thead><tbody>{''.join(map(_row, rows))}</tbody></table>"
    )


def nowrap(text: str) -> str:
    """HTML that is not broken into lines."""
    return f'<span style="white-space: nowrap">{text}</span>'


def _row(cells: Sequence[str]) -> str:
    first, *others = cells
    rest = "".join(f'<td style="{_CELL}">{text}</td>' for text in others)
    return f'<tr><th scope="row" style="{_CELL}">{first}</th>{rest}</tr>'
