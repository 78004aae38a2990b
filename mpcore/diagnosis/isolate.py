"""The minimal sufficient set: which operators have to be repaired, and how sure that is.

Operators are ranked by injecting the fault into each alone in the clean run (KL per token). In
that order they are repaired in the failing run until the guardrail holds with a reserve, and then
taken out again one by one, least first, where it holds without them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpcore import progress
from mpcore.flow.assembly import WindowScore, per_passage, resampled_means
from mpcore.flow.release import RESERVE, holds_with_reserve
from mpcore.flow.run import qualities_of
from mpcore.flow.session import Replay, Session
from mpcore.records import PolicyRule
from mpcore.workloads.language_model import layer_of

KIND_SHARE = 0.1
"""A kind of operator is ranked layer by layer where the fault in all of its layers together moves
the output at least this share of what it does in the kind that moves it most."""

NAMED_SHARE = 0.8
"""An operator is called stable where so many of the resamples name it."""

PRUNE_TRIES = 40
"""At most so many removals are tried; each replays the screening windows."""


READABLE = 90
"""Longest list of operators, in characters, that a sentence names one by one."""


@dataclass(frozen=True)
class Ranking:
    """Operators, the one that moves the output most first."""

    operators: list[str]  # ranked one by one, then those of the kinds that were not
    screened: int  # how many were ranked one by one
    kl: dict[str, np.ndarray]  # operator -> [tokens] KL under the fault in it alone
    delta_nll: dict[str, float]  # operator -> mean loss added by the fault in it alone
    kind_kl: dict[str, float]  # kind -> mean KL under the fault in all its layers


@dataclass(frozen=True)
class SufficientSet:
    """Operators whose repair holds the guardrail, and how that was found."""

    operators: list[str]  # in execution order
    scores: list[WindowScore]  # with the set repaired, screening windows
    prefixes: dict[int, list[WindowScore]]  # repaired top n -> scores
    removals_tried: int
    minimal: bool  # every member was tried and is needed
    named_in: dict[str, float]  # operator -> share of resamples whose set holds it


def kind_of(operator: str) -> str:
    """`layers.3.mlp.down_proj` -> `mlp.down_proj`."""
    return operator.split(".", 2)[-1]


def in_words(operators: list[str]) -> str:
    """Operators in words: 'down_proj of layers 2, 11 and 28', or '31 up_proj and 29 down_proj'.

    A list too long to be read is counted: the record has the names.
    """
    layers: dict[str, list[int | None]] = {}
    for name in operators:
        layers.setdefault(kind_of(name).split(".")[-1], []).append(layer_of(name))
    alike: dict[tuple[int | None, ...], list[str]] = {}
    for kind, found in layers.items():
        alike.setdefault(tuple(found), []).append(kind)
    words = "; ".join(
        _listed(kinds)
        if found == (None,)
        else f"{_listed(kinds)} of layer{'s' if len(found) > 1 else ''} {_listed(_runs(found))}"
        for found, kinds in alike.items()
    )
    if len(words) <= READABLE:
        return words
    return _listed([f"{len(found)} {kind}" for kind, found in layers.items()])


def _listed(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _runs(values: Sequence[int]) -> list[str]:
    """Rising whole numbers in words, three or more in a row as a range: '1', '2', '9–11'."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return [
        word
        for run in runs
        for word in ([f"{run[0]}–{run[-1]}"] if len(run) > 2 else map(str, run))
    ]


def rank_operators(clean: Replay, fault: dict[str, PolicyRule]) -> Ranking:
    """Inject the fault into kinds of operators, then into each operator of those that matter."""
    kinds = list(dict.fromkeys(kind_of(name) for name in fault))
    groups = [{n: r for n, r in fault.items() if kind_of(n) == kind} for kind in kinds]
    kind_kl = {}
    for number, (kind, scores) in enumerate(zip(kinds, clean.score_each(groups), strict=True)):
        progress.report(f"fault in every {kind}", number + 1, len(kinds))
        kind_kl[kind] = float(np.concatenate([s.kl for s in scores]).mean())
    threshold = KIND_SHARE * max(kind_kl.values())
    chosen = [name for name in fault if kind_kl[kind_of(name)] >= threshold]
    kl, delta = {}, {}
    singles = ({name: fault[name]} for name in chosen)
    for number, (name, scores) in enumerate(
        zip(chosen, clean.score_each(list(singles)), strict=True)
    ):
        progress.report(f"fault in {name} alone", number + 1, len(chosen))
        kl[name] = np.concatenate([s.kl for s in scores])
        delta[name] = float(np.concatenate([s.nll - s.oracle_nll for s in scores]).mean())
    ranked = sorted(chosen, key=lambda name: -kl[name].mean())
    rest = sorted((n for n in fault if n not in kl), key=lambda n: -kind_kl[kind_of(n)])
    return Ranking(ranked + rest, len(ranked), kl, delta, kind_kl)


def find_sufficient_set(
    session: Session,
    failing: Replay,
    ranking: Ranking,
    repair: dict[str, PolicyRule],
) -> SufficientSet | None:
    """Grow along the ranking by bisection, prune backwards; None where no prefix holds."""
    limit = session.request.parameters["guardrail"]
    order = ranking.operators
    prefixes: dict[int, list[WindowScore]] = {}
    slices = list(failing.slices)

    def scores_of(replay: Replay, changes: dict[str, PolicyRule]) -> tuple[list[WindowScore], bool]:
        """Scores slice by slice until one breaks the guardrail, and whether none did.

        The slice that broke it last comes first: it most likely breaks it again.
        """
        scores = []
        for name in slices:
            found = replay.score_slice(changes, name)
            scores += found
            if not holds_with_reserve(qualities_of(session, found), limit):
                slices.remove(name)
                slices.insert(0, name)
                return scores, False
        return scores, True

    held: dict[int, bool] = {}

    def prefix_holds(n: int) -> bool:
        if n not in held:
            progress.report(f"repair of the first {n} operators", len(prefixes), 9)
            prefixes[n], held[n] = scores_of(failing, {name: repair[name] for name in order[:n]})
        return held[n]

    fails, works = 0, 1
    while works < len(order) and not prefix_holds(works):
        fails, works = works, min(2 * works, len(order))
    if not prefix_holds(works):
        return None
    while works - fails > 1:
        middle = (works + fails) // 2
        fails, works = (fails, middle) if prefix_holds(middle) else (middle, works)
    members, scores = order[:works], prefixes[works]
    repaired = failing.moved({name: repair[name] for name in members})
    tries = 0
    for name in reversed(order[: works - 1]):  # the last one of the prefix is needed
        if tries == PRUNE_TRIES:
            break
        tries += 1
        progress.report(f"without {name}", tries, min(PRUNE_TRIES, works - 1))
        without = {name: failing.base[name]}
        found, holds = scores_of(repaired, without)
        if holds:
            members = [member for member in members if member != name]
            scores, repaired = found, repaired.moved(without)
    in_order = [name for name in failing.base if name in set(members)]
    return SufficientSet(
        operators=in_order,
        scores=scores,
        prefixes=prefixes,
        removals_tried=tries,
        minimal=tries == works - 1,
        named_in=_named_in(session, ranking, prefixes, (1 - RESERVE) * limit),
    )


def _named_in(session, ranking: Ranking, prefixes, limit: float, resamples: int = 200):
    """Share of resamples in which an operator ranks within the prefix that is needed.

    Tokens are drawn anew for the ranking, passages for the size of the prefix: the smallest of the
    prefixes that were run whose loss, with the upper half of its interval, keeps the guardrail on
    every slice that it was run on (a prefix is run on no further slice once one breaks).
    """
    seed = session.request.case.seeds["bootstrap"]
    screened = ranking.operators[: ranking.screened]
    kl = np.stack([ranking.kl[name] for name in screened])
    rng = np.random.default_rng(seed)
    sums = {n: per_passage(scores) for n, scores in sorted(prefixes.items())}
    whole = {n: qualities_of(session, scores) for n, scores in prefixes.items()}
    keeps = {}
    for n, slices in sums.items():
        ok = np.ones(resamples, dtype=bool)
        margins = {q.slice: q.delta_nll.high - q.delta_nll.value for q in whole[n]}
        for name, passages in slices.items():
            ok &= resampled_means(passages, seed, resamples) + margins[name] <= limit
        keeps[n] = ok
    count: dict[str, int] = defaultdict(int)
    largest = max(prefixes)
    for sample in range(resamples):
        tokens = rng.integers(0, kl.shape[1], kl.shape[1])
        order = np.argsort(-kl[:, tokens].mean(axis=1), kind="stable")
        size = next((n for n in sorted(keeps) if keeps[n][sample]), largest)
        for position in order[:size]:
            count[screened[position]] += 1
    return {name: count[name] / resamples for name in screened}
