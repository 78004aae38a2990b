"""Rounding, block formats, codes and scaling against a plain copy and against peers.

Ratios in one process, interleaved, medians.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from peers import block_rounders, encoders, peers_line, rounders
from timing import Timed, machine_line, medians, number, table, verdict

from mpcore.formats import decode, encode, round_to
from mpcore.formats.blocks import round_blocks
from mpcore.formats.rounding import in_threads
from mpcore.scaling import scale_and_round

FORMATS = ("fp8_e4m3", "fp16", "bf16", "fp8_e5m2")
BLOCKS = ("mxfp8_e4m3", "mxfp4", "nvfp4")
SLOW = ("gfloat", "pychop", "apytypes")  # these get a 16th of the values
SMALL = 1 << 16  # values for peers that take a second for a million
HEAD = ("", "ms", "ns a value", "× copyto", "× copy()", "runs", "values")


def copies(x: np.ndarray, y: np.ndarray) -> dict[str, Callable]:
    """What moving the values alone costs."""
    flat_x, flat_y = x.reshape(-1), y.reshape(-1)

    def copy_part(part) -> None:
        flat_y[part] = flat_x[part]

    return {
        "np.copyto, one thread": lambda: np.copyto(y, x),
        "np.copyto, a thread a core": lambda: in_threads(copy_part, flat_x),
        "x.copy()": x.copy,
    }


def report(title: str, jobs: dict, values: dict, sizes: dict, size: int, rounds: int) -> dict:
    """Time jobs and print their table; per value where a job has fewer of them (`sizes`)."""
    found = medians(jobs, rounds)
    per_value = {name: 1e9 * t.seconds / sizes.get(name, size) for name, t in found.items()}
    to, copy = per_value["np.copyto, one thread"], per_value["x.copy()"]
    rows = [
        (name, 1e3 * t.seconds, ns, ns / to, ns / copy, t.runs, values.get(name, ""))
        for (name, t), ns in zip(found.items(), per_value.values(), strict=True)
    ]
    print(f"\n{title}\n{table(HEAD, rows)}")
    return {name: Timed(ns, found[name].runs) for name, ns in per_value.items()}


def fastest(ours: str, found: dict[str, Timed], values: dict[str, str]) -> str:
    """One line: ours against the fastest peer, and against the fastest with equal values."""
    peers = {name: found[name].seconds for name in values}
    equal = {name: t for name, t in peers.items() if values[name].startswith("equal")}
    best = {}
    for word, group in ((" with equal values", equal), ("", peers)):
        if group:
            best[min(group, key=group.get)] = word
    parts = [
        f"{number(found[ours].seconds / peers[name])} × the time of the fastest peer{word} ({name})"
        for name, word in best.items()
    ]
    return f"  {ours}: {', '.join(parts) or 'no peer here has it'}"


def share(peer: str, x: np.ndarray) -> slice:
    """The rows of an array that a peer gets."""
    return slice(len(x) // 16 if peer in SLOW else None)


def rounding(x: np.ndarray, f: str, rounds: int) -> None:
    """round_to, into an array and into a fresh one, and each peer's conversion and back."""
    y, expected = np.empty_like(x), round_to(x, f)
    jobs = copies(x, y)
    ours, fresh = f"mpcore round_to {f}, out=", f"mpcore round_to {f}, fresh"
    jobs[ours] = lambda: round_to(x, f, out=y)
    jobs[fresh] = lambda: round_to(x, f)
    values, sizes = {}, {}
    for peer, rounder in rounders(f):
        rows = share(peer, x)
        name = f"{peer} ({x[rows].size} values)" if peer in SLOW else peer
        jobs[name], sizes[name] = lambda rounder=rounder, x=x[rows]: rounder(x), x[rows].size
        values[name] = verdict(rounder(x[rows]), expected[rows])
    found = report(f"To {f} and back", jobs, values, sizes, x.size, rounds)
    print(fastest(fresh, found, values))


def blocks(x: np.ndarray, rounds: int) -> None:
    """round_blocks, and peers on fewer values."""
    y, small = np.empty_like(x), np.ascontiguousarray(x[: max(1, SMALL // x.shape[1])])
    jobs, values, sizes, ours = copies(x, y), {}, {}, {}
    for f in BLOCKS:
        ours[f] = f"mpcore round_blocks {f}, out="
        jobs[ours[f]] = lambda f=f: round_blocks(x, f, out=y)
        expected = round_blocks(small, f)
        for peer, rounder in block_rounders(f):
            name = f"{peer} {f} ({small.size} values)"
            jobs[name], sizes[name] = lambda rounder=rounder: rounder(small), small.size
            values[name] = verdict(rounder(small), expected)
    found = report("To a block format and back", jobs, values, sizes, x.size, rounds)
    for f, name in ours.items():
        print(fastest(name, found, {peer: v for peer, v in values.items() if f" {f} (" in peer}))


def codes(x: np.ndarray, rounds: int) -> None:
    """encode and decode, against the peers' storage types."""
    y, values, lines = np.empty_like(x), {}, []
    jobs, sizes = copies(x, y), {}
    for f in FORMATS[:3]:
        packed = encode(x, f)
        into, back = np.empty_like(packed), decode(packed, f)
        ours = f"mpcore encode {f}, out=", f"mpcore decode {f}, out="
        jobs[ours[0]] = lambda f=f, into=into: encode(x, f, out=into)
        jobs[ours[1]] = lambda f=f, packed=packed: decode(packed, f, out=y)
        for peer, encoder, decoder in encoders(f):
            rows = share(peer, x)
            names = f"{peer} to codes of {f}", f"{peer} from codes of {f}"
            sizes |= dict.fromkeys(names, x[rows].size)
            jobs[names[0]] = lambda encoder=encoder, x=x[rows]: encoder(x)
            jobs[names[1]] = lambda decoder=decoder, c=packed[rows]: decoder(c)
            values[names[0]] = verdict(encoder(x[rows]), packed[rows])
            values[names[1]] = verdict(decoder(packed[rows]), back[rows])
        lines += [(ours[0], f" to codes of {f}"), (ours[1], f" from codes of {f}")]
    title = f"Values to codes, codes to values (gfloat: {x.size // 16} values)"
    found = report(title, jobs, values, sizes, x.size, rounds)
    for name, end in lines:
        print(fastest(name, found, {peer: v for peer, v in values.items() if peer.endswith(end)}))


def scaling(x: np.ndarray, rounds: int) -> None:
    """scale_and_round to int8, per tensor and per token."""
    y = np.empty_like(x)
    jobs = copies(x, y)
    jobs["mpcore scale_and_round int8, per tensor"] = lambda: scale_and_round(x, "int8", out=y)
    jobs["mpcore scale_and_round int8, per token"] = lambda: scale_and_round(
        x, "int8", "per_token", out=y
    )
    report("Scaled to int8 and back", jobs, {}, {}, x.size, rounds)


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="1024 × 1024 values, fewer runs")
    quick = options.parse_args().quick
    side, rounds = (1024, 5) if quick else (4096, 15)
    x = np.random.default_rng(0).standard_normal((side, side), dtype=np.float32)
    print(f"Time of a conversion of {side} × {side} float32 (standard normal) ÷ time of a copy,")
    print("both per value.")
    print(f"{machine_line()}\n{peers_line()}")
    with np.errstate(all="ignore"):  # some peers overflow on the way
        for f in FORMATS:
            rounding(x, f, rounds)
        blocks(x, rounds)
        codes(x, rounds)
        scaling(x, rounds)


if __name__ == "__main__":
    main()
