"""Stage 6, release decision and rollback guardrails: verdicts on intervals, and the trigger."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Mapping
from typing import Literal

from mpcore.errors import InputError
from mpcore.records import Estimate, SliceQuality, Stage

Verdict = Literal["holds", "broken", "cannot_conclude"]


def verdict(loss: Estimate, threshold: float) -> Verdict:
    """Whether a loss keeps the guardrail: its upper end decides, a straddling interval does not.

    A loss below zero (a perplexity below the oracle's) counts as no loss.
    """
    if max(loss.high, 0.0) <= threshold:
        return "holds"
    return "broken" if loss.low > threshold else "cannot_conclude"


def tokens_needed(loss: Estimate, threshold: float, tokens: int) -> int | None:
    """About how many tokens would settle a straddling interval (its width falls with √tokens)."""
    distance = abs(loss.value - threshold)
    half = (loss.high - loss.low) / 2
    if verdict(loss, threshold) != "cannot_conclude" or distance == 0:
        return None
    needed = tokens * (half / distance) ** 2
    return math.ceil(needed) if needed < 1e12 else None


def worst(qualities: list[SliceQuality]) -> SliceQuality:
    """The slice whose upper end is highest."""
    return max(qualities, key=lambda item: item.delta_nll.high)


def holds_everywhere(qualities: list[SliceQuality], threshold: float) -> bool:
    """Whether the guardrail holds on every slice."""
    return all(verdict(item.delta_nll, threshold) == "holds" for item in qualities)


def overall_verdict(qualities: list[SliceQuality], threshold: float) -> Verdict:
    """Broken where one slice is broken; otherwise undecided where one straddles the limit."""
    found = {verdict(item.delta_nll, threshold) for item in qualities}
    return next((v for v in ("broken", "cannot_conclude") if v in found), "holds")


RESERVE = 0.1
"""Share of the limit that a repair keeps free: it is chosen on tokens that also confirm it."""


def holds_with_reserve(qualities: list[SliceQuality], threshold: float) -> bool:
    """Whether the guardrail holds on every slice with the reserve left over."""
    return holds_everywhere(qualities, (1 - RESERVE) * threshold)


def stage(qualities: list[SliceQuality], threshold: float) -> Stage:
    """Verdict per slice."""
    return Stage(
        name="release",
        counters={
            f"{item.slice} ({item.step_kind})": verdict(item.delta_nll, threshold)
            for item in qualities
        },
    )


class PredicateError(InputError):
    """A rollback predicate that is not a plain comparison of known names."""


_COMPARE = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}


def fires(predicate: str, figures: Mapping[str, float]) -> bool:
    """Evaluate a rollback predicate: comparisons of names and numbers, joined by `and` and `or`.

    Raises PredicateError for anything else: a predicate is data, and must not run code.
    """

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Name) and node.id in figures:
            return figures[node.id]
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        known = ", ".join(figures)
        raise PredicateError(f"predicate {predicate!r}: {ast.unparse(node)!r} is none of {known}")

    def truth(node: ast.expr) -> bool:
        if isinstance(node, ast.BoolOp):
            join = all if isinstance(node.op, ast.And) else any
            return join([truth(part) for part in node.values])
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
            return _COMPARE[type(node.ops[0])](value(node.left), value(node.comparators[0]))
        raise PredicateError(f"predicate {predicate!r}: {ast.unparse(node)!r} is no comparison")

    try:
        tree = ast.parse(predicate, mode="eval")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise PredicateError(f"predicate {predicate!r}: not an expression ({error})") from None
    return truth(tree.body)
