"""What the benchmarks share: interleaved medians, the machine's own speed, and tables."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

ROUNDS = 15
SECONDS = 2.0  # for one job; a slow one runs less often, but once at least
LEAST = 2e-3  # seconds of one run: a quick job is called several times in it
PAUSE = 0.03  # BLAS and OpenMP threads wait for work at full speed for about 25 ms


@dataclass(frozen=True)
class Timed:
    """What a job took."""

    seconds: float  # a call, median
    runs: int


def medians(
    jobs: dict[str, Callable],
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    pause: float = PAUSE,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timed]:
    """Median seconds of each job; one run of each a round, so that drift meets all alike.

    Args:
        jobs: name -> what to call.
        rounds: rounds, where no job is slow.
        seconds: what one job may take altogether; a slow one sits rounds out, evenly.
        pause: seconds between two jobs, for other libraries' threads to fall asleep.
        clock: seconds that have passed.
    """
    plan = {}
    for name, job in jobs.items():
        for _ in range(2):  # the first compiles, loads and allocates
            start = clock()
            job()
            once = max(clock() - start, 1e-9)
            if once > seconds:
                break
        calls = max(1, round(LEAST / once))
        runs = min(rounds, max(1, int(seconds / (once * calls))))
        plan[name] = calls, {round((i + 0.5) * rounds / runs - 0.5) for i in range(runs)}
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds):
        for name, (calls, turns) in plan.items():
            if turn not in turns:
                continue
            time.sleep(pause)
            start = clock()
            for _ in range(calls):
                jobs[name]()
            found[name].append((clock() - start) / calls)
    return {name: Timed(statistics.median(each), len(each)) for name, each in found.items()}


def differences(found: np.ndarray, expected: np.ndarray) -> tuple[int, int]:
    """How many values differ (all NaN are alike), and how many zeros have another sign.

    Raises:
        ValueError: the shapes differ.
    """
    if np.shape(found) != np.shape(expected):
        raise ValueError(f"shape {np.shape(found)} cannot be compared with {np.shape(expected)}")
    both_nan = np.isnan(found) & np.isnan(expected)
    both_zero = (found == 0) & (expected == 0)
    other_sign = both_zero & (np.signbit(found) != np.signbit(expected))
    return int(np.sum((found != expected) & ~both_nan)), int(np.sum(other_sign))


def verdict(found: np.ndarray, expected: np.ndarray) -> str:
    """What a table says about values: "equal…", or how many differ."""
    values, signs = differences(found, expected)
    if values:
        return f"{values} of {np.size(expected)} differ"
    return f"equal (zeros of another sign: {signs})" if signs else "equal"


def table(head: tuple[str, ...], rows: list[tuple], width: int = 42) -> str:
    """Aligned lines: the first and the last column to the left, the others to the right."""
    lines = []
    for first, *middle, last in [head, *rows]:
        cells = "".join(f"{number(cell):>13}" for cell in middle)
        lines.append(f"  {first:{width}}{cells}   {last}".rstrip())
    return "\n".join(lines)


def number(cell) -> str:
    """Three significant digits, without an exponent."""
    if not isinstance(cell, float):
        return str(cell)
    digits = max(0, 2 - int(np.floor(np.log10(abs(cell)))) if cell else 0)
    return f"{cell:.{min(digits, 4)}f}"


def cpu_name() -> str:
    """Model name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine_line() -> str:
    """Cores, processor, and what one core of it multiplies (fp32) and copies."""
    x = np.ones((4096, 4096), np.float32)
    y, a = np.empty_like(x), np.random.default_rng(0).random((1024, 1024), np.float32)
    with threadpool_limits(1):
        found = medians({"sgemm": lambda: a @ a, "copy": lambda: np.copyto(y, x)}, rounds=9)
    gflops = 2 * 1024**3 / found["sgemm"].seconds / 1e9
    blas = next((i.get("architecture") for i in threadpool_info() if i["user_api"] == "blas"), "?")
    return (
        f"machine: {os.cpu_count()} cores, {cpu_name()}; one core: sgemm {gflops:.0f} GFLOP/s "
        f"(BLAS kernels: {blas}), copy {2 * x.nbytes / found['copy'].seconds / 1e9:.1f} GB/s "
        f"(read and written)"
    )
