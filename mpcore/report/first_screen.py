"""The first screen: what failed, why, what to do and how sure, for someone who reads only that."""

from __future__ import annotations

import math
import shlex
from typing import Any

from mpcore.diagnosis.isolate import NAMED_SHARE
from mpcore.records import Fix, Packet
from mpcore.records.case import as_given
from mpcore.report import numbers
from mpcore.report.blocks import Items, Panel, Panels, Paragraph, Section, Text, code
from mpcore.report.reading import (
    KIND_LABEL,
    as_estimate,
    confidence_of,
    layer_and_kind,
    plain_mechanisms,
    rows_of,
    runs_of,
    threshold_of,
    worst_row,
)

DECISION = {
    "release": ("good", "Release"),
    "hold": ("open", "Hold"),
    "roll_back": ("bad", "Roll back"),
    "cannot_conclude": ("open", "Cannot conclude"),
}


def first_screen(packet: Packet) -> Section:
    """Decision, then four short panels; ids stand in brackets behind plain words."""
    kind, word = DECISION[packet.decision]
    symbol = {"good": "✓", "bad": "✕", "open": "■"}[kind]
    return Section(
        "first-screen",
        [
            Paragraph(
                f"{symbol} Decision: {word.lower()}. {packet.decision_reason}",
                f"decision mp-{kind}-box",
            ),
            Panels(
                [
                    Panel("What failed", [Items(what_failed(packet))]),
                    Panel("Why", [Items(why(packet))]),
                    Panel("What to do", [Items(what_to_do(packet))]),
                    Panel("How sure", [Items(how_sure(packet))]),
                ]
            ),
            Paragraph(_provenance(packet), "provenance"),
        ],
    )


def reproduce_command(packet: Packet) -> str:
    """The one command that makes this report again."""
    parts = ["mpcore", "report", packet.case]
    for name, value in packet.parameters.items():
        parts += ["-p", f"{name}={as_given(value)}"]
    return shlex.join(parts)


def what_failed(packet: Packet) -> list[Text]:
    worst = worst_row(packet, "failing")
    policy = packet.policy.get("failing")
    named = f"The policy “{policy.name}”" if policy else "The failing run"
    if worst is None:
        return [f"{named} has no scores in this packet."]
    rows = rows_of(packet, "failing")
    broken = sum(row.guardrail == "broken" for row in rows)
    unclear = sum(row.guardrail == "cannot_conclude" for row in rows)
    where = "every slice" if broken == len(rows) > 1 else f"{broken} of {len(rows)} slices"
    model = packet.lock.model.name
    threshold = threshold_of(packet)
    found: list[Text] = [
        f"{named} breaks the quality limit on {where} (kind of text)."
        if broken
        else f"{named} breaks the quality limit on no slice (kind of text) beyond doubt."
    ]
    if unclear:
        found.append(f"On {unclear} of {len(rows)} slices the interval straddles the limit.")
    found.append(
        f"Worst by its upper bound, {numbers.words(worst.slice)}: "
        f"{numbers.loss(worst.delta_nll.value)} nats of loss added per token (ΔNLL), limit "
        f"{threshold:g} (perplexity × {math.exp(threshold):.2f})."
    )
    before = next((row for row in rows_of(packet, "comparator") if row.slice == worst.slice), None)
    if before:
        found.append(
            f"There, perplexity of {model} went from {numbers.number(before.perplexity)} in the "
            f"released policy to {numbers.number(worst.perplexity)} (lower is better)."
        )
    oracle = f"“No loss” means: like the fp32 oracle, which is {packet.lock.model.oracle}."
    return [*found, _speeds(packet), oracle]


def _speeds(packet: Packet) -> str:
    """The primary metric of every run: modelled speed, where quality holds on every slice."""
    parts = []
    for run in runs_of(packet):
        rows = rows_of(packet, run)
        slowest = min(rows, key=lambda row: row.tokens_per_s_at_quality)
        text = f"{run} {numbers.number(slowest.tokens_per_s_at_quality)}"
        if slowest.tokens_per_s_at_quality:
            band = slowest.tokens_per_s
            text += f" ({numbers.number(band.low)} to {numbers.number(band.high)})"
        parts.append(text)
    return (
        f"Tokens per second at the quality limit, modelled for {packet.lock.shapes} prefill: "
        f"{', '.join(parts)}."
    )


def why(packet: Packet) -> list[Text]:
    diagnosis = packet.diagnosis
    sentence = plain_mechanisms().get(diagnosis.mechanism, diagnosis.mechanism_name)
    found: list[Text] = [f"{sentence} [{diagnosis.mechanism}]"]
    if diagnosis.mechanism == "cannot_conclude":
        missing = ", ".join(diagnosis.missing) or "not recorded"
        return [*found, f"Missing: {missing}."]
    if diagnosis.axis:
        matmuls = f"{len(diagnosis.operators)} of {len(packet.policy_table)} matmuls"
        found.append(f"Repairing {matmuls} is enough. What breaks: {diagnosis.axis}.")
    elif diagnosis.operators:
        found.append(f"Repairing {_named(diagnosis.operators)} is enough.")
    spike = diagnosis.axis_evidence
    if spike:
        found.append(f"{_spike(spike)} {_underflow(packet, [spike['operator']])}")
    elif diagnosis.operators:
        found.append(_underflow(packet, diagnosis.operators))
    return found


def _spike(spike: dict[str, Any]) -> str:
    """The largest activation of one operator, against what surrounds it along its axis."""
    where = f"In {_named([spike['operator']])},"
    largest, typical = numbers.number(spike["largest"]), numbers.number(spike["typical_token"])
    if spike["axis"] == "channel":
        return (
            f"{where} channel {spike['channel']} reaches {largest}, and "
            f"{numbers.number(spike['typical_in_channel'])} in the typical token; the typical "
            f"value is {numbers.number(spike['typical'])}."
        )
    return (
        f"{where} the token at position {spike['token']} reaches {largest}, the typical token "
        f"{typical}, any other at most {numbers.number(spike['elsewhere'])} (one window; alike in "
        f"{spike['windows_alike']} of {spike['windows']})."
    )


def _underflow(packet: Packet, operators: list[str]) -> str:
    """How much of what enters these operators vanishes in prefill."""
    rows = [
        row
        for row in packet.incidence
        if row.operator in operators
        and row.tensor == "activation"
        and row.step_kind == packet.metrics[0].step_kind
    ]
    elements = sum(row.elements for row in rows)
    if not elements:
        return ""
    lost = sum(row.underflow for row in rows) / elements
    return f"Over all windows, {numbers.share(lost)} of its inputs became zero (underflow)."


def what_to_do(packet: Packet) -> list[Text]:
    fix = packet.fix
    action = packet.rollback.action
    action = action[:1].upper() + action[1:]
    if packet.diagnosis.mechanism == "none":
        return ["Nothing to repair at this limit.", "It may go out once every owner has signed."]
    if fix is None and packet.diagnosis.mechanism in ("cannot_conclude", "C0"):
        return [f"First settle it: {'; '.join(packet.diagnosis.missing)}.", f"Until then: {action}"]
    if fix is None:
        return [f"No change that was tried holds the limit on every slice. {action}"]
    owner = next((one for one in packet.owners if one.role == fix.owner), None)
    name = f" ({owner.name})" if owner else ""
    return [
        fix.summary,
        _confirmation(packet, fix),
        f"Owner: {fix.owner}{name}, {_signature(owner.signed if owner else None)}.",
        f"If it goes wrong: {packet.rollback.action}",
    ]


def _confirmation(packet: Packet, fix: Fix) -> str:
    """The fix on its worst slice: all tokens, those that chose nothing, and what it still costs."""
    state = "Confirmed" if fix.confirmed else "Not confirmed"
    said = f"{state} on {numbers.count(fix.tokens)} tokens"
    worst = worst_row(packet, "fix")
    if worst is None:
        return f"{said}."
    said += (
        f": worst slice {numbers.words(worst.slice)}, {numbers.loss(worst.delta_nll.value)} nats, "
        f"{_one_sided(packet)} upper bound {numbers.loss(worst.delta_nll.high)} (limit "
        f"{threshold_of(packet):g})"
    )
    if fix.unseen_loss:
        said += (
            f"; on the {numbers.count(fix.unseen_tokens)} that did not choose it "
            f"{numbers.loss(fix.unseen_loss.value)}, bound {numbers.loss(fix.unseen_loss.high)}"
        )
    before = next((r for r in rows_of(packet, "comparator") if r.slice == worst.slice), None)
    if before:
        more = numbers.share(worst.perplexity / before.perplexity - 1)
        said += (
            f". Perplexity there: {numbers.number(before.perplexity)} released, "
            f"{numbers.number(worst.perplexity)} repaired (+{more})"
        )
    return said + "."


def how_sure(packet: Packet) -> list[Text]:
    diagnosis = packet.diagnosis
    found: list[Text] = []
    worst = worst_row(packet, "failing")
    if worst:
        half = numbers.half_width(worst.delta_nll)
        found.append(
            f"Only {numbers.count(worst.tokens)} tokens were scored on {numbers.words(worst.slice)}"
            f" ({worst.passages} passages): the failing run's figure there is "
            f"±{numbers.loss(half)} nats ({numbers.share(confidence_of(packet))} interval)."
        )
    if diagnosis.operators:
        stable, members = len(diagnosis.operators_stable), len(diagnosis.operators)
        share = diagnosis.confidence.get("mechanism_share")
        found.append(
            f"{stable} of the {members} operators are named: they rank among those needed in "
            f"≥{numbers.THIN}{numbers.share(NAMED_SHARE)} of redrawn samples."
        )
        if isinstance(share, int | float):
            found.append(
                f"“{diagnosis.confidence.get('deciding_what_if')}” in all operators heals the mean "
                f"in {numbers.share(share)} of redraws. Mechanisms that were not tested are not "
                "excluded."
            )
    necessary = as_estimate(diagnosis.necessity.get("delta_nll"))
    if necessary:
        found.append(
            "The same fault in these operators alone, put into the released policy, adds "
            f"{numbers.loss_estimate(necessary)} nats."
        )
    return found


def _one_sided(packet: Packet) -> str:
    """Level of the upper end alone: a two-sided 90 % interval ends in a one-sided 95 % bound."""
    return numbers.share((1 + confidence_of(packet)) / 2)


def _provenance(packet: Packet) -> Text:
    lock = packet.lock
    here = lock.environment
    return (
        f"Model {lock.model.name}. Software: mpcore {here.mpcore}, Python {here.python}, NumPy "
        f"{here.numpy}; processor: {here.cpu}. Modelled machine: {lock.machine}, shapes "
        f"{lock.shapes}. Lock ",
        code(lock.digest[:12], lock.digest),
        ".",
    )


def _named(operators: list[str]) -> str:
    """Operators in a few words: '6 operators: down in layers 2, 9, 11, 13, 28–29'."""
    by_kind: dict[str, list[int]] = {}
    others = []
    for operator in operators:
        layer, kind = layer_and_kind(operator)
        if layer is None:
            others.append(operator)
        else:
            by_kind.setdefault(kind, []).append(layer)
    parts = []
    for kind, layers in by_kind.items():
        plural = "s" if len(layers) > 1 else ""
        label = {"down_proj": f"FFN down-projection{plural}"}.get(
            kind, f"{KIND_LABEL.get(kind, kind)} matmul{plural}"
        )
        number = f"{len(layers)} {label}" if plural else f"one {label}"
        parts.append(f"{number} (layer{plural} {numbers.ranges(layers)})")
    return " and ".join(parts + others)


def _signature(signed: str | None) -> str:
    return f"signed {signed}" if signed else "not signed"
