"""Rounding and scaling against a plain copy: ratios in one process, interleaved, medians."""

from __future__ import annotations

import statistics
import time

import ml_dtypes
import numpy as np

from mpcore.formats import round_to
from mpcore.scaling import scale_and_round

ROUNDS = 15


def medians(jobs: dict) -> dict[str, float]:
    """Median seconds of each job; one of each a round, so that drift meets all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in seconds.items()}


def main() -> None:
    """Print one line a job: milliseconds, and how many copies it costs."""
    x = np.random.default_rng(0).standard_normal((2048, 2048), dtype=np.float32)
    y = np.empty_like(x)
    jobs = {
        "copy": lambda: np.copyto(y, x),
        "round_to bf16": lambda: round_to(x, "bf16", out=y),
        "round_to fp16": lambda: round_to(x, "fp16", out=y),
        "round_to fp8_e4m3": lambda: round_to(x, "fp8_e4m3", out=y),
        "ml_dtypes bfloat16 and back": lambda: x.astype(ml_dtypes.bfloat16).astype(np.float32),
        "ml_dtypes float8_e4m3fn and back": lambda: x.astype(ml_dtypes.float8_e4m3fn).astype(
            np.float32
        ),
        "scale_and_round int8 per tensor": lambda: scale_and_round(x, "int8", out=y),
        "scale_and_round int8 per token": lambda: scale_and_round(x, "int8", "per_token", out=y),
    }
    found = medians(jobs)
    for name, seconds in found.items():
        print(f"{name:34} {1e3 * seconds:8.2f} ms   {seconds / found['copy']:6.2f} × copy")


if __name__ == "__main__":
    main()
