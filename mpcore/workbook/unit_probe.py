"""The probe that tells matrix units apart: which of 1 - 1 + 2**-p they still find."""

from __future__ import annotations

import mpcore as mp

PROBED = 28  # 2**-28 is a product of two numbers that fp16 and e5m2 hold as normal ones


def last_surviving_bit(unit: str) -> int:
    """The largest p of at most 28 for which a unit finds 2**-p and not 0; "Hopper.fp8" takes e5m2.

    Raises MatmulError for a unit that there is not.
    """
    f = None
    if "fp8" in unit:
        f = "fp8_e5m2fnuz" if unit.startswith("CDNA") else "fp8_e5m2"
    found = [
        mp.matmul([[1, -1, 2.0 ** -(p // 2)]], [[1], [1], [2.0 ** (p // 2 - p)]], f, f, unit).value
        for p in range(PROBED + 1)
    ]
    return max(p for p, value in enumerate(found) if value)
