"""Stage 3, tile and dataflow scheduling: modelled time of a step on the machine.

The policy is defined on the numeric workload; the time is for a shape set. A kind of operator
takes the mean of its times under the rules of the workload's layers, times the layers of the
shape set. Linear layers only: attention products, norms and sampling are outside.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from mpcore.flow.lowering import LoweredOperator
from mpcore.machines import Machine, TimingContext, gemm_time
from mpcore.machines.shapes import ShapeSet
from mpcore.records import Estimate, PolicyRule, Stage, Throughput
from mpcore.workloads.language_model import layer_of


def _operator_time(
    machine: Machine, shapes: ShapeSet, operator: str, rule: PolicyRule, step_kind: str
):
    out, width = shapes.shape(operator)
    return gemm_time(
        machine,
        shapes.rows(step_kind),
        out,
        width,
        a_format=rule.activation_format,
        b_format=rule.weight_format,
        out_format=rule.output_format,
        context=TimingContext(activation_quantisation=rule.activation_granularity != "none"),
    )


def step_seconds(
    lowered: list[LoweredOperator], machine: Machine, shapes: ShapeSet, step_kind: str
) -> tuple[float, float, float]:
    """(middle, low, high) seconds of one step over all linear layers of the shape set."""
    by_kind: dict[str, list] = defaultdict(list)
    for item in lowered:
        kind = item.operator.split(".", 2)[-1]
        time = _operator_time(machine, shapes, item.operator, item.rule, step_kind)
        by_kind[kind].append((time.seconds, *time.band))
    total = np.zeros(3)
    for kind, times in by_kind.items():
        copies = 1 if kind == "lm_head" else shapes.layers
        total += copies * np.mean(times, axis=0)
    return tuple(float(part) for part in total)


def throughput(
    lowered: list[LoweredOperator], machine: Machine, shapes: ShapeSet
) -> list[Throughput]:
    """Tokens per second of prefill and decode, with the band of the time model."""
    result = []
    for kind in ("prefill", "decode"):
        middle, low, high = step_seconds(lowered, machine, shapes, kind)
        rows = shapes.rows(kind)
        result.append(
            Throughput(
                step_kind=kind,
                tokens_per_s=Estimate(value=rows / middle, low=rows / high, high=rows / low),
                basis=f"modelled: linear layers of {shapes.title}, {rows} rows a step, on one "
                f"{machine.title}",
            )
        )
    return result


def stage(lowered: list[LoweredOperator], machine: Machine, shapes: ShapeSet) -> Stage:
    """What bounds the step, and how full its waves are, for each kind of step."""
    counters = {}
    for kind in ("prefill", "decode"):
        seconds, bound, occupancy = 0.0, defaultdict(float), 0.0
        for item in lowered:
            if layer_of(item.operator) not in (0, None):
                continue  # one layer and the output projection stand for all
            time = _operator_time(machine, shapes, item.operator, item.rule, kind)
            seconds += time.seconds
            bound[time.bound] += time.seconds
            occupancy += time.occupancy * time.seconds
        counters[f"{kind} bound"] = max(bound, key=bound.get)
        counters[f"{kind} wave occupancy"] = round(occupancy / seconds, 3)
    return Stage(name="schedule", counters=counters)
