"""Small tensors captured from the real model, which come with the workbook: no download is needed.

`data/tensors/captured.toml` says of each where it is from; `capture` takes them anew from the
model, which is how they were made and how the tests check them.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mpcore.errors import InputError, quoted
from mpcore.paths import DATA

FOLDER = DATA / "tensors"


class CapturedError(InputError):
    """A captured tensor that is unknown or missing."""


@dataclass(frozen=True)
class CapturedTensor:
    """A piece of a real tensor."""

    name: str
    what: str  # for the label on a picture: what it is and where it is from
    values: np.ndarray  # float32, read-only


def captured_names() -> list[str]:
    """The tensors that come with the workbook."""
    return list(_table())


@lru_cache(maxsize=16)
def captured(name: str) -> CapturedTensor:
    """The captured tensor of that name; raises CapturedError naming those there are."""
    if name not in _table():
        raise CapturedError(
            f"no captured tensor is called {quoted(name)}; there are {captured_names()}"
        )
    values = np.load(FOLDER / f"{name}.npy", allow_pickle=False)
    values.flags.writeable = False
    return CapturedTensor(name, _table()[name]["what"], values)


@lru_cache(maxsize=1)
def _table() -> dict[str, dict]:
    return tomllib.loads((FOLDER / "captured.toml").read_text(encoding="utf-8"))


def capture(name: str) -> np.ndarray:
    """The tensor, taken from the model itself (which must have been fetched): float32."""
    from mpcore.workloads.checkpoint import open_checkpoint
    from mpcore.workloads.language_model import LanguageModel, Step
    from mpcore.workloads.passages import read_slice

    entry = _table()[name]
    checkpoint = open_checkpoint(entry["model"])
    if entry["side"] == "weight":
        rows = checkpoint.weights[entry["operator"]][entry["rows"]]
        return np.array(rows, dtype=np.float32)
    text = read_slice(entry["slice"])[entry["passage"]]
    tokens = checkpoint.encode(text)[: entry["tokens"]]
    model = LanguageModel(checkpoint.config, checkpoint.weights)
    seen = {}

    def linear(operator, x, _):
        if operator == entry["operator"]:
            seen["x"] = x[entry["rows"]].astype(np.float32)
        return x @ model.weights[operator].T

    step = Step.prefill([len(tokens)])
    for _ in model.layers(model.embed(tokens), step, linear):
        if seen:
            break
    return seen["x"]
