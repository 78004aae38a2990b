"""The precision policy sheet: which operator computes and accumulates in which format.

Rules are tried in order and the first whose pattern matches an operator decides, so an
exception stands above the rule it is an exception to.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

from pydantic import Field

from mpcore.records.base import Record, RecordError


class PolicyRule(Record):
    """Formats for the operators that a pattern matches."""

    match: str = Field(description="shell-style pattern over operator names")
    activation_format: str = Field(description="format of the activations fed to the matmul")
    activation_granularity: str = Field(
        "none", description="group that shares one activation scale; 'none' for unscaled formats"
    )
    weight_format: str = Field(description="format of the weights")
    weight_granularity: str = Field("none", description="group that shares one weight scale")
    accumulator: str = Field("fp32", description="format in which products are summed")
    output_format: str = Field("bf16", description="format in which the result is stored")
    first_position: Literal["with_the_rest", "own_scale", "clipped", "bf16"] = Field(
        "with_the_rest",
        description="how the token at position 0 is treated: like every other, with a scale of "
        "its own, clipped to the scale of the others, or computed in bf16",
    )

    @property
    def label(self) -> str:
        """The rule in a few words."""
        if self.activation_granularity == "none" and self.weight_granularity == "none":
            text = self.activation_format
            if self.weight_format != self.activation_format:
                text += f" × {self.weight_format} weights"
            return text
        text = f"{self.activation_format} {self.activation_granularity.replace('_', ' ')}"
        if self.first_position != "with_the_rest":
            text += f", position 0 {self.first_position.replace('_', ' ')}"
        return text


class PolicySheet(Record):
    """An ordered list of rules that covers every operator of a model."""

    schema_: Literal["mpcore.policy/1"] = Field("mpcore.policy/1", alias="schema")
    name: str
    revision: int = Field(1, ge=1)
    note: str = ""
    rules: list[PolicyRule] = Field(min_length=1)

    def rule_for(self, operator: str) -> PolicyRule:
        """The first rule that matches; raises RecordError where none does."""
        for rule in self.rules:
            if fnmatchcase(operator, rule.match):
                return rule
        patterns = ", ".join(rule.match for rule in self.rules)
        raise RecordError(
            f"policy {self.name!r}: no rule matches operator {operator!r}; the rules are for "
            f"{patterns}; add one with match = '*' at the end"
        )

    def with_rules_above(self, name: str, rules: list[PolicyRule], note: str = "") -> PolicySheet:
        """A next revision in which `rules` are tried first."""
        return PolicySheet(
            name=name, revision=self.revision + 1, note=note, rules=[*rules, *self.rules]
        )
