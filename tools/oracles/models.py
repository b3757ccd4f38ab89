#!/usr/bin/env python3
"""Small random models of several architectures, and the GGUF files that hold them in every layout met in the wild.

    models.py OUTDIR [FILE...]    writes FILE.gguf (all when none is named): numpy alone, the same bytes everywhere

A model is its facts and its tensors, as MODELS and `weights` below make them. A file is a model in a layout, FILES:
several files hold the same numbers, so they share one oracle, which logits.py computes with transformers.
"""
import struct
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "golden"))
from make import BLOCK, blocks  # noqa: E402  random quantised blocks; name: (numbers, bytes, GGUF's id)

STANDARD = dict(arch="llama", dim=256, layers=3, heads=8, kv_heads=2, head=32, ff=512, vocab=64, n=80, eps=1e-5, theta=1e4,
                rope=None, bias=False, qk_norm=False, tied=False, outliers=False, seed=1, types="Q8_0 Q4_K F16 Q6_K Q4_0")
LATENT = dict(arch="deepseek2", dim=256, layers=3, heads=4, q_lora=128, kv_lora=128, nope=64, rope_dim=32, value=64,
              dense=1, ff=256, experts=8, used=2, shared=1, moe_ff=128, groups=1, groups_used=1, sigmoid=True,
              normalize=True, scale=1.8, vocab=64, n=80, eps=1e-5, theta=1e6, tied=False, outliers=False, seed=32,
              types="Q8_0 Q5_0 F16 Q4_0 BF16")
# DeepSeek-V3's relatives without groups of experts; most have no low-rank query either.
RELATIVE = dict(LATENT, hf="DeepseekV3", q_lora=0, experts=16, used=6, shared=2)
MODELS = {
    "llama": dict(STANDARD, hf="Llama"),
    # All that Llama 3.2 adds: frequencies stretched by rope_freqs, a tied output; and one head of keys for eight.
    "llama3": dict(STANDARD, hf="Llama", kv_heads=1, tied=True, theta=5e5, seed=3,
                   rope=dict(kind="llama3", factor=8.0, low=1.0, high=4.0, original=256)),
    "llama-linear": dict(STANDARD, hf="Llama", layers=2, seed=47, rope=dict(kind="linear", factor=4.0, original=1024)),
    "qwen2": dict(STANDARD, hf="Qwen2", arch="qwen2", bias=True, tied=True, theta=1e6, eps=1e-6, seed=4),
    "qwen3": dict(STANDARD, hf="Qwen3", arch="qwen3", heads=6, kv_heads=3, head=64, qk_norm=True, theta=1e6, eps=1e-6, seed=5),
    "qwen3-yarn": dict(STANDARD, hf="Qwen3", arch="qwen3", layers=2, heads=4, head=64, qk_norm=True, theta=1e6, eps=1e-6,
                       seed=6, rope=dict(kind="yarn", factor=4.0, original=512)),
    "v2-groups": dict(LATENT, hf="DeepseekV2", experts=16, used=4, groups=4, groups_used=2, sigmoid=False, normalize=False,
                      scale=4.0, theta=1e4, eps=1e-6, seed=7),
    "glm": dict(LATENT, hf="Glm4MoeLite"),
    "moonlight": dict(RELATIVE, heads=4, scale=2.446, theta=5e4, seed=41),
    "kanana-2": dict(RELATIVE, heads=8, nope=32, value=32, scale=2.448, theta=1e7, eps=1e-6, seed=42, types="Q4_K Q6_K Q5_0 Q8_0"),
    "gigachat3": dict(RELATIVE, heads=8, value=96, used=4, shared=1, scale=1.0, theta=1e5, eps=1e-6, seed=43,
                      rope=dict(kind="yarn", factor=64.0, original=64, all_dim=1.0)),
    "joyai": dict(RELATIVE, q_lora=192, experts=32, used=8, shared=1, scale=2.5, theta=3.2e7, eps=1e-6, seed=44),
    "kimi-k2": dict(RELATIVE, heads=8, q_lora=192, experts=48, used=8, shared=1, scale=2.827, theta=5e4, seed=45,
                    rope=dict(kind="yarn", factor=32.0, original=64, all_dim=1.0, beta_fast=1.0, beta_slow=1.0)),
    # Queries weigh more with every 16 positions; no layer is dense; the latent is half as wide as elsewhere.
    "mistral4": dict(RELATIVE, hf="Mistral4", arch="mistral4", kv_lora=64, q_lora=128, used=4, shared=1, dense=0, sigmoid=False,
                     scale=1.0, theta=1e4, eps=1e-6, seed=46, temperature=0.1,
                     rope=dict(kind="yarn", factor=128.0, original=16, all_dim=1.0)),
    # One channel enters every feed-forward network a thousand times larger; the products of gate and up
    # reach 1e6, far over what a half float holds.
    "llama-outliers": dict(STANDARD, hf="Llama", outliers=True, layers=2, seed=22),
    "glm-outliers": dict(LATENT, hf="Glm4MoeLite", outliers=True, layers=2, seed=9),
}
OUTLIER_CHANNEL = 77

# file: (model, layout)
FILES = {name: (name, {}) for name in MODELS} | {
    "glm-fused": ("glm", dict(fused=True)),
    "glm-unsplit": ("glm", dict(unsplit=True)),
    "glm-ollama": ("glm", dict(ollama=True)),
    "glm-ik": ("glm", dict(ik=True)),
    "glm-widths": ("glm", dict(widths=True)),
    "glm-scaled": ("glm", dict(scaled=True)),
    "glm-mtp": ("glm", dict(mtp=True)),
    "glm-mtp-experts": ("glm", dict(mtp=True, mtp_experts=True)),
    "glm-mtp-alone": ("glm", dict(mtp=True, trunk=False)),
    "glm-split": ("glm", dict(shards=3)),
    "v2-groups-no-gating": ("v2-groups", dict(gating=False)),
    "glm-no-gating": ("glm", dict(gating=False)),
}


class Tensors:
    """The tensors of a model in file order: name -> (shape, slowest dimension first; type; bytes [rows, bytes a row])."""

    def __init__(self, config):
        self.config, self.rng, self.all = config, np.random.default_rng(config["seed"]), {}
        self.types, self.turn = config["types"].split(), 0

    def next_type(self):
        self.turn += 1
        return self.types[self.turn % len(self.types)]

    def matrix(self, name, *shape, kind=None, deviation=1.0):
        """Random numbers of about deviation / sqrt(columns), in the next of the model's types unless one is named."""
        columns = shape[-1]
        kind = kind or self.next_type()
        if columns % BLOCK[kind][0]:
            kind = "Q8_0"
        raw = blocks(self.rng, kind, int(np.prod(shape[:-1])), columns, deviation / np.sqrt(columns))
        self.all[name] = (shape, kind, raw)

    def vector(self, name, count, mean=1.0, deviation=0.1):
        values = (mean + deviation * self.rng.standard_normal(count)).astype("<f4")
        self.all[name] = ((count,), "F32", values.view(np.uint8).reshape(1, -1))


def feed_forward_norm(t, name):
    t.vector(name, t.config["dim"])
    if t.config["outliers"]:
        t.all[name][2].view("<f4")[0, OUTLIER_CHANNEL] *= 1000


def gate_up_down(t, form, width, lead=()):
    """Gate and up have one type, so that a file can hold them in one tensor. Outlier models multiply the products of
    the two by 36 and make up for it in down."""
    c, kind, wild = t.config, t.next_type(), 6.0 if t.config["outliers"] else 1.0
    t.matrix(form.format("gate"), *lead, width, c["dim"], kind=kind, deviation=wild)
    t.matrix(form.format("up"), *lead, width, c["dim"], kind=kind, deviation=wild)
    t.matrix(form.format("down"), *lead, c["dim"], width, deviation=0.01 if c["outliers"] else 1.0)


def standard_layer(t, b):
    c = t.config
    t.vector(b + "attn_norm.weight", c["dim"])
    for name, heads in (("q", c["heads"]), ("k", c["kv_heads"]), ("v", c["kv_heads"])):
        t.matrix(b + f"attn_{name}.weight", heads * c["head"], c["dim"])
        if c["bias"]:
            t.vector(b + f"attn_{name}.bias", heads * c["head"], 0.0, 0.5)
        if c["qk_norm"] and name != "v":
            t.vector(b + f"attn_{name}_norm.weight", c["head"])
    t.matrix(b + "attn_output.weight", c["dim"], c["heads"] * c["head"])
    feed_forward_norm(t, b + "ffn_norm.weight")
    gate_up_down(t, b + "ffn_{}.weight", c["ff"])


def latent_layer(t, b, dense):
    c = t.config
    t.vector(b + "attn_norm.weight", c["dim"])
    query_rows = c["heads"] * (c["nope"] + c["rope_dim"])
    if c["q_lora"]:
        t.matrix(b + "attn_q_a.weight", c["q_lora"], c["dim"])
        t.vector(b + "attn_q_a_norm.weight", c["q_lora"])
        t.matrix(b + "attn_q_b.weight", query_rows, c["q_lora"])
    else:
        t.matrix(b + "attn_q.weight", query_rows, c["dim"])
    t.matrix(b + "attn_kv_a_mqa.weight", c["kv_lora"] + c["rope_dim"], c["dim"])
    t.vector(b + "attn_kv_a_norm.weight", c["kv_lora"])
    # F16, so that the layout whose keys lie transposed can hold the same numbers.
    t.matrix(b + "attn_k_b.weight", c["heads"], c["kv_lora"], c["nope"], kind="F16")
    t.matrix(b + "attn_v_b.weight", c["heads"], c["value"], c["kv_lora"], kind="F16")
    t.matrix(b + "attn_output.weight", c["dim"], c["heads"] * c["value"])
    feed_forward_norm(t, b + "ffn_norm.weight")
    if dense:
        return gate_up_down(t, b + "ffn_{}.weight", c["ff"])
    t.matrix(b + "ffn_gate_inp.weight", c["experts"], c["dim"], kind="F32",
             deviation=0.02 if c["outliers"] else 2.0)
    if c["sigmoid"]:
        t.vector(b + "exp_probs_b.bias", c["experts"], 0.0)
    gate_up_down(t, b + "ffn_{}_exps.weight", c["moe_ff"], (c["experts"],))
    gate_up_down(t, b + "ffn_{}_shexp.weight", c["moe_ff"] * c["shared"])


def rope_factors(c):
    """What Llama 3.1 divides each pair's frequency by: short waves stay, long ones are stretched, a ramp between."""
    r, pairs = c["rope"], np.arange(c["head"] // 2)
    waves = 2 * np.pi * c["theta"] ** (2.0 * pairs / c["head"])
    share = np.clip((r["original"] / waves - r["low"]) / (r["high"] - r["low"]), 0.0, 1.0)
    return (1.0 / ((1 - share) / r["factor"] + share)).astype("<f4")


def weights(name):
    """The facts and the tensors of a model."""
    c = MODELS[name]
    t = Tensors(c)
    t.matrix("token_embd.weight", c["vocab"], c["dim"], kind="Q8_0", deviation=1.6 if c["tied"] else np.sqrt(c["dim"]))
    t.vector("output_norm.weight", c["dim"])
    if not c["tied"]:
        t.matrix("output.weight", c["vocab"], c["dim"], kind="Q6_K", deviation=1.5)
    latent = "kv_lora" in c
    if not latent and c["rope"] and c["rope"]["kind"] == "llama3":
        factors = rope_factors(c)
        t.all["rope_freqs.weight"] = (factors.shape, "F32", factors.view(np.uint8).reshape(1, -1))
    for i in range(c["layers"]):
        b = f"blk.{i}."
        latent_layer(t, b, i < c["dense"]) if latent else standard_layer(t, b)
    return c, t


def tokens(c):
    return np.random.default_rng(1000 + c["seed"]).integers(0, c["vocab"], c["n"])


# --- files -----------------------------------------------------------------------------------------------------------

def text(x):
    return struct.pack("<Q", len(x.encode())) + x.encode()


SCALARS = {"u8": (0, "<B"), "u16": (2, "<H"), "u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?"),
           "u64": (10, "<Q"), "i64": (11, "<q")}


def entry(key, kind, value):
    """One metadata entry as bytes."""
    if kind == "str":
        return text(key) + struct.pack("<I", 8) + text(value)
    if kind == "i32s":
        return text(key) + struct.pack("<IIQ", 9, 5, len(value)) + np.asarray(value, "<i4").tobytes()
    number, form = SCALARS[kind]
    return text(key) + struct.pack("<I", number) + struct.pack(form, value)


def standard_keys(c):
    keys = [("block_count", "u32", c["layers"]), ("context_length", "u32", 4096), ("embedding_length", "u32", c["dim"]),
            ("feed_forward_length", "u32", c["ff"]), ("attention.head_count", "u32", c["heads"]),
            ("attention.head_count_kv", "u32", c["kv_heads"]), ("rope.freq_base", "f32", c["theta"]),
            ("attention.layer_norm_rms_epsilon", "f32", c["eps"])]
    if c["head"] * c["heads"] != c["dim"]:
        keys += [("attention.key_length", "u32", c["head"]), ("attention.value_length", "u32", c["head"])]
    if c["arch"] == "llama":
        keys += [("rope.dimension_count", "u32", c["head"]), ("vocab_size", "u32", c["vocab"])]
    if c["rope"] and c["rope"]["kind"] == "yarn":
        keys += [("rope.scaling.type", "str", "yarn"), ("rope.scaling.factor", "f32", c["rope"]["factor"]),
                 ("rope.scaling.original_context_length", "u32", c["rope"]["original"])]
    if c["rope"] and c["rope"]["kind"] == "linear":
        keys += [("rope.scaling.type", "str", "linear"), ("rope.scaling.factor", "f32", c["rope"]["factor"])]
    return keys


def latent_keys(c, layout):
    own, absorbed = [c["nope"] + c["rope_dim"], c["value"]], [c["kv_lora"] + c["rope_dim"], c["kv_lora"]]
    lengths = {"": absorbed, "_mla": own}
    if layout.get("ollama"):  # early files of ollama swapped them
        lengths = {"": own, "_mla": absorbed}
    if layout.get("unsplit") or layout.get("ik"):  # older than the absorbed form, or of ik_llama.cpp's converter
        lengths = {"": own}
    keys = [("block_count", "u32", c["layers"] + bool(layout.get("mtp"))), ("context_length", "u32", 202752),
            ("embedding_length", "u32", c["dim"]), ("feed_forward_length", "u32", c["ff"]),
            ("leading_dense_block_count", "u32", c["dense"]), ("vocab_size", "u32", c["vocab"]),
            ("attention.head_count", "u32", c["heads"]),
            ("attention.head_count_kv", "u32", c["heads"] if layout.get("ollama") or layout.get("ik") else 1),
            ("attention.layer_norm_rms_epsilon", "f32", c["eps"]), ("attention.kv_lora_rank", "u32", c["kv_lora"]), ("rope.dimension_count", "u32", c["rope_dim"]),
            ("rope.freq_base", "f32", c["theta"]), ("expert_count", "u32", c["experts"]),
            ("expert_used_count", "u32", c["used"]), ("expert_shared_count", "u32", c["shared"]),
            ("expert_feed_forward_length", "u32", c["moe_ff"]), ("expert_weights_scale", "f32", c["scale"]),
            ("expert_weights_norm", "bool", c["normalize"])]
    for suffix, (key, value) in lengths.items():
        keys += [("attention.key_length" + suffix, "u32", key), ("attention.value_length" + suffix, "u32", value)]
    if c["q_lora"]:
        keys.append(("attention.q_lora_rank", "u32", c["q_lora"]))
    if r := c.get("rope"):
        keys += [("rope.scaling.type", "str", "yarn"), ("rope.scaling.factor", "f32", r["factor"]),
                 ("rope.scaling.original_context_length", "u32", r["original"]),
                 ("rope.scaling.yarn_log_multiplier", "f32", 0.1 * r["all_dim"])]
        keys += [(f"rope.scaling.yarn_{n}", "f32", r[n]) for n in ("beta_fast", "beta_slow") if n in r]
    if "temperature" in c:
        keys += [("attention.temperature_scale", "f32", c["temperature"]),
                 ("attention.temperature_length", "u32", c["rope"]["original"])]
    if layout.get("gating", True):
        keys.append(("expert_gating_func", "u32", 2 if c["sigmoid"] else 1))
    if c["groups"] > 1:
        keys += [("expert_group_count", "u32", c["groups"]), ("expert_group_used_count", "u32", c["groups_used"])]
    if layout.get("mtp"):
        keys.append(("nextn_predict_layers", "u32", 1))
    return keys


def prediction(c, layout):
    """The tensors of a block of multi-token prediction behind the trunk: one that shares the trunk's token table and
    output matrix, or one with its own, and other numbers."""
    own = bool(layout.get("mtp_experts"))
    t = Tensors(dict(c, seed=c["seed"] + 100 + own))
    b = f"blk.{c['layers']}."
    latent_layer(t, b, False)
    t.matrix(b + "nextn.eh_proj.weight", c["dim"], 2 * c["dim"], kind="Q8_0")
    for name in ("enorm", "hnorm", "shared_head_norm"):
        t.vector(b + f"nextn.{name}.weight", c["dim"])
    if own:
        t.matrix(b + "nextn.embed_tokens.weight", c["vocab"], c["dim"], kind="Q8_0", deviation=np.sqrt(c["dim"]))
        t.matrix(b + "nextn.shared_head_head.weight", c["vocab"], c["dim"], kind="Q6_K", deviation=1.5)
    return t


def larger(kind, raw, by):
    """Rows whose numbers are so many times as large, by powers of two and so exactly."""
    if kind == "F16":
        return (raw.view("<f2") * by).astype("<f2").view(np.uint8)
    if kind == "BF16":
        return ((raw.view("<u2").astype("<u4") << 16).view("<f4") * by).astype("<f4").view("<u2")[:, 1::2].copy().view(np.uint8)
    blocks_of_rows = raw.reshape(len(raw), -1, BLOCK[kind][1]).copy()  # each begins with its scale
    blocks_of_rows[..., :2] = (blocks_of_rows[..., :2].copy().view("<f2") * by[..., None]).astype("<f2").view(np.uint8)
    return blocks_of_rows.reshape(raw.shape)


def with_scales(tensors):
    """A number a matrix beside networks and what attention gives, as NVFP4's files have it: of each expert another one."""
    for name, (shape, kind, raw) in list(tensors.items()):
        if kind == "F32" or not ("ffn_" in name or "attn_output" in name):
            continue
        powers = 1 + np.arange(shape[0] if len(shape) == 3 else 1) % 3
        tensors[name] = (shape, kind, larger(kind, raw, np.repeat(2.0 ** powers, len(raw) // len(powers))[:, None]))
        scales = (2.0 ** -powers).astype("<f4")
        tensors[name.removesuffix("weight") + "scale"] = (scales.shape, "F32", scales.view(np.uint8).reshape(1, -1))


def arranged(c, t, layout):
    """The tensors as the layout holds them."""
    tensors = dict(t.all)
    for i in range(c["layers"]):
        b = f"blk.{i}."
        if layout.get("unsplit") or layout.get("ik"):
            (heads, lora, nope), _, k = tensors.pop(b + "attn_k_b.weight")
            (_, value, _), _, v = tensors.pop(b + "attn_v_b.weight")
            if layout.get("ik"):  # split as well, all heads in one matrix
                tensors[b + "attn_k_b.weight"] = ((heads * lora, nope), "F16", k)
                tensors[b + "attn_v_b.weight"] = ((heads * value, lora), "F16", v)
            k = k.view("<f2").reshape(heads, lora, nope).transpose(0, 2, 1)
            both = np.concatenate([k, v.view("<f2").reshape(heads, value, lora)], 1)
            shape = (heads * (nope + value), lora)
            tensors[b + "attn_kv_b.weight"] = (shape, "F16", np.ascontiguousarray(both).reshape(shape).view(np.uint8))
        if layout.get("fused") and b + "ffn_gate_exps.weight" in tensors:
            (experts, width, dim), kind, gate = tensors.pop(b + "ffn_gate_exps.weight")
            up = tensors.pop(b + "ffn_up_exps.weight")[2]
            both = np.concatenate([gate.reshape(experts, width, -1), up.reshape(experts, width, -1)], 1)
            tensors[b + "ffn_gate_up_exps.weight"] = ((experts, 2 * width, dim), kind, both.reshape(experts * 2 * width, -1))
    if layout.get("scaled"):
        with_scales(tensors)
    if layout.get("mtp"):
        extra = prediction(c, layout)
        if not layout.get("trunk", True):
            tensors = {n: x for n, x in tensors.items() if not n.startswith("blk.")}
        tensors |= extra.all
    return tensors


def write_gguf(path, entries, tensors):
    info, offset = b"", 0
    for name, (shape, kind, raw) in tensors.items():
        info += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], BLOCK[kind][2], offset)
        offset += -(-raw.size // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries) + info
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32))
        for _, _, raw in tensors.values():
            f.write(raw.tobytes() + b"\0" * (-raw.size % 32))


def write_file(name, folder):
    """One file, or its shards NAME-0000i-of-0000n.gguf; the first shard holds the metadata and no tensors."""
    model, layout = FILES[name]
    c, t = weights(model)
    latent = "kv_lora" in c
    arch = "glm4moelite" if layout.get("ollama") else c["arch"]
    keys = latent_keys(c, layout) if latent else standard_keys(c)
    if layout.get("widths"):  # integers of every width, a bool as a byte
        turn = iter("u16 i32 u64 i64".split() * len(keys))
        keys = [(k, next(turn), v) if kind == "u32" and v < 1 << 16 else (k, "u8", v) if kind == "bool" else (k, kind, v)
                for k, kind, v in keys]
    entries = [entry("general.architecture", "str", arch), entry("general.name", "str", name)]
    entries += [entry(f"{arch}.{k}", kind, v) for k, kind, v in keys]
    tensors, shards = arranged(c, t, layout), layout.get("shards", 1)
    if shards == 1:
        return write_gguf(folder / f"{name}.gguf", entries, tensors)
    names = list(tensors)
    cut = np.array_split(np.arange(len(names)), shards - 1)
    for i in range(shards):
        part = {names[j]: tensors[names[j]] for j in cut[i - 1]} if i > 0 else {}
        split = [entry("split.no", "u16", i), entry("split.count", "u16", shards),
                 entry("split.tensors.count", "i32", len(names))]
        write_gguf(folder / f"{name}-{i + 1:05d}-of-{shards:05d}.gguf", (entries if i == 0 else []) + split, part)


def main(argv):
    if not argv:
        print(__doc__)
        return 2
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name in argv[1:] or FILES:
        write_file(name, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
