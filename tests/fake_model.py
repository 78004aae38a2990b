"""A model's folder of a few bytes with the real model's name: enough for its checks."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from mpcore.records import digest_of
from mpcore.workloads.checkpoint import INDEX, LAYOUT, TOKENIZER, WEIGHTS, model_facts, quick_digest

NAME = "smollm2-135m"


def write_fake_model(models: Path) -> Path:
    """Write it below `models` and return its folder; the quick checks accept it."""
    folder = models / NAME
    folder.mkdir(parents=True)
    weights = np.arange(8192, dtype="<f4")
    (folder / WEIGHTS).write_bytes(weights.tobytes())
    tokenizer = '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'
    (folder / TOKENIZER).write_text(tokenizer, encoding="utf-8")
    index = {
        "layout": LAYOUT,
        "gguf_sha256": model_facts(NAME)["gguf"]["sha256"],
        "config": {
            "layers": 1,
            "width": 8,
            "heads": 2,
            "key_value_heads": 1,
            "ffn_width": 8,
            "vocabulary": 1024,
            "rope_base": 1e5,
            "norm_epsilon": 1e-5,
        },
        "size": weights.nbytes,
        "quick_digest": quick_digest(folder / WEIGHTS),
        "tokenizer_sha256": hashlib.sha256(tokenizer.encode()).hexdigest(),
        "tensors": {"embed_tokens": {"shape": [1024, 8], "offset": 0}},
    }
    index["digest"] = digest_of(index)
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
    return folder
