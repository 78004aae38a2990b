"""A Llama-architecture decoder in NumPy whose every linear layer goes through a pluggable matmul.

Everything outside the linear layers (norms, rotary embedding, attention products, softmax, gating,
residual sums) is fp32, so that a run differs from another only by what its matmul does.

Windows are not padded. A batch is one [rows, width] array with the windows stacked; a `Step` says
which rows belong together, so that in prefill a scale "per tensor" is per window (one request is
one tensor), whichever windows travel together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

LINEAR_KINDS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
"""The linear layers of one decoder layer in execution order (Hugging Face names)."""


SHARED_INPUT = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("mlp.gate_proj", "mlp.up_proj"),
)
"""Linear layers that read the same activations."""


@dataclass(frozen=True)
class Step:
    """One inference step over a batch: which rows are which."""

    kind: Literal["prefill", "decode"]
    windows: np.ndarray  # [windows + 1] row offsets: rows of a window attend to each other
    tensors: np.ndarray  # [tensors + 1] row offsets: rows that a scale "per tensor" covers
    first_rows: np.ndarray  # rows that hold position 0 of their window

    @classmethod
    def prefill(cls, lengths: Sequence[int]) -> Step:
        """Whole windows from position 0 on; each is a request, and so a tensor, of its own."""
        windows = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls("prefill", windows, windows, windows[:-1])

    @classmethod
    def decode(cls, windows: int) -> Step:
        """One next token of each window; the batch is one tensor, as in a serving engine."""
        return cls(
            "decode",
            np.arange(windows + 1),
            np.array([0, windows]),
            np.zeros(0, dtype=np.int64),
        )


Linear = Callable[[str, np.ndarray, Step], np.ndarray]
"""(operator name, x [rows, in] float32, step) -> y [rows, out] float32."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a Llama-architecture decoder (widths in elements)."""

    layers: int
    width: int
    heads: int
    key_value_heads: int
    ffn_width: int
    vocabulary: int
    rope_base: float
    norm_epsilon: float

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def operators(self) -> list[str]:
        """Every linear operator, in execution order, `lm_head` last."""
        return [f"layers.{i}.{kind}" for i in range(self.layers) for kind in LINEAR_KINDS] + [
            "lm_head"
        ]

    def operator_shape(self, operator: str) -> tuple[int, int]:
        """(out, in) widths of a linear operator."""
        key_value = self.key_value_heads * self.head_width
        shapes = {
            "q_proj": (self.width, self.width),
            "k_proj": (key_value, self.width),
            "v_proj": (key_value, self.width),
            "o_proj": (self.width, self.width),
            "gate_proj": (self.ffn_width, self.width),
            "up_proj": (self.ffn_width, self.width),
            "down_proj": (self.width, self.ffn_width),
            "lm_head": (self.vocabulary, self.width),
        }
        return shapes[operator.rsplit(".", 1)[-1]]


def layer_of(operator: str) -> int | None:
    """The decoder layer an operator sits in; None for `lm_head`."""
    return int(operator.split(".")[1]) if operator.startswith("layers.") else None


class KeyValueCache:
    """Keys and values of the tokens seen so far, one growing [tokens, heads, width] a window."""

    def __init__(self, layers: int):
        self.keys: list[list[np.ndarray]] = [[] for _ in range(layers)]
        self.values: list[list[np.ndarray]] = [[] for _ in range(layers)]
        self.lengths = np.zeros(0, dtype=np.int64)


class LanguageModel:
    """The decoder. `weights` maps operator and norm names to float32 arrays (memory-mapped)."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, np.ndarray]):
        self.config = config
        self.weights = weights

    def embed(self, tokens: np.ndarray) -> np.ndarray:
        """Token ids [rows] -> residual stream [rows, width]."""
        return self.weights["embed_tokens"][tokens].astype(np.float32)

    def layers(
        self,
        residual: np.ndarray,
        step: Step,
        linear: Linear,
        first_layer: int = 0,
        cache: KeyValueCache | None = None,
    ) -> Iterator[np.ndarray]:
        """Run the decoder layers from `first_layer` on; yields the residual stream after each.

        With a `cache` the rows are the next tokens of their windows and attend to what is in it.
        The yielded arrays are not changed afterwards.
        """
        offsets = np.zeros(len(step.windows) - 1, dtype=np.int64)
        if cache is not None and len(cache.lengths):
            offsets = cache.lengths
        lengths = np.diff(step.windows)
        positions = np.concatenate(
            [np.arange(n) + o for n, o in zip(lengths, offsets, strict=True)]
        )
        rotary = self._rotary(positions)
        for index in range(first_layer, self.config.layers):
            residual = self._layer(index, residual, step, rotary, linear, cache)
            yield residual
        if cache is not None:
            cache.lengths = offsets + lengths

    def final(
        self,
        residual: np.ndarray,
        step: Step,
        linear: Linear,
        first_layer: int = 0,
        cache: KeyValueCache | None = None,
    ) -> np.ndarray:
        """The residual stream after the last layer; `residual` itself where no layer is left."""
        states = self.layers(residual, step, linear, first_layer, cache)
        return next(iter(deque(states, maxlen=1)), residual)

    def logits(self, residual: np.ndarray, step: Step, linear: Linear) -> np.ndarray:
        """Final norm and output projection: [rows, width] -> [rows, vocabulary]."""
        normed = self._norm(residual, "norm")
        return linear("lm_head", normed, step)

    def _layer(self, index, residual, step, rotary, linear, cache):
        name = f"layers.{index}."
        normed = self._norm(residual, name + "input_layernorm")
        query = linear(name + "self_attn.q_proj", normed, step)
        key = linear(name + "self_attn.k_proj", normed, step)
        value = linear(name + "self_attn.v_proj", normed, step)
        mixed = self._attention(index, query, key, value, step, rotary, cache)
        residual = residual + linear(name + "self_attn.o_proj", mixed, step)
        normed = self._norm(residual, name + "post_attention_layernorm")
        gate = linear(name + "mlp.gate_proj", normed, step)
        up = linear(name + "mlp.up_proj", normed, step)
        return residual + linear(name + "mlp.down_proj", _silu(gate) * up, step)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean_square = np.einsum("ij,ij->i", x, x) / np.float32(x.shape[1])
        scale = 1 / np.sqrt(mean_square + np.float32(self.config.norm_epsilon))
        return x * scale[:, None] * self.weights[name]

    def _rotary(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin [rows, 1, head_width / 2]; angles in float64: positions reach thousands."""
        half = self.config.head_width // 2
        frequency = self.config.rope_base ** (-np.arange(half) / half)
        angle = positions[:, None] * frequency
        return (
            np.cos(angle).astype(np.float32)[:, None, :],
            np.sin(angle).astype(np.float32)[:, None, :],
        )

    def _attention(self, index, query, key, value, step, rotary, cache):
        config = self.config
        query = _rotate(query.reshape(-1, config.heads, config.head_width), rotary)
        key = _rotate(key.reshape(-1, config.key_value_heads, config.head_width), rotary)
        value = value.reshape(-1, config.key_value_heads, config.head_width)
        group = config.heads // config.key_value_heads
        out = np.empty_like(query)
        for window, (start, stop) in enumerate(pairwise(step.windows)):
            keys, values = key[start:stop], value[start:stop]
            if cache is not None:
                if len(cache.keys[index]) > window:
                    keys = np.concatenate([cache.keys[index][window], keys])
                    values = np.concatenate([cache.values[index][window], values])
                    cache.keys[index][window] = keys
                    cache.values[index][window] = values
                else:
                    cache.keys[index].append(keys)
                    cache.values[index].append(values)
            rows, seen = stop - start, len(keys)
            # [key/value heads, group · rows, head width]: heads that share keys share one GEMM.
            q = query[start:stop].reshape(rows, config.key_value_heads, group, -1)
            q = q.transpose(1, 2, 0, 3).reshape(config.key_value_heads, group * rows, -1)
            scores = q @ keys.transpose(1, 2, 0)
            scores *= np.float32(config.head_width**-0.5)
            scores = scores.reshape(config.key_value_heads, group, rows, seen)
            if rows > 1:
                scores += _causal_mask(rows, seen)
            weights = _softmax_in_place(scores).reshape(config.key_value_heads, group * rows, seen)
            mixed = weights @ values.transpose(1, 0, 2)
            mixed = mixed.reshape(config.key_value_heads, group, rows, -1).transpose(2, 0, 1, 3)
            out[start:stop] = mixed.reshape(rows, config.heads, -1)
        return out.reshape(len(out), config.width)


def _rotate(x: np.ndarray, rotary: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Rotary embedding over the two halves of each head (weights are stored for that order)."""
    cos, sin = rotary
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _causal_mask(rows: int, seen: int) -> np.ndarray:
    """0 where a row may look, −inf elsewhere; the last `rows` of `seen` tokens are asking."""
    allowed = np.arange(seen)[None, :] <= np.arange(rows)[:, None] + (seen - rows)
    return np.where(allowed, np.float32(0), np.float32(-np.inf))


def _softmax_in_place(scores: np.ndarray) -> np.ndarray:
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _silu(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # exp(−x) of a very negative x is inf, and x / inf is 0
        return x / (1 + np.exp(-x))
