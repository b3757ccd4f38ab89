#!/usr/bin/env python3
"""What eight bits cost: the simulated runs behind the limits of a fast backend (README.md), in numpy alone.

    limits.py MODEL.gguf STEM    a model of latent attention, and the golden logits STEM.json and STEM.logits

A forward pass in float32, written without Sluice's code, four times: as it is (it must give the golden logits), with the
activations of products in eight bits, with the cache in eight bits, and with both. Eight bits: every 32 numbers are whole
multiples of their largest magnitude / divisor; of a cache's row the turned key stays binary16. 16 runs, divisors 127 to
112, and 1.3 times the worst of them: of the mean KL divergence over the best 90% of rows.
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "quant"))
import dequantize  # noqa: E402

KINDS = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
         8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
         14: ("Q6_K", 256, 210), 20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136), 30: ("BF16", 1, 2), 39: ("MXFP4", 32, 17)}
SCALARS = dict(zip(range(13), ("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?", None, None, "<Q", "<q", "<d")))


def read_gguf(path):
    """The keys that are single values, and the tensors in float32."""
    data, at = Path(path).read_bytes(), 8

    def take(form):
        nonlocal at
        at += struct.calcsize(form)
        return struct.unpack_from(form, data, at - struct.calcsize(form))[0]

    def value(kind):
        nonlocal at
        if kind == 8:
            size = take("<Q")
            at += size
            return data[at - size:at].decode("utf-8", "replace")
        if kind == 9:
            kind, count = take("<I"), take("<Q")
            for _ in range(count):
                value(kind)
            return None
        return take(SCALARS[kind])

    tensors, keys = take("<Q"), take("<Q")
    facts = {}
    for _ in range(keys):
        name = value(8)
        facts[name.removeprefix("deepseek2.")] = value(take("<I"))
    heads = []
    for _ in range(tensors):
        name = value(8)
        shape = [take("<Q") for _ in range(take("<I"))][::-1]
        heads.append((name, shape, *KINDS[take("<I")], take("<Q")))
    align = facts.get("general.alignment", 32)
    base = (at + align - 1) // align * align
    weights = {}
    for name, shape, kind, block, size, offset in heads:
        raw = np.frombuffer(data, np.uint8, int(np.prod(shape)) // block * size, base + offset)
        weights[name] = dequantize.decode(kind, raw).astype(np.float32).reshape(shape)
    return facts, weights


def in_runs(x, divisor):
    runs = x.reshape(*x.shape[:-1], -1, 32)
    step = np.maximum(np.abs(runs).max(-1, keepdims=True) / np.float32(divisor), np.float32(1e-30))
    return (np.round(runs / step) * step).reshape(x.shape)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


class Model:
    def __init__(self, path):
        self.facts, self.w = read_gguf(path)
        f = self.facts
        self.rank, self.rope = f["attention.kv_lora_rank"], f["rope.dimension_count"]
        self.heads, self.eps = f["attention.head_count"], np.float32(f["attention.layer_norm_rms_epsilon"])
        self.key = f.get("attention.key_length_mla", f["attention.key_length"])
        self.nope = self.key - self.rope
        self.angles, self.scale = self.rotation()

    def rotation(self):
        """Radians a position of each pair, and the scale of the scores (YaRN: Peng et al. 2023)."""
        f, scale = self.facts, self.key ** -0.5
        pairs = np.arange(self.rope // 2)
        base = f.get("rope.freq_base", 10000.0)
        angles = base ** (-2.0 * pairs / self.rope)
        if f.get("rope.scaling.type") != "yarn":
            return angles, scale
        factor, original = f["rope.scaling.factor"], f["rope.scaling.original_context_length"]

        def pair_of(turns):
            return self.rope * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base))

        fast, slow = (f.get(f"rope.scaling.yarn_beta_{n}", turns) for n, turns in (("fast", 32.0), ("slow", 1.0)))
        low, high = max(np.floor(pair_of(fast)), 0), min(np.ceil(pair_of(slow)), self.rope - 1)
        stretched = np.clip((pairs - low) / max(high - low, 0.001), 0, 1)
        m = 1 + f["rope.scaling.yarn_log_multiplier"] * np.log(factor)
        return angles * (1 - stretched) + angles / factor * stretched, scale * m * m

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[name]

    def turn(self, x, positions):
        angle = positions[:, None] * self.angles
        shape = (-1,) + (1,) * (x.ndim - 2) + (self.rope // 2,)
        cosine, sine = (g(angle).astype(np.float32).reshape(shape) for g in (np.cos, np.sin))
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack([a * cosine - b * sine, a * sine + b * cosine], -1).reshape(x.shape)

    def product(self, x, weight):
        return (in_runs(x, self.activations) if self.activations else x) @ weight.T

    def attention(self, b, x, positions):
        w, n = self.w, len(positions)
        h = self.norm(x, b + "attn_norm.weight")
        if b + "attn_q_a.weight" in w:
            low = self.norm(self.product(h, w[b + "attn_q_a.weight"]), b + "attn_q_a_norm.weight")
            q = self.product(low, w[b + "attn_q_b.weight"])
        else:
            q = self.product(h, w[b + "attn_q.weight"])
        q = q.reshape(n, self.heads, self.key)
        kv = self.product(h, w[b + "attn_kv_a_mqa.weight"])
        latent = self.norm(kv[:, :self.rank], b + "attn_kv_a_norm.weight")
        turned = self.turn(kv[:, self.rank:], positions)
        if self.cache:
            latent, turned = in_runs(latent, self.cache), turned.astype(np.float16).astype(np.float32)
        if b + "attn_k_b.weight" in w:
            k_b, v_b = w[b + "attn_k_b.weight"], w[b + "attn_v_b.weight"]
        else:
            both = w[b + "attn_kv_b.weight"].reshape(self.heads, -1, self.rank)
            k_b, v_b = both[:, :self.nope].transpose(0, 2, 1), both[:, self.nope:]
        keys = np.concatenate([latent, turned], 1)
        out = []
        for head in range(self.heads):
            query = np.concatenate([self.product(q[:, head, :self.nope], k_b[head]),
                                    self.turn(q[:, head, self.nope:], positions)], 1)
            scores = query @ keys.T * np.float32(self.scale)
            weights = softmax(np.where(positions[None] > positions[:, None], -np.inf, scores))
            out.append(self.product(weights @ latent, v_b[head]))
        return x + self.product(np.concatenate(out, 1), w[b + "attn_output.weight"])

    def gated(self, x, gate, up, down):
        g, u = self.product(x, gate), self.product(x, up)
        with np.errstate(over="ignore"):  # the infinity that it makes has the right inverse
            return self.product(g / (1 + np.exp(-g)) * u, down)

    def choice(self, b, h):
        """Experts of each row and their weights."""
        f, logits = self.facts, h @ self.w[b + "ffn_gate_inp.weight"].T
        sigmoid = f.get("expert_gating_func", 1) == 2
        score = 1 / (1 + np.exp(-logits)) if sigmoid else softmax(logits)
        choose = score + self.w.get(b + "exp_probs_b.bias", np.float32(0))
        groups, used = f.get("expert_group_count", 1), f["expert_used_count"]
        if groups > 1:
            by_group = choose.reshape(len(h), groups, -1)
            best = np.sort(by_group, -1)[..., -2:].sum(-1) if sigmoid else by_group.max(-1)
            kept = np.argsort(-best, 1)[:, :f["expert_group_used_count"]]
            mask = np.zeros_like(best, bool)
            np.put_along_axis(mask, kept, True, 1)
            choose = np.where(mask[..., None], by_group, -np.inf if sigmoid else 0).reshape(len(h), -1)
        ids = np.argsort(-choose, 1, kind="stable")[:, :used]
        weights = np.take_along_axis(score, ids, 1)
        if f.get("expert_weights_norm", False):
            weights = weights / weights.sum(1, keepdims=True)
        return ids, weights * np.float32(f.get("expert_weights_scale", 1.0))

    def feed_forward(self, b, x):
        w, h = self.w, self.norm(x, b + "ffn_norm.weight")
        if b + "ffn_gate_inp.weight" not in w:
            return x + self.gated(h, *(w[b + f"ffn_{n}.weight"] for n in ("gate", "up", "down")))
        if b + "ffn_gate_up_exps.weight" in w:
            gate, up = np.split(w[b + "ffn_gate_up_exps.weight"], 2, 1)
        else:
            gate, up = w[b + "ffn_gate_exps.weight"], w[b + "ffn_up_exps.weight"]
        ids, weights = self.choice(b, h)
        out = x + self.gated(h, *(w[b + f"ffn_{n}_shexp.weight"] for n in ("gate", "up", "down")))
        for expert in range(len(gate)):
            rows, place = np.nonzero(ids == expert)
            if len(rows):
                one = self.gated(h[rows], gate[expert], up[expert], w[b + "ffn_down_exps.weight"][expert])
                np.add.at(out, rows, one * weights[rows, place][:, None])
        return out

    def logits(self, tokens, activations, cache):
        """Divisors of eight bits, or 0."""
        self.activations, self.cache = activations, cache
        x, positions = self.w["token_embd.weight"][tokens], np.arange(len(tokens))
        for layer in range(self.facts["block_count"]):
            x = self.feed_forward(f"blk.{layer}.", self.attention(f"blk.{layer}.", x, positions))
        return self.product(self.norm(x, "output_norm.weight"), self.w.get("output.weight", self.w["token_embd.weight"]))


def divergence(right, got):
    right, got = (x.astype(np.float64) for x in (right, got))
    a, b = (x - x.max(-1, keepdims=True) - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))
            for x in (right, got))
    kl = np.sort((np.exp(a) * (a - b)).sum(-1))
    return kl[:int(len(kl) * 0.9)].mean()


def main(path, stem):
    facts = json.loads(Path(stem + ".json").read_text())
    right = np.fromfile(stem + ".logits", "<f4").reshape(-1, facts["n_vocab"])
    model, tokens = Model(path), np.array(facts["tokens"])
    plain = divergence(right, model.logits(tokens, 0, 0))
    assert plain < 1e-8, f"without rounding the divergence is {plain}: this is another model"
    worst = [max(divergence(right, model.logits(tokens, a * d, c * d)) for d in range(127, 111, -1))
             for a, c in ((1, 0), (0, 1), (1, 1))]
    print(f"{Path(stem).name}: plain {plain:.1e}; 1.3 x the worst: activations {1.3 * worst[0]:.2e}, "
          f"cache {1.3 * worst[1]:.2e}, both {1.3 * worst[2]:.2e}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
