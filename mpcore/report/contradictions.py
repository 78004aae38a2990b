"""Evidence that does not agree with the story a hasty reader would tell, called out."""

from __future__ import annotations

from collections.abc import Mapping

from mpcore.diagnosis.diagnose import Investigation
from mpcore.records import Contradiction, Diagnosis, RunRecord
from mpcore.report import numbers

DIAGNOSIS, METRICS = "packet.json#/diagnosis", "packet.json#/metrics"


def find_contradictions(found: Investigation, runs: Mapping[str, RunRecord]) -> list[Contradiction]:
    """Every contradiction that the figures show, none that they do not."""
    diagnosis = found.diagnosis
    checks = [
        _largest_outlier_is_not_enough(diagnosis),
        _singles_do_not_add_up(diagnosis),
        _more_bits_help_too(diagnosis),
        _channels_help_too(diagnosis),
        _events_without_loss(runs),
    ]
    return [item for item in checks if item is not None]


def _largest_outlier_is_not_enough(diagnosis: Diagnosis) -> Contradiction | None:
    ranked = [e for e in diagnosis.effects if e.outlier_ratio and e.single_repair_delta_nll]
    if not ranked:
        return None
    top = max(ranked, key=lambda effect: effect.outlier_ratio)
    left, before = top.single_repair_delta_nll, diagnosis.interaction["failing"]
    where = f"{diagnosis.interaction['tokens']} tokens of {diagnosis.interaction['slice']}"
    if left < 0.5 * before:  # far beyond what the few tokens of this comparison could blur
        return None
    return Contradiction(
        what=f"{top.operator} has the largest outlier ({top.outlier_ratio:.0f} times the typical "
        f"token), yet repairing it alone leaves most of the loss: {left:.2f} of {before:.2f} "
        f"nats on {numbers.words(where)}.",
        evidence=[DIAGNOSIS],
        follows="The largest outlier is not the cause alone: the set is repaired, not its "
        "largest member.",
    )


def _singles_do_not_add_up(diagnosis: Diagnosis) -> Contradiction | None:
    found = diagnosis.interaction
    if not found or found["difference"]["low"] <= 0 <= found["difference"]["high"]:
        return None  # within their interval the repairs add up
    return Contradiction(
        what=f"Repairs one at a time sum to {found['sum_of_singles']['value']:.2f} nats, all "
        f"together give {found['set']['value']:.2f}.",
        evidence=[DIAGNOSIS],
        follows="Operators cannot be ranked by repairing them one at a time.",
    )


def _more_bits_help_too(diagnosis: Diagnosis) -> Contradiction | None:
    wider = next((w for w in diagnosis.what_ifs if w.id == "wider_activation"), None)
    if diagnosis.mechanism != "S2" or wider is None or not wider.holds:
        return None
    return Contradiction(
        what="More significand bits under the same single scale hold as well, which looks like "
        "a lack of resolution (R3).",
        evidence=[DIAGNOSIS],
        follows="More bits help against almost anything; only the repair at equal bits decides, "
        "and it holds too.",
    )


def _channels_help_too(diagnosis: Diagnosis) -> Contradiction | None:
    channel = next((w for w in diagnosis.what_ifs if w.id == "per_channel"), None)
    if channel is None or not channel.holds or not (diagnosis.axis or "").startswith("token"):
        return None
    return Contradiction(
        what="One scale per channel holds as well, although the outliers belong to a token.",
        evidence=[DIAGNOSIS],
        follows="The outliers are a few entries of a few tokens, so either axis isolates them; but "
        "no matrix unit can apply a scale per input channel.",
    )


def _events_without_loss(runs: Mapping[str, RunRecord]) -> Contradiction | None:
    fix = runs.get("fix")
    if fix is None:
        return None
    totals = [item for item in fix.incidence if item.operator == "*"]
    share = sum(t.underflow for t in totals) / sum(t.elements for t in totals)
    if share < 0.01:
        return None
    return Contradiction(
        what=f"Under the repaired policy {numbers.share(share)} of the values still become zero, "
        "and quality holds.",
        evidence=[METRICS],
        follows="Underflow incidence alone is no alarm: what matters is which values vanish.",
    )
