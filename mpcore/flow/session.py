"""One request held open: the oracle's states, prepared weights, and replays from any layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from mpcore.flow.assembly import WindowScore, divergences, token_losses
from mpcore.flow.execution import Arithmetic, EventCounter, WeightStore
from mpcore.flow.ingress import Request
from mpcore.records import PolicyRule, PolicySheet
from mpcore.workloads.language_model import KeyValueCache, Step, layer_of

BATCH_ROWS = 260
"""Rows that travel together: enough for BLAS, and several batches a slice for the threads."""

THREADS = 2

KEPT_TOKENS = 1000
"""Of requests of at most so many tokens the oracle's logits are kept: 0.2 MB each."""

FP32 = PolicyRule(match="*", activation_format="fp32", weight_format="fp32", output_format="fp32")

Plan = Mapping[str, PolicyRule]


@dataclass(frozen=True)
class Batch:
    """Windows that run together: their indices, the step, and the tokens of all rows."""

    indices: tuple[int, ...]
    step: Step
    tokens: np.ndarray  # [rows] inputs
    targets: np.ndarray  # [rows] next tokens


class Session:
    """Runs of one request. States are kept for the oracle only, and for `Replay`s."""

    def __init__(self, request: Request, store: WeightStore | None = None):
        self.request = request
        self.model = request.model
        self.operators = request.checkpoint.config.operators()
        self.store = store or WeightStore(request.checkpoint.weights)
        self.oracle = Arithmetic(self.store, dict.fromkeys(self.operators, FP32))
        self._oracle_hidden: dict[int, np.ndarray] = {}
        self._oracle_nll: dict[int, np.ndarray] = {}
        self._oracle_logits: dict[int, np.ndarray] = {}
        self._is_small = sum(window.scored for window in request.windows) <= KEPT_TOKENS

    def narrowed(self, tokens: int) -> Session:
        """A session on at most `tokens` scored tokens a slice, with the same prepared weights."""
        request = self.request.narrowed(tokens)
        return self if request is self.request else Session(request, self.store)

    def first_passages(self, count: int) -> list[int]:
        """Indices of the first `count` windows of every slice."""
        request = self.request
        return [i for name in request.slices for i in request.windows_of(name)[:count]]

    def plan(self, policy: PolicySheet) -> dict[str, PolicyRule]:
        """Operator -> rule, for every operator of the model."""
        return {operator: policy.rule_for(operator) for operator in self.operators}

    def batches(self, indices: Sequence[int] | None = None, rows: int = BATCH_ROWS) -> list[Batch]:
        """Windows in the given order, packed until a batch would pass `rows` rows."""
        windows = self.request.windows
        groups: list[list[int]] = []
        filled = rows
        for index in range(len(windows)) if indices is None else indices:
            if filled + windows[index].scored > rows:
                groups.append([])
                filled = 0
            groups[-1].append(index)
            filled += windows[index].scored
        return [
            Batch(
                tuple(group),
                Step.prefill([windows[i].scored for i in group]),
                np.concatenate([windows[i].tokens[:-1] for i in group]),
                np.concatenate([windows[i].tokens[1:] for i in group]),
            )
            for group in groups
        ]

    def score(
        self,
        plan: Plan,
        indices: Sequence[int] | None = None,
        counter: EventCounter | None = None,
        batch_rows: int = BATCH_ROWS,
        kl: bool = True,
    ) -> list[WindowScore]:
        """Prefill every window under a plan and score it against the oracle."""
        linear = Arithmetic(self.store, plan, counter)
        quiet = Arithmetic(self.store, plan)
        batches = self.batches(indices, batch_rows)
        self.know_oracle(batches)

        def run(batch: Batch) -> list[WindowScore]:
            return self.score_batch(batch, self.forward(batch, linear), quiet, kl)

        if counter is not None:
            counter.steps += sum(len(batch.indices) for batch in batches)
        return in_window_order(in_threads(run, batches), indices)

    def forward(self, batch: Batch, linear: Arithmetic) -> np.ndarray:
        """Final residual stream of a batch."""
        return self.model.final(self.model.embed(batch.tokens), batch.step, linear)

    def score_batch(
        self, batch: Batch, hidden: np.ndarray, linear: Arithmetic, kl: bool
    ) -> list[WindowScore]:
        """Scores of a batch's windows from their final residual streams; KL costs a fifth more."""
        chunk = self.request.case.protocol.logits_rows
        rows = np.full((3, len(batch.targets)), np.nan)
        if kl:
            rows[:] = divergences(
                self.model, hidden, batch.targets, linear, self._oracle_logits_of(batch), chunk
            )
        else:
            rows[0] = token_losses(self.model, hidden, batch.targets, linear, chunk)
            rows[1] = self._oracle_losses(batch)
        pieces = np.split(rows, batch.step.windows[1:-1], axis=1)
        for index, piece in zip(batch.indices, pieces, strict=True):
            self._oracle_nll[index] = piece[1]
        return [
            WindowScore(self.request.windows[i], *piece)
            for i, piece in zip(batch.indices, pieces, strict=True)
        ]

    def _oracle_losses(self, batch: Batch) -> np.ndarray:
        """[rows] the oracle's losses: those of an earlier score, or made from its states."""
        if all(i in self._oracle_nll for i in batch.indices):
            return np.concatenate([self._oracle_nll[i] for i in batch.indices])
        hidden = np.concatenate([self._oracle_hidden[i] for i in batch.indices])
        chunk = self.request.case.protocol.logits_rows
        return token_losses(self.model, hidden, batch.targets, self.oracle, chunk)

    def keep_oracle_logits(self, batches: list[Batch]) -> None:
        """Keep the oracle's logits of windows that many replays compare with (0.2 MB a row)."""
        for batch in batches:
            self._keep_logits(batch, self._oracle_logits_of(batch)(slice(None)))

    def _keep_logits(self, batch: Batch, logits: np.ndarray) -> None:
        pieces = np.split(logits, batch.step.windows[1:-1])
        self._oracle_logits.update(zip(batch.indices, pieces, strict=True))

    def _oracle_logits_of(self, batch: Batch):
        """slice of rows -> the oracle's logits: those kept, or made anew from its states."""
        if all(i in self._oracle_logits for i in batch.indices):
            kept = np.concatenate([self._oracle_logits[i] for i in batch.indices])
            return lambda part: kept[part]
        hidden = np.concatenate([self._oracle_hidden[i] for i in batch.indices])
        if self._is_small:
            kept = self.model.logits(hidden, batch.step, self.oracle)
            self._keep_logits(batch, kept)
            return lambda part: kept[part]
        return lambda part: self.model.logits(hidden[part], batch.step, self.oracle)

    def know_oracle(self, batches: list[Batch]) -> None:
        """Run the oracle on windows that it has not seen yet; its final states are kept."""
        missing = [b for b in batches if any(i not in self._oracle_hidden for i in b.indices)]
        found = in_threads(lambda batch: self.forward(batch, self.oracle), missing)
        for batch, hidden in zip(missing, found, strict=True):
            pieces = np.split(hidden, batch.step.windows[1:-1])
            self._oracle_hidden.update(zip(batch.indices, pieces, strict=True))

    def decode(
        self,
        plan: Plan,
        indices: Sequence[int],
        prompt: int,
        steps: int,
        counter: EventCounter | None = None,
    ) -> list[WindowScore]:
        """Prefill `prompt` tokens of each window, then decode `steps` given tokens with a cache.

        One decode step is one token of every window; only the decoded tokens are scored.
        """
        windows = [self.request.windows[i] for i in indices]
        self.know_oracle(self.batches(indices))
        linear = Arithmetic(self.store, plan, counter)
        quiet = Arithmetic(self.store, plan)
        cache = KeyValueCache(self.model.config.layers)
        batch_tokens = np.concatenate([window.tokens[:prompt] for window in windows])
        prefill = Step.prefill([prompt] * len(windows))
        self.model.final(self.model.embed(batch_tokens), prefill, quiet, cache=cache)
        rows = np.empty((len(windows), 3, steps))
        # One object a step, kept alive: the counter tells steps apart by identity.
        for t, step in enumerate([Step.decode(len(windows)) for _ in range(steps)]):
            position = prompt + t
            residual = self.model.embed(np.array([w.tokens[position] for w in windows]))
            residual = self.model.final(residual, step, linear, cache=cache)
            states = np.stack([self._oracle_hidden[i][position] for i in indices])
            oracle = self.model.logits(states, step, self.oracle)
            targets = np.array([w.tokens[position + 1] for w in windows])
            rows[:, :, t] = divergences(
                self.model,
                residual,
                targets,
                quiet,
                lambda part, kept=oracle: kept[part],
                len(windows),
            ).T
        if counter is not None:
            counter.steps += steps
        return [WindowScore(w, *row) for w, row in zip(windows, rows, strict=True)]


class Replay:
    """Scores of plans that differ from a base plan in few operators, from the first of them on.

    The base plan's residual stream before each layer is kept for the chosen windows.
    """

    def __init__(
        self,
        session: Session,
        base: Plan,
        indices: Sequence[int] | None = None,
        by_slice: bool = False,
        keep_logits: bool = False,
    ):
        """Keep the base plan's states for some windows, or all.

        With `by_slice` no batch holds two slices, so that `score_slice` can run one alone;
        `keep_logits` saves a fifth of each `score_each` for 0.2 MB a row.
        """
        self.session, self.base = session, dict(base)
        windows = session.request.windows
        indices = range(len(windows)) if indices is None else indices
        self.slices = list(dict.fromkeys(windows[i].slice for i in indices))
        self.tokens = sum(windows[i].scored for i in indices)
        groups = [list(indices)]
        if by_slice:
            groups = [[i for i in indices if windows[i].slice == name] for name in self.slices]
        rows = BATCH_ROWS // (2 if by_slice else 1)
        batches = [batch for group in groups for batch in session.batches(group, rows)]
        session.know_oracle(batches)
        if keep_logits:
            session.keep_oracle_logits(batches)
        linear = Arithmetic(session.store, self.base)

        def run(batch: Batch) -> tuple[Batch, list[np.ndarray]]:
            start = session.model.embed(batch.tokens)
            return batch, [start, *session.model.layers(start, batch.step, linear)]

        self._states = in_threads(run, batches)

    def moved(self, changes: Plan) -> Replay:
        """A replay of the same windows whose base plan has `changes` laid over this one's."""
        other = copy(self)
        other.base = {**self.base, **changes}
        first = self._first_touched(changes)
        linear = Arithmetic(self.session.store, other.base)

        def run(item):
            batch, before = item
            rest = self.session.model.layers(before[first], batch.step, linear, first)
            return batch, [*before[: first + 1], *rest]

        other._states = in_threads(run, self._states)
        return other

    def score(self, changes: Plan) -> list[WindowScore]:
        """Scores, without KL, with `changes` laid over the base plan; batches run in threads."""
        return self._score(changes, self._states, in_threads, kl=False)

    def score_slice(self, changes: Plan, name: str) -> list[WindowScore]:
        """`score` of one slice alone."""
        windows = self.session.request.windows
        states = [item for item in self._states if windows[item[0].indices[0]].slice == name]
        return self._score(changes, states, in_threads, kl=False)

    def score_each(self, many: Sequence[Plan]) -> Iterator[list[WindowScore]]:
        """Scores, with KL, of many changes, two at a time, each in one thread; in order."""

        def one_by_one(function, items):
            return [function(item) for item in items]

        for start in range(0, len(many), THREADS):
            group = list(many[start : start + THREADS])
            yield from in_threads(
                lambda changes: self._score(changes, self._states, one_by_one, kl=True), group
            )

    def _score(self, changes: Plan, states, each, kl: bool) -> list[WindowScore]:
        model = self.session.model
        first = self._first_touched(changes)
        linear = Arithmetic(self.session.store, {**self.base, **changes})

        def run(item) -> list[WindowScore]:
            batch, residuals = item
            residual = model.final(residuals[first], batch.step, linear, first_layer=first)
            return self.session.score_batch(batch, residual, linear, kl)

        return [score for scores in each(run, states) for score in scores]

    def _first_touched(self, changes: Plan) -> int:
        """The first layer that changes lie in; the number of layers where they change nothing."""
        layers = self.session.model.config.layers
        touched = [o for o in changes if changes[o] != self.base[o]]
        return min((_layer_index(o, layers) for o in touched), default=layers)


def _layer_index(operator: str, layers: int) -> int:
    layer = layer_of(operator)
    return layers if layer is None else layer


def in_threads(function, items: list) -> list:
    """[function(item) …] on two threads with one BLAS thread each, in the order of the items."""
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(function, items))


def in_window_order(groups: list[list[WindowScore]], indices) -> list[WindowScore]:
    """Scores sorted back to the windows' own order, whatever order they ran in."""
    flat = [score for group in groups for score in group]
    if indices is None:
        return flat
    order = np.argsort(np.asarray(indices), kind="stable")
    return [flat[i] for i in order]
