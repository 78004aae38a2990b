"""Every mechanism of docs/mechanisms.md beside the verdict.

What-ifs and counters confirm a mechanism or rule it out. Some cannot occur by the way every run
here is made (no scale is calibrated, no weight is updated): that is said apart, since it proves
nothing about a device. What nothing decides is called not tested, never excluded.
"""

from __future__ import annotations

from mpcore.formats import get_format
from mpcore.records import MechanismVerdict, RunRecord, WhatIf

CONFIRMED, RULED_OUT, CANNOT, NOT_TESTED = "confirmed", "ruled out", "cannot occur", "not tested"

NO_DEVICE = "no device ran: kernels and their time are modelled"
FP32_SUMS = "products are exact here and summed in fp32, whatever the policy's accumulator"
FRESH_SCALES = "every scale is computed from the tensor that it scales"

CONSTANT = {
    **dict.fromkeys(("L1", "L2", "L3", "L4"), (NOT_TESTED, NO_DEVICE)),
    "S1": (CANNOT, FRESH_SCALES),
    "S3": (CANNOT, f"no range was calibrated beforehand: {FRESH_SCALES}"),
    "S4": (CANNOT, "scales are symmetric: there is no zero point"),
    "S5": (CANNOT, "no code or scale is stored or handed on"),
    "S6": (CANNOT, f"no default scale is used: {FRESH_SCALES}"),
    **dict.fromkeys(("A1", "A2", "A3"), (NOT_TESTED, FP32_SUMS)),
    "A4": (NOT_TESTED, "only the comparator was repeated in other orders and batches"),
    "U1": (CANNOT, "inference updates no weight"),
    "U2": (CANNOT, "inference has no loss scale"),
    **dict.fromkeys(("P1", "P2", "P3", "P4", "P5"), (NOT_TESTED, NO_DEVICE)),
}
"""Mechanism -> (verdict, evidence) that follow from how every run of a language model is made."""

ORDER = (
    *("C0", "L1", "L2", "L3", "L4", "R1", "R2", "R3", "S1", "S2", "S3", "S4", "S5", "S6"),
    *("A1", "A2", "A3", "A4", "U1", "U2", "P1", "P2", "P3", "P4", "P5", "X1"),
)
"""As in docs/mechanisms.md."""


def differential(
    failing: RunRecord, mechanism: str, what_ifs: list[WhatIf]
) -> list[MechanismVerdict]:
    """A verdict on each mechanism, given the one that the what-ifs decided."""
    equal = [one for one in what_ifs if one.equal_bits]
    wider = [one for one in what_ifs if not one.equal_bits]
    found = CONSTANT | {
        "C0": (
            RULED_OUT,
            f"both runs carry the lock {failing.lock.digest[:12]}, and a slice "
            "is broken with its whole interval",
        ),
        "R1": _overflow(failing),
        "R2": _underflow(failing),
    }
    if mechanism == "cannot_conclude":
        found |= dict.fromkeys(("R3", "S2", "X1"), (NOT_TESTED, "the what-ifs do not decide"))
    else:
        found |= {"R3": _resolution(equal, wider), "S2": _granularity(equal)}
        found["X1"] = (NOT_TESTED, "a modelled repair is enough; no device's output was compared")
        if mechanism == "X1":
            found["X1"] = (CONFIRMED, "no modelled repair brings quality back")
    return [
        MechanismVerdict(mechanism=name, verdict=found[name][0], evidence=found[name][1])
        for name in ORDER
    ]


def _overflow(failing: RunRecord) -> tuple[str, str]:
    totals = [item for item in failing.incidence if item.operator == "*"]
    events, elements = sum(t.overflow for t in totals), sum(t.elements for t in totals)
    if events:
        return NOT_TESTED, f"{events} of {elements} results overflowed; more exponent bits not run"
    return RULED_OUT, f"none of {elements / 1e6:.0f} million values overflowed"


def _underflow(failing: RunRecord) -> tuple[str, str]:
    scaled = {
        rule.activation_format
        for rule in failing.policy.rules
        if rule.activation_granularity != "none"
    }
    if scaled and all(get_format(name).kind == "int" for name in scaled):
        return CANNOT, "an integer has no exponent: values vanish by the scale, which is S2"
    return NOT_TESTED, "more exponent bits were not run"


def _resolution(equal: list[WhatIf], wider: list[WhatIf]) -> tuple[str, str]:
    if held := _first_that_holds(equal):
        return RULED_OUT, f"more bits are not needed to hold: “{held.name}” holds with as many"
    if held := _first_that_holds(wider):
        return CONFIRMED, f"“{held.name}” holds, and nothing does with as many bits"
    if wider and all(one.verdict == "broken" for one in wider):
        return RULED_OUT, "more bits do not bring quality back"
    return NOT_TESTED, "the what-ifs with more bits do not decide"


def _granularity(equal: list[WhatIf]) -> tuple[str, str]:
    if held := _first_that_holds(equal):
        return CONFIRMED, (
            f"with as many bits, “{held.name}” holds (worst slice, upper end "
            f"{held.worst_upper:.3f} nats)"
        )
    if equal and all(one.verdict == "broken" for one in equal):
        return RULED_OUT, "no other group with as many bits brings quality back"
    return NOT_TESTED, "the what-ifs with as many bits do not decide"


def _first_that_holds(found: list[WhatIf]) -> WhatIf | None:
    return next((one for one in found if one.holds), None)
