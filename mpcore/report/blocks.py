"""A small document model: each block renders to HTML and to text with the same figures.

HTML is what a reader sees; text is what nbval compares. Every string is escaped here, once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from typing import Literal

Kind = Literal["", "good", "bad", "open", "changed", "code", "number"]
_SYMBOL = {"good": "✓", "bad": "✕", "open": "?", "changed": "→"}


@dataclass(frozen=True)
class Cell:
    """A piece of text with a meaning: a verdict (with a symbol beside its colour), code, a number.

    `full` holds what `text` abbreviates, for a tooltip.
    """

    text: str
    kind: Kind = ""
    full: str = ""

    @property
    def plain(self) -> str:
        """Text form."""
        return f"{_SYMBOL[self.kind]} {self.text}" if self.kind in _SYMBOL else self.text

    @property
    def html(self) -> str:
        """HTML form."""
        text = escape(self.text)
        if self.kind in _SYMBOL:
            symbol = f'<span aria-hidden="true">{_SYMBOL[self.kind]}</span>'
            return f'<span class="mp-{self.kind}">{symbol} {text}</span>'
        if self.kind == "code":
            title = f' title="{escape(self.full)}"' if self.full else ""
            return f"<code{title}>{_breakable(text)}</code>"
        return text


def code(text: str, full: str = "") -> Cell:
    """An identifier or an expression."""
    return Cell(text, "code", full)


def figure(text: str) -> Cell:
    """A number, set to the right of its column."""
    return Cell(text, "number")


Text = str | Cell | tuple["str | Cell", ...]


def _breakable(escaped: str) -> str:
    """Lets a long identifier break after a full stop or an underscore, instead of overflowing."""
    return re.sub(r"(_|\.(?=[a-z]))", r"\1<wbr>", escaped)


def _html(text: Text) -> str:
    if isinstance(text, tuple):
        return "".join(_html(part) for part in text)
    return text.html if isinstance(text, Cell) else escape(text)


def _plain(text: Text) -> str:
    if isinstance(text, tuple):
        return "".join(_plain(part) for part in text)
    return text.plain if isinstance(text, Cell) else text


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; `role` is a CSS class suffix ('note', 'decision-hold', …)."""

    text: Text
    role: str = ""

    def html(self) -> str:
        css = f' class="mp-{escape(self.role)}"' if self.role else ""
        return f"<p{css}>{_html(self.text)}</p>"

    def plain(self) -> str:
        return _plain(self.text)


@dataclass(frozen=True)
class Items:
    """A bullet list."""

    items: list[Text]

    def html(self) -> str:
        return "<ul>" + "".join(f"<li>{_html(item)}</li>" for item in self.items) + "</ul>"

    def plain(self) -> str:
        return "\n".join(f"- {_plain(item)}" for item in self.items)


@dataclass(frozen=True)
class Facts:
    """Terms with what they are."""

    pairs: list[tuple[Text, Text]]

    def html(self) -> str:
        rows = "".join(
            f"<div><dt>{_html(term)}</dt><dd>{_html(value)}</dd></div>"
            for term, value in self.pairs
        )
        return f'<dl class="mp-facts">{rows}</dl>'

    def plain(self) -> str:
        return "\n".join(f"{_plain(term)}: {_plain(value)}" for term, value in self.pairs)


@dataclass(frozen=True)
class Table:
    """A table whose first column names the row; every header has its scope."""

    caption: str
    columns: list[str]
    rows: list[list[Text]]
    marked: set[int] = field(default_factory=set)  # rows that stand out, by index

    def html(self) -> str:
        numeric = {
            index
            for index in range(len(self.columns))
            if any(_is_number(row[index]) for row in self.rows)
        }
        head = "".join(
            f'<th scope="col"{_number_class(index in numeric)}>{escape(column)}</th>'
            for index, column in enumerate(self.columns)
        )
        body = "".join(self._row(index, row) for index, row in enumerate(self.rows))
        caption = escape(self.caption)
        # The region is focusable so that a keyboard can scroll a table wider than the screen.
        return (
            f'<div class="mp-scroll" role="region" tabindex="0" aria-label="{caption}"><table>'
            f"<caption><span>{caption}</span></caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table></div>"
        )

    def _row(self, index: int, row: list[Text]) -> str:
        css = ' class="mp-marked"' if index in self.marked else ""
        first, *rest = row
        cells = "".join(f"<td{_number_class(_is_number(cell))}>{_html(cell)}</td>" for cell in rest)
        return f'<tr{css}><th scope="row">{_html(first)}</th>{cells}</tr>'

    def plain(self) -> str:
        lines = [self.caption, " | ".join(self.columns)]
        for index, row in enumerate(self.rows):
            mark = "→ " if index in self.marked else ""
            lines.append(mark + " | ".join(_plain(cell) for cell in row))
        return "\n".join(lines)


@dataclass(frozen=True)
class Details:
    """Blocks that open on demand, and always in print."""

    summary: str
    blocks: list[Block]

    def html(self) -> str:
        inner = "".join(block.html() for block in self.blocks)
        return f"<details><summary>{escape(self.summary)}</summary>{inner}</details>"

    def plain(self) -> str:
        return "\n".join([self.summary, *(block.plain() for block in self.blocks)])


@dataclass(frozen=True)
class Panel:
    """A headed part of the first screen."""

    heading: str
    blocks: list[Block]

    def html(self) -> str:
        inner = "".join(block.html() for block in self.blocks)
        return f'<section class="mp-panel"><h2>{escape(self.heading)}</h2>{inner}</section>'

    def plain(self) -> str:
        return "\n".join([self.heading, *(block.plain() for block in self.blocks)])


@dataclass(frozen=True)
class Panels:
    """Panels side by side where there is room."""

    panels: list[Panel]

    def html(self) -> str:
        return f'<div class="mp-panels">{"".join(panel.html() for panel in self.panels)}</div>'

    def plain(self) -> str:
        return "\n\n".join(panel.plain() for panel in self.panels)


Block = Paragraph | Items | Facts | Table | Details | Panels


@dataclass(frozen=True, repr=False)
class Section:
    """What a notebook cell displays: HTML for people, text for terminals and comparison."""

    name: str
    blocks: list[Block]

    def _repr_html_(self) -> str:
        inner = "\n".join(block.html() for block in self.blocks)
        return f'<div class="mp-section mp-{escape(self.name)}">{inner}</div>'

    def __repr__(self) -> str:
        return "\n".join(block.plain() for block in self.blocks)


def _is_number(cell: Text) -> bool:
    return isinstance(cell, Cell) and cell.kind == "number"


def _number_class(numeric: bool) -> str:
    return ' class="mp-num"' if numeric else ""
