"""From a Llama GGUF to a model's folder: flat float32 weights, where they lie, and a tokeniser.

Two conventions change on the way. Tensors get their Hugging Face names (without `model.` and
`.weight`). And GGUF stores the rows of q and k so that rotary embedding turns adjacent pairs; here
they are put back into the half-split order, in which row i turns with row i + head_width / 2.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from mpcore.paths import models_folder
from mpcore.progress import Progress, report
from mpcore.records import digest_of
from mpcore.workloads.checkpoint import (
    GGUF,
    INDEX,
    LAYOUT,
    TOKENIZER,
    WEIGHTS,
    CheckpointError,
    quick_digest,
    sha256_of,
)
from mpcore.workloads.language_model import ModelConfig

_WHOLE_MODEL = {"token_embd": "embed_tokens", "output_norm": "norm"}
_IN_A_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ELEMENTS_AT_ONCE = 1 << 22  # 16 MiB of float32, and about three times that while it is computed
_NORMAL_TOKEN = 1  # token_type of a token that is plain text


def convert(gguf: Path, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Convert a Llama GGUF with tied embeddings into a model's folder, all or nothing.

    Args:
        gguf: The file; every tensor type that the `gguf` package can dequantise will do.
        folder: Where the model goes (default: `smollm2-135m` among the models). One that exists is
            replaced once the new one is complete.
        progress: Hears (text, bytes done, bytes in all).

    Raises:
        CheckpointError: not a Llama GGUF, or not enough room on the disk.
    """
    from gguf import GGUFReader

    tell = progress or report
    gguf = Path(gguf)
    folder = Path(folder) if folder else models_folder() / "smollm2-135m"
    tell("reading the GGUF's index", 0, 1)
    try:
        reader = GGUFReader(gguf)
        values = dict(reader.fields)
        config = _config(values)
        names = {tensor.name: hugging_face_name(tensor.name) for tensor in reader.tensors}
    except (ValueError, KeyError, IndexError, UnicodeDecodeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{gguf}: not a Llama GGUF ({type(error).__name__}: {error})"
        ) from None
    total = sum(4 * int(np.prod(tensor.shape)) for tensor in reader.tensors)
    require_space(folder.parent, total + (64 << 20), f"the converted weights of {folder.name}")

    part = folder.with_name(f".{folder.name}.converted.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        order = sorted(reader.tensors, key=lambda tensor: _place(names[tensor.name]))
        tensors, weights_sha256 = _write_weights(part / WEIGHTS, order, names, config, tell, total)
        tokenizer = build_tokenizer(values).to_str()
        (part / TOKENIZER).write_text(tokenizer, encoding="utf-8", newline="")
        index = {
            "layout": LAYOUT,
            "gguf_sha256": sha256_of(gguf),
            "config": vars(config),
            "size": total,
            "weights_sha256": weights_sha256,
            "quick_digest": quick_digest(part / WEIGHTS),
            "tokenizer_sha256": hashlib.sha256(tokenizer.encode()).hexdigest(),
            "tensors": tensors,
        }
        index["digest"] = digest_of(index)
        (part / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
        shutil.copyfile(gguf, part / GGUF)  # outside readers check the conversion against it
        _put_in_place(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise CheckpointError unless `needed` bytes are free where `folder` is or will be."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise CheckpointError(
            f"{folder}: {free / 1e6:,.0f} MB free where {what} need {needed / 1e6:,.0f} MB; make "
            "room, or name another folder in the environment variable MPCORE_MODELS"
        )


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `layers.3.self_attn.q_proj`; raises CheckpointError if unknown."""
    stem = name.removesuffix(".weight")
    if stem in _WHOLE_MODEL:
        return _WHOLE_MODEL[stem]
    block, _, rest = stem.partition(".")
    layer, _, kind = rest.partition(".")
    if block != "blk" or not layer.isdigit() or kind not in _IN_A_LAYER:
        raise CheckpointError(
            f"tensor {name!r} has no place in a Llama decoder with tied embeddings"
        )
    return f"layers.{layer}.{_IN_A_LAYER[kind]}"


def half_split_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k [heads · head width, in] from adjacent-pair to half-split rotary order."""
    rows, width = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(rows, width)


def build_tokenizer(values):
    """The GGUF's byte-level BPE (pre-tokeniser "smollm") as a `tokenizers.Tokenizer`.

    Digits are split one by one, then GPT-2's pattern applies; no prefix space, no BOS.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = values["tokenizer.ggml.model"].contents(), values["tokenizer.ggml.pre"].contents()
    if kind != ("gpt2", "smollm"):
        raise CheckpointError(f"tokeniser {kind} is not supported; only ('gpt2', 'smollm') is")
    tokens = values["tokenizer.ggml.tokens"].contents()
    merges = [tuple(pair.split(" ")) for pair in values["tokenizer.ggml.merges"].contents()]
    types = values["tokenizer.ggml.token_type"].contents()
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind != _NORMAL_TOKEN
        ]
    )
    return tokenizer


def _config(values) -> ModelConfig:
    def of(key: str) -> Any:
        return values[f"llama.{key}"].contents()

    if values["general.architecture"].contents() != "llama":
        raise CheckpointError(
            f"architecture {values['general.architecture'].contents()!r} is not supported; only "
            "'llama' is"
        )
    # GGUF holds epsilon in float32, 9.999999747e-06; the shortest text that reads back as that
    # float32 is the model's own 1e-05.
    return ModelConfig(
        layers=int(of("block_count")),
        width=int(of("embedding_length")),
        heads=int(of("attention.head_count")),
        key_value_heads=int(of("attention.head_count_kv")),
        ffn_width=int(of("feed_forward_length")),
        vocabulary=len(values["tokenizer.ggml.tokens"].data),
        rope_base=float(of("rope.freq_base")),
        norm_epsilon=float(str(np.float32(of("attention.layer_norm_rms_epsilon")))),
    )


def _place(name: str) -> tuple[int, int, str]:
    """Sort key that follows the model: embeddings, layer after layer, final norm."""
    if not name.startswith("layers."):
        return (0 if name == "embed_tokens" else 2, 0, name)
    _, layer, kind = name.split(".", 2)
    return (1, int(layer), f"{list(_IN_A_LAYER.values()).index(kind):02d}")


def _write_weights(file, order, names, config, tell, total):
    """Append every tensor to `file`; returns where each lies and the file's SHA-256."""
    tensors, digest, offset = {}, hashlib.sha256(), 0
    heads = {"attn_q": config.heads, "attn_k": config.key_value_heads}
    with open(file, "wb") as out:
        for tensor in order:
            shape = [int(n) for n in reversed(tensor.shape)]
            tensors[names[tensor.name]] = {"shape": shape, "offset": offset}
            permuted = heads.get(tensor.name.split(".")[-2])
            for rows in _dequantised(tensor, shape, whole=permuted is not None):
                rows = half_split_rows(rows, permuted) if permuted else rows
                block = np.ascontiguousarray(rows, dtype="<f4").data.cast("B")
                out.write(block)
                digest.update(block)
                offset += len(block)
                tell("converting the weights to float32", offset, total)
    return tensors, digest.hexdigest()


def _dequantised(tensor, shape, whole):
    """Float32 values of a tensor, in runs of rows that keep the memory small."""
    from gguf import dequantize

    if len(shape) == 1:
        yield dequantize(tensor.data, tensor.tensor_type)
        return
    step = shape[0] if whole else max(_ELEMENTS_AT_ONCE // shape[1], 1)
    for start in range(0, shape[0], step):
        yield dequantize(tensor.data[start : start + step], tensor.tensor_type)


def _put_in_place(part: Path, folder: Path) -> None:
    """Rename the finished folder; an older one steps aside first."""
    aside = folder.with_name(f".{folder.name}.old.part")
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        os.replace(folder, aside)
    os.replace(part, folder)
    shutil.rmtree(aside, ignore_errors=True)
