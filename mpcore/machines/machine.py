"""A machine as data: peaks, memory, the published error of its time model, with sources."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Any

from mpcore.errors import InputError
from mpcore.formats import get_format
from mpcore.paths import DATA


class MachineError(InputError):
    """A machine or format that the tables do not hold: one line with what would be valid."""


@dataclass(frozen=True)
class Machine:
    """One accelerator (data/machines/NAME.toml)."""

    name: str
    title: str
    aliases: tuple[str, ...]
    source: str
    sm: int
    memory_gb_per_s: float
    peak_tflops: dict[str, float]
    matrix_unit: dict[str, Any]
    time_model: dict[str, Any]
    error: dict[str, Any]

    def peak(self, fmt: str) -> float:
        """Dense peak for inputs of a format, FLOP/s; raises MachineError where it has none."""
        name = get_format(fmt).name
        if name not in self.peak_tflops:
            raise MachineError(
                f"{self.title} has no peak for {name}; it has {', '.join(self.peak_tflops)}"
            )
        return self.peak_tflops[name] * 1e12

    def has_matrix_unit(self, fmt: str) -> bool:
        """Whether the matrix unit takes inputs of this format."""
        return get_format(fmt).name in self.matrix_unit["formats"]


@cache
def _machines() -> dict[str, Machine]:
    machines = {}
    for file in sorted((DATA / "machines").glob("*.toml")):
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        data["aliases"] = tuple(data["aliases"])
        machines[data["name"]] = Machine(**data)
    return machines


def list_machines() -> list[str]:
    """Names of the machines in data/machines."""
    return list(_machines())


def get_machine(name: str | Machine) -> Machine:
    """A machine by our name or by the name that tools print; raises MachineError."""
    if isinstance(name, Machine):
        return name
    wanted = str(name).casefold()
    for machine in _machines().values():
        if wanted in (
            known.casefold() for known in (machine.name, machine.title, *machine.aliases)
        ):
            return machine
    raise MachineError(f"machine {name!r} is unknown; known machines: {', '.join(_machines())}")
