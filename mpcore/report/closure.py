"""Sections that close an investigation: evidence, claims, owners, rollback, validation, context."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from mpcore.records import Packet, Stage
from mpcore.report import numbers
from mpcore.report.blocks import (
    Block,
    Cell,
    Details,
    Facts,
    Items,
    Paragraph,
    Section,
    Table,
    Text,
    code,
    figure,
)
from mpcore.report.tables import free_form

STAGE_WORDS = {
    "ingress": "Request ingress and model metadata",
    "lowering": "Graph lowering and kernel selection",
    "schedule": "Tile schedule and memory placement",
    "execution": "Tensor execution and synchronisation",
    "assembly": "Result assembly and quality validation",
    "release": "Release decision and rollback guardrails",
}


def evidence_matrix(packet: Packet) -> Section:
    """What each kind of evidence tells, does not prove, and asks for next; what is here of it."""
    rows: list[list[Text]] = [
        [
            row.evidence,
            row.tells_you,
            row.does_not_prove,
            row.next_action,
            Cell(row.here, "good" if row.collected else "open"),
        ]
        for row in packet.evidence
    ]
    columns = ["Evidence", "Tells you", "Does not prove", "Next action", "In this packet"]
    blocks: list[Block] = [Table("Evidence matrix", columns, rows)]
    for title, items in (
        ("This diagnosis does not prove:", packet.diagnosis.does_not_prove),
        ("Missing:", packet.diagnosis.missing),
        ("A reader must know:", packet.limits),
    ):
        if items:
            blocks += [Paragraph(title, "lead"), Items(list(items))]
    return Section("evidence", blocks)


def contradictions(packet: Packet) -> Section:
    """Evidence that does not agree, and what follows."""
    if not packet.contradictions:
        return Section("contradictions", [Paragraph("No contradictory evidence was found.")])
    rows: list[list[Text]] = [
        [one.what, ", ".join(one.evidence), one.follows] for one in packet.contradictions
    ]
    columns = ["What does not agree", "Evidence", "What follows"]
    return Section("contradictions", [Table("Contradictions", columns, rows)])


def claims_table(packet: Packet) -> Section:
    """Each major claim with the one artifact that proves it."""
    claims: list[list[Text]] = [
        [claim.claim, code(claim.artifact), code(claim.sha256[:12], claim.sha256)]
        for claim in packet.claims
    ]
    artifacts: list[list[Text]] = [
        [code(one.name), one.what, code(one.sha256[:12], one.sha256)] for one in packet.artifacts
    ]
    columns = ["Claim", "Proving artifact", "SHA-256 (start)"]
    blocks: list[Block] = [Table("Claims and their proof", columns, claims)]
    if artifacts:
        columns = ["Artifact", "What it holds", "SHA-256 (start)"]
        table = Table("Artifacts in the packet", columns, artifacts)
        blocks.append(Details("All artifacts", [table]))
    return Section("claims", blocks)


def owners_table(packet: Packet) -> Section:
    """Who answers for what, and whether they signed."""
    rows: list[list[Text]] = [
        [
            owner.role,
            owner.name,
            owner.responsibility,
            Cell(owner.signed, "good") if owner.signed else Cell("not signed", "open"),
        ]
        for owner in packet.owners
    ]
    columns = ["Role", "Who", "Answers for", "Signature"]
    return Section("owners", [Table("Owners and signatures", columns, rows)])


def rollback_section(packet: Packet) -> Section:
    """The trigger as an executable condition, its inputs, and what it says of each run."""
    trigger = packet.rollback
    inputs: list[list[Text]] = [[code(name), what] for name, what in trigger.inputs.items()]
    runs: list[list[Text]] = [
        [run, Cell("fires", "bad") if fires else Cell("does not fire", "good")]
        for run, fires in trigger.evaluated.items()
    ]
    return Section(
        "rollback",
        [
            Facts(
                [
                    ("Roll back when", code(trigger.predicate)),
                    ("Then", trigger.action),
                    *([("Who evaluates it", trigger.who)] if trigger.who else []),
                    *([("On what, and when", trigger.when)] if trigger.when else []),
                ]
            ),
            Table("What the condition reads", ["Name", "What it is"], inputs),
            Table("The condition on the runs of this packet", ["Run", "Trigger"], runs),
        ],
    )


def validation_matrix(packet: Packet) -> Section:
    """Which check was run on which slice, and its result."""
    result = {
        "pass": Cell("pass", "good"),
        "fail": Cell("fail", "bad"),
        "not run": Cell("not run", "open"),
    }
    rows: list[list[Text]] = [
        [row.check, numbers.words(row.slice), row.criterion, row.figure, result[row.result]]
        for row in packet.validation
    ]
    columns = ["Check", "Slice", "Criterion", "Figure", "Result"]
    return Section("validation", [Table("Validation matrix", columns, rows)])


def checklist(packet: Packet) -> Section:
    """The review checklist, with the evidence for each line."""
    rows: list[list[Text]] = [
        [row.item, Cell(row.state, "good" if row.state == "met" else "open"), row.evidence]
        for row in packet.checklist
    ]
    return Section("checklist", [Table("Review checklist", ["Item", "State", "Evidence"], rows)])


def execution_flow(
    packet: Packet, failing: list[Stage], comparator: list[Stage] | None = None
) -> Section:
    """The six stages in order with their counters, the first failing stage marked.

    Args:
        packet: for the diagnosed stage.
        failing: stages of the failing run (`RunRecord.stages`).
        comparator: stages of the comparator, shown beside where given.
    """
    found = {stage.name: stage.counters for stage in failing}
    other = {stage.name: stage.counters for stage in comparator or []}
    rows: list[list[Text]] = []
    marked = set()
    for name, label in STAGE_WORDS.items():
        first = name == packet.diagnosis.stage
        if first:
            marked.add(len(rows))
        row: list[Text] = [
            f"{len(rows) + 1}. {label}",
            _counters(found.get(name)),
            Cell(f"first failing stage [{packet.diagnosis.mechanism}]", "bad") if first else "",
        ]
        if comparator:
            row.insert(2, _counters(other.get(name)))
        rows.append(row)
    columns = ["Stage", "Counters, failing run", "Verdict"]
    if comparator:
        columns.insert(2, "Counters, comparator")
    return Section("flow", [Table("Execution flow", columns, rows, marked)])


def _counters(counters: Mapping[str, object] | None) -> str:
    if counters is None:
        return "not recorded"
    return (
        "; ".join(f"{numbers.words(k)} {numbers.plain(v)}" for k, v in counters.items()) or "none"
    )


def environment(packet: Packet) -> Section:
    """The lock: everything that comparable runs share, with its digest."""
    lock = packet.lock
    pairs: list[tuple[Text, Text]] = [
        ("Digest over this lock", code(lock.digest)),
        ("Case", code(lock.case)),
        ("Model", f"{lock.model.name}, {lock.model.licence}, from {lock.model.source}"),
        ("Model SHA-256", code(lock.model.sha256)),
        ("Oracle", lock.model.oracle),
        ("Modelled machine", f"{lock.machine}, shapes {lock.shapes}"),
        ("Parameters", _settings(lock.parameters)),
        ("Seeds", _settings(lock.seeds)),
        ("Protocol", _settings(lock.protocol.model_dump())),
        *((f"Software: {k}", v) for k, v in lock.environment.model_dump().items()),
    ]
    data: list[list[Text]] = [
        [
            numbers.words(name),
            figure(numbers.count(lock.tokens_per_slice.get(name, 0))),
            code(digest[:12], digest),
        ]
        for name, digest in lock.data.items()
    ]
    sla: list[list[Text]] = [
        [
            numbers.words(target["metric"]),
            f"{'≤' if target['direction'] == 'at_most' else '≥'} "
            f"{target['limit']:g} {target['unit']}",
        ]
        for target in packet.scope.get("sla", [])
    ]
    tables: list[Block] = [
        Table("Data", ["Slice", "Scored tokens", "SHA-256 (start)"], data),
        *([Table("Service targets in scope", ["Figure", "Target"], sla)] if sla else []),
    ]
    return Section("environment", [Facts(pairs), *tables])


def _settings(values: Mapping[str, object]) -> str:
    """Settings as someone would type them: digits as they are, no thousands set apart."""

    def typed(value: object) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{numbers.words(k)} {typed(v)}" for k, v in value.items()) or "none"
        if isinstance(value, list):
            return ", ".join(map(typed, value))
        return f"{value:g}" if isinstance(value, float) else str(value)

    return "; ".join(f"{numbers.words(name)}: {typed(value)}" for name, value in values.items())


def volatile(packet: Packet) -> Section:
    """Times and host facts: differ from run to run, and stay outside the digest."""
    if not packet.volatile:
        return Section("volatile", [Paragraph("Nothing volatile was recorded.")])
    return Section("volatile", free_form(packet.volatile, "Times and host facts"))


@cache
def _terms() -> dict[str, dict[str, object]]:
    path = Path(__file__).parent / "glossary.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))["terms"]


def glossary(packet: Packet) -> Section:
    """Every term of our glossary that this packet's report uses."""
    text = packet.to_json() + " ".join(_ALWAYS)
    pairs: list[tuple[Text, Text]] = []
    for term, entry in sorted(_terms().items(), key=lambda item: item[0].lower()):
        spellings = [term, *entry.get("also", [])]
        pattern = "|".join(re.escape(spelling) for spelling in spellings)
        if re.search(rf"(?<!\w)({pattern})s?(?!\w)", text, re.IGNORECASE):
            pairs.append((term, str(entry["means"])))
    return Section("glossary", [Facts(pairs)])


# Terms that the report's own sentences use whatever the packet holds.
_ALWAYS = (
    *("activation", "artifact", "comparator", "deployment slice", "equal bits", "fp32"),
    *("guardrail", "interaction", "interval", "KL", "lock", "loss", "mechanism", "modelled"),
    *("nats", "oracle", "outlier", "overflow", "perplexity", "policy sheet", "rollback trigger"),
    *("saturation", "scale", "set S", "token", "underflow", "validation matrix", "what-if"),
)
