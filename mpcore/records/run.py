"""One execution of a case under one policy: counters stage by stage, and the quality it reached."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from mpcore.records.base import Record
from mpcore.records.lock import Lock
from mpcore.records.policy import PolicySheet

StageName = Literal["ingress", "lowering", "schedule", "execution", "assembly", "release"]


LARGEST_LOSS = 1e12
"""Nats: no passage loses more, and sums of such figures stay finite."""


class Estimate(Record):
    """A figure with its interval."""

    value: float
    low: float
    high: float

    @model_validator(mode="after")
    def _ends_are_in_order(self) -> Estimate:
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self


class Stage(Record):
    """What one stage of the execution flow counted."""

    name: StageName
    counters: dict[str, Any]


class Incidence(Record):
    """Numeric events of one kind of step: of one operator's tensor, or of a whole slice."""

    operator: str = Field("*", description="'*' is all operators together")
    tensor: Literal["activation", "output", "*"] = "*"
    slice: str = Field("*", description="'*' is all slices together")
    step_kind: Literal["prefill", "decode"]
    steps: int = Field(ge=0)
    elements: int = Field(ge=0)
    overflow: int = Field(0, ge=0, description="results beyond the largest finite value")
    underflow: int = Field(0, ge=0, description="non-zero inputs that became zero")
    saturation: int = Field(0, ge=0, description="values clipped to the largest finite value")
    nan: int = Field(0, ge=0)
    steps_with_overflow: int = Field(0, ge=0)
    steps_with_underflow: int = Field(0, ge=0)
    steps_with_saturation: int = Field(0, ge=0)


class PassageScore(Record):
    """Scores of one passage; loss and divergence are sums over its scored tokens, in nats."""

    passage: str
    tokens: int = Field(ge=1)
    nll: float = Field(
        ge=-LARGEST_LOSS,
        le=LARGEST_LOSS,
        description="negative log-likelihood of the tokens, summed",
    )
    oracle_nll: float = Field(
        ge=-LARGEST_LOSS, le=LARGEST_LOSS, description="the same under the fp32 oracle"
    )
    kl: float | None = Field(description="KL from the oracle's next-token law, summed, if asked")


class SliceQuality(Record):
    """Quality on one deployment slice against the oracle."""

    slice: str
    step_kind: Literal["prefill", "decode"]
    tokens: int = Field(ge=1)
    perplexity: float
    oracle_perplexity: float
    delta_nll: Estimate = Field(description="mean loss added per token, nats, with its interval")
    kl: Estimate | None = Field(description="KL divergence from the oracle, nats a token")
    passages: list[PassageScore]


class Throughput(Record):
    """Tokens per second of one step kind on the modelled machine."""

    step_kind: Literal["prefill", "decode"]
    tokens_per_s: Estimate
    basis: str = Field(description="'modelled' or 'measured', with what it is modelled on")


class RunRecord(Record):
    """What one run of a case left behind."""

    schema_: Literal["mpcore.run/1"] = Field("mpcore.run/1", alias="schema")
    role: str = Field(description="oracle, comparator, failing, what-if or fix, in words")
    lock: Lock
    policy: PolicySheet
    stages: list[Stage]
    quality: list[SliceQuality]
    quality_unseen: list[SliceQuality] = Field(
        default_factory=list, description="on the tokens that choosing the policy did not look at"
    )
    throughput: list[Throughput]
    incidence: list[Incidence]
    volatile: dict[str, Any] = Field(default_factory=dict, description="times and host facts")

    @property
    def prefill(self) -> list[SliceQuality]:
        """Quality in prefill steps, which score most tokens: what guardrails are judged on."""
        return [item for item in self.quality if item.step_kind == "prefill"]
