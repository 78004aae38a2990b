"""One request held open: the oracle's states, prepared weights, and replays from any layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from mpcore.flow.assembly import WindowScore, score_rows
from mpcore.flow.execution import Arithmetic, EventCounter, WeightStore
from mpcore.flow.ingress import Request
from mpcore.records import PolicyRule, PolicySheet
from mpcore.workloads.language_model import KeyValueCache, Step, layer_of

BATCH_ROWS = 256
"""Rows that travel together: enough for BLAS, few enough for the cache."""

THREADS = 2

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

    def __init__(self, request: Request):
        self.request = request
        self.model = request.model
        self.operators = request.checkpoint.config.operators()
        self.store = WeightStore(request.checkpoint.weights)
        self.oracle = Arithmetic(self.store, dict.fromkeys(self.operators, FP32))
        self._oracle_hidden: dict[int, np.ndarray] = {}

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
    ) -> list[WindowScore]:
        """Prefill every window under a plan and score it against the oracle.

        With a `counter` each window is a step of its own.
        """
        linear = Arithmetic(self.store, plan, counter)
        quiet = Arithmetic(self.store, plan)
        batches = self.batches(indices, 1 if counter else batch_rows)
        self._know_oracle(batches)

        def run(batch: Batch) -> list[WindowScore]:
            hidden = self.forward(batch, linear)
            return self.score_batch(batch, hidden, quiet)

        if counter is not None:
            counter.steps += len(batches)
        return in_window_order(in_threads(run, batches), indices)

    def forward(self, batch: Batch, linear: Arithmetic) -> np.ndarray:
        """Final residual stream of a batch."""
        return self.model.final(self.model.embed(batch.tokens), batch.step, linear)

    def score_batch(self, batch: Batch, hidden: np.ndarray, linear) -> list[WindowScore]:
        """Scores of a batch's windows from their final residual streams."""
        oracle = np.concatenate([self._oracle_hidden[i] for i in batch.indices])
        chunk = self.request.case.protocol.logits_rows
        rows = score_rows(self.model, hidden, batch.targets, linear, oracle, self.oracle, chunk)
        pieces = np.split(rows, batch.step.windows[1:-1], axis=1)
        return [
            WindowScore(self.request.windows[i], *piece)
            for i, piece in zip(batch.indices, pieces, strict=True)
        ]

    def _know_oracle(self, batches: list[Batch]) -> None:
        missing = [b for b in batches if any(i not in self._oracle_hidden for i in b.indices)]

        def run(batch: Batch) -> list[np.ndarray]:
            return np.split(self.forward(batch, self.oracle), batch.step.windows[1:-1])

        for batch, pieces in zip(missing, in_threads(run, missing), strict=True):
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
        self._know_oracle(self.batches(indices))
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
            oracle = np.stack([self._oracle_hidden[i][position] for i in indices])
            targets = np.array([w.tokens[position + 1] for w in windows])
            rows[:, :, t] = score_rows(
                self.model, residual, targets, quiet, oracle, self.oracle, len(windows)
            ).T
        if counter is not None:
            counter.steps += steps
        return [WindowScore(w, *row) for w, row in zip(windows, rows, strict=True)]


class Replay:
    """Scores of plans that differ from a base plan in few operators, from the first of them on.

    The base plan's residual stream before each layer is kept for the chosen windows.
    """

    def __init__(self, session: Session, base: Plan, indices: Sequence[int]):
        self.session, self.base = session, dict(base)
        self.batches = session.batches(indices)
        self._indices = list(indices)
        session._know_oracle(self.batches)
        linear = Arithmetic(session.store, self.base)

        def run(batch: Batch) -> list[np.ndarray]:
            start = session.model.embed(batch.tokens)
            return [start, *session.model.layers(start, batch.step, linear)]

        self._states = in_threads(run, self.batches)

    def score(self, changes: Plan) -> list[WindowScore]:
        """Scores with `changes` laid over the base plan; batches run in two threads."""
        return self._score(changes, in_threads)

    def score_each(self, many: Sequence[Plan]) -> Iterator[list[WindowScore]]:
        """`score` of many changes, two at a time, each in one thread; yields in order."""

        def one_by_one(function, items):
            return [function(item) for item in items]

        for start in range(0, len(many), THREADS):
            group = list(many[start : start + THREADS])
            yield from in_threads(lambda changes: self._score(changes, one_by_one), group)

    def _score(self, changes: Plan, each) -> list[WindowScore]:
        model = self.session.model
        touched = [o for o in changes if changes[o] != self.base[o]]
        layers = model.config.layers
        first = min((_layer_index(o, layers) for o in touched), default=layers)
        linear = Arithmetic(self.session.store, {**self.base, **changes})

        def run(item) -> list[WindowScore]:
            batch, states = item
            residual = model.final(states[first], batch.step, linear, first_layer=first)
            return self.session.score_batch(batch, residual, linear)

        items = list(zip(self.batches, self._states, strict=True))
        return in_window_order(each(run, items), self._indices)


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
