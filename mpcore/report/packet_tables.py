"""Fixed texts of a packet: the evidence matrix and what each role answers for.

Both come from the subject's own sources; `here` says what a numeric case holds of each row.
"""

EVIDENCE = (
    {
        "evidence": "occupancy and timeline traces",
        "tells_you": "where utilisation is lost",
        "does_not_prove": "the root cause",
        "next_action": "map to memory and schedule",
        "here": "not collected: waves and occupancy are modelled",
        "collected": False,
    },
    {
        "evidence": "cache, SRAM and bandwidth statistics",
        "tells_you": "data movement pressure",
        "does_not_prove": "model-level quality",
        "next_action": "correlate with a quality run",
        "here": "not collected: the bound is modelled",
        "collected": False,
    },
    {
        "evidence": "counter and profile alignment",
        "tells_you": "the bottleneck class",
        "does_not_prove": "rollout safety",
        "next_action": "run the full regression matrix",
        "here": "overflow, underflow and saturation of every operator, beside replays that repair "
        "and inject",
        "collected": True,
    },
    {
        "evidence": "thermal and power telemetry",
        "tells_you": "the sustained operating envelope",
        "does_not_prove": "correctness",
        "next_action": "pair with verification",
        "here": "not collected: no device ran",
        "collected": False,
    },
    {
        "evidence": "before/after scenario pack",
        "tells_you": "how far the mitigation moves the metric",
        "does_not_prove": "long-tail stability",
        "next_action": "replay under the guardrail",
        "here": "released, failing and repaired policy on every slice, same tokens",
        "collected": True,
    },
)

RESPONSIBILITIES = {
    "ML systems architect": "mechanism and architecture intent: design rationale, trade-offs",
    "numerical methods owner": "mapping, runtime, execution: profile traces, bottleneck map",
    "compiler quantization engineer": "correctness and risk: test report, closure memo",
    "inference platform lead": "service: SLA, staged rollout, rollback drill",
}
