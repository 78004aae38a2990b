"""One run of a case, stage by stage, into a record."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from mpcore import progress
from mpcore.flow import assembly, execution, lowering, release, schedule
from mpcore.flow.assembly import WindowScore
from mpcore.flow.execution import EventCounter
from mpcore.flow.ingress import SCREENING_TOKENS, admit
from mpcore.flow.session import BATCH_ROWS, Session
from mpcore.policy import fill_in
from mpcore.records import (
    Case,
    Incidence,
    PolicySheet,
    RunRecord,
    SliceQuality,
    load_case,
)

DECODE_STEPS = 5
"""Decode steps a run takes, of one token of each decoding window."""

DECODE_WINDOWS = 3
"""Windows a slice that decode."""


REPEAT_PASSAGES = 3
"""Passages a slice that the comparator is repeated on."""


def open_session(case: Case | str | Path, profile: str | None = None, **parameters: Any) -> Session:
    """Admit a case's request and hold it open.

    Raises InputError: an unknown case or parameter, a missing model or passage.
    """
    case = case if isinstance(case, Case) else load_case(case)
    return Session(admit(case, case.values(profile, **parameters)))


def side_policy(session: Session, side: str) -> PolicySheet:
    """The policy of the failing or the comparator side, with the parameters filled in."""
    spec = getattr(session.request.case, side)
    return fill_in(spec.policy, session.request.parameters)


def run(
    case: Case | str | Path | Session,
    side: str = "failing",
    profile: str | None = None,
    **parameters: Any,
) -> RunRecord:
    """Run one side ("failing" or "comparator") of a case at full size."""
    session = case if isinstance(case, Session) else open_session(case, profile, **parameters)
    return run_policy(session, side_policy(session, side), side)


def run_policy(
    session: Session, policy: PolicySheet, role: str, chosen_on: Session | None = None
) -> RunRecord:
    """Run a policy through all six stages: prefill of every window, and some decoding.

    Where the policy was chosen on the windows of another session, the first tokens of the same
    passages, quality is told for the other tokens as well.
    """
    request = session.request
    started, clock = datetime.now(UTC), time.perf_counter()
    plan = session.plan(policy)
    lowered = lowering.lower(policy, session.operators, request.machine)
    scores, counters = [], []
    parts = len(request.slices) + 1
    for number, name in enumerate(request.slices):
        progress.report(f"{role}: prefill of {name}", number, parts)
        counters.append(EventCounter("prefill", name))
        scores += session.score(plan, request.windows_of(name), counters[-1])
    qualities = qualities_of(session, scores, "prefill")
    unseen = []
    if chosen_on is not None:
        unseen = qualities_of(session, assembly.without_first(scores, _scored(chosen_on)))
    windows, prompt, steps = decode_plan(session)
    if steps:
        progress.report(f"{role}: {steps} decode steps", parts - 1, parts)
        counters.append(EventCounter("decode"))
        scores = session.decode(plan, windows, prompt, steps, counters[-1])
        qualities += qualities_of(session, scores, "decode")
    incidence = [counter.total() for counter in counters]
    threshold = request.parameters["guardrail"]
    prefill = [item for item in qualities if item.step_kind == "prefill"]
    return RunRecord(
        role=role,
        lock=request.lock,
        policy=policy,
        stages=[
            request.stage(),
            lowering.stage(lowered),
            schedule.stage(lowered, request.machine, request.shapes),
            execution.stage(incidence),
            assembly.stage(prefill),
            release.stage(prefill, threshold),
        ],
        quality=qualities,
        quality_unseen=unseen,
        throughput=schedule.throughput(lowered, request.machine, request.shapes),
        incidence=incidence + _per_operator(counters),
        volatile={
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - clock, 1),
        },
    )


def qualities_of(
    session: Session, scores: list[WindowScore], step_kind: str = "prefill"
) -> list[SliceQuality]:
    """Quality per slice with the case's seed and confidence."""
    case = session.request.case
    return assembly.quality(scores, step_kind, case.seeds["bootstrap"], case.guardrail.confidence)


def _scored(session: Session) -> dict[tuple[str, str], int]:
    """(slice, passage) -> scored tokens."""
    scored: Counter[tuple[str, str]] = Counter()
    for window in session.request.windows:
        scored[window.slice, window.passage] += window.scored
    return scored


def _per_operator(counters: list[EventCounter]) -> list[Incidence]:
    """Incidence per operator and tensor over all slices, for each kind of step."""
    kinds = dict.fromkeys(counter.step_kind for counter in counters)
    merged = [reduce(EventCounter.merged, [c for c in counters if c.step_kind == k]) for k in kinds]
    return [record for counter in merged for record in counter.incidence()]


def decode_plan(session: Session) -> tuple[list[int], int, int]:
    """(window indices, prompt tokens, steps) of decoding: the first windows of every slice.

    They decode as one batch, as requests do in a serving engine.
    """
    request = session.request
    chosen = session.first_passages(DECODE_WINDOWS)
    shortest = min(request.windows[i].scored for i in chosen)
    prompt = max(1, min(shortest // 2, 64))
    return chosen, prompt, min(DECODE_STEPS, shortest - prompt)


def comparator_repeats(session: Session, policy: PolicySheet) -> dict[str, Any]:
    """Run the comparator again on some screening windows, in varied order and batch: the spread."""
    screening = session.narrowed(SCREENING_TOKENS)
    case, plan = session.request.case, screening.plan(policy)
    order = screening.first_passages(REPEAT_PASSAGES)
    shuffled = [int(i) for i in np.random.default_rng(case.seeds["order"]).permutation(order)]
    variants = [
        ("order of the passages", order, BATCH_ROWS),
        ("order shuffled", shuffled, BATCH_ROWS),
        ("order reversed, half the batch", order[::-1], BATCH_ROWS // 2),
    ]
    rows = []
    for number in range(max(case.comparator.repeats, len(variants))):
        what, indices, batch_rows = variants[number % len(variants)]
        progress.report(f"comparator again: {what}", number, case.comparator.repeats)
        scores = screening.score(plan, indices, batch_rows=batch_rows, kl=False)
        found = qualities_of(session, scores)
        rows.append({"varied": what, **{item.slice: item.delta_nll.value for item in found}})
    values = np.array([[row[name] for name in session.request.slices] for row in rows])
    spread = float(np.ptp(values, axis=0).max())
    limit = session.request.parameters["guardrail"] / 10
    return {
        "policy": policy.name,
        "repeats": rows,
        "tokens": sum(screening.request.windows[i].scored for i in order),
        "spread": spread,
        "limit": limit,
        "stable": spread <= limit,
        "note": "loss added per token, nats; an unstable comparator is refused",
    }
