"""From a failing and a comparator run to a verdict: the first failing mechanism, and where.

The steps: comparable at all; what-ifs at equal bits, then with more bits; the fault injected into
the clean run (necessity); the minimal sufficient set; singles against the set (interaction).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpcore import progress
from mpcore.diagnosis.comparable import check_pair, lock_differences, session_of
from mpcore.diagnosis.differential import differential
from mpcore.diagnosis.isolate import (
    NAMED_SHARE,
    Ranking,
    SufficientSet,
    find_sufficient_set,
    rank_operators,
)
from mpcore.diagnosis.outliers import (
    Outlier,
    activation_profile,
    axis_evidence,
    axis_in_words,
    main_axis,
    median_outlier,
    record_outliers,
)
from mpcore.diagnosis.policy_search import SET, Candidate, candidates, search
from mpcore.diagnosis.what_ifs import (
    changed,
    run_what_ifs,
    scaled_operators,
    what_if_table,
)
from mpcore.flow.assembly import WindowScore, interval, per_passage, resampled_means
from mpcore.flow.ingress import RANKING_PASSAGES, SCREENING_TOKENS
from mpcore.flow.release import holds_everywhere, tokens_needed, verdict, worst
from mpcore.flow.run import qualities_of
from mpcore.flow.session import Replay, Session
from mpcore.records import (
    Alternative,
    Case,
    Diagnosis,
    Estimate,
    MechanismVerdict,
    OperatorEffect,
    PassageScore,
    PolicyRule,
    RunRecord,
    WhatIf,
)

TESTED = ("granularity (S2)", "resolution (R3)", "clipping position 0", "the weights")
"""What the what-ifs of this version put to the test."""

MECHANISMS = {
    "S2": ("granularity: an outlier in the group", "scale", "execution"),
    "R3": ("rounding resolution", "resolution", "execution"),
    "C0": ("runs not comparable", "not comparable", "ingress"),
    "X1": ("a fault outside the modelled mechanisms", "implementation", None),
    "none": ("no regression beyond the guardrail", None, None),
    "cannot_conclude": ("the evidence does not decide", None, None),
}
"""Mechanism id -> (name, bottleneck class, stage of the flow) of those this version decides."""


@dataclass(frozen=True)
class Investigation:
    """A diagnosis with what it was made from, and the repair that was found."""

    diagnosis: Diagnosis
    fix: Candidate | None
    fix_record: RunRecord | None
    tried: list[Alternative]
    outliers: dict[str, list[Outlier]]


@dataclass(frozen=True)
class Isolation:
    """The repaired set, and what the policy search can use of the work that found it."""

    session: Session
    replay: Replay  # of the failing policy, on the screening tokens
    changes: dict[str, str]  # fields of a policy rule that repair an operator
    fault: dict[str, PolicyRule]  # scaled operator -> its rule in the failing policy
    repair: dict[str, PolicyRule]  # the same, repaired
    ranking: Ranking
    sufficient: SufficientSet
    outliers: dict[str, list[Outlier]]


def diagnose(
    failing: RunRecord,
    comparator: RunRecord,
    session: Session | None = None,
    case: Case | None = None,
) -> Diagnosis:
    """The verdict on two runs of one case.

    Where no session is given, one is opened from the failing run's lock; `case` is needed where
    the lock's case is not in data/cases.
    """
    return _diagnose(failing, comparator, session, case)[0]


def investigate(
    failing: RunRecord,
    comparator: RunRecord,
    session: Session | None = None,
    repeats: dict[str, Any] | None = None,
) -> Investigation:
    """The verdict, and the smallest policy change that holds, confirmed on all tokens.

    With `repeats` of the comparator that are not stable, nothing is compared (C0).
    """
    if repeats and not repeats["stable"]:
        spread = f"its repeats spread {repeats['spread']:.2g} nats, limit {repeats['limit']:g}"
        refused = _refusal("C0", missing=[f"a stable comparator: {spread}"])
        return Investigation(refused, None, None, [], {})
    diagnosis, found, scores = _diagnose(failing, comparator, session)
    if found is None:
        return Investigation(diagnosis, None, None, [], {})
    drafts = candidates(found.session, failing.policy, found.sufficient.operators, found.changes)
    screened = scores | {SET: found.sufficient.scores}
    fix, record, tried = search(found.session, found.replay, drafts, screened)
    return Investigation(diagnosis, fix, record, tried, found.outliers)


def _diagnose(
    failing: RunRecord,
    comparator: RunRecord,
    session: Session | None,
    case: Case | None = None,
) -> tuple[Diagnosis, Isolation | None, dict[str, list[WindowScore]]]:
    """(verdict, the set where one was isolated, scores of each what-if)."""
    differences = lock_differences(failing, comparator)
    if differences:
        return _refusal("C0", missing=differences), None, {}
    check_pair(failing, comparator)
    session = session or session_of(failing, case)
    limit = session.request.parameters["guardrail"]
    if refused := _nothing_broken(failing, limit):
        return refused, None, {}
    replay = Replay(session.narrowed(SCREENING_TOKENS), session.plan(failing.policy), by_slice=True)
    outcomes = run_what_ifs(replay.session, replay)
    what_ifs = [record for record, _ in outcomes]
    scores = {record.id: found for record, found in outcomes}
    mechanism, deciding = _decide(what_ifs, limit)
    missing: list[str] = []
    if deciding is not None:
        found = _isolate(session, replay, session.plan(comparator.policy), deciding)
        if found is not None:
            diagnosis = _diagnosis(failing, comparator, found, mechanism, deciding, outcomes)
            return diagnosis, found, scores
        mechanism = "cannot_conclude"
        missing = [f"more tokens: “{deciding.name}” holds, but not with the reserve"]
    mechanisms = differential(failing, mechanism, what_ifs)
    return _refusal(mechanism, what_ifs, mechanisms, missing), None, scores


def _isolate(
    session: Session, replay: Replay, clean_plan: dict[str, PolicyRule], deciding: WhatIf
) -> Isolation | None:
    """The smallest set whose repair holds; None where none does with the reserve."""
    screening = replay.session
    changes = next(row["changes"] for row in what_if_table() if row["id"] == deciding.id)
    fault = {name: replay.base[name] for name in scaled_operators(replay.base)}
    repair = {name: changed(rule, changes) for name, rule in fault.items()}
    few = screening.first_passages(RANKING_PASSAGES)
    ranking = rank_operators(Replay(screening, clean_plan, few, keep_logits=True), fault)
    sufficient = find_sufficient_set(screening, replay, ranking, repair)
    if sufficient is None:
        return None
    outliers = record_outliers(screening)
    return Isolation(session, replay, changes, fault, repair, ranking, sufficient, outliers)


def _diagnosis(
    failing: RunRecord,
    comparator: RunRecord,
    found: Isolation,
    mechanism: str,
    deciding: WhatIf,
    outcomes: list[tuple[WhatIf, list[WindowScore]]],
) -> Diagnosis:
    """The diagnosis of an isolated set: its stability, interaction, necessity and axis."""
    session, screening, members = found.session, found.replay.session, found.sufficient.operators
    stable = [name for name in members if found.sufficient.named_in.get(name, 0) >= NAMED_SHARE]
    clean_plan = session.plan(comparator.policy)
    injected = screening.score(clean_plan | {name: found.fault[name] for name in members}, kl=False)
    slice_name = worst(failing.prefill).slice
    singles, interaction = _interaction(found.replay, members, found.repair, slice_name)
    what_ifs = [record for record, _ in outcomes]
    healed = next(scores for record, scores in outcomes if record is deciding)
    name, bottleneck, stage = MECHANISMS[mechanism]
    return Diagnosis(
        mechanism=mechanism,
        mechanism_name=name,
        bottleneck_class=bottleneck,
        stage=stage,
        **(_axis_fields(found) if mechanism == "S2" else {"axis": None}),
        operators=members,
        operators_stable=stable,
        first=(stable or members)[0],
        confidence=_confidence(session, failing, deciding, healed),
        kinds=found.ranking.kind_kl,
        effects=_effects(found.ranking, found.sufficient, singles, found.outliers),
        what_ifs=what_ifs,
        interaction=interaction,
        necessity=_necessity(session, injected, session.request.parameters["guardrail"]),
        mechanisms=differential(failing, mechanism, what_ifs),
        does_not_prove=_does_not_prove(session, found.sufficient),
        missing=[
            "occupancy and timeline traces of the real kernels",
            "bandwidth and cache counters",
            "clock, power and temperature of the machine",
        ],
    )


def _nothing_broken(failing: RunRecord, limit: float) -> Diagnosis | None:
    """The verdict where the failing run breaks the guardrail on no slice beyond doubt."""
    verdicts = {verdict(item.delta_nll, limit) for item in failing.prefill}
    if "broken" in verdicts:
        return None
    needed = {
        item.slice: tokens_needed(item.delta_nll, limit, item.tokens) for item in failing.prefill
    }
    missing = [
        f"about {tokens} scored tokens on {name.replace('_', ' ')}"
        for name, tokens in needed.items()
        if tokens
    ]
    kind = "cannot_conclude" if "cannot_conclude" in verdicts else "none"
    return _refusal(kind, missing=missing)


def _decide(what_ifs: list[WhatIf], threshold: float) -> tuple[str, WhatIf | None]:
    """(mechanism id, the what-if that decides it or None)."""
    for found in what_ifs:
        if found.equal_bits and found.holds:
            return "S2", found
    for found in what_ifs:
        if not found.equal_bits and found.holds:
            return "R3", found
    straddles = any(
        all(loss.low <= threshold for loss in found.delta_nll.values()) for found in what_ifs
    )
    return ("cannot_conclude" if straddles else "X1"), None


def _refusal(
    mechanism: str,
    what_ifs: list[WhatIf] | None = None,
    mechanisms: list[MechanismVerdict] | None = None,
    missing: list[str] | None = None,
) -> Diagnosis:
    """A verdict that names no operator."""
    name, bottleneck, stage = MECHANISMS[mechanism]
    return Diagnosis(
        mechanism=mechanism,
        mechanism_name=name,
        bottleneck_class=bottleneck,
        stage=stage,
        axis=None,
        operators=[],
        operators_stable=[],
        first=None,
        confidence={},
        effects=[],
        what_ifs=what_ifs or [],
        interaction={},
        necessity={},
        mechanisms=mechanisms or [],
        does_not_prove=["that the run is sound: only the modelled mechanisms were looked at"],
        missing=missing or [],
    )


def _mean_loss(scores: list[WindowScore]) -> float:
    return float(np.concatenate([s.nll - s.oracle_nll for s in scores]).mean())


def _interaction(failing: Replay, members: list[str], repair, name: str):
    """(loss left by each single repair, loss removed by the set against the sum over singles).

    Both on one slice.
    """
    case = failing.session.request.case
    before = failing.score_slice({}, name)
    tokens = np.array([len(score.nll) for score in before])

    def removed(after: list[WindowScore]) -> np.ndarray:
        pairs = zip(before, after, strict=True)
        return np.array([one.nll.sum() - other.nll.sum() for one, other in pairs])

    def estimate(totals: np.ndarray) -> dict[str, float]:
        seed, confidence = case.seeds["bootstrap"], case.guardrail.confidence
        return interval(totals, tokens, seed, confidence).model_dump()

    whole = removed(failing.score_slice({member: repair[member] for member in members}, name))
    singles = {}
    for number, member in enumerate(members):
        progress.report(f"repair of {member} alone", number, len(members))
        singles[member] = removed(failing.score_slice({member: repair[member]}, name))
    total = sum(singles.values())
    nothing = _mean_loss(before)
    left = {member: nothing - float(r.sum() / tokens.sum()) for member, r in singles.items()}
    return left, {
        "slice": name,
        "set": estimate(whole),
        "sum_of_singles": estimate(total),
        "difference": estimate(whole - total),
        "failing": nothing,
        "tokens": int(tokens.sum()),
    }


def _effects(ranking: Ranking, sufficient: SufficientSet, singles, outliers):
    return [
        OperatorEffect(
            operator=name,
            kl=float(ranking.kl[name].mean()),
            delta_nll=ranking.delta_nll[name],
            single_repair_delta_nll=singles.get(name),
            named_in=sufficient.named_in.get(name),
            outlier_ratio=float(np.median([o.lead for o in outliers[name]])),
            axis=main_axis(outliers[name]),
        )
        for name in sorted(ranking.kl, key=list(outliers).index)
    ]


def _axis_fields(found: Isolation) -> dict[str, Any]:
    """Fields of the diagnosis that say which axis breaks, and show it on one operator."""
    members = found.sufficient.operators
    top = next(name for name in found.ranking.operators if name in members)
    number, spike = median_outlier(found.outliers[top])
    return {
        "axis": axis_in_words(members, found.outliers),
        "axis_evidence": axis_evidence(spike, found.outliers[top]),
        "profile": activation_profile(found.replay.session, spike, number, found.fault[top]),
    }


def _confidence(session, failing, deciding: WhatIf, healed_scores) -> dict[str, Any]:
    """Share of passage resamples in which the failing run breaks and the repair heals."""
    seed = session.request.case.seeds["bootstrap"]
    limit = session.request.parameters["guardrail"]
    broken = {item.slice: item.passages for item in failing.prefill}
    resamples = 1000

    def keeps(slices: dict[str, list[PassageScore]]) -> np.ndarray:
        ok = np.ones(resamples, dtype=bool)
        for passages in slices.values():
            ok &= resampled_means(passages, seed, resamples) <= limit
        return ok

    same = ~keeps(broken) & keeps(per_passage(healed_scores))
    return {
        "mechanism_share": float(same.mean()),
        "resamples": resamples,
        "deciding_what_if": deciding.name,
        "tokens": deciding.tokens,
    }


def _necessity(session, injected, limit) -> dict[str, Any]:
    qualities = qualities_of(session, injected)
    found = worst(qualities)
    return {
        "what": "the fault injected into the set alone, in the comparator's run",
        "slice": found.slice,
        "delta_nll": Estimate(**found.delta_nll.model_dump()).model_dump(),
        "guardrail": verdict(found.delta_nll, limit),
        "holds": holds_everywhere(qualities, limit),
    }


def _does_not_prove(session, sufficient) -> list[str]:
    ticks = "" if sufficient.minimal else " (removals were tried for part of it)"
    return [
        f"that the set is the smallest or the only one: another order may end in another{ticks}",
        "anything about 4-bit weights: the oracle's weights already lie on a 4-bit grid",
        "speed on a device: tokens per second are modelled for "
        f"{session.request.shapes.title} on {session.request.machine.title}",
        f"that other mechanisms play no part: what-ifs tested {', '.join(TESTED)}; the others are "
        "ruled out by counters, cannot occur in this emulation, or were not tested",
        "that a device's kernels sum in this order: products are exact here and BLAS sums them "
        "in fp32",
    ]
