#!/usr/bin/env python3
"""Turns a trained checkpoint into the GGUF file that the repository ships, and judges that file with transformers.

  export.py gguf   --work work/fairy --tokenizer work/tokenizer.json --template template.jinja --out fairy-tales.gguf
  export.py golden --model fairy-tales.gguf --corpus tales.txt.xz --out tests/model/fairy-tales
  export.py limit  --model fairy-tales.gguf --golden tests/model/fairy-tales
  export.py report --model fairy-tales.gguf --corpus tales.txt.xz --out report.md

`golden` and `report` read nothing of the checkpoint: they dequantise the file's own bytes into
transformers.Glm4MoeLiteForCausalLM, so what they say holds for what is shipped.
"""
from __future__ import annotations

import argparse
import json
import math
import struct
import sys
import types
from pathlib import Path

import numpy as np

import data

ALIGN = 32
F32, Q4_0, Q8_0 = 0, 2, 8           # GGUF's ids of tensor types
TYPE_NAMES = {F32: "F32", Q4_0: "Q4_0", Q8_0: "Q8_0"}
FORMATS = {"u8": "<B", "i8": "<b", "u16": "<H", "i16": "<h", "u32": "<I", "i32": "<i", "f32": "<f", "bool": "<?",
           "u64": "<Q", "i64": "<q", "f64": "<d"}
KINDS = ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64"]  # GGUF's order


# --- quantisation ----------------------------------------------------------------------------------------------------

def quantise(x: np.ndarray, kind: int) -> bytes:
    """Rows of float32 as bytes of a tensor type."""
    if kind == F32:
        return x.astype("<f4").tobytes()
    b = x.astype(np.float32).reshape(-1, 32)
    if kind == Q8_0:  # d, 32 signed bytes
        d = (np.abs(b).max(1) / 127).astype(np.float16)
        inv = np.divide(1.0, d.astype(np.float32), out=np.zeros(len(d), np.float32), where=d > 0)
        q = np.clip(np.rint(b * inv[:, None]), -127, 127).astype(np.int8)
        return np.concatenate([d[:, None].view(np.uint8), q.view(np.uint8)], 1).tobytes()
    if kind == Q4_0:  # d, then 16 bytes: value i in the low half of byte i, value i + 16 in the high half, both + 8
        extreme = b[np.arange(len(b)), np.abs(b).argmax(1)]
        d = (extreme / -8).astype(np.float16)
        inv = np.divide(1.0, d.astype(np.float32), out=np.zeros(len(d), np.float32), where=d != 0)
        q = np.clip(np.floor(b * inv[:, None] + 8.5), 0, 15).astype(np.uint8)
        return np.concatenate([d[:, None].view(np.uint8), q[:, :16] | q[:, 16:] << 4], 1).tobytes()
    raise ValueError(kind)


def dequantise(raw: bytes, kind: int, shape: tuple[int, ...]) -> np.ndarray:
    if kind == F32:
        return np.frombuffer(raw, "<f4").reshape(shape).copy()
    size = {Q8_0: 34, Q4_0: 18}[kind]
    b = np.frombuffer(raw, np.uint8).reshape(-1, size)
    d = b[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == Q8_0:
        return (d * b[:, 2:].copy().view(np.int8)).astype(np.float32).reshape(shape)
    q = np.concatenate([b[:, 2:] & 15, b[:, 2:] >> 4], 1).astype(np.float32) - 8
    return (d * q).astype(np.float32).reshape(shape)


# --- GGUF ------------------------------------------------------------------------------------------------------------

Meta = list[tuple[str, str, object]]                        # key; kind as in KINDS, or "[str]", "[i32]"; value
Tensors = list[tuple[str, tuple[int, ...], int, bytes]]     # name; shape, slowest dimension first; type; bytes


def write_gguf(path: Path, meta: Meta, tensors: Tensors) -> None:
    def text(s: str) -> bytes:
        b = s.encode()
        return struct.pack("<Q", len(b)) + b

    def value(kind: str, v) -> bytes:
        return text(v) if kind == "str" else struct.pack(FORMATS[kind], v)

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta))
    for key, kind, v in meta:
        if kind[0] == "[":
            kind = kind[1:-1]
            out += text(key) + struct.pack("<IIQ", KINDS.index("array"), KINDS.index(kind), len(v))
            out += b"".join(value(kind, x) for x in v)
        else:
            out += text(key) + struct.pack("<I", KINDS.index(kind)) + value(kind, v)
    offset = 0
    for name, shape, kind, raw in tensors:
        out += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1]) + struct.pack("<IQ", kind, offset)
        offset += -(-len(raw) // ALIGN) * ALIGN
    with path.open("wb") as f:
        f.write(out + b"\0" * (-len(out) % ALIGN))
        for _, _, _, raw in tensors:
            f.write(raw + b"\0" * (-len(raw) % ALIGN))


def read_gguf(path: Path) -> tuple[dict, dict[str, tuple[tuple[int, ...], int, bytes]]]:
    meta, tensors = read_file(path)
    return {key: v for key, _, v in meta}, tensors


def read_file(path: Path) -> tuple[Meta, dict[str, tuple[tuple[int, ...], int, bytes]]]:
    raw, at = path.read_bytes(), 4

    def take(fmt: str):
        nonlocal at
        v = struct.unpack_from(fmt, raw, at)
        at += struct.calcsize(fmt)
        return v[0] if len(v) == 1 else v

    def value(kind: str):
        nonlocal at
        if kind == "str":
            n = take("<Q"); at += n
            return raw[at - n:at].decode()
        if kind == "array":
            item, n = KINDS[take("<I")], take("<Q")
            return f"[{item}]", [value(item) for _ in range(n)]
        return take(FORMATS[kind])

    assert raw[:4] == b"GGUF" and take("<I") == 3
    n_tensors, n_meta = take("<QQ")
    meta = []
    for _ in range(n_meta):
        key, kind = value("str"), KINDS[take("<I")]
        v = value(kind)
        meta.append((key, *v) if kind == "array" else (key, kind, v))
    infos = []
    for _ in range(n_tensors):
        name, dims = value("str"), take("<I")
        shape = tuple(take("<Q") for _ in range(dims))[::-1]
        infos.append((name, shape, take("<I"), take("<Q")))
    start = -(-at // ALIGN) * ALIGN
    size = {F32: (1, 4), Q8_0: (32, 34), Q4_0: (32, 18)}
    tensors = {}
    for name, shape, kind, off in infos:
        per, width = size[kind]
        tensors[name] = (shape, kind, raw[start + off:start + off + math.prod(shape) // per * width])
    return meta, tensors


# --- checkpoint -> file ----------------------------------------------------------------------------------------------

def file_tensors(sd: dict[str, np.ndarray], shape: dict) -> dict[str, np.ndarray]:
    """transformers' names and layouts -> GGUF's (architecture deepseek2, absorbed form: k_b and v_b apart, by head)."""
    heads, nope, v = shape["num_attention_heads"], shape["qk_nope_head_dim"], shape["v_head_dim"]
    out = {"token_embd.weight": sd["model.embed_tokens.weight"], "output_norm.weight": sd["model.norm.weight"],
           "output.weight": sd["lm_head.weight"]}
    for i in range(shape["num_hidden_layers"]):
        b, p = f"blk.{i}.", f"model.layers.{i}."
        kv = sd[p + "self_attn.kv_b_proj.weight"].reshape(heads, nope + v, -1)
        out |= {b + "attn_norm.weight": sd[p + "input_layernorm.weight"],
                b + "attn_q_a.weight": sd[p + "self_attn.q_a_proj.weight"],
                b + "attn_q_a_norm.weight": sd[p + "self_attn.q_a_layernorm.weight"],
                b + "attn_q_b.weight": sd[p + "self_attn.q_b_proj.weight"],
                b + "attn_kv_a_mqa.weight": sd[p + "self_attn.kv_a_proj_with_mqa.weight"],
                b + "attn_kv_a_norm.weight": sd[p + "self_attn.kv_a_layernorm.weight"],
                b + "attn_k_b.weight": np.ascontiguousarray(kv[:, :nope].transpose(0, 2, 1)),
                b + "attn_v_b.weight": np.ascontiguousarray(kv[:, nope:]),
                b + "attn_output.weight": sd[p + "self_attn.o_proj.weight"],
                b + "ffn_norm.weight": sd[p + "post_attention_layernorm.weight"]}
        m = p + "mlp."
        if m + "gate.weight" not in sd:
            out |= {b + f"ffn_{w}.weight": sd[m + f"{w}_proj.weight"] for w in ("gate", "up", "down")}
            continue
        gate_up = sd[m + "experts.gate_up_proj"]
        inner = gate_up.shape[1] // 2
        out |= {b + "ffn_gate_inp.weight": sd[m + "gate.weight"],
                b + "exp_probs_b.bias": sd[m + "gate.e_score_correction_bias"],
                b + "ffn_gate_exps.weight": gate_up[:, :inner], b + "ffn_up_exps.weight": gate_up[:, inner:],
                b + "ffn_down_exps.weight": sd[m + "experts.down_proj"]}
        out |= {b + f"ffn_{w}_shexp.weight": sd[m + f"shared_experts.{w}_proj.weight"] for w in ("gate", "up", "down")}
    return out


def tensor_type(name: str, x: np.ndarray, mix: str) -> int:
    """Norms, biases and routers stay float32. The Q4_0 mix keeps what is read at every token and small in Q8_0."""
    if x.ndim == 1 or "ffn_gate_inp" in name:
        return F32
    large = ("_exps", "ffn_gate.", "ffn_up.", "ffn_down.", "attn_q_b", "attn_output")
    if mix == "q4_0" and any(w in name for w in large):
        return Q4_0
    return Q8_0


def tokenizer_meta(path: Path) -> Meta:
    tok = json.loads(path.read_text())["model"]
    tokens = [""] * data.VOCAB_SIZE
    for t, i in tok["vocab"].items():
        tokens[i] = t
    first = data.VOCAB_SIZE - len(data.SPECIAL)
    tokens[first:] = data.SPECIAL
    kinds = [1] * first + [3] * len(data.CONTROL) + [4] * len(data.VISIBLE)  # normal, control, user-defined
    merges = [m if isinstance(m, str) else " ".join(m) for m in tok["merges"]]
    ids = [("bos", "[gMASK]"), ("eos", "<|endoftext|>"), ("eot", "<|user|>"), ("eom", "<|observation|>"),
           ("padding", "[MASK]")]
    meta = [("model", "str", "gpt2"), ("pre", "str", "glm4"), ("tokens", "[str]", tokens),
            ("token_type", "[i32]", kinds), ("merges", "[str]", merges)]
    meta += [(f"{name}_token_id", "u32", tokens.index(t)) for name, t in ids]
    meta += [("add_bos_token", "bool", False), ("add_eos_token", "bool", False)]
    return [("tokenizer.ggml." + key, kind, v) for key, kind, v in meta]


def metadata(shape: dict, args) -> Meta:
    """The file's keys: what it is, how to sample from it, its shape, its tokenizer and chat template."""
    template = Path(args.template)
    if template.suffix == ".gguf":
        text = read_gguf(template)[0]["tokenizer.chat_template"]
    else:
        text = template.read_text("utf-8")
    rank, rope = shape["kv_lora_rank"], shape["qk_rope_head_dim"]
    general = [
        ("architecture", "str", "deepseek2"), ("type", "str", "model"), ("name", "str", "Fairy Tales"),
        ("description", "str", "A small teller of fairy tales in GLM-4.7-Flash's architecture"),
        ("license", "str", "apache-2.0"), ("languages", "[str]", ["en"]), ("size_label", "str", "15M"),
        ("alignment", "u32", ALIGN), ("quantization_version", "u32", 2),
        ("file_type", "u32", 7 if args.type == "q8_0" else 2),
        ("sampling.temp", "f32", args.temp), ("sampling.top_p", "f32", args.top_p),
        ("sampling.min_p", "f32", args.min_p), ("sampling.penalty_repeat", "f32", args.penalty),
        ("sampling.penalty_last_n", "i32", args.penalty_last)]
    model = [
        ("block_count", "u32", shape["num_hidden_layers"]), ("context_length", "u32", args.context),
        ("embedding_length", "u32", shape["hidden_size"]), ("feed_forward_length", "u32", shape["intermediate_size"]),
        ("vocab_size", "u32", data.VOCAB_SIZE), ("leading_dense_block_count", "u32", 1),
        ("attention.head_count", "u32", shape["num_attention_heads"]), ("attention.head_count_kv", "u32", 1),
        ("attention.key_length", "u32", rank + rope), ("attention.value_length", "u32", rank),
        ("attention.key_length_mla", "u32", shape["qk_nope_head_dim"] + rope),
        ("attention.value_length_mla", "u32", shape["v_head_dim"]),
        ("attention.q_lora_rank", "u32", shape["q_lora_rank"]), ("attention.kv_lora_rank", "u32", rank),
        ("attention.layer_norm_rms_epsilon", "f32", 1e-6),
        ("rope.dimension_count", "u32", rope), ("rope.freq_base", "f32", 10000.0),
        ("expert_count", "u32", shape["n_routed_experts"]), ("expert_used_count", "u32", shape["num_experts_per_tok"]),
        ("expert_shared_count", "u32", 1), ("expert_feed_forward_length", "u32", shape["moe_intermediate_size"]),
        ("expert_weights_scale", "f32", shape["routed_scaling_factor"]), ("expert_weights_norm", "bool", True),
        ("expert_gating_func", "u32", 2)]
    meta = [("general." + key, kind, v) for key, kind, v in general]
    meta += [("deepseek2." + key, kind, v) for key, kind, v in model]
    return meta + tokenizer_meta(Path(args.tokenizer)) + [("tokenizer.chat_template", "str", text)]


def export(args) -> None:
    import train
    saved = train.load_weights(Path(args.work))
    sd = {n: t.float().numpy() for n, t in saved["model"].items()}
    tensors = []
    for name, x in file_tensors(sd, saved["shape"]).items():
        kind = tensor_type(name, x, args.type)
        tensors.append((name, x.shape, kind, quantise(x, kind)))
    out = Path(args.out)
    write_gguf(out, metadata(saved["shape"], args), tensors)
    total, active = count_parameters(out)
    print(f"{out}: {out.stat().st_size} bytes, {total} parameters, {active} active, step {saved['step']}, "
          f"{saved['tokens']} tokens seen")


def count_parameters(path: Path) -> tuple[int, int]:
    """(all, those that one token reads: its row of the embedding, the selected experts)."""
    meta, tensors = read_gguf(path)
    share = meta["deepseek2.expert_used_count"] / meta["deepseek2.expert_count"]
    total = active = 0
    for name, (shape, _, _) in tensors.items():
        n = math.prod(shape)
        total += n
        active += n // shape[0] if name == "token_embd.weight" else round(n * share) if "_exps" in name else n
    return total, active


# --- file -> transformers --------------------------------------------------------------------------------------------

def hf_config(k: dict):
    """transformers' configuration from the keys of a file, without their prefix."""
    from transformers import Glm4MoeLiteConfig
    layers, dense, rope = k["block_count"], k["leading_dense_block_count"], k["rope.dimension_count"]
    heads = k["attention.head_count"]
    return Glm4MoeLiteConfig(
        vocab_size=k["vocab_size"], hidden_size=k["embedding_length"], intermediate_size=k["feed_forward_length"],
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
        kv_lora_rank=k["attention.kv_lora_rank"], q_lora_rank=k["attention.q_lora_rank"], qk_rope_head_dim=rope,
        v_head_dim=k["attention.value_length_mla"], qk_nope_head_dim=k["attention.key_length_mla"] - rope,
        max_position_embeddings=k["context_length"], rms_norm_eps=k["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": k["rope.freq_base"]}, tie_word_embeddings=False,
        n_shared_experts=k["expert_shared_count"], n_routed_experts=k["expert_count"],
        num_experts_per_tok=k["expert_used_count"], routed_scaling_factor=k["expert_weights_scale"],
        moe_intermediate_size=k["expert_feed_forward_length"], norm_topk_prob=k["expert_weights_norm"],
        n_group=1, topk_group=1, mlp_layer_types=["dense"] * dense + ["sparse"] * (layers - dense),
        bos_token_id=None, eos_token_id=None)


def hf_weights(w: dict[str, np.ndarray], layers: int, dense: int) -> dict[str, np.ndarray]:
    """GGUF's names and layouts -> transformers' (the inverse of file_tensors)."""
    sd = {"model.embed_tokens.weight": w["token_embd.weight"], "model.norm.weight": w["output_norm.weight"],
          "lm_head.weight": w["output.weight"]}
    same = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q_a": "self_attn.q_a_proj",
            "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
            "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
            "attn_output": "self_attn.o_proj"}
    for i in range(layers):
        b, p = f"blk.{i}.", f"model.layers.{i}."
        sd |= {p + theirs + ".weight": w[b + ours + ".weight"] for ours, theirs in same.items()}
        kv = np.concatenate([w[b + "attn_k_b.weight"].transpose(0, 2, 1), w[b + "attn_v_b.weight"]], 1)
        sd[p + "self_attn.kv_b_proj.weight"] = kv.reshape(-1, kv.shape[-1])
        names, m = ("gate", "up", "down"), p + "mlp."
        if i < dense:
            sd |= {m + f"{n}_proj.weight": w[b + f"ffn_{n}.weight"] for n in names}
            continue
        sd |= {m + f"shared_experts.{n}_proj.weight": w[b + f"ffn_{n}_shexp.weight"] for n in names}
        gate_up = np.concatenate([w[b + "ffn_gate_exps.weight"], w[b + "ffn_up_exps.weight"]], 1)
        sd |= {m + "gate.weight": w[b + "ffn_gate_inp.weight"],
               m + "gate.e_score_correction_bias": w[b + "exp_probs_b.bias"],
               m + "experts.gate_up_proj": gate_up, m + "experts.down_proj": w[b + "ffn_down_exps.weight"]}
    return sd


def file_tokenizer(meta: dict):
    """The file's own vocabulary and merges as a tokenizers.Tokenizer."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens) if kinds[i] == 1}, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(data.GLM4_REGEX), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, n in zip(tokens, kinds) if n != 1])
    assert all(tok.token_to_id(t) == i for i, t in enumerate(tokens))
    return tok


def load(path: Path, device: str, attention: str = "eager"):
    """The file's dequantised weights in transformers' class, float32. Returns (model, tokenizer, metadata)."""
    import torch
    from transformers import Glm4MoeLiteForCausalLM
    torch.backends.cuda.matmul.allow_tf32 = False
    meta, tensors = read_gguf(path)
    k = {key[len("deepseek2."):]: v for key, v in meta.items() if key.startswith("deepseek2.")}
    k["block_count"] -= k.get("nextn_predict_layers", 0)  # the class knows no block of multi-token prediction
    config = hf_config(k)
    config._attn_implementation, config._experts_implementation = attention, "eager"
    w = {n: dequantise(raw, kind, shape) for n, (shape, kind, raw) in tensors.items()}
    sd = hf_weights(w, k["block_count"], k["leading_dense_block_count"])
    model = Glm4MoeLiteForCausalLM(config).float().eval()
    missing, unexpected = model.load_state_dict({n: torch.from_numpy(np.ascontiguousarray(x)) for n, x in sd.items()},
                                                strict=False)
    assert not [m for m in missing if "inv_freq" not in m] and not unexpected, (missing, unexpected)
    for module in model.modules():  # the class fixes 1e-6 in the latent norms; a file has one epsilon for all
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = k["attention.layer_norm_rms_epsilon"]
    return model.to(device), file_tokenizer(meta), meta


def golden(args) -> None:
    """Logits of one sequence from position 0: the opening of a held-out tale, then the opening of a chat."""
    import torch
    import transformers
    model, tok, _ = load(Path(args.model), args.device)
    tale = next(t for t in data.read_tales(args.corpus) if t.held_out and t.title)
    raw = tok.encode(tale.text(), add_special_tokens=False).ids[:56]
    chat = tok.encode("[gMASK]<sop><|user|>Tell me a tale about a fox and a crow.<|assistant|></think>Once upon a time "
                      "there was a fox", add_special_tokens=False).ids
    tokens = (raw + chat)[:args.tokens]
    with torch.no_grad():
        logits = model(torch.tensor([tokens], device=args.device)).logits[0].float().cpu().numpy()
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    logits.astype("<f4").tofile(out.with_suffix(".logits"))
    out.with_suffix(".json").write_text(json.dumps({
        "model": Path(args.model).name, "class": type(model).__name__, "transformers": transformers.__version__,
        "torch": torch.__version__, "device": args.device, "n_vocab": logits.shape[1],
        "text": tok.decode(tokens, skip_special_tokens=False), "tokens": tokens}) + "\n")
    print(f"{len(tokens)} tokens, logits {logits.shape}, std {logits.std():.3f}, largest {np.abs(logits).max():.2f}")


def in_eight_bits(x, divisor: float):
    """Each 32 neighbours as whole multiples of (their largest magnitude / divisor): the activations of a fast backend."""
    import torch
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = (blocks.abs().amax(-1, keepdim=True) / divisor).clamp(min=1e-30)
    return (torch.round(blocks / scale) * scale).reshape(x.shape)


def limit(args) -> None:
    """The KL divergence that 8-bit activations cost: 16 simulated runs, divisors 127 to 112, against the golden logits."""
    import torch
    stem = Path(args.golden)
    tokens = json.loads(stem.with_suffix(".json").read_text())["tokens"]
    right = torch.from_numpy(np.fromfile(stem.with_suffix(".logits"), "<f4").reshape(len(tokens), -1))
    right = torch.log_softmax(right.double(), -1)
    model, _, _ = load(Path(args.model), "cpu")
    divisor = 127.0

    def experts(self, x, index, weight):  # the class's own sum over selected experts, its two inputs in eight bits
        out = torch.zeros_like(x)
        for e in range(self.num_experts):
            row, k = torch.where(index == e)
            gate, up = torch.nn.functional.linear(in_eight_bits(x[row], divisor), self.gate_up_proj[e]).chunk(2, -1)
            down = torch.nn.functional.linear(in_eight_bits(torch.nn.functional.silu(gate) * up, divisor),
                                              self.down_proj[e])
            out.index_add_(0, row, down * weight[row, k, None])
        return out

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs: (in_eight_bits(inputs[0], divisor),))
        if hasattr(module, "gate_up_proj") and hasattr(module, "num_experts"):
            module.forward = types.MethodType(experts, module)
    worst = 0.0
    with torch.no_grad():
        for step in range(16):
            divisor = 127.0 - step
            got = torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), -1)
            kl = (right.exp() * (right - got)).sum(-1).sort().values
            best = kl[:int(len(kl) * 0.9)].mean().item()
            worst = max(worst, best)
            print(f"divisor {divisor:.0f}: mean KL over the best 90% of rows {best:.3g}, over all {kl.mean():.3g}")
    print(f"limit: 1.3 x the worst, {1.3 * worst:.3g}")


def sample(model, tok, prompt: str, seed: int, args) -> str:
    """What the model says after the prompt; " [end]" marks that it stopped by itself."""
    import torch
    stop = [tok.token_to_id(s) for s in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    ids = torch.tensor([tok.encode(prompt, add_special_tokens=False).ids], device=args.device)
    torch.manual_seed(seed)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=args.temp, top_k=0,
                         top_p=args.top_p, min_p=args.min_p or None, repetition_penalty=args.penalty,
                         max_new_tokens=args.length, eos_token_id=stop, pad_token_id=stop[0], use_cache=True)
    out = out[0, ids.shape[1]:].tolist()
    ended = bool(out) and out[-1] in stop
    return tok.decode(out[:-1] if ended else out, skip_special_tokens=False) + (" [end]" if ended else "")


def report(args) -> None:
    """Held-out loss of the shipped weights, the experts' loads on held-out text, samples; as markdown."""
    import torch
    model, tok, meta = load(Path(args.model), args.device, attention="sdpa")

    def count(module, _, out):
        module.load += torch.bincount(out[2].flatten(), minlength=module.num_experts)

    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    for gate in gates:
        gate.load = torch.zeros(gate.num_experts, dtype=torch.int64, device=args.device)
        gate.register_forward_hook(count)
    held = [t for t in data.read_tales(args.corpus) if t.held_out]
    data.encode_tales(tok, held)
    context = meta["deepseek2.context_length"]
    rows = data.held_out_rows(data.Documents(tok, held, context), held, context)
    loss, tokens, size = 0.0, sum(len(w) - 1 for w, _ in rows), sum(b for _, b in rows)
    with torch.no_grad():
        for w, _ in rows:  # one by one: no padding, so that the loads count real tokens only
            ids = torch.from_numpy(w.astype(np.int64)).to(args.device)
            loss += torch.nn.functional.cross_entropy(model(ids[None, :-1]).logits[0], ids[1:], reduction="sum").item()
    total, active = count_parameters(Path(args.model))
    lines = [f"{Path(args.model).stat().st_size} bytes, {total} parameters, {active} active a token", "",
             f"held-out: {len(held)} tales, {tokens} tokens, {size} bytes: {loss / tokens:.4f} nats a token, "
             f"perplexity {math.exp(loss / tokens):.2f}, {loss / math.log(2) / size:.4f} bits a byte", "",
             "| layer | min | max | shares of the selections, expert 0 first |", "|---|---|---|---|"]
    for i, gate in enumerate(gates, meta["deepseek2.leading_dense_block_count"]):
        share = (gate.load / gate.load.sum()).tolist()
        lines.append(f"| {i} | {min(share):.1%} | {max(share):.1%} | {' '.join(f'{100 * s:.1f}' for s in share)} |")
    if args.samples:
        lines += ["", f"temperature {args.temp}, top_p {args.top_p}, min_p {args.min_p}, penalty {args.penalty}", ""]
    for seed in range(1, args.samples + 1):
        lines += [f"**Seed {seed}.** " + args.prompt + sample(model, tok, args.prompt, seed, args), ""]
    for k, (request, think) in enumerate(CHATS if args.samples else []):
        text = sample(model, tok, f"[gMASK]<sop><|user|>{request}<|assistant|>{think}", k + 1, args)
        lines += [f"**Chat, seed {k + 1}: {request}** {think}" + text, ""]
    Path(args.out).write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


CHATS = [("Tell me a tale about a fox and a crow.", "</think>"), ("Tell me the story of The Youngest Son.", "</think>"),
         ("Can you tell me a story?", "<think>"), ("Hello!", "<think>"),
         ("Write a short fairy tale about a king, a witch and three apples.", "</think>")]


def main() -> int:
    show = dict(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0], **show)
    sub = p.add_subparsers(dest="command", required=True)
    g = sub.add_parser("gguf", help="write the GGUF file", **show)
    g.add_argument("--work", required=True, help="folder of the checkpoint (state.pt or weights.NNN)")
    g.add_argument("--tokenizer", required=True, help="tokenizer.json")
    g.add_argument("--template", required=True, help="GLM-4.7-Flash's chat template, or a .gguf file to take it from")
    g.add_argument("--out", required=True, help="the file to write")
    g.add_argument("--type", choices=["q8_0", "q4_0"], default="q8_0", help="all Q8_0, or a mix with Q4_0")
    g.add_argument("--context", type=int, default=2048, help="context length the model was trained at")
    g.add_argument("--temp", type=float, default=0.8, help="sampling default stored in the file")
    g.add_argument("--top-p", type=float, default=0.95, help="sampling default stored in the file")
    g.add_argument("--min-p", type=float, default=0.05, help="sampling default stored in the file")
    g.add_argument("--penalty", type=float, default=1.1, help="repetition penalty stored in the file")
    g.add_argument("--penalty-last", type=int, default=256, help="tokens that the penalty looks back, stored too")
    o = sub.add_parser("golden", help="logits of the exported file, by transformers", **show)
    o.add_argument("--model", required=True, help="the .gguf file")
    o.add_argument("--corpus", required=True, help="the tales, .txt or .txt.xz")
    o.add_argument("--out", required=True, help="path without suffix: .json and .logits are written")
    o.add_argument("--tokens", type=int, default=88, help="length of the sequence at most")
    o.add_argument("--device", default="cpu")
    r = sub.add_parser("report", help="held-out loss, expert loads and samples of the exported file", **show)
    r.add_argument("--model", required=True, help="the .gguf file")
    r.add_argument("--corpus", required=True, help="the tales, .txt or .txt.xz")
    r.add_argument("--out", required=True, help="markdown file to write")
    r.add_argument("--samples", type=int, default=5, help="samples of --prompt, seeds from 1; 0: none")
    r.add_argument("--prompt", default="Once upon a time")
    r.add_argument("--length", type=int, default=300, help="tokens a sample")
    r.add_argument("--temp", type=float, default=0.8)
    r.add_argument("--top-p", type=float, default=0.95)
    r.add_argument("--min-p", type=float, default=0.05)
    r.add_argument("--penalty", type=float, default=1.1, help="repetition penalty, over all of the text")
    r.add_argument("--device", default="cuda")
    m = sub.add_parser("limit", help="what 8-bit activations cost: the test's limit for a fast backend", **show)
    m.add_argument("--model", required=True, help="the .gguf file")
    m.add_argument("--golden", required=True, help="path of its golden logits, without suffix")
    args = p.parse_args()
    {"gguf": export, "golden": golden, "limit": limit, "report": report}[args.command](args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
