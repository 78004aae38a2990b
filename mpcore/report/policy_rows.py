"""The policy table of a packet: one row an operator, before and after, as text."""

from __future__ import annotations

from collections.abc import Iterable

from mpcore.records import PolicyRule, PolicySheet
from mpcore.report.numbers import words

_RULE_FIELDS = {
    "activation": "activation_format",
    "activation_granularity": "activation_granularity",
    "first_position": "first_position",
    "weight": "weight_format",
    "weight_granularity": "weight_granularity",
    "accumulator": "accumulator",
    "output": "output_format",
}
POLICY_COLUMNS = (
    "operator",
    *(f"before_{name}" for name in _RULE_FIELDS),
    *(f"after_{name}" for name in _RULE_FIELDS),
    "guardrail_metric",
    "guardrail_threshold",
    "whole_model_upper_bound",
)


def policy_rows(
    before: PolicySheet,
    after: PolicySheet | None,
    operators: Iterable[str],
    metric: str,
    threshold: float,
    measured: float | None,
) -> list[dict[str, str]]:
    """Rows for `Packet.policy_table`, keyed by POLICY_COLUMNS.

    Args:
        before: the failing policy.
        after: the fix, or None where there is none (its columns are then empty).
        operators: every operator of the model, in execution order.
        metric: the guardrail's metric.
        threshold: the guardrail's threshold.
        measured: the guardrail figure of the whole model under `after` (under `before` where there
            is no fix); no figure belongs to one operator.
    """
    return [
        {
            "operator": operator,
            **_side("before", before.rule_for(operator)),
            **_side("after", after.rule_for(operator) if after else None),
            "guardrail_metric": metric,
            "guardrail_threshold": f"{threshold:g}",
            "whole_model_upper_bound": "not measured" if measured is None else f"{measured:.4f}",
        }
        for operator in operators
    ]


def _side(side: str, rule: PolicyRule | None) -> dict[str, str]:
    return {
        f"{side}_{name}": "" if rule is None else getattr(rule, field)
        for name, field in _RULE_FIELDS.items()
    }


def side_label(row: dict[str, str], side: str) -> str:
    """One side of a row in words: 'int8 per token × int8 per channel → bf16, sums in int32'."""

    def operand(name: str) -> str:
        granularity = row[f"{side}_{name}_granularity"]
        grouped = "" if granularity == "none" else f" {words(granularity)}"
        return row[f"{side}_{name}"] + grouped

    if not row[f"{side}_activation"]:
        return "no fix"
    first = row[f"{side}_first_position"]
    note = "" if first == "with_the_rest" else f", position 0 {words(first)}"
    return (
        f"{operand('activation')}{note} × {operand('weight')}, "
        f"sums in {row[f'{side}_accumulator']}, stores {row[f'{side}_output']}"
    )
