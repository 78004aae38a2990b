"""What-ifs: the failing run with one thing changed in every scaled operator.

Each is a row of data/what_ifs.toml. Repairs at equal bits come first: more bits help against
almost anything, so they decide nothing about granularity.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from mpcore import progress
from mpcore.flow.assembly import WindowScore
from mpcore.flow.release import holds_everywhere, overall_verdict, worst
from mpcore.flow.run import qualities_of
from mpcore.flow.session import Replay, Session
from mpcore.paths import DATA
from mpcore.records import PolicyRule, SliceQuality, WhatIf


def what_if_table() -> list[dict[str, Any]]:
    """Rows of data/what_ifs.toml: name, question, changed, equal_bits, rule changes."""
    return tomllib.loads((DATA / "what_ifs.toml").read_text(encoding="utf-8"))["what_if"]


def scaled_operators(plan: dict[str, PolicyRule]) -> list[str]:
    """Operators whose activations are scaled: those that a granularity what-if touches."""
    return [name for name, rule in plan.items() if rule.activation_granularity != "none"]


def changed(rule: PolicyRule, changes: dict[str, str]) -> PolicyRule:
    """A rule with some settings changed."""
    return rule.model_copy(update=changes)


def to_record(
    row: dict[str, Any],
    qualities: list[SliceQuality],
    repaired: Iterable[str],
    threshold: float,
) -> WhatIf:
    """A what-if's outcome."""
    return WhatIf(
        id=row["id"],
        name=row["name"],
        question=row["question"],
        changed=row["changed"],
        equal_bits=row["equal_bits"],
        repaired=list(repaired),
        delta_nll={item.slice: item.delta_nll for item in qualities},
        worst_upper=worst(qualities).delta_nll.high,
        holds=holds_everywhere(qualities, threshold),
        verdict=overall_verdict(qualities, threshold),
        tokens=sum(item.tokens for item in qualities),
    )


def run_what_ifs(session: Session, replay: Replay) -> list[tuple[WhatIf, list[WindowScore]]]:
    """Every what-if that differs from the failing plan, with its scores on the replay's windows."""
    operators = scaled_operators(replay.base)
    threshold = session.request.parameters["guardrail"]
    rows = [
        row
        for row in what_if_table()
        if any(changed(replay.base[o], row["changes"]) != replay.base[o] for o in operators)
    ]
    results = []
    for number, row in enumerate(rows):
        progress.report(f"what-if: {row['name']}", number, len(rows))
        plan = {o: changed(replay.base[o], row["changes"]) for o in operators}
        scores = replay.score(plan)
        record = to_record(row, qualities_of(session, scores), ["layers.*"], threshold)
        results.append((record, scores))
    return results
