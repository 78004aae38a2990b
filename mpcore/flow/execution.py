"""Stage 4, tensor execution: the model's linear layers under a policy, event by event.

The two halves of a batch of windows run in two threads, each with BLAS on one thread: that uses
two cores for everything, and keeps results independent of the number of cores. (Decode steps are
too small for that: BLAS splits them as it likes.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock

import numpy as np

from mpcore.formats import get_format, round_to
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
        """(values [in, out] float32, scales [out] or None) of an operator's weights."""
        key = (operator, rule.weight_format, rule.weight_granularity)
        if key not in self._prepared:
            self._prepared[key] = self._prepare(*key)
        return self._prepared[key]

    def width(self, operator: str) -> int:
        """Output width of an operator."""
        return len(self._of(operator))

    def _of(self, operator: str) -> np.ndarray:
        return self._weights["embed_tokens" if operator == "lm_head" else operator]

    def _prepare(self, operator, fmt, granularity):
        weight = self._of(operator)
        if granularity == "none" and fmt == "fp32":
            return weight.T, None  # as it lies in the file
        scales = None
        if granularity == "none":
            values = round_to(np.asarray(weight), fmt, overflow=get_format(fmt).natural_overflow)
        else:
            scaled = scale_and_round(np.asarray(weight), fmt, granularity)
            if scaled.scales.shape == (len(weight), 1):
                values, scales = scaled.values, scaled.scales[:, 0]
            else:
                values = scaled.dequantize()
        # Inputs first: BLAS multiplies a few dozen rows a tenth faster so.
        return np.ascontiguousarray(values.T), scales


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
    """Events of one slice and kind of step, per operator and tensor."""

    step_kind: str
    slice: str = "*"
    steps: int = 0
    _events: dict = field(default_factory=lambda: defaultdict(lambda: np.zeros(7, np.int64)))
    _step_events: dict = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def add(self, operator: str, tensor: str, elements: int, events: np.ndarray, step: Step):
        """Add what one operator's tensor met: events [steps, 3] of a batch of steps."""
        with self._lock:
            self._events[operator, tensor] += [
                elements,
                *events.sum(axis=0),
                *np.count_nonzero(events, axis=0),
            ]
            met = self._step_events.setdefault(id(step), np.zeros(events.shape, bool))
            met |= events > 0

    def incidence(self) -> list[Incidence]:
        """One record an operator and tensor, in the order of execution."""
        return [
            self._record(self.steps, events, operator=operator, tensor=tensor)
            for (operator, tensor), events in self._events.items()
        ]

    def total(self) -> Incidence:
        """All operators together; a step counts once, however many operators met an event."""
        events = sum(self._events.values(), np.zeros(7, np.int64))
        met = np.concatenate([*self._step_events.values(), np.zeros((0, 3), bool)])
        return self._record(self.steps, [*events[:4], *np.count_nonzero(met, axis=0)])

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
            y, rounded = self._unscaled(operator, x, rule)
            saturated = None
        elif rule.first_position == "bf16" and len(step.first_rows):
            y, rounded = self._first_in_bf16(operator, x, rule, step)
            saturated = None
        else:
            y, rounded, saturated = self._scaled(operator, x, rule, step.tensors, step.first_rows)
        stored = y
        if rule.output_format != "fp32":
            stored = round_to(
                y, rule.output_format, overflow=get_format(rule.output_format).natural_overflow
            )
        if self.counter is not None:
            self._count(operator, "activation", x, rounded, step, saturated)
            self._count(operator, "output", y, stored, step)
        return stored

    def _unscaled(self, operator, x, rule):
        """(product, rounded activations) of formats that need no scale."""
        weights, _ = self.store.get(operator, rule)
        rounded = x
        if rule.activation_format != "fp32":
            rounded = round_to(
                x,
                rule.activation_format,
                overflow=get_format(rule.activation_format).natural_overflow,
            )
        return rounded @ weights, rounded

    def _first_in_bf16(self, operator, x, rule, step):
        """(product, rounded activations) with position 0 in bf16, outside every scale."""
        first = step.first_rows
        rest = np.setdiff1d(np.arange(len(x)), first)
        without_first = step.tensors - np.arange(len(step.tensors))
        y, rounded = np.empty((len(x), self.store.width(operator)), np.float32), np.empty_like(x)
        y[first], rounded[first] = self._unscaled(operator, x[first], BF16)
        y[rest], rounded[rest], _ = self._scaled(operator, x[rest], rule, without_first, None)
        return y, rounded

    def _scaled(self, operator, x, rule, tensors, first_rows):
        """(product, values on the format's grid, saturated values [rows] or None)."""
        weights, weight_scales = self.store.get(operator, rule)
        values, row_scales, saturated = _scale(x, rule, tensors, first_rows)
        y = values @ weights
        if row_scales is not None:
            y *= row_scales
        if weight_scales is not None:
            y *= weight_scales
        return y, values, saturated

    def _count(self, operator, tensor, before, after, step, saturated=None):
        """Events of each step: in prefill every window is one, in decode the batch is."""
        finite = np.isfinite(after).all()
        bounds = step.windows if step.kind == "prefill" else [0, len(before)]
        events = np.zeros((len(bounds) - 1, 3), np.int64)
        for number, (a, b) in enumerate(pairwise(bounds)):
            # Rounding makes zeros and never unmakes one.
            vanished = np.count_nonzero(before[a:b]) - np.count_nonzero(after[a:b])
            overflown = np.isinf(after[a:b]) & np.isfinite(before[a:b]) if not finite else 0
            beyond = saturated[a:b].sum() if saturated is not None else 0
            events[number] = np.count_nonzero(overflown), vanished, beyond
        self.counter.add(operator, tensor, before.size, events, step)


def _scale(x, rule, tensors, first_rows):
    """(values, row scales or None, saturated values of each row or None) under a rule.

    Where one scale does not serve a whole row, the values come back already multiplied by their
    scales: no matrix unit could factor them out of the sum.
    """
    granularity, fmt = rule.activation_granularity, rule.activation_format
    if granularity == "per_channel":
        amax = np.maximum.reduceat(np.abs(x), tensors[:-1], axis=0)
        amax = np.repeat(amax, np.diff(tensors), axis=0)
        channel_scales = np.where(amax > 0, amax / np.float32(get_format(fmt).max), np.float32(1))
        values = round_to(x / channel_scales, fmt) * channel_scales
        return values, None, None
    scales = saturated = None
    if granularity == "per_tensor" and first_rows is not None and len(first_rows):
        if rule.first_position == "own_scale":
            tensors = np.union1d(tensors, first_rows + 1)
        elif rule.first_position == "clipped":
            others = [np.abs(x[a + 1 : b]).max(initial=0.0) for a, b in pairwise(tensors)]
            limits = np.array(others, np.float32)[:, None]
            limits[limits == 0] = 1
            scales = limits / np.float32(get_format(fmt).max)
            beyond = np.abs(x) > np.repeat(limits, np.diff(tensors), axis=0)
            saturated = np.count_nonzero(beyond, axis=1)
    scaled = scale_and_round(x, fmt, granularity, segments=tensors, scales=scales)
    if scaled.scales.shape[1] > 1:
        return scaled.dequantize(), None, saturated
    return scaled.values, scaled.row_scales, saturated


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
