"""A converted model on disk: memory-mapped float32 weights, tokeniser, shape and identity.

A model's folder holds `weights.f32` (every tensor, one after the other, little-endian float32),
`weights.json` (where each tensor lies, and what the files were when they were made),
`tokenizer.json` and the GGUF that they come from. `mpcore.workloads.fetch` makes it.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.errors import InputError
from mpcore.paths import DATA, models_folder
from mpcore.records import ModelIdentity, digest_of
from mpcore.workloads.language_model import ModelConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WEIGHTS, INDEX, TOKENIZER = "weights.f32", "weights.json", "tokenizer.json"
GGUF = "model.gguf"  # what they were made from
LAYOUT = "mpcore.weights/2"

_BLOCK = 4096
_BLOCKS = 512


class CheckpointError(InputError):
    """A model that is absent, damaged or not the one it should be: one line, and what to do."""


class ModelMissing(CheckpointError):
    """There is no model, or one that another version made: fetching it is all that is needed."""


@dataclass(frozen=True)
class Checkpoint:
    """A model that is ready to run. `weights` are read-only views into one memory map."""

    name: str
    config: ModelConfig
    weights: Mapping[str, np.ndarray]
    tokenizer: Tokenizer
    identity: ModelIdentity

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a text, int64, without BOS; raises CheckpointError where text would be lost.

        The vocabulary lacks six control characters (U+0004, U+0006, U+0013, U+0014, U+0016,
        U+001D) and the bytes of unassigned planes; the tokeniser would drop them silently.
        """
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        if self.decode(ids) != text:
            raise CheckpointError(
                f"{self.name}: the text holds characters that the tokeniser has no tokens for "
                "(control characters, or surrogates); remove them"
            )
        return np.array(ids, dtype=np.int64)

    def decode(self, ids) -> str:
        """The text of token ids, special tokens included."""
        return self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)


def model_facts(name: str) -> dict[str, Any]:
    """The row of `data/checkpoints.toml`; raises CheckpointError naming the known models."""
    table = tomllib.loads((DATA / "checkpoints.toml").read_text(encoding="utf-8"))
    if name not in table:
        raise CheckpointError(f"model {name!r} is unknown; known models: {', '.join(table)}")
    return table[name]


def open_checkpoint(name: str = "smollm2-135m") -> Checkpoint:
    """Open a fetched model in a third of a second: sizes and sampled blocks are checked.

    Raises:
        CheckpointError: the model is not there, is damaged, or was made from other bytes than
            `data/checkpoints.toml` names. `mpcore fetch NAME --verify` checks every byte.
    """
    facts = model_facts(name)
    folder = models_folder() / name
    index = read_index(name, folder, facts)
    check_quickly(name, folder, index)
    from tokenizers import Tokenizer

    flat = np.memmap(folder / WEIGHTS, dtype="<f4", mode="r")
    weights = {}
    for tensor, place in index["tensors"].items():
        start, count = place["offset"] // 4, int(np.prod(place["shape"]))
        weights[tensor] = flat[start : start + count].reshape(place["shape"])
    return Checkpoint(
        name=name,
        config=ModelConfig(**index["config"]),
        weights=MappingProxyType(weights),
        tokenizer=Tokenizer.from_file(str(folder / TOKENIZER)),
        identity=ModelIdentity(
            name=facts["title"],
            source=facts["source"],
            sha256=index["gguf_sha256"],
            licence=facts["licence"],
            oracle=facts["oracle"],
        ),
    )


def read_index(name: str, folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """`weights.json` of a model's folder; raises ModelMissing, or CheckpointError if damaged."""
    if not folder.exists():
        raise ModelMissing(f"model {name} is not in {folder.parent}; run: mpcore fetch {name}")
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        layout, made_from = index["layout"], index["gguf_sha256"]
        digest = index.pop("digest", None)  # models of before 0.1 lack it
        sound = digest in (None, digest_of(index))
        [index[key] for key in ("config", "tensors", "size", "quick_digest", "tokenizer_sha256")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{folder / INDEX}: damaged ({type(error).__name__}); run: mpcore fetch {name}"
        ) from None
    if layout != LAYOUT or made_from != facts["gguf"]["sha256"]:
        raise ModelMissing(
            f"{folder / INDEX}: made from another file or by another version (found layout "
            f"{layout!r} from {str(made_from)[:12]}…, expected {LAYOUT!r} from "
            f"{facts['gguf']['sha256'][:12]}…); run: mpcore fetch {name}"
        )
    if not sound:
        raise CheckpointError(
            f"{folder / INDEX}: damaged, its digest does not fit; run: mpcore fetch {name}"
        )
    return index


def check_quickly(name: str, folder: Path, index: dict[str, Any]) -> None:
    """Sizes, sampled blocks of the weights, and the tokeniser; raises CheckpointError."""
    file, expected = folder / WEIGHTS, index["size"]
    try:
        found = file.stat().st_size
        tokenizer = hashlib.sha256((folder / TOKENIZER).read_bytes()).hexdigest()
        if found != expected:
            raise CheckpointError(
                f"{file}: truncated or overlong, {found:,} bytes where {expected:,} are expected; "
                f"run: mpcore fetch {name}"
            )
        digest = quick_digest(file)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename}: cannot be read ({error.strerror}); run: mpcore fetch {name}"
        ) from None
    for damaged, value, key in (
        (file, digest, "quick_digest"),
        (folder / TOKENIZER, tokenizer, "tokenizer_sha256"),
    ):
        if value != index[key]:
            raise CheckpointError(
                f"{damaged}: damaged, digest {value[:12]}… where {index[key][:12]}… is expected; "
                f"run: mpcore fetch {name}"
            )


def quick_digest(file: Path) -> str:
    """SHA-256 over the size and up to 512 evenly spaced blocks of 4 KiB, first and last included.

    Hashing every byte takes seconds; this takes milliseconds and finds truncation, holes and files
    that were swapped, but not a single flipped bit.
    """
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    last = max(size - _BLOCK, 0)
    with open(file, "rb") as stream:
        for start in sorted({last * i // (_BLOCKS - 1) for i in range(_BLOCKS)}):
            stream.seek(start)
            digest.update(stream.read(_BLOCK))
    return digest.hexdigest()


def sha256_of(file: Path, tell=None) -> str:
    """SHA-256 of a file in hexadecimal; `tell(done, total)` hears of the bytes read."""
    digest, total, done = hashlib.sha256(), file.stat().st_size, 0
    with open(file, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
            done += len(block)
            if tell:
                tell(done, total)
    return digest.hexdigest()
