"""How long one GEMM takes: the data-sheet roofline, a launch, and the activation-quantise pass.

time = launch + [quantise pass] + max(operations ÷ peak, bytes ÷ bandwidth)

It is a model, not a measurement. The machine's table publishes how far it misses public timings;
`band` carries the 5th to 95th percentile of measured ÷ modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mpcore.formats import get_format
from mpcore.machines.machine import Machine, MachineError, get_machine

LARGEST = 1e12
"""No side of a matrix is longer."""

TILE = (128, 128)
"""Output tile that waves and occupancy are counted for (rows, columns)."""


@dataclass(frozen=True)
class TimingContext:
    """What a timing includes; ignoring it causes the largest misses."""

    operands: Literal["cold", "warm"] = "cold"
    activation_quantisation: bool = False

    def __post_init__(self):
        if self.operands not in ("cold", "warm"):
            raise MachineError(f"operands are 'cold' or 'warm', not {self.operands!r}")


@dataclass(frozen=True)
class GemmTime:
    """Modelled time of one GEMM, or arrays of it (the broadcast shape of m, n, k)."""

    seconds: np.ndarray | float  # the model's time times the median of measured ÷ modelled
    band: (
        tuple  # (low, high) seconds: 5th and 95th percentile of measured ÷ modelled, low ≥ roofline
    )
    bound: np.ndarray | str  # "compute", "bandwidth" or "launch": the largest term
    tile: tuple[int, int]
    waves: np.ndarray | float  # tiles ÷ SMs, rounded up
    occupancy: np.ndarray | float  # share of SM slots filled over all waves
    bytes: np.ndarray | float  # operands and result, each moved once


def gemm_time(
    machine: str | Machine,
    m,
    n,
    k,
    a_format: str = "bf16",
    b_format: str | None = None,
    out_format: str = "bf16",
    sparsity: str = "dense",
    context: TimingContext = TimingContext(),
) -> GemmTime:
    """Modelled time of C[m, n] = A[m, k] · B[k, n].

    Args:
        machine: a `Machine`, our name for it, or the name a tool prints.
        m, n, k: sizes in elements, positive; arrays broadcast, and arrays come back.
        a_format, b_format, out_format: formats; `b_format` is `a_format` where not given.
        sparsity: "dense"; sparse kernels are not modelled in this version.
        context: what the timing includes.

    Raises:
        MachineError: an unknown machine, formats that it multiplies in none of its own, sizes that
            are not positive, or a sparsity that is not modelled.
    """
    machine = get_machine(machine)
    if sparsity != "dense":
        raise MachineError(f"sparsity {sparsity!r} is not modelled in this version; use 'dense'")
    try:
        m, n, k = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in (m, n, k)))
    except (TypeError, ValueError, OverflowError) as error:
        raise MachineError(
            f"m, n and k must be numbers or arrays that broadcast ({error})"
        ) from None
    if not all(((size > 0) & (size <= LARGEST)).all() for size in (m, n, k)):
        raise MachineError(f"m, n and k must be positive, and at most {LARGEST:g}")
    b_format = a_format if b_format is None else b_format
    a_bytes, b_bytes, out_bytes = (
        get_format(fmt).bits / 8 for fmt in (a_format, b_format, out_format)
    )
    peak = machine.peak(a_format, b_format)
    bandwidth = machine.memory_gb_per_s * 1e9
    moved = m * k * a_bytes + n * k * b_bytes + m * n * out_bytes
    compute, memory = 2 * m * n * k / peak, moved / bandwidth
    overhead = np.full_like(compute, machine.time_model["launch_us"] * 1e-6)
    if context.activation_quantisation:
        quantise_bandwidth = machine.time_model["quantise_bandwidth_share"] * bandwidth
        overhead = overhead + machine.time_model["quantise_us"] * 1e-6
        overhead = overhead + m * k * (2 + a_bytes) / quantise_bandwidth
    modelled = overhead + np.maximum(compute, memory)
    terms = np.stack([compute, memory, overhead])
    bound = np.array(["compute", "bandwidth", "launch"])[terms.argmax(axis=0)]
    tiles = np.ceil(m / TILE[0]) * np.ceil(n / TILE[1])
    waves = np.ceil(tiles / machine.sm)
    error = machine.error
    result = {
        "seconds": modelled * error["ratio_median"],
        "waves": waves,
        "occupancy": tiles / (waves * machine.sm),
        "bytes": moved,
    }
    # No kernel is faster than the data sheet's peak and bandwidth, whatever the error's spread.
    low = np.maximum(modelled * error["ratio_p05"], np.maximum(compute, memory))
    high = modelled * error["ratio_p95"]
    if compute.ndim == 0:
        result = {name: float(value) for name, value in result.items()}
        low, high, bound = float(low), float(high), str(bound)
    return GemmTime(band=(low, high), bound=bound, tile=TILE, **result)
