"""The smallest policy change that holds the guardrail on every slice.

Candidates are screened cheapest first and the first that holds is confirmed on all tokens; where
confirmation fails, the next one is tried. Cheapest: fastest modelled prefill (in steps of 2 %),
then fewest operators changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpcore import progress
from mpcore.diagnosis.isolate import kind_of
from mpcore.diagnosis.what_ifs import scaled_operators
from mpcore.flow import lowering, schedule
from mpcore.flow.release import holds_everywhere, worst
from mpcore.flow.run import qualities_of, run_policy, total_speed
from mpcore.flow.session import Replay, Session
from mpcore.policy import changed_operators, repaired
from mpcore.records import PolicySheet, RunRecord
from mpcore.workloads.language_model import layer_of

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
    speed: float  # modelled prefill tokens per second


def candidates(
    session: Session, failing: PolicySheet, sufficient: list[str], repair: dict[str, str]
) -> list[Candidate]:
    """Repairs to try, cheapest first."""
    kinds = sorted({kind_of(name) for name in sufficient})
    kind_patterns = [f"layers.*.{kind}" for kind in kinds]
    named = ", ".join(kind.split(".")[-1] for kind in kinds)
    repair_words = _words(repair)
    drafts = [
        (
            f"Use {repair_words} in {_where(sufficient)}.",
            "repaired",
            [(sufficient, repair)],
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
    for summary, name, layers in drafts:
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
                key, Candidate(summary, policy, operators, speed[0].tokens_per_s.value)
            )
    fastest = max(candidate.speed for candidate in found.values())
    return sorted(
        found.values(), key=lambda c: (round(50 * (1 - c.speed / fastest)), len(c.operators))
    )


def _where(operators: list[str]) -> str:
    """Operators in words: 'down_proj of layers 2, 11 and 28'."""
    layers: dict[str, list[str]] = {}
    for name in operators:
        layers.setdefault(kind_of(name).split(".")[-1], []).append(str(layer_of(name)))
    parts = []
    for kind, found in layers.items():
        listed = " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
        parts.append(f"{kind} of layer{'s' if len(found) > 1 else ''} {listed}")
    return "; ".join(parts)


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
    session: Session, failing: Replay, found: list[Candidate]
) -> tuple[Candidate | None, RunRecord | None, list[dict[str, Any]]]:
    """(the fix, its run on all tokens, every candidate tried) of the cheapest that holds."""
    limit = session.request.parameters["guardrail"]
    tried: list[dict[str, Any]] = []
    operators = scaled_operators(failing.base)
    for number, candidate in enumerate(found):
        progress.report(f"policy: {candidate.summary}", number, len(found))
        plan = session.plan(candidate.policy)
        qualities = qualities_of(session, failing.score({o: plan[o] for o in operators}))
        row = {
            "change": candidate.summary,
            "operators": len(candidate.operators),
            "tokens_per_s": candidate.speed,
            "worst_slice": worst(qualities).slice,
            "screening_upper": worst(qualities).delta_nll.high,
            "screening_holds": holds_everywhere(qualities, limit),
        }
        tried.append(row)
        if not row["screening_holds"]:
            continue
        record = run_policy(session, candidate.policy, "fix")
        prefill = [item for item in record.quality if item.step_kind == "prefill"]
        row["confirmed_upper"] = worst(prefill).delta_nll.high
        row["confirmed_holds"] = holds_everywhere(prefill, limit)
        row["tokens_per_s"] = total_speed(record).value
        if row["confirmed_holds"]:
            return candidate, record, tried
    return None, None, tried
