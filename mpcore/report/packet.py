"""The packet of an investigation: everything a release decision needs, from runs and diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpcore.diagnosis.diagnose import Investigation
from mpcore.flow.release import RESERVE, fires, tokens_needed, verdict, worst
from mpcore.machines import get_machine
from mpcore.records import (
    Artifact,
    Case,
    Claim,
    EvidenceRow,
    Fix,
    MetricRow,
    Owner,
    Packet,
    PolicySheet,
    RollbackTrigger,
    RunRecord,
    TrendPoint,
    digest_of,
)
from mpcore.report import numbers
from mpcore.report.contradictions import find_contradictions
from mpcore.report.packet_tables import EVIDENCE, RESPONSIBILITIES
from mpcore.report.policy_rows import policy_rows
from mpcore.report.validation import checklist_items, validation_rows

LEAST_DECODED = 100
"""Fewer decoded tokens decide nothing about decode steps."""

OWNER_OF_CLASS = {
    "scale": "compiler quantization engineer",
    "resolution": "numerical methods owner",
}
"""Bottleneck class -> the role that owns the repair, where the case says nothing else."""


def build_packet(
    case: Case,
    comparator: RunRecord,
    failing: RunRecord,
    repeats: dict[str, Any],
    found: Investigation,
    operators: list[str],
) -> Packet:
    """Assemble the packet; nothing is computed anew but sums, shares and hashes."""
    runs = {"comparator": comparator, "failing": failing}
    if found.fix_record is not None:
        runs["fix"] = found.fix_record
    limit = failing.lock.parameters["guardrail"]
    guardrail = {**case.guardrail.to_dict(), "threshold": limit}
    metrics = [row for name, run in runs.items() for row in _metric_rows(name, run, limit)]
    fix = _fix(found, failing.policy, metrics)
    rollback = _rollback(runs, comparator.policy, limit)
    owners = [
        Owner(role=role, name=name, responsibility=RESPONSIBILITIES[role])
        for role, name in case.scope.owners.items()
    ]
    validation = validation_rows(case, runs, repeats, limit)
    decision, reason = _decision(found, metrics, comparator.policy, fix, limit)
    draft: dict[str, Any] = {
        "case": case.name,
        "title": case.title,
        "question": case.question,
        "parameters": failing.lock.parameters,
        "scope": case.scope.to_dict(),
        "guardrail": guardrail,
        "lock": failing.lock,
        "volatile": {name: run.volatile for name, run in runs.items()},
        "metrics": metrics,
        "trend": [_trend_point(run, limit) for run in runs.values()],
        "comparator": repeats,
        "incidence": [item for item in failing.incidence if item.operator != "*"],
        "stages": {name: run.stages for name, run in runs.items()},
        "diagnosis": found.diagnosis,
        "policy": {name: run.policy for name, run in runs.items()},
        "policy_table": policy_rows(
            failing.policy,
            found.fix_record.policy if found.fix_record else None,
            operators,
            case.guardrail.metric,
            limit,
            _worst_upper(found.fix_record or failing),
        ),
        "fix": fix,
        "contradictions": find_contradictions(found, runs),
        "evidence": [EvidenceRow(**row) for row in EVIDENCE],
        "owners": owners,
        "rollback": rollback,
        "validation": validation,
        "checklist": checklist_items(case, found, owners, failing.lock.parameters["slices"]),
        "decision": decision,
        "decision_reason": reason,
        "limits": _limits(failing, metrics, limit),
    }
    artifacts = _artifacts(draft)
    claims = _claims(found, artifacts)
    return Packet(**draft, artifacts=artifacts, claims=claims)


def _worst_upper(run: RunRecord) -> float:
    return worst(run.prefill).delta_nll.high


def _metric_rows(name: str, run: RunRecord, limit: float) -> list[MetricRow]:
    speeds = {item.step_kind: item.tokens_per_s for item in run.throughput}
    totals = {(t.slice, t.step_kind): t for t in run.incidence if t.operator == "*"}
    holds = {q.slice: verdict(q.delta_nll, limit) == "holds" for q in run.prefill}
    rows = []
    for item in run.quality:
        # Decode steps hold requests of every slice: their events are those of the whole batch.
        events = totals.get((item.slice, item.step_kind)) or totals["*", item.step_kind]
        few = item.step_kind == "decode" and item.tokens < LEAST_DECODED
        state = "cannot_conclude" if few else verdict(item.delta_nll, limit)
        speed = speeds[item.step_kind]
        shares = {
            event: getattr(events, event) / events.elements
            for event in ("overflow", "underflow", "saturation")
        }
        steps = {
            f"steps_with_{event}": getattr(events, f"steps_with_{event}") / events.steps
            for event in shares
        }
        rows.append(
            MetricRow(
                run=name,
                slice=item.slice,
                step_kind=item.step_kind,
                tokens=item.tokens,
                passages=len(item.passages),
                perplexity=item.perplexity,
                delta_nll=item.delta_nll,
                kl=item.kl.value,
                guardrail=state,
                tokens_per_s=speed,
                tokens_per_s_at_quality=speed.value if holds[item.slice] else 0.0,
                **shares,
                **steps,
            )
        )
    return rows


def _trend_point(run: RunRecord, limit: float) -> TrendPoint:
    found = worst(run.prefill)
    speed = next(t.tokens_per_s for t in run.throughput if t.step_kind == "prefill")
    return TrendPoint(
        revision=run.policy.revision,
        policy=run.policy.name,
        worst_slice=found.slice,
        delta_nll=found.delta_nll,
        holds=all(verdict(item.delta_nll, limit) == "holds" for item in run.prefill),
        tokens_per_s=speed,
        tokens=sum(item.tokens for item in run.prefill),
    )


def _fix(found: Investigation, before: PolicySheet, metrics: list[MetricRow]) -> Fix | None:
    if found.fix is None or found.fix_record is None:
        return None
    unseen = found.fix_record.quality_unseen
    return Fix(
        summary=found.fix.summary,
        policy_before=before,
        policy_after=found.fix.policy,
        operators_changed=found.fix.operators,
        confirmed=True,
        tokens=sum(r.tokens for r in metrics if r.run == "fix" and r.step_kind == "prefill"),
        unseen_tokens=sum(item.tokens for item in unseen),
        unseen_loss=worst(unseen).delta_nll if unseen else None,
        owner=OWNER_OF_CLASS.get(found.diagnosis.bottleneck_class or "", "numerical methods owner"),
        alternatives=found.tried,
    )


def _rollback(
    runs: Mapping[str, RunRecord], released: PolicySheet, limit: float
) -> RollbackTrigger:
    predicate = f"worst_upper_delta_nll > {limit:g} or overflow_share > 0"
    evaluated = {}
    for name, run in runs.items():
        totals = [item for item in run.incidence if item.operator == "*"]
        figures = {
            "worst_upper_delta_nll": _worst_upper(run),
            "overflow_share": sum(t.overflow for t in totals) / sum(t.elements for t in totals),
        }
        evaluated[name] = fires(predicate, figures)
    return RollbackTrigger(
        predicate=predicate,
        inputs={
            "worst_upper_delta_nll": "loss added per token in prefill on the worst slice, upper "
            "end of its interval, nats",
            "overflow_share": "results beyond the largest finite value ÷ all results of a step",
        },
        who="inference platform lead",
        when="on every deployment slice, with at least as many tokens a slice as here and under "
        "this lock's protocol: before each widening of the rollout, and after each change of "
        "engine, weights or traffic",
        action=f"return to policy “{released.name}”, revision {released.revision}.",
        evaluated=evaluated,
    )


def _decision(
    found: Investigation,
    metrics: list[MetricRow],
    released: PolicySheet,
    fix: Fix | None,
    limit: float,
) -> tuple[str, str]:
    judged = [r for r in metrics if (r.run, r.step_kind) == ("failing", "prefill")]
    states = {row.guardrail for row in judged}
    if found.diagnosis.mechanism == "C0":
        return "cannot_conclude", "The two runs cannot be compared: " + "; ".join(
            found.diagnosis.missing
        )
    if "broken" in states:
        after = (
            "The change below holds on every slice that was run; release it after a replay of "
            "production traffic (not run here) and all four signatures."
            if fix
            else "No change that was tried holds on every slice."
        )
        return "roll_back", f"Return to “{released.name}” now. {after}"
    if "cannot_conclude" in states:
        straddling = [
            f"{tokens_needed(row.delta_nll, limit, row.tokens) or 'many more'} scored tokens on "
            f"{row.slice.replace('_', ' ')} ({row.step_kind}, {row.tokens} were scored)"
            for row in judged
            if row.guardrail == "cannot_conclude"
        ]
        settled = f"about this would settle it: {'; '.join(straddling)}."
        return "cannot_conclude", f"The intervals straddle the limit; {settled}"
    return "hold", "The policy holds on every slice; no owner has signed."


def _longest(run: RunRecord) -> int:
    """Tokens of the longest window of a run."""
    ingress = next(stage for stage in run.stages if stage.name == "ingress")
    return ingress.counters["longest window"]


def _limits(failing: RunRecord, metrics: list[MetricRow], limit: float) -> list[str]:
    lock = failing.lock
    limits = [
        f"Quality is measured on {lock.model.name}; tokens per second are modelled for the linear "
        f"layers of {lock.shapes} on {lock.machine}. The two are different models.",
        "Everything outside the linear layers (norms, attention products, softmax, residual sums) "
        "is fp32 in every run.",
        "The passages were written for this project; they are not production traffic.",
        f"The time model's error is published for {get_machine(lock.machine).error['formats']}.",
        "The set and the change were chosen on the first tokens of the same passages that confirm "
        f"them; {numbers.share(RESERVE)} of the limit is kept free for that, and the validation "
        "matrix tells the other tokens apart.",
        "Decode steps score few tokens a slice, on a cache that the same policy's prefill wrote, "
        "and decide nothing; the guardrail is judged on prefill.",
        f"The limit of {limit:g} nats is this case's choice, not a product's; -p guardrail= takes "
        "another.",
        f"Windows have at most {_longest(failing)} tokens, and those that chose the set far fewer: "
        "a tensor's one scale covers more tokens in longer windows, so the fault may be larger.",
        "That finer scales cost time in a kernel is not modelled: among changes of one modelled "
        "speed, the one that touches fewest operators is taken.",
        "A difference in the last bit (another processor, another BLAS) flips single low-precision "
        "codes, and the flips travel through the layers: figures move within their intervals, and "
        "operators at the edge of the set may change.",
    ]
    for row in metrics:
        needed = tokens_needed(row.delta_nll, limit, row.tokens)
        if needed and row.step_kind == "prefill":
            limits.append(
                f"{row.run}, {row.slice.replace('_', ' ')}: the interval straddles the limit; "
                f"about {needed} scored tokens would settle it ({row.tokens} were scored)."
            )
    return limits


ARTIFACTS = {
    "metrics": "quality, speed and events of every run, slice and kind of step",
    "comparator": "repeats of the released policy and their spread",
    "diagnosis": "what-ifs, ranking of operators, the set, interaction, necessity",
    "fix": "the change, its alternatives, and which were confirmed",
    "lock": "model, data, protocol, parameters, environment",
}


def _artifacts(draft: dict[str, Any]) -> list[Artifact]:
    """The packet's own parts as artifacts: SHA-256 over the canonical JSON of each."""

    def plain(value):
        if isinstance(value, list):
            return [plain(item) for item in value]
        return value.to_dict() if hasattr(value, "to_dict") else value

    return [
        Artifact(name=f"packet.json#/{part}", sha256=digest_of(plain(draft[part])), what=what)
        for part, what in ARTIFACTS.items()
    ]


def _claims(found: Investigation, artifacts: list[Artifact]) -> list[Claim]:
    digest = {artifact.name.removeprefix("packet.json#/"): artifact for artifact in artifacts}
    diagnosis = found.diagnosis
    claims = [
        ("The failing policy's loss and the released policy's are these.", "metrics"),
        ("The comparator is stable under order and batch.", "comparator"),
        ("Every run was made under this one lock.", "lock"),
    ]
    if diagnosis.operators:
        claims += [
            (f"The mechanism is {diagnosis.mechanism}: {diagnosis.mechanism_name}.", "diagnosis"),
            (
                f"Repairing {len(diagnosis.operators)} operators is enough, and the fault in them "
                "alone breaks a clean run.",
                "diagnosis",
            ),
        ]
    if found.fix_record is not None:
        claims.append(("The change holds the guardrail on every slice that was run.", "metrics"))
    return [
        Claim(claim=claim, artifact=digest[part].name, sha256=digest[part].sha256)
        for claim, part in claims
    ]
