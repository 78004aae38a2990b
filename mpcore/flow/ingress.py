"""Stage 1, request ingress and model metadata: what is run, on which tokens, under which lock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mpcore.errors import InputError
from mpcore.machines import Machine, get_machine
from mpcore.machines.shapes import ShapeSet, get_shapes
from mpcore.records import Case, Environment, Lock, Stage
from mpcore.workloads.checkpoint import Checkpoint, open_checkpoint
from mpcore.workloads.language_model import LanguageModel
from mpcore.workloads.passages import Window, cut_windows, read_slice, slice_digest

SCREENING_TOKENS = 200
"""At most so many scored tokens a slice for a screening run; confirmation uses them all.

They are the first tokens of every passage: screening and confirmation see the same passages.
"""

RANKING_PASSAGES = 2
"""Passages a slice for ranking operators one by one, by KL, which needs less than the loss."""


NEEDED = {"slices": "list", "tokens": "int", "guardrail": "float", "machine": "str"}
"""Parameters that every case on a language model has, and their types."""


class RequestError(InputError):
    """A request that cannot be admitted: one line that says what is needed."""


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

    def narrowed(self, tokens: int) -> Request:
        """The same request on the first tokens of every passage, at most `tokens` a slice."""
        asked = self.parameters["tokens"]
        if asked and asked <= tokens:
            return self
        return replace(self, windows=_windows(self.case, self.parameters, self.checkpoint, tokens))

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

    Raises InputError where a parameter, the model or a passage is missing or damaged.
    """
    _check_parameters(case)
    machine = get_machine(parameters["machine"])
    shapes = get_shapes(case.workload.shapes)
    checkpoint = open_checkpoint(case.workload.model)
    texts = {name: read_slice(name) for name in parameters["slices"]}
    least = 2 * max(len(found) for found in texts.values())
    if 0 < parameters["tokens"] < least:
        raise RequestError(
            f"parameter tokens: {parameters['tokens']} is not enough for two of every passage; ask "
            f"for at least {least}, or 0 for all"
        )
    windows = _windows(case, parameters, checkpoint, parameters["tokens"])
    scored = dict.fromkeys(parameters["slices"], 0)
    for window in windows:
        scored[window.slice] += window.scored
    lock = Lock(
        case=case.name,
        protocol=case.protocol,
        model=checkpoint.identity,
        data={name: slice_digest(found) for name, found in texts.items()},
        tokens_per_slice=scored,
        machine=machine.title,
        shapes=shapes.title,
        seeds=case.seeds,
        parameters=parameters,
        environment=Environment.here(),
    )
    model = LanguageModel(checkpoint.config, checkpoint.weights)
    return Request(case, parameters, checkpoint, model, machine, shapes, windows, lock)


def _check_parameters(case: Case) -> None:
    for name, kind in NEEDED.items():
        if name not in case.parameters or case.parameters[name].type != kind:
            raise RequestError(f"case {case.name}: parameters.{name} is needed, with type '{kind}'")


def _windows(case: Case, parameters, checkpoint: Checkpoint, tokens: int) -> list[Window]:
    return [
        window
        for name in parameters["slices"]
        for window in cut_windows(name, read_slice(name), checkpoint, case.protocol, tokens)
    ]
