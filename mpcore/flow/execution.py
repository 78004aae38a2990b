"""Stage 4, tensor execution: the model's linear layers under a policy, event by event.

The two halves of a batch of windows run in two threads, each with BLAS on one thread: that uses
two cores for everything, and keeps results independent of the number of cores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock

import numpy as np

from mpcore.formats import Counts, count_events, get_format, round_to
from mpcore.records import Incidence, PolicyRule, Stage
from mpcore.scaling import scale_and_round
from mpcore.workloads.language_model import Step

BF16 = PolicyRule(match="*", activation_format="bf16", weight_format="bf16")
"""How rows are computed that a rule takes out of a scaled tensor."""


class WeightStore:
    """Weights in the formats that policies ask for, prepared once and kept."""

    def __init__(self, weights: Mapping[str, np.ndarray]):
        self._weights = weights
        self._prepared: dict[tuple[str, str, str], tuple[np.ndarray, np.ndarray | None]] = {}

    def get(self, operator: str, rule: PolicyRule) -> tuple[np.ndarray, np.ndarray | None]:
        """(values [out, in] float32, scales [out] or None) of an operator's weights."""
        key = (operator, rule.weight_format, rule.weight_granularity)
        if key not in self._prepared:
            self._prepared[key] = self._prepare(*key)
        return self._prepared[key]

    def _prepare(self, operator, fmt, granularity):
        weight = self._weights["embed_tokens" if operator == "lm_head" else operator]
        if granularity != "none":
            scaled = scale_and_round(np.asarray(weight), fmt, granularity)
            if scaled.scales.shape == (len(weight), 1):
                return scaled.values, scaled.scales[:, 0]
            return scaled.dequantize(), None
        if fmt == "fp32":
            return weight, None
        return round_to(np.asarray(weight), fmt, overflow=_beyond(fmt)), None


_FIELDS = (
    "elements",
    "overflow",
    "underflow",
    "saturation",
    "steps_with_overflow",
    "steps_with_underflow",
    "steps_with_saturation",
)


@dataclass
class EventCounter:
    """Events of one slice and kind of step, per operator and tensor; one step is one call."""

    step_kind: str
    slice: str = "*"
    steps: int = 0
    _events: dict = field(default_factory=lambda: defaultdict(lambda: np.zeros(7, np.int64)))
    _step_events: dict = field(default_factory=lambda: defaultdict(lambda: np.zeros(3, np.int64)))
    _lock: Lock = field(default_factory=Lock)

    def add(self, operator: str, tensor: str, counts: Counts, step: Step) -> None:
        """Add what one operator's tensor met in one step."""
        events = np.array([counts.overflow, counts.underflow, counts.saturation])
        with self._lock:
            self._events[operator, tensor] += [counts.total, *events, *(events > 0)]
            self._step_events[id(step)] += events

    def incidence(self) -> list[Incidence]:
        """One record an operator and tensor, in the order of execution."""
        return [
            self._record(self.steps, events, operator=operator, tensor=tensor)
            for (operator, tensor), events in self._events.items()
        ]

    def total(self) -> Incidence:
        """All operators together; a step counts once, however many operators met an event."""
        events = sum(self._events.values(), np.zeros(7, np.int64))
        met = np.array(list(self._step_events.values())) > 0
        return self._record(self.steps, [*events[:4], *met.sum(axis=0)])

    def merged(self, other: EventCounter) -> EventCounter:
        """The events of two slices together."""
        both = EventCounter(self.step_kind, "*", self.steps + other.steps)
        for counter in (self, other):
            for key, events in counter._events.items():
                both._events[key] += events
        return both

    def _record(self, steps: int, events, **what: str) -> Incidence:
        counts = dict(zip(_FIELDS, map(int, events), strict=True))
        return Incidence(slice=self.slice, step_kind=self.step_kind, steps=steps, **counts, **what)


class Arithmetic:
    """The linear layers under a plan (operator -> rule): a `Linear` for the language model."""

    def __init__(
        self,
        store: WeightStore,
        plan: Mapping[str, PolicyRule],
        counter: EventCounter | None = None,
    ):
        self.store, self.plan, self.counter = store, plan, counter

    def __call__(self, operator: str, x: np.ndarray, step: Step) -> np.ndarray:
        rule = self.plan[operator]
        if rule.activation_granularity == "none":
            return self._unscaled(operator, x, rule, step)
        if rule.first_position == "bf16" and len(step.first_rows):
            first = step.first_rows
            rest = np.setdiff1d(np.arange(len(x)), first)
            without_first = step.tensors - np.arange(len(step.tensors))
            y = np.empty((len(x), len(self.store.get(operator, rule)[0])), np.float32)
            y[first] = self._unscaled(operator, x[first], BF16, step)
            y[rest] = self._scaled(operator, x[rest], rule, without_first, None, step)
            return y
        return self._scaled(operator, x, rule, step.tensors, step.first_rows, step)

    def _unscaled(self, operator, x, rule, step):
        weights, _ = self.store.get(operator, rule)
        rounded = x
        if rule.activation_format != "fp32":
            fmt = rule.activation_format
            rounded = round_to(x, fmt, overflow=_beyond(fmt))
            self._count(operator, "activation", x, rounded, fmt, step)
        return self._store(operator, rounded @ weights.T, rule, step)

    def _scaled(self, operator, x, rule, tensors, first_rows, step):
        weights, weight_scales = self.store.get(operator, rule)
        values, row_scales, counts = _scale(x, rule, tensors, first_rows, self.counter is not None)
        if self.counter is not None:
            self.counter.add(operator, "activation", counts, step)
        y = values @ weights.T
        if row_scales is not None:
            y *= row_scales
        if weight_scales is not None:
            y *= weight_scales
        return self._store(operator, y, rule, step)

    def _store(self, operator, y, rule, step):
        if rule.output_format == "fp32":
            return y
        stored = round_to(y, rule.output_format, overflow=_beyond(rule.output_format))
        self._count(operator, "output", y, stored, rule.output_format, step)
        return stored

    def _count(self, operator, tensor, before, after, fmt, step):
        if self.counter is not None:
            counts = count_events(before, after, get_format(fmt))
            self.counter.add(operator, tensor, counts, step)


def _scale(x, rule, tensors, first_rows, counts):
    """(values, row scales or None, counts) of activations under a rule.

    Where one scale does not serve a whole row, the values come back already multiplied by their
    scales: no matrix unit could factor them out of the sum.
    """
    granularity, fmt = rule.activation_granularity, rule.activation_format
    if granularity == "per_channel":
        values = np.empty_like(x)
        total = None
        for start, stop in pairwise(tensors):
            scaled = scale_and_round(
                np.ascontiguousarray(x[start:stop].T), fmt, "per_token", counts=counts
            )
            values[start:stop] = scaled.dequantize().T
            total = scaled.counts if total is None else total + scaled.counts if counts else None
        return values, None, total
    scales = None
    if granularity == "per_tensor" and first_rows is not None and len(first_rows):
        if rule.first_position == "own_scale":
            tensors = np.union1d(tensors, first_rows + 1)
        elif rule.first_position == "clipped":
            others = [np.abs(x[a + 1 : b]).max(initial=0.0) for a, b in pairwise(tensors)]
            scales = np.array(others, np.float32)[:, None] / get_format(fmt).max
            scales[scales == 0] = 1
    scaled = scale_and_round(x, fmt, granularity, segments=tensors, scales=scales, counts=counts)
    if scaled.scales.shape[1] > 1:
        return scaled.dequantize(), None, scaled.counts
    return scaled.values, scaled.row_scales, scaled.counts


def _beyond(fmt: str) -> str:
    """What a store does beyond the largest value: infinity where the format has one."""
    return "infinity" if get_format(fmt).has_infinity else "saturate"


def stage(totals: list[Incidence]) -> Stage:
    """Events of all operators and slices together, as shares of the elements."""
    counters: dict[str, float] = {}
    for kind in dict.fromkeys(item.step_kind for item in totals):
        of_kind = [item for item in totals if item.step_kind == kind]
        elements = sum(item.elements for item in of_kind)
        counters[f"{kind} steps"] = sum(item.steps for item in of_kind)
        for event in ("overflow", "underflow", "saturation"):
            counters[f"{kind} {event}"] = sum(getattr(i, event) for i in of_kind) / elements
    return Stage(name="execution", counters=counters)
