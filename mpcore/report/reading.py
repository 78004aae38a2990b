"""What pictures and sections read from a packet, where it takes more than a field's name."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mpcore.records import Estimate, Incidence, MetricRow, OperatorEffect, Packet

RUNS = ("comparator", "failing", "fix")
KINDS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
KIND_LABEL = {kind: kind.removesuffix("_proj") for kind in KINDS}


@dataclass(frozen=True)
class Interaction:
    """The change of a set against the sum of the changes of its members alone."""

    whole: Estimate
    singles: Estimate
    difference: Estimate
    where: str  # slice and tokens, in words


@cache
def plain_mechanisms() -> dict[str, str]:
    """Mechanism id -> one sentence for a reader who knows no formats."""
    return tomllib.loads((Path(__file__).parent / "mechanisms.toml").read_text(encoding="utf-8"))


def as_estimate(value: object) -> Estimate | None:
    """A free-form field as an estimate: a number has an interval of no width."""
    if isinstance(value, Estimate):
        return value
    if isinstance(value, dict) and {"value", "low", "high"} <= set(value):
        return Estimate(value=value["value"], low=value["low"], high=value["high"])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Estimate(value=value, low=value, high=value)
    return None


def interaction_of(packet: Packet) -> Interaction | None:
    """From `diagnosis.interaction`: what the set and the single repairs remove, and on what."""
    found = packet.diagnosis.interaction
    whole, singles = as_estimate(found.get("set")), as_estimate(found.get("sum_of_singles"))
    if whole is None or singles is None:
        return None
    gap = whole.value - singles.value
    difference = as_estimate(found.get("difference"))
    where = f"{found.get('slice', 'all slices')}, {found.get('tokens', 'some')} tokens"
    where = where.replace("_", " ")
    difference = difference or Estimate(value=gap, low=gap, high=gap)
    return Interaction(whole, singles, difference, where)


def threshold_of(packet: Packet) -> float:
    """The guardrail's threshold, nats a token."""
    return float(packet.guardrail["threshold"])


def confidence_of(packet: Packet) -> float:
    """The level of the guardrail's intervals."""
    return float(packet.guardrail.get("confidence", 0.95))


def runs_of(packet: Packet) -> list[str]:
    """Runs in the metrics, comparator first; others follow as they come."""
    present = list(dict.fromkeys(row.run for row in packet.metrics))
    return [run for run in RUNS if run in present] + [run for run in present if run not in RUNS]


def rows_of(packet: Packet, run: str, step_kind: str | None = None) -> list[MetricRow]:
    """Metric rows of one run, of one step kind (the first that the packet has by default)."""
    kind = step_kind or packet.metrics[0].step_kind
    return [row for row in packet.metrics if row.run == run and row.step_kind == kind]


def worst_row(packet: Packet, run: str) -> MetricRow | None:
    """The row of a run whose loss reaches highest, over the slices of the first step kind."""
    rows = rows_of(packet, run)
    return max(rows, key=lambda row: row.delta_nll.high, default=None)


def layer_and_kind(operator: str) -> tuple[int | None, str]:
    """'layers.11.mlp.down_proj' → (11, 'down_proj'); 'lm_head' → (None, 'lm_head')."""
    parts = operator.split(".")
    layer = int(parts[1]) if len(parts) > 2 and parts[1].isdigit() else None
    return layer, parts[-1]


def layers_of(packet: Packet) -> int:
    """How many decoder layers the operators of the packet name."""
    names = [effect.operator for effect in packet.diagnosis.effects]
    names += [row.operator for row in packet.incidence]
    names += [row.get("operator", "") for row in packet.policy_table]
    return 1 + max(
        (layer for name in names if (layer := layer_and_kind(name)[0]) is not None), default=-1
    )


def effect_grid(packet: Packet) -> dict[tuple[int, str], OperatorEffect]:
    """(layer, kind) → effect of the fault in that operator alone."""
    grid = {}
    for effect in packet.diagnosis.effects:
        layer, kind = layer_and_kind(effect.operator)
        if layer is not None:
            grid[layer, kind] = effect
    return grid


def activation_incidence(packet: Packet) -> list[Incidence]:
    """Counts of activations in the first step kind that was counted."""
    rows = [row for row in packet.incidence if row.tensor == "activation"]
    return [row for row in rows if row.step_kind == rows[0].step_kind]


def short_operator(operator: str) -> str:
    """'layers.11.mlp.down_proj' → 'layer 11 down'."""
    layer, kind = layer_and_kind(operator)
    return (
        KIND_LABEL.get(kind, kind)
        if layer is None
        else f"layer {layer} {KIND_LABEL.get(kind, kind)}"
    )
