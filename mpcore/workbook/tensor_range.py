"""Where the magnitudes of a captured tensor lie, and what a format loses of them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from mpcore.formats import Format, count_events, round_to
from mpcore.workloads.captured import captured


@lru_cache(maxsize=16)
def binades(name: str) -> dict[int, float]:
    """Exponent -> share of the tensor's values from 2**exponent to its double."""
    values = captured(name).values
    found, counts = np.unique(np.frexp(np.abs(values[values != 0]))[1] - 1, return_counts=True)
    return {int(e): float(n) / values.size for e, n in zip(found, counts, strict=True)}


@lru_cache(maxsize=512)
def losses(name: str, f: Format, exponent: int = 0) -> tuple[float, float]:
    """Shares of the tensor, times 2**exponent, that a format flushes to zero, and cuts off."""
    values = np.ldexp(captured(name).values, exponent)
    counts = count_events(values, round_to(values, f, overflow=f.natural_overflow), f)
    beyond = counts.incidence("overflow") + counts.incidence("saturation")
    return counts.incidence("underflow"), beyond
