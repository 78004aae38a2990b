"""The smallest policy change that holds the guardrail on every slice.

Candidates are screened cheapest first and the first that holds is confirmed on all tokens, and on
those alone that did not choose it; where confirmation fails, the next one is tried. Cheapest:
fastest modelled prefill (in steps of 2 %), then fewest operators changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpcore import progress
from mpcore.diagnosis.isolate import in_words, kind_of
from mpcore.diagnosis.what_ifs import scaled_operators
from mpcore.flow import lowering, schedule
from mpcore.flow.assembly import WindowScore
from mpcore.flow.release import holds_everywhere, holds_with_reserve, worst
from mpcore.flow.run import qualities_of, run_policy
from mpcore.flow.session import Replay, Session
from mpcore.policy import changed_operators, repaired
from mpcore.records import Alternative, PolicySheet, RunRecord
from mpcore.workloads.language_model import SHARED_INPUT

SET = "sufficient set"
"""Key of the scores with the sufficient set repaired."""

PER_TOKEN = {"activation_granularity": "per_token"}
PER_BLOCK = {"activation_granularity": "per_block:1x128"}
BF16 = {
    "activation_format": "bf16",
    "activation_granularity": "none",
    "weight_format": "bf16",
    "weight_granularity": "none",
}


@dataclass(frozen=True)
class Candidate:
    """A next revision of the failing policy."""

    summary: str  # an instruction, in words
    policy: PolicySheet
    operators: list[str]  # that are computed differently from the failing run
    screened_as: str  # key of the scores that it has already, or ""
    speed: float  # modelled prefill tokens per second


def candidates(
    session: Session, failing: PolicySheet, sufficient: list[str], repair: dict[str, str]
) -> list[Candidate]:
    """Repairs to try, cheapest first."""
    together = with_siblings(sufficient, session.operators)
    kinds = sorted({kind_of(name) for name in together})
    kind_patterns = [f"layers.*.{kind}" for kind in kinds]
    named = ", ".join(kind.split(".")[-1] for kind in kinds)
    repair_words = _words(repair)
    drafts = [
        (
            f"Use {repair_words} in {in_words(together)}.",
            "repaired",
            [(together, repair)],
        ),
        (f"Use {repair_words} in every {named}.", "kinds", [(kind_patterns, repair)]),
        (f"Use {_words(PER_TOKEN)} everywhere.", "per-token", [(["layers.*"], PER_TOKEN)]),
        (
            f"Use {_words(PER_TOKEN)} everywhere, and {_words(PER_BLOCK)} in every down_proj.",
            "per-token-block-down",
            [(["layers.*.mlp.down_proj"], PER_BLOCK), (["layers.*"], PER_TOKEN)],
        ),
        (f"Use {_words(PER_BLOCK)} everywhere.", "per-block", [(["layers.*"], PER_BLOCK)]),
        (
            f"Use {_words(PER_TOKEN)} everywhere, and bf16 in every down_proj.",
            "per-token-bf16-down",
            [(["layers.*.mlp.down_proj"], BF16), (["layers.*"], PER_TOKEN)],
        ),
    ]
    found: dict[tuple, Candidate] = {}
    same_as = {"per-token": "per_token", "per-block": "per_block"}
    if together == sufficient:
        same_as["repaired"] = SET
    for summary, name, layers in drafts:
        screened_as = same_as.get(name, "")
        policy = failing
        for patterns, changes in reversed(layers):
            policy = repaired(policy, f"{failing.name}-{name}", patterns, summary, **changes)
        policy = policy.model_copy(update={"revision": failing.revision + 1})
        operators = changed_operators(failing, policy, session.operators)
        key = tuple(str(policy.rule_for(o).model_copy(update={"match": ""})) for o in operators)
        lowered = lowering.lower(policy, session.operators, session.request.machine)
        speed = schedule.throughput(lowered, session.request.machine, session.request.shapes)
        if operators:
            found.setdefault(
                key,
                Candidate(summary, policy, operators, screened_as, speed[0].tokens_per_s.value),
            )
    fastest = max(candidate.speed for candidate in found.values())
    return sorted(
        found.values(), key=lambda c: (round(50 * (1 - c.speed / fastest)), len(c.operators))
    )


def with_siblings(names: list[str], operators: list[str]) -> list[str]:
    """Operators with all others that read the same input, in execution order.

    An engine quantises an activation once for every matmul that reads it.
    """
    wanted = {
        f"{name.removesuffix(kind_of(name))}{kind}"
        for name in names
        for group in SHARED_INPUT
        for kind in (group if kind_of(name) in group else (kind_of(name),))
    }
    return [name for name in operators if name in wanted]


def _words(changes: dict[str, str]) -> str:
    granularity = changes.get("activation_granularity", "none")
    if granularity.startswith("per_block:1x"):
        width = granularity.removeprefix("per_block:1x")
        return f"one activation scale per token and {width} inputs"
    return {
        "per_token": "one activation scale per token",
        "per_channel": "one activation scale per input channel",
        "none": "bf16",
    }.get(granularity, granularity)


def search(
    session: Session,
    failing: Replay,
    found: list[Candidate],
    screened: dict[str, list[WindowScore]],
) -> tuple[Candidate | None, RunRecord | None, list[Alternative]]:
    """(the fix, its run on all tokens, every candidate looked at) of the cheapest that holds.

    `screened` are scores of the set and, by id, of the what-ifs: such a candidate is not run again,
    and is listed beside the fix even where it was not needed.
    """
    limit = session.request.parameters["guardrail"]
    fix, fix_record = None, None
    tried: list[Alternative] = []
    operators = scaled_operators(failing.base)
    for number, candidate in enumerate(found):
        scores = screened.get(candidate.screened_as)
        if scores is None:
            if fix is not None:
                continue
            progress.report(f"policy: {candidate.summary}", number, len(found))
            plan = session.plan(candidate.policy)
            scores = failing.score({name: plan[name] for name in operators})
        qualities = qualities_of(session, scores)
        confirmed, verdict = None, "not needed" if fix is not None else "does not hold"
        if fix is None and holds_with_reserve(qualities, limit):
            record = run_policy(session, candidate.policy, "fix", chosen_on=failing.session)
            confirmed = worst(record.prefill).delta_nll.high
            unseen_hold = holds_everywhere(record.quality_unseen, limit)
            if holds_with_reserve(record.prefill, limit) and unseen_hold:
                fix, fix_record, verdict = candidate, record, "chosen"
        tried.append(
            Alternative(
                change=candidate.summary,
                operators=len(candidate.operators),
                tokens_per_s=candidate.speed,
                screening_upper=worst(qualities).delta_nll.high,
                confirmed_upper=confirmed,
                verdict=verdict,
            )
        )
    return fix, fix_record, tried
