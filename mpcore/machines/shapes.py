"""Shape sets: the linear layers of a model that modelled time is for."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

from mpcore.errors import InputError
from mpcore.paths import DATA


class ShapeError(InputError):
    """A shape set that data/shapes does not hold."""


@dataclass(frozen=True)
class ShapeSet:
    """Linear operators of one model, with the rows of a prefill and of a decode step."""

    name: str
    title: str
    source: str
    layers: int
    prefill_rows: int
    decode_rows: int
    operators: dict[str, list[int]]  # kind -> [out, in]

    def rows(self, step_kind: str) -> int:
        """Rows of one step."""
        return {"prefill": self.prefill_rows, "decode": self.decode_rows}[step_kind]

    def shape(self, operator: str) -> tuple[int, int]:
        """(out, in) of an operator such as `layers.3.mlp.down_proj` or `lm_head`."""
        out, width = self.operators[operator.split(".", 2)[-1]]
        return out, width


def list_shapes() -> list[str]:
    """Names of the shape sets."""
    return sorted(file.stem for file in (DATA / "shapes").glob("*.toml"))


def get_shapes(name: str) -> ShapeSet:
    """A shape set by name; raises ShapeError naming the known ones."""
    if name not in list_shapes():
        raise ShapeError(f"shape set {name!r} is unknown; known: {', '.join(list_shapes())}")
    return ShapeSet(**tomllib.loads((DATA / "shapes" / f"{name}.toml").read_text("utf-8")))
