"""A machine as data: peaks, memory, the published error of its time model, with sources."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Any

from mpcore.errors import InputError
from mpcore.formats import Format, get_format
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

    def peak(self, a: str, b: str) -> float:
        """Dense peak for inputs of two formats, FLOP/s; raises MachineError where it has none."""
        return self.peak_tflops[self.compute_format(a, b)] * 1e12

    def compute_format(self, a: str, b: str) -> str:
        """The format in which inputs of formats `a` and `b` are multiplied.

        It is the fastest one that holds every value of both (of several the narrowest): what is
        narrower is converted on its way in. Raises MachineError where the machine has none.
        """
        given = [get_format(a), get_format(b)]
        mixed = self.matrix_unit["mixed"]
        if {fmt.name for fmt in given} <= set(mixed):
            return given[0].name
        fitting = [
            (-peak, get_format(name).bits, name)
            for name, peak in self.peak_tflops.items()
            if all(_holds(get_format(name), fmt) for fmt in given)
        ]
        if not fitting:
            raise MachineError(
                f"{self.title} multiplies nothing that holds {a} and {b}; it multiplies "
                f"{', '.join(self.peak_tflops)}"
            )
        return min(fitting)[2]

    def has_matrix_unit(self, fmt: str) -> bool:
        """Whether the matrix unit takes inputs of this format."""
        return get_format(fmt).name in self.matrix_unit["formats"]


def _holds(wide: Format, narrow: Format) -> bool:
    """Whether every finite value of `narrow` is one of `wide`."""
    return (
        narrow.precision <= wide.precision
        and wide.min <= narrow.min
        and narrow.max <= wide.max
        and wide.tiny_exponent <= narrow.tiny_exponent
    )


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
