"""Emulated matmuls against sgemm and against peers, their first call, and the import.

Ratios in one process, interleaved, medians; values are checked before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
from peers import apytypes_matmul, peers_line, rank_1_sum, rounders, torch_sum
from timing import Timed, machine_line, medians, table, verdict

import mpcore as mp
from mpcore.formats import encode, round_to
from mpcore.matmul import Accumulator, MatrixUnit
from mpcore.matmul.accumulators import get_accumulator

# What is printed -> accumulator, format of both operands.
SUMS = {
    "fp16, every product": ("fp16", "fp16"),
    "fp16, every 8 products": (Accumulator("fp16", every=8), "fp16"),
    "fp32, every product": ("fp32", "fp16"),
    "Hopper.fp16": ("Hopper.fp16", "fp16"),
    "Hopper.fp8": ("Hopper.fp8", "fp8_e4m3"),
    "Ampere.fp16": ("Ampere.fp16", "fp16"),
    "CDNA3.bf16": ("CDNA3.bf16", "bf16"),
}
PILOT = 256  # size at which a matmul's speed is tried before a larger one is begun
LIMIT = 20.0  # seconds of one matmul; what would take longer is left out
BLOCK = 16, 64  # rows and columns of the result that are checked
PEER_SIZE = 128
FIRST_CALLS = {
    "round_to": "mp.round_to(x, 'fp8_e4m3')",
    "matmul, fp16": "mp.matmul(x, x, 'fp16', 'fp16', 'fp16')",
    "matmul, fp16, every 8 products": (
        "mp.matmul(x, x, 'fp16', 'fp16', mp.Accumulator('fp16', every=8))"
    ),
    "matmul, fp32": "mp.matmul(x, x, 'fp16', 'fp16', 'fp32')",
    "matmul, Hopper.fp16": "mp.matmul(x, x, 'fp16', 'fp16', 'Hopper.fp16')",
    "matmul, Hopper.fp8": "mp.matmul(x, x, 'fp8_e4m3', 'fp8_e4m3', 'Hopper.fp8')",
}
IMPORTS = {
    "import numpy": "import numpy",
    "import mpcore": "import mpcore",
    "import mpcore; mpcore.round_to": "import mpcore; mpcore.round_to",
    "import mpcore; mpcore.matmul": "import mpcore; mpcore.matmul",
}


def operands(size: int, f: str) -> tuple[np.ndarray, np.ndarray]:
    """Two square matrices of normal values on the grid of a format."""
    rng = np.random.default_rng(size)
    return tuple(round_to(rng.standard_normal((size, size), dtype=np.float32), f) for _ in "ab")


def expected_block(a: np.ndarray, b: np.ndarray, accumulator, f: str) -> np.ndarray:
    """The first rows and columns of a @ b, summed another way than `matmul` does.

    A unit's come from chained instructions on bit patterns, an accumulator's from the loop
    c <- round(c + a_k b_k), with exact products in long double.
    """
    a, b = a[: BLOCK[0]], b[:, : BLOCK[1]]
    accumulator = get_accumulator(accumulator)
    if isinstance(accumulator, MatrixUnit):
        i = accumulator.instruction(mp.get_format(f), mp.get_format(f))
        codes = encode(a, i.a), encode(b, i.b)
        found = mp.mma(*codes, arch=i.arch, kind=i.kind, qualifier=i.qualifier)
        return mp.decode(found, i.d)
    c, every = np.zeros((len(a), b.shape[1])), accumulator.every
    wide_a, wide_b = a.astype(np.longdouble), b.astype(np.longdouble)
    for k in range(0, a.shape[1], every):
        total = c + wide_a[:, k : k + every] @ wide_b[k : k + every]
        c = round_to(total.astype(np.float64), accumulator.format, overflow="infinity")
    return c


def check(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Stop the benchmark where our own values are wrong.

    Raises:
        SystemExit: they are.
    """
    said = verdict(found, expected)
    if said != "equal":
        raise SystemExit(f"{what}: {said}; nothing is timed")


def multiplying(a: np.ndarray, b: np.ndarray, accumulator, f: str, counts: bool) -> Callable:
    """The job of one emulated matmul, result thrown away."""
    return lambda: mp.matmul(a, b, f, f, accumulator, counts=counts)


def predicted(size: int) -> dict[str, float]:
    """Seconds that one matmul of each kind would take at a size, from one at `PILOT`."""
    found = {}
    for name, (accumulator, f) in SUMS.items():
        job = multiplying(*operands(PILOT, f), accumulator, f, True)
        found[name] = medians({name: job}, rounds=1)[name].seconds * (size / PILOT) ** 3
    return found


def at_size(size: int, rounds: int) -> None:
    """Every accumulator at one size, with counts and without, and sgemm."""
    x, y = operands(size, "fp32")
    jobs = {"sgemm": lambda: x @ y}
    left_out = predicted(size) if size > 2 * PILOT else {}
    left_out = {name: seconds for name, seconds in left_out.items() if seconds > LIMIT}
    sums = {name: kind for name, kind in SUMS.items() if name not in left_out}
    for name, (accumulator, f) in sums.items():
        a, b = operands(size, f)
        expected = expected_block(a, b, accumulator, f)
        for counts in (False, True):
            value = mp.matmul(a, b, f, f, accumulator, counts=counts).value
            check(value[: BLOCK[0], : BLOCK[1]], expected, f"{name} at {size}")
            jobs[name + " with counts" * counts] = multiplying(a, b, accumulator, f, counts)
    found, flops = medians(jobs, rounds), 2 * size**3
    sgemm = found["sgemm"].seconds
    rows = [("numpy float32 (sgemm)", *_speed(found["sgemm"], flops), 1.0, "", "", "")]
    for name in sums:
        plain, counted = found[name], found[name + " with counts"]
        times = plain.seconds / sgemm, 1e3 * counted.seconds, counted.seconds / plain.seconds
        rows.append((name, *_speed(plain, flops), *times, f"{plain.runs}, {counted.runs}"))
    head = ("accumulator", "ms", "GFLOP/s", "× sgemm", "counted, ms", "÷ without", "runs")
    print(f"\n{size} × {size} × {size}, values checked on {BLOCK[0]} × {BLOCK[1]} of them")
    print(table(head, rows, 26))
    for name, seconds in left_out.items():
        print(f"  {name}: left out, one would take about {seconds:.0f} s")


def _speed(timed: Timed, flops: int) -> tuple[float, float]:
    return 1e3 * timed.seconds, flops / timed.seconds / 1e9


def against_peers(size: int, rounds: int) -> None:
    """fp16 after every product: ours, and the same sums made with peers."""
    a, b = operands(size, "fp16")
    ours = "mpcore matmul, fp16"
    jobs = {"sgemm": lambda: a @ b, ours: multiplying(a, b, "fp16", "fp16", False)}
    expected, values = mp.matmul(a, b, "fp16", "fp16", "fp16").value, {}
    for peer, rounder in rounders("fp16"):
        if peer == "apytypes":
            continue  # it has a matmul of its own
        name = f"{peer}: rounds every rank-1 update"
        if peer == "torch":
            jobs[name] = torch_sum(a, b)
        else:
            jobs[name] = lambda rounder=rounder: rank_1_sum(a, b, rounder)
        values[name] = verdict(jobs[name](), expected)
    if own := apytypes_matmul(a, b):
        name = "apytypes: its own matmul"
        jobs[name] = own
        twice = rank_1_sum(a, b, lambda c: round_to(c, "fp16"), lambda p: round_to(p, "fp16"))
        values[name] = f"{verdict(own(), expected)}; products rounded, too: {verdict(own(), twice)}"
    found = medians(jobs, rounds)
    rows = [
        (
            name,
            *_speed(t, 2 * size**3),
            t.seconds / found[ours].seconds,
            t.runs,
            values.get(name, ""),
        )
        for name, t in found.items()
    ]
    print(f"\nPeers, {size} × {size} × {size}, c <- round to fp16(c + a_k b_k)")
    print(table(("", "ms", "GFLOP/s", "× mpcore", "runs", "values"), rows))


def first_calls() -> None:
    """Seconds of a process that has nothing compiled: start, import, compilation, first result."""
    rows = []
    for name, call in FIRST_CALLS.items():
        code = f"import numpy as np, mpcore as mp; x = np.ones((256, 256), 'f4'); {call}"
        with tempfile.TemporaryDirectory() as cache:
            empty = _seconds(code, cache)
            rows.append((name, empty, min(_seconds(code, cache) for _ in "12"), ""))
    print("\nA fresh process, from its start to the first result (256 × 256)")
    print(table(("", "cold, s", "warm, s", ""), rows))
    slowest = max(rows, key=lambda row: row[1])
    print(f"  largest first call, with an empty NUMBA_CACHE_DIR: {slowest[1]:.1f} s ({slowest[0]})")


def imports(rounds: int) -> None:
    """Milliseconds of imports in fresh processes, beyond the interpreter's own start."""
    found: dict[str, list[float]] = {"pass": [], **{name: [] for name in IMPORTS}}
    for _ in range(rounds + 1):
        for name in found:
            found[name].append(_seconds(IMPORTS.get(name, name)))
    start = statistics.median(found.pop("pass")[1:])
    rows = [(name, 1e3 * (statistics.median(t[1:]) - start), "") for name, t in found.items()]
    print(
        f"\nImports in a fresh process, beyond the {1e3 * start:.0f} ms that Python takes to start"
    )
    print(table(("", "ms", ""), rows))


def _seconds(code: str, cache: str | None = None) -> float:
    environment = os.environ | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return time.perf_counter() - start


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="smaller sizes, fewer runs")
    options.add_argument("--sizes", help="as 256,512,1024: m = n = k of each")
    chosen = options.parse_args()
    rounds = 5 if chosen.quick else 11
    sizes = chosen.sizes or ("64,256" if chosen.quick else "64,512")
    print("Time of an emulated m × n × k matmul ÷ time of numpy's fp32 matmul (sgemm, all cores).")
    print(f"{machine_line()}\n{peers_line()}")
    with np.errstate(all="ignore"):  # some peers overflow on the way
        for size in sizes.split(","):
            at_size(int(size), rounds)
        against_peers(PEER_SIZE // 2 if chosen.quick else PEER_SIZE, rounds)
    first_calls()
    imports(3 if chosen.quick else 7)


if __name__ == "__main__":
    main()
