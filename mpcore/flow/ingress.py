"""Stage 1, request ingress and model metadata: what is run, on which tokens, under which lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpcore.machines import Machine, get_machine
from mpcore.machines.shapes import ShapeSet, get_shapes
from mpcore.records import Case, Environment, Lock, Stage
from mpcore.workloads.checkpoint import Checkpoint, open_checkpoint
from mpcore.workloads.language_model import LanguageModel
from mpcore.workloads.passages import Window, cut_windows, read_slice, slice_digest

SCREENING_TOKENS = 256
"""At most so many scored tokens a slice for a screening run; confirmation uses them all."""

RANKING_TOKENS = 64
"""Fewer still for ranking operators one by one, by KL, which needs fewer tokens than the loss."""


@dataclass(frozen=True)
class Request:
    """Everything the later stages need, and the lock that says what it was."""

    case: Case
    parameters: dict[str, Any]
    checkpoint: Checkpoint
    model: LanguageModel
    machine: Machine
    shapes: ShapeSet
    windows: list[Window]
    lock: Lock

    @property
    def slices(self) -> list[str]:
        return self.parameters["slices"]

    def windows_of(self, name: str) -> list[int]:
        """Indices of a slice's windows."""
        return [i for i, window in enumerate(self.windows) if window.slice == name]

    def subset(self, tokens: int) -> list[int]:
        """Indices of whole windows, from the first passages on, up to `tokens` a slice (≥ 1)."""
        chosen, taken = [], dict.fromkeys(self.slices, 0)
        for index, window in enumerate(self.windows):
            if taken[window.slice] == 0 or taken[window.slice] + window.scored <= tokens:
                taken[window.slice] += window.scored
                chosen.append(index)
        return chosen

    def stage(self) -> Stage:
        """The counters of this stage."""
        return Stage(
            name="ingress",
            counters={
                "windows": len(self.windows),
                "scored tokens": sum(window.scored for window in self.windows),
                "longest window": max(len(window.tokens) for window in self.windows),
                "slices": len(self.slices),
                "parameters of the model": int(
                    sum(np.prod(w.shape) for w in self.checkpoint.weights.values())
                ),
            },
        )


def admit(case: Case, parameters: dict[str, Any]) -> Request:
    """Open the model and the passages, and lock what they are.

    Raises InputError where the model or a passage is missing or damaged.
    """
    checkpoint = open_checkpoint(case.workload.model)
    windows: list[Window] = []
    digests = {}
    for name in parameters["slices"]:
        texts = read_slice(name)
        digests[name] = slice_digest(texts)
        windows += cut_windows(name, texts, checkpoint, case.protocol, parameters["tokens"])
    scored = dict.fromkeys(parameters["slices"], 0)
    for window in windows:
        scored[window.slice] += window.scored
    machine = get_machine(parameters["machine"])
    shapes = get_shapes(case.workload.shapes)
    lock = Lock(
        case=case.name,
        protocol=case.protocol,
        model=checkpoint.identity,
        data=digests,
        tokens_per_slice=scored,
        machine=machine.title,
        shapes=shapes.title,
        seeds=case.seeds,
        parameters=parameters,
        environment=Environment.here(),
    )
    model = LanguageModel(checkpoint.config, checkpoint.weights)
    return Request(case, parameters, checkpoint, model, machine, shapes, windows, lock)
