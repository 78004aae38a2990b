"""SmolLM2-135M in a page of NumPy: an outside oracle, sharing no code with `mpcore`.

The rows of q and k stay in GGUF order, so the rotary embedding turns adjacent pairs (2i, 2i+1).
Only the linear operators follow the chosen arithmetic, a function (name, x, w) -> x @ w.T with
`name` as in "layers.3.mlp.up_proj"; all between them (norms, attention, residual) is float32.

    model = load("SmolLM2-135M-Instruct.Q4_1.gguf")
    tokens = model.tokenize(text)[:200]
    model.nll(tokens, int8("per_token"))        # 199 negative log-likelihoods, in nats
    model.nll(tokens, compose(int8("per_tensor"), {"*.down_proj": bf16}, first_in_bf16=True))
"""

from fnmatch import fnmatchcase

import gguf
import ml_dtypes
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

F32 = np.float32
ROUNDED = {}
PARTS = {  # operator name -> GGUF name
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def to_bf16(a):
    """Round to the nearest bfloat16, ties to even; the result is held in float32."""
    return a.astype(ml_dtypes.bfloat16).astype(F32)


def quantise(a, axis):
    """Symmetric int8 by absolute maximum: (whole numbers, scale), both held in float32."""
    amax = np.abs(a).max(axis=axis, keepdims=True)
    scale = np.where(amax > 0, amax / F32(127), F32(1)).astype(F32)
    return np.clip(np.rint(a / scale), -127, 127), scale


def fp32(name, x, w):
    return x @ w.T


def bf16(name, x, w):
    if name != "lm_head":
        return to_bf16(to_bf16(x) @ to_bf16(w).T)
    # The largest of all, and every arithmetic below leaves it in bf16: it is rounded once.
    if ROUNDED.get("of") is not w:
        ROUNDED.update(of=w, weights=to_bf16(w))
    return to_bf16(to_bf16(x) @ ROUNDED["weights"].T)


def int8(granularity):
    """Activations per "per_tensor" (the whole window) or "per_token"; weights per output channel.

    The output projection is left in bf16.
    """
    axis = {"per_tensor": None, "per_token": 1}[granularity]
    quantised = {}  # name -> weights, so that they are not quantised anew for every window

    def linear(name, x, w):
        if name == "lm_head":
            return bf16(name, x, w)
        if name not in quantised:
            quantised[name] = quantise(w, 1)
        (qx, scale_x), (qw, scale_w) = quantise(x, axis), quantised[name]
        return to_bf16((qx @ qw.T) * scale_x * scale_w.T)

    return linear


def compose(base, overrides=None, first_in_bf16=False):
    """`base`, but with the first matching pattern of `overrides` {pattern: arithmetic} instead.

    With `first_in_bf16`, row 0 is computed in bf16 wherever `base` would apply, and the other
    rows form a tensor of their own: row 0 takes no part in their scale.
    """

    def linear(name, x, w):
        for pattern, arithmetic in (overrides or {}).items():
            if fnmatchcase(name, pattern):
                return arithmetic(name, x, w)
        if not first_in_bf16:
            return base(name, x, w)
        first = bf16(name, x[:1], w)
        return np.concatenate([first, base(name, x[1:], w)]) if len(x) > 1 else first

    return linear


def load(gguf_path):
    """Read and dequantise the model and its tokeniser."""
    return Model(gguf.GGUFReader(gguf_path))


class Model:
    def __init__(self, reader):
        self.w = {
            t.name.removesuffix(".weight"): gguf.quants.dequantize(t.data, t.tensor_type)
            for t in reader.tensors
        }
        value = {key: reader.fields[key].contents() for key in reader.fields}
        self.layers = value["llama.block_count"]
        self.heads = value["llama.attention.head_count"]
        self.kv_heads = value["llama.attention.head_count_kv"]
        self.eps = F32(value["llama.attention.layer_norm_rms_epsilon"])
        self.rope_base = value["llama.rope.freq_base"]
        vocab = {token: i for i, token in enumerate(value["tokenizer.ggml.tokens"])}
        merges = [tuple(pair.split(" ")) for pair in value["tokenizer.ggml.merges"]]
        self.tokeniser = Tokenizer(models.BPE(vocab, merges))
        self.tokeniser.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
        )

    def tokenize(self, text):
        return self.tokeniser.encode(text).ids

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[name]

    def rotate(self, x):  # x: positions, heads, width of a head
        count, _, width = x.shape
        frequency = float(self.rope_base) ** (-np.arange(0, width, 2) / width)
        angle = np.arange(count)[:, None] * frequency
        cos, sin = (f(angle).astype(F32)[:, None] for f in (np.cos, np.sin))
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def attention(self, q, k, v):
        q, k, v = (a.reshape(len(a), -1, q.shape[1] // self.heads) for a in (q, k, v))
        q, k = self.rotate(q), self.rotate(k)
        k, v = (a.repeat(self.heads // self.kv_heads, axis=1) for a in (k, v))
        score = q.swapaxes(0, 1) @ k.transpose(1, 2, 0) / np.sqrt(F32(q.shape[2]))
        score[:, np.triu(np.ones(score.shape[1:], bool), 1)] = -np.inf
        p = np.exp(score - score.max(-1, keepdims=True))
        return (p / p.sum(-1, keepdims=True) @ v.swapaxes(0, 1)).swapaxes(0, 1).reshape(len(q), -1)

    def nll(self, tokens, linear):
        """Negative log-likelihood of tokens[1:], each given all those before it."""
        x = self.w["token_embd"][tokens[:-1]]
        for i in range(self.layers):

            def project(part, a, i=i):
                return linear(f"layers.{i}.{part}", a, self.w[f"blk.{i}.{PARTS[part]}"])

            h = self.norm(x, f"blk.{i}.attn_norm")
            h = self.attention(*(project(f"self_attn.{n}_proj", h) for n in "qkv"))
            x = x + project("self_attn.o_proj", h)
            h = self.norm(x, f"blk.{i}.ffn_norm")
            gate, up = project("mlp.gate_proj", h), project("mlp.up_proj", h)
            x = x + project("mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
        h = self.norm(x, "output_norm")
        logits = linear("lm_head", h, self.w["token_embd"])
        logits = logits - logits.max(-1, keepdims=True)
        chosen = logits[np.arange(len(h)), tokens[1:]]
        return np.log(np.exp(logits).sum(-1, dtype=np.float64)) - chosen
