"""Short forms of a packet: Markdown to paste into a pull request, and the policy as CSV."""

from __future__ import annotations

import csv
import io
import re

from mpcore.records import Packet
from mpcore.report import numbers
from mpcore.report.first_screen import (
    DECISION,
    how_sure,
    reproduce_command,
    what_failed,
    what_to_do,
    why,
)
from mpcore.report.policy_rows import POLICY_COLUMNS
from mpcore.report.reading import rows_of, runs_of

MAX_LINES = 30
MAX_SLICES = 6  # rows of the table that fit beside the sentences
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def summary_markdown(packet: Packet) -> str:
    """What the first screen says, in at most 30 lines of Markdown."""
    lines = [f"## {_escaped(packet.title)}", ""]
    lines += [
        f"**Decision: {DECISION[packet.decision][1].lower()}.** {_escaped(packet.decision_reason)}",
        "",
    ]
    for heading, said in (
        ("What failed", what_failed(packet)),
        ("Why", why(packet)),
        ("What to do", what_to_do(packet)),
        ("How sure", how_sure(packet)),
    ):
        lines.append(f"- **{heading}.** {' '.join(_escaped(str(text)) for text in said)}")
    lines += ["", *_table(packet), ""]
    lines.append(f"Lock `{packet.lock.digest[:12]}`. Reproduce: {_code(reproduce_command(packet))}")
    if len(lines) > MAX_LINES:
        raise AssertionError(f"a summary of {len(lines)} lines; {MAX_LINES} are allowed")
    return "\n".join(lines) + "\n"


def _table(packet: Packet) -> list[str]:
    """Loss per slice and run, worst slices of the failing run first."""
    runs = runs_of(packet)
    ranked = sorted(rows_of(packet, "failing"), key=lambda row: -row.delta_nll.high)
    names = list(dict.fromkeys([row.slice for row in ranked] or [r.slice for r in packet.metrics]))
    lines = [
        "| Loss added, nats a token | " + " | ".join(map(_escaped, runs)) + " |",
        "|---|" + "---|" * len(runs),
    ]
    for name in names[:MAX_SLICES]:
        cells = [
            next(
                (
                    numbers.loss_estimate(r.delta_nll)
                    for r in rows_of(packet, run)
                    if r.slice == name
                ),
                "not run",
            )
            for run in runs
        ]
        lines.append(f"| {_escaped(numbers.words(name))} | " + " | ".join(cells) + " |")
    if len(names) > MAX_SLICES:
        lines.append(f"| and {len(names) - MAX_SLICES} more in the report |" + " |" * len(runs))
    return lines


def policy_csv(packet: Packet) -> str:
    """One row an operator, before and after; cells cannot act as spreadsheet formulas."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    extra = {name for row in packet.policy_table for name in row} - set(POLICY_COLUMNS)
    columns = [*POLICY_COLUMNS, *sorted(extra)]
    writer.writerow([_harmless(name) for name in columns])
    for row in packet.policy_table:
        writer.writerow([_harmless(row.get(name, "")) for name in columns])
    return buffer.getvalue()


def _harmless(text: str) -> str:
    """A spreadsheet runs a cell that starts like a formula: an apostrophe makes it text."""
    if text.startswith(_FORMULA) and not re.fullmatch(r"-?\d+(\.\d+)?(e[-+]?\d+)?", text):
        return "'" + text
    return text


def _escaped(text: str) -> str:
    """Text that Markdown and the HTML inside it leave as it is, on one line."""
    text = re.sub(r"\s*\n\s*", " ", text)
    return re.sub(r"([\\`*_\[\]|<>#])", r"\\\1", text)


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"
