"""A plain forward pass of the architecture llama in numpy and float32, for models small enough. Weights are decoded by
the package gguf. Keys and values may be rounded to halves, as caches keep them. Shares no code with Sluice.
"""
import gguf
import numpy as np


class Llama:
    def __init__(self, path, cache=np.float32):
        self.cache_type = cache
        reader = gguf.GGUFReader(path)
        value = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
        assert value["general.architecture"] == "llama"
        self.layers = value["llama.block_count"]
        self.heads = value["llama.attention.head_count"]
        self.kv_heads = value["llama.attention.head_count_kv"]
        self.epsilon = value["llama.attention.layer_norm_rms_epsilon"]
        self.width = value["llama.rope.dimension_count"]
        self.frequencies = value["llama.rope.freq_base"] ** (-np.arange(0, self.width, 2) / self.width)
        self.w = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
        self.output = self.w.get("output.weight", self.w["token_embd.weight"])
        self.restart()

    def restart(self):
        self.cache = [None] * self.layers
        self.length = 0

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.epsilon) * self.w[name + ".weight"]

    def rope(self, x, positions):
        """x: [tokens, heads, width]; pairs are neighbours."""
        angle = (positions[:, None] * self.frequencies)[:, None, :]
        cos, sin = np.cos(angle), np.sin(angle)
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape).astype(np.float32)

    def attention(self, i, x, positions):
        def heads(name, count):
            return (x @ self.w[f"blk.{i}.attn_{name}.weight"].T).reshape(len(x), count, -1)

        q = self.rope(heads("q", self.heads), positions)
        k = self.rope(heads("k", self.kv_heads), positions).astype(self.cache_type).astype(np.float32)
        v = heads("v", self.kv_heads).astype(self.cache_type).astype(np.float32)
        if self.cache[i] is not None:
            k, v = np.concatenate([self.cache[i][0], k]), np.concatenate([self.cache[i][1], v])
        self.cache[i] = k, v
        q = q.reshape(len(x), self.kv_heads, self.heads // self.kv_heads, -1)
        scores = np.einsum("tkgd,skd->kgts", q, k) / np.sqrt(np.float32(q.shape[-1]))
        scores = np.where(np.arange(len(k)) <= positions[:, None], scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return np.einsum("kgts,skd->tkgd", scores, v).reshape(len(x), -1) @ self.w[f"blk.{i}.attn_output.weight"].T

    def feed_forward(self, i, x):
        gate, up, down = (self.w[f"blk.{i}.ffn_{name}.weight"] for name in ("gate", "up", "down"))
        g = x @ gate.T
        return (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T

    def run(self, tokens):
        """Logits [tokens, vocabulary] of tokens that follow those run before."""
        positions = np.arange(self.length, self.length + len(tokens))
        self.length += len(tokens)
        x = self.w["token_embd.weight"][tokens]
        for i in range(self.layers):
            x = x + self.attention(i, self.norm(x, f"blk.{i}.attn_norm"), positions)
            x = x + self.feed_forward(i, self.norm(x, f"blk.{i}.ffn_norm"))
        return self.norm(x, "output_norm") @ self.output.T


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def divergence(expected, actual):
    """Mean KL divergence of rows of logits, in nats."""
    p, q = log_softmax(expected), log_softmax(actual)
    return float((np.exp(p) * (p - q)).sum(-1).mean())
