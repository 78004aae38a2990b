"""One-line readings of runs and diagnoses, for a notebook to print on its way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mpcore.flow.release import worst
from mpcore.flow.session import Session
from mpcore.records import Diagnosis, Packet, RunRecord
from mpcore.report import numbers


def request_line(session: Session) -> str:
    """What is scored: windows and tokens, slice by slice."""
    lock = session.request.lock
    slices = ", ".join(f"{name} {count}" for name, count in lock.tokens_per_slice.items())
    return f"{lock.model.name}: {len(session.request.windows)} windows; scored tokens: {slices}"


def run_line(record: RunRecord) -> str:
    """The worst slice of a run's prefill."""
    found = worst(record.prefill)
    return (
        f"{record.role} ({record.policy.name}): worst slice {found.slice}, perplexity "
        f"{numbers.number(found.perplexity)} (oracle {numbers.number(found.oracle_perplexity)}), "
        f"loss {numbers.estimate(found.delta_nll)} nats a token"
    )


def repeats_line(repeats: dict[str, Any]) -> str:
    """The comparator's spread."""
    state = "stable" if repeats["stable"] else "unstable: refused"
    return (
        f"{len(repeats['repeats'])} repeats on {repeats['tokens']} tokens: spread "
        f"{numbers.number(repeats['spread'], 2)} nats, limit {repeats['limit']:g}: {state}"
    )


def diagnosis_line(diagnosis: Diagnosis) -> str:
    """The mechanism and the size of the set."""
    if not diagnosis.operators:
        return f"{diagnosis.mechanism}: {diagnosis.mechanism_name}"
    return (
        f"{diagnosis.mechanism}: {diagnosis.mechanism_name}; {len(diagnosis.operators)} "
        f"operators, first {diagnosis.first}; {diagnosis.axis or 'no axis'}"
    )


def leave_packet(packet: Packet) -> str:
    """Write packet.json into the folder that MPCORE_PACKET names, if it names one."""
    folder = os.environ.get("MPCORE_PACKET")
    if folder:
        (Path(folder) / "packet.json").write_text(packet.to_json(), encoding="utf-8")
    return f"packet: {len(packet.metrics)} metric rows, decision {packet.decision}"
