"""The validation matrix and the review checklist of a packet: what was checked, what is open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpcore.diagnosis.diagnose import Investigation
from mpcore.flow.release import verdict
from mpcore.machines.shapes import get_shapes
from mpcore.records import Case, ChecklistItem, Owner, RunRecord, SliceQuality, ValidationRow
from mpcore.report import numbers

SERVICE_STEPS = {"time_to_first_token": "prefill", "time_per_output_token": "decode"}
"""Service target -> the step whose time it contains."""


def validation_rows(
    case: Case, runs: Mapping[str, RunRecord], repeats: dict[str, Any], limit: float
) -> list[ValidationRow]:
    """Every check: those that were run with their figures, and those that are still to be run."""
    rows = [
        _loss_row(f"quality of the {name}, prefill", item, limit)
        for name, run in runs.items()
        if name != "failing"
        for item in run.prefill
    ]
    rows.append(
        ValidationRow(
            check="comparator repeats in varied order and batch",
            slice="all",
            criterion=f"spread ≤ {repeats['limit']:g} nats",
            result="pass" if repeats["stable"] else "fail",
            figure=f"{repeats['spread']:.2g} over {len(repeats['repeats'])} runs",
        )
    )
    if "fix" in runs:
        check = "quality of the fix on the tokens that did not choose it, prefill"
        rows += [_loss_row(check, item, limit) for item in runs["fix"].quality_unseen]
    rows += _service_rows(case, runs)
    for check, criterion in (
        ("quality in decode steps", "enough tokens a slice to decide (a few were scored here)"),
        ("replay of production traffic on the device", "p95 and p99 within the SLA"),
        ("clocks, power and temperature under sustained load", "no throttling during the runs"),
    ):
        rows.append(
            ValidationRow(
                check=check, slice="all", criterion=criterion, result="not run", figure="–"
            )
        )
    return rows


def _loss_row(check: str, item: SliceQuality, limit: float) -> ValidationRow:
    return ValidationRow(
        check=check,
        slice=item.slice,
        criterion=f"loss added per token ≤ {limit:g} nats, upper end",
        result="pass" if verdict(item.delta_nll, limit) == "holds" else "fail",
        figure=f"{numbers.loss_estimate(item.delta_nll)}, {item.tokens} tokens",
    )


def _service_rows(case: Case, runs: Mapping[str, RunRecord]) -> list[ValidationRow]:
    """Each service target beside the modelled time of one step, which is a part of it at best.

    A modelled step that alone takes longer than the target fails it; nothing here can pass one.
    """
    run = runs.get("fix") or runs["failing"]
    speeds = {item.step_kind: item.tokens_per_s for item in run.throughput}
    shapes = get_shapes(case.workload.shapes)
    rows = []
    for target in case.scope.sla:
        kind, figure, result = SERVICE_STEPS.get(target.metric), "–", "not run"
        if kind and target.unit == "ms":
            tokens, speed = shapes.rows(kind), speeds[kind]
            middle, low, high = (1e3 * tokens / v for v in (speed.value, speed.high, speed.low))
            figure = (
                f"modelled, linear layers of one {kind} step of {tokens} tokens alone: "
                f"{numbers.number(middle)} ms ({numbers.number(low)} to {numbers.number(high)})"
            )
            if target.direction == "at_most" and low > target.limit:
                result = "fail"
        sign = "≤" if target.direction == "at_most" else "≥"
        rows.append(
            ValidationRow(
                check=f"{target.metric.replace('_', ' ')} on the device, p95 and p99",
                slice="all",
                criterion=f"{sign} {target.limit:g} {target.unit}",
                result=result,
                figure=figure,
            )
        )
    return rows


def checklist_items(
    case: Case, found: Investigation, owners: list[Owner], run_slices: list[str]
) -> list[ChecklistItem]:
    """The review checklist: what this packet meets, and what stays open."""
    confirmed = found.fix_record is not None
    absent = [name for name in case.scope.slices if name not in run_slices]
    named = all("to be named" not in owner.name for owner in owners)
    items = [
        (
            "Workload scope and SLA targets are explicit.",
            True,
            f"{len(case.scope.sla)} SLA targets; scope in the packet",
        ),
        ("Environment metadata is locked and reproducible.", True, "lock with digest"),
        (
            "Mechanism classification is evidence-backed.",
            bool(found.diagnosis.operators),
            "what-ifs at equal bits, and the fault injected into the clean run",
        ),
        (
            "Owner, rollback trigger and validation matrix are documented.",
            named,
            "trigger and matrix are here; " + ("owners named" if named else "owners to be named"),
        ),
        (
            "Guardrail evidence exists for each deployment slice.",
            confirmed and not absent,
            ("confirmed" if confirmed else "no repair was confirmed")
            + (f"; not run: {', '.join(absent)}" if absent else ""),
        ),
        (
            "Replayed with production-like traffic (p95, p99).",
            False,
            "not run: this packet holds numerics and modelled time",
        ),
        ("Owners signed.", False, f"0 of {len(owners)} signatures"),
    ]
    return [
        ChecklistItem(item=item, state="met" if met else "open", evidence=evidence)
        for item, met, evidence in items
    ]
