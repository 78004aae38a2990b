"""Whether two records can be diagnosed: one of each side, whole, and of what is still here."""

from __future__ import annotations

from mpcore.errors import InputError
from mpcore.flow.ingress import admit
from mpcore.flow.session import Session
from mpcore.records import Case, Lock, RunRecord, load_case


class DiagnosisError(InputError):
    """Records that cannot be diagnosed: one line that says which and why."""


def lock_differences(failing: RunRecord, comparator: RunRecord) -> list[str]:
    """What the two locks do not share, in words."""
    return _differences(failing.lock, comparator.lock, "the failing run", "the comparator")


def check_pair(failing: RunRecord, comparator: RunRecord) -> None:
    """Raise DiagnosisError where the sides are swapped, or a record lacks what it is judged on."""
    if (failing.role, comparator.role) != ("failing", "comparator"):
        raise DiagnosisError(
            f"the first record is of role {failing.role!r} and the second of role "
            f"{comparator.role!r}; give the failing run first, then its comparator"
        )
    for side, run in (("failing run", failing), ("comparator", comparator)):
        scored = {
            item.slice: sum(passage.tokens for passage in item.passages) for item in run.prefill
        }
        if scored != run.lock.tokens_per_slice or len(run.prefill) != len(scored):
            raise DiagnosisError(
                f"record of the {side}: its passages hold {scored or 'no'} scored tokens where its "
                f"lock says {run.lock.tokens_per_slice}; run that side again"
            )


def session_of(failing: RunRecord, case: Case | None = None) -> Session:
    """The session that a record came from, opened again.

    The case is the one in data/cases of the lock's name, where none is given. Raises DiagnosisError
    where the case, the model or a passage has changed since: what-ifs would be compared with
    figures of something else. Another machine than the record's will do.
    """
    case = case or load_case(failing.lock.case)
    session = Session(admit(case, case.values(**failing.lock.parameters)))
    changed = _differences(failing.lock, session.request.lock, "the records", "what is here")
    changed = [line for line in changed if not line.startswith("environment:")]
    if changed:
        raise DiagnosisError(f"{changed[0]}: something changed since; run both sides again")
    return session


def _differences(left: Lock, right: Lock, one: str, other: str) -> list[str]:
    first, second = left.to_dict(), right.to_dict()
    return [
        f"{name}: {first[name]!r} in {one}, {second[name]!r} in {other}"
        for name in first
        if name != "digest" and first[name] != second[name]
    ]
