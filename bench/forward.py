"""Scoring the language model under three policies against fp32, in one process, interleaved."""

from __future__ import annotations

from timing import medians

from mpcore.flow import open_session
from mpcore.flow.run import side_policy
from mpcore.flow.session import FP32
from mpcore.policy import repaired


def main() -> None:
    """Print scored tokens per second of a prefill of one slice, and the ratio to fp32."""
    session = open_session("int8_outliers", slices="english_prose", tokens=510)
    failing = side_policy(session, "failing")
    plans = {
        "fp32": dict.fromkeys(session.operators, FP32),
        "bf16": session.plan(side_policy(session, "comparator")),
        "int8 per tensor": session.plan(failing),
        "int8 per token": session.plan(
            repaired(failing, "token", ["layers.*"], "", activation_granularity="per_token")
        ),
    }
    jobs = {name: lambda plan=plan: session.score(plan, kl=False) for name, plan in plans.items()}
    found = medians(jobs, seconds=60)  # every round, though a run takes seconds
    tokens = sum(window.scored for window in session.request.windows)
    for name, timed in found.items():
        speed, ratio = tokens / timed.seconds, found["fp32"].seconds / timed.seconds
        print(f"{name:18} {speed:8.0f} tokens/s on this machine   {ratio:5.2f} × fp32")


if __name__ == "__main__":
    main()
