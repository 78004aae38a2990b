"""Stage 2, graph lowering and kernel selection: which kernel each operator gets under a policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mpcore.machines import Machine
from mpcore.records import PolicyRule, PolicySheet, Stage


@dataclass(frozen=True)
class LoweredOperator:
    """One operator with the rule that decides it and the kernel class it gets."""

    operator: str
    rule: PolicyRule
    kernel: str

    @property
    def is_fallback(self) -> bool:
        return self.kernel.endswith("SIMT")


def lower(policy: PolicySheet, operators: list[str], machine: Machine) -> list[LoweredOperator]:
    """A kernel for each operator; formats that the matrix unit lacks fall back to SIMT."""
    lowered = []
    for operator in operators:
        rule = policy.rule_for(operator)
        compute = machine.compute_format(rule.activation_format, rule.weight_format)
        unit = "matrix unit" if machine.has_matrix_unit(compute) else "SIMT"
        lowered.append(LoweredOperator(operator, rule, f"{compute} {unit}"))
    return lowered


def stage(lowered: list[LoweredOperator]) -> Stage:
    """Kernel classes and the fallback rate, by count of operators."""
    kernels = Counter(operator.kernel for operator in lowered)
    fallbacks = sum(operator.is_fallback for operator in lowered)
    return Stage(
        name="lowering",
        counters={
            **{f"operators on {kernel}": count for kernel, count in sorted(kernels.items())},
            "fallback rate": fallbacks / len(lowered),
        },
    )
