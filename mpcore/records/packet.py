"""The investigation packet: what a reviewer signs, and the JSON twin of the report."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mpcore.records.base import Record
from mpcore.records.diagnosis import Diagnosis
from mpcore.records.lock import Lock
from mpcore.records.policy import PolicySheet
from mpcore.records.run import Estimate, Incidence, Stage

Decision = Literal["release", "hold", "roll_back", "cannot_conclude"]


class MetricRow(Record):
    """The primary metric of one run on one slice and step kind."""

    run: str
    slice: str
    step_kind: Literal["prefill", "decode"]
    tokens: int
    passages: int = Field(0, description="independent texts: what the interval is drawn over")
    perplexity: float
    delta_nll: Estimate
    kl: float
    guardrail: Literal["holds", "broken", "cannot_conclude"]
    tokens_per_s: Estimate = Field(description="modelled")
    tokens_per_s_at_quality: float = Field(
        description="the same where the slice's prefill holds the guardrail, 0 where not"
    )
    overflow: float = Field(description="events ÷ elements over all operators")
    underflow: float
    saturation: float
    steps_with_overflow: float = Field(description="share of steps with at least one event")
    steps_with_underflow: float
    steps_with_saturation: float


class TrendPoint(Record):
    """One policy revision that was actually run."""

    revision: int
    policy: str
    worst_slice: str
    delta_nll: Estimate = Field(description="of the worst slice")
    holds: bool
    tokens_per_s: Estimate
    tokens: int


class Artifact(Record):
    """A piece of evidence inside the packet, addressed by its hash."""

    name: str
    sha256: str
    what: str


class Claim(Record):
    """One major claim and the one artifact that proves it."""

    claim: str
    artifact: str
    sha256: str


class Alternative(Record):
    """A policy change that was looked at, and how far it was followed."""

    change: str
    operators: int = Field(description="computed differently from the failing run")
    tokens_per_s: float = Field(description="modelled, prefill")
    screening_upper: float = Field(description="upper end on the worst slice, screening tokens")
    confirmed_upper: float | None = Field(None, description="the same on all tokens, where run")
    verdict: Literal["chosen", "does not hold", "not needed"]


class Fix(Record):
    """The smallest policy change that holds the guardrail on every slice."""

    summary: str
    policy_before: PolicySheet
    policy_after: PolicySheet
    operators_changed: list[str]
    confirmed: bool
    tokens: int
    unseen_tokens: int = Field(0, description="of these, tokens that did not choose the change")
    unseen_loss: Estimate | None = Field(
        None, description="loss added on those, on the slice whose upper end is highest"
    )
    owner: str
    alternatives: list[Alternative] = Field(description="changes looked at, cheapest first")


class Contradiction(Record):
    """Two pieces of evidence that do not agree, and what follows."""

    what: str
    evidence: list[str]
    follows: str


class EvidenceRow(Record):
    """A row of the evidence matrix, with what this packet holds of it."""

    evidence: str
    tells_you: str
    does_not_prove: str
    next_action: str
    here: str = Field(description="what this packet holds, or 'not collected'")
    collected: bool


class Owner(Record):
    """Who answers for what; `signed` holds the signature line once given."""

    role: str
    name: str
    responsibility: str
    signed: str | None = None


class RollbackTrigger(Record):
    """An executable predicate over `packet.metrics`-like figures."""

    predicate: str = Field(description="Python expression over the names in `inputs`")
    inputs: dict[str, str] = Field(description="name -> what it is, with its unit")
    who: str = Field("", description="role that evaluates it")
    when: str = Field("", description="on what, and how often")
    action: str
    evaluated: dict[str, bool] = Field(description="run -> whether the trigger fires on it")


class ValidationRow(Record):
    """One line of the validation matrix."""

    check: str
    slice: str
    criterion: str
    result: Literal["pass", "fail", "not run"]
    figure: str


class ChecklistItem(Record):
    """A line of the review checklist with its evidence."""

    item: str
    state: Literal["met", "open"]
    evidence: str


class Packet(Record):
    """Everything a release decision needs."""

    schema_: Literal["mpcore.packet/1"] = Field("mpcore.packet/1", alias="schema")
    case: str
    title: str
    question: str
    parameters: dict[str, Any]
    scope: dict[str, Any]
    guardrail: dict[str, Any]
    lock: Lock
    volatile: dict[str, Any]
    metrics: list[MetricRow]
    trend: list[TrendPoint]
    comparator: dict[str, Any] = Field(description="repeats, their spread, stable or not")
    incidence: list[Incidence] = Field(description="per operator, failing run")
    stages: dict[str, list[Stage]] = Field(
        default_factory=dict, description="run -> counters of the six stages, in their order"
    )
    diagnosis: Diagnosis
    claims: list[Claim]
    artifacts: list[Artifact]
    policy: dict[str, PolicySheet] = Field(description="comparator, failing, fix")
    policy_table: list[dict[str, str]] = Field(description="one row an operator, before and after")
    fix: Fix | None
    contradictions: list[Contradiction]
    evidence: list[EvidenceRow]
    owners: list[Owner]
    rollback: RollbackTrigger
    validation: list[ValidationRow]
    checklist: list[ChecklistItem]
    decision: Decision
    decision_reason: str
    limits: list[str] = Field(description="what a reader must know about these numbers")
