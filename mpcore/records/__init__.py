"""What passes between rooms, as pydantic models with published, versioned JSON Schemas."""

from mpcore.records.base import Record, RecordError, canonical_json, digest_of
from mpcore.records.case import Case, Guardrail, Parameter, RunSpec, Scope, load_case
from mpcore.records.diagnosis import (
    ActivationProfile,
    Diagnosis,
    MechanismVerdict,
    OperatorEffect,
    WhatIf,
)
from mpcore.records.lock import Environment, Lock, ModelIdentity, Protocol
from mpcore.records.packet import (
    Artifact,
    ChecklistItem,
    Claim,
    Contradiction,
    EvidenceRow,
    Fix,
    MetricRow,
    Owner,
    Packet,
    RollbackTrigger,
    TrendPoint,
    ValidationRow,
)
from mpcore.records.policy import PolicyRule, PolicySheet
from mpcore.records.run import (
    Estimate,
    Incidence,
    PassageScore,
    RunRecord,
    SliceQuality,
    Stage,
    Throughput,
)

__all__ = [
    "ActivationProfile",
    "Artifact",
    "Case",
    "ChecklistItem",
    "Claim",
    "Contradiction",
    "Diagnosis",
    "Environment",
    "Estimate",
    "EvidenceRow",
    "Fix",
    "Guardrail",
    "Incidence",
    "Lock",
    "MechanismVerdict",
    "MetricRow",
    "ModelIdentity",
    "OperatorEffect",
    "Owner",
    "Packet",
    "Parameter",
    "PassageScore",
    "PolicyRule",
    "PolicySheet",
    "Protocol",
    "Record",
    "RecordError",
    "RollbackTrigger",
    "RunRecord",
    "RunSpec",
    "Scope",
    "SliceQuality",
    "Stage",
    "Throughput",
    "TrendPoint",
    "ValidationRow",
    "WhatIf",
    "canonical_json",
    "digest_of",
    "load_case",
]
