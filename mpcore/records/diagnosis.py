"""Which mechanism failed first, in which operators, how sure, and what that does not prove."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mpcore.records.base import Record
from mpcore.records.run import Estimate

BottleneckClass = Literal[
    "compute",
    "bandwidth",
    "capacity",
    "latency/launch",
    "conversion",
    "coverage",
    "range",
    "resolution",
    "scale",
    "order",
    "integer",
    "thermal",
    "not comparable",
    "implementation",
]


class WhatIf(Record):
    """One thing changed in the failing run, and what became of the guardrail."""

    id: str = Field("", description="key in data/what_ifs.toml; empty for others")
    name: str
    question: str = Field(description="what this what-if decides, in words")
    changed: str = Field(description="the one thing that was changed")
    equal_bits: bool = Field(description="as many bits an element as the failing run")
    repaired: list[str] = Field(description="patterns of the operators it was changed in")
    delta_nll: dict[str, Estimate] = Field(description="slice -> loss added per token, nats")
    worst_upper: float = Field(description="largest upper end over the slices")
    holds: bool = Field(description="the guardrail holds on every slice")
    verdict: Literal["holds", "broken", "cannot_conclude"] = Field(
        description="broken on a slice; or straddling the limit on one; or holding on all"
    )
    tokens: int


class OperatorEffect(Record):
    """One operator on its own: the fault injected into it alone in the clean run."""

    operator: str
    kl: float = Field(description="mean KL from the clean run, nats a token")
    delta_nll: float
    single_repair_delta_nll: float | None = Field(
        None, description="loss left when this operator alone is repaired in the failing run"
    )
    named_in: float | None = Field(
        None, description="share of bootstrap resamples whose sufficient set holds this operator"
    )
    outlier_ratio: float | None = Field(
        None,
        description="largest |activation| ÷ the typical (median) token's largest, median over "
        "windows: how much coarser one scale is than most tokens need",
    )
    axis: str | None = Field(
        None, description="axis of the operator's outliers in most windows: token, channel or none"
    )


class MechanismVerdict(Record):
    """Whether one mechanism of docs/mechanisms.md explains the regression, and what says so."""

    mechanism: str = Field(description="id as in docs/mechanisms.md")
    verdict: Literal["confirmed", "ruled out", "cannot occur", "not tested"] = Field(
        description="'cannot occur': by the way every run here is made"
    )
    evidence: str


class ActivationProfile(Record):
    """What enters one operator in the fp32 run of one window, token by token."""

    operator: str
    slice: str
    passage: str
    largest: list[float] = Field(description="token -> largest |activation|")
    median: list[float] = Field(description="token -> median |activation|")
    format: str = Field(description="activation format of the failing policy")
    zero_below: float | None = Field(
        None,
        description="half a step of the window's one scale, below which everything becomes zero; "
        "absent where the failing policy has several scales",
    )
    share_below: float | None = Field(None, description="share of the values at or below it")


class Diagnosis(Record):
    """The verdict on one regression."""

    schema_: Literal["mpcore.diagnosis/1"] = Field("mpcore.diagnosis/1", alias="schema")
    mechanism: str = Field(description="id as in docs/mechanisms.md, or 'cannot_conclude'")
    mechanism_name: str
    bottleneck_class: BottleneckClass | None
    stage: str | None = Field(description="stage of the execution flow")
    axis: str | None = Field(description="which axis of the tensor breaks, in words")
    axis_evidence: dict[str, Any] = Field(
        default_factory=dict,
        description="the largest activation of the operator that moves the output most, and "
        "what it stands above, in the window of median size",
    )
    profile: ActivationProfile | None = Field(
        None, description="the activations that `axis_evidence` speaks of"
    )
    operators: list[str] = Field(description="minimal sufficient set S, in execution order")
    operators_stable: list[str] = Field(description="members of S in at least 80 % of resamples")
    first: str | None = Field(
        description="earliest stable member of S in execution order, of all where none is"
    )
    confidence: dict[str, Any]
    kinds: dict[str, float] = Field(
        default_factory=dict,
        description="kind of operator -> KL, nats a token, with the fault in all its layers: kinds "
        "far below the largest are not ranked layer by layer",
    )
    effects: list[OperatorEffect]
    what_ifs: list[WhatIf]
    interaction: dict[str, Any] = Field(description="effect of the set against the sum of singles")
    necessity: dict[str, Any] = Field(description="injecting the fault into the clean run")
    mechanisms: list[MechanismVerdict] = Field(
        default_factory=list, description="a verdict on every mechanism"
    )
    does_not_prove: list[str]
    missing: list[str]
