#!/usr/bin/env python3
"""Golden logits of models that mix linear attention with full attention (qwen3next, qwen35, qwen35moe, kimi-linear): tiny random GGUF models and
what Hugging Face transformers computes from the same weights. Use, files and formats as make.py's, whose blocks and writers it takes.

  make_hybrid.py OUTDIR [CASE...]            NAME.gguf (numpy only; the same bytes everywhere)
  make_hybrid.py --logits OUTDIR [CASE...]   also NAME.json and NAME.logits (torch, transformers 5.24, llama.cpp's gguf package)
"""
import importlib.util, json, os, pathlib, struct, sys
import numpy as np
spec = importlib.util.spec_from_file_location("golden", pathlib.Path(__file__).resolve().parent / "make.py"); g = importlib.util.module_from_spec(spec); spec.loader.exec_module(g)
kv, s, BLOCK = g.kv, g.s, g.BLOCK

QWEN = dict(arch="qwen3next", hf="Qwen3Next", dim=256, layers=4, interval=2, heads=4, kv_heads=2, head=64, rotary=16, experts=16, used=4, moe_ff=256, shared_ff=256, ff=512,
            key_heads=2, lin_heads=4, key=64, value=64, taps=4, vocab=512, theta=1e7, eps=1e-6, types="q4_k_m", n=150, seed=61)
KIMI = dict(arch="kimi-linear", hf="KimiLinear", dim=256, layers=4, full=[2], heads=4, kv_lora=128, nope=64, rope=32, v=64, experts=16, used=4, moe_ff=256, ff=512, dense=1,
            key=64, taps=4, vocab=512, scale=2.446, eps=1e-6, types="q4_k_m", n=150, seed=65)
CASES = {
    "qwen3next-q4_k_m": dict(QWEN),
    # One head of keys a head of values; widths that are no whole vectors.
    "qwen3next-q8_0": dict(QWEN, types="Q8_0", layers=3, interval=3, key_heads=3, lin_heads=3, key=32, value=96, taps=3, heads=2, kv_heads=1, head=128, rotary=32, n=200, seed=62),
    "qwen3next-nvfp4": dict(QWEN, types="NVFP4", vocab=272, n=100, seed=67),
    "qwen35moe-q4_k_m": dict(QWEN, arch="qwen35moe", hf="Qwen3_5Moe", lin_heads=6, key_heads=2, seed=63, n=200),
    "qwen35-q8_0": dict(QWEN, arch="qwen35", hf="Qwen3_5", experts=0, types="Q8_0", lin_heads=6, key_heads=3, seed=64, n=100),
    "kimi-linear-q4_k_m": dict(KIMI),
    "kimi-linear-q8_0": dict(KIMI, types="Q8_0", layers=3, full=[1], heads=3, key=32, seed=66, n=200),
}


class Maker:
    """Draws tensors, and keeps them as the file and as transformers has them."""

    def __init__(self, c, logits):
        self.c, self.logits, self.rng, self.tensors, self.sd = c, logits, np.random.default_rng(c["seed"]), [], {}

    def floats(self, name, values, shape=None):
        values = np.ascontiguousarray(values, np.float32)
        self.tensors.append((name, shape or values.shape, "F32", values.tobytes()))
        return values

    def norm(self, name, count):
        return self.floats(name, 1 + 0.1 * self.rng.standard_normal(count))

    def small(self, name, shape, scale):
        return self.floats(name, scale * self.rng.standard_normal(shape))

    def put(self, name, shape):
        """A quantised matrix, or several: what its blocks mean."""
        cols, rows, ty = shape[-1], int(np.prod(shape[:-1])), self.c["types"]
        if ty == "q4_k_m": ty = "Q6_K" if name == "output.weight" or ("down" in name and ".1." in name) or "attn_v" in name else "Q4_K"
        if cols % BLOCK[ty][0]: ty = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}.get(ty, "Q8_0" if cols % 32 == 0 else "F16")
        if ty == "NVFP4" and name == "token_embd.weight": ty = "Q8_0"
        std = 1.0 if name == "token_embd.weight" else (1.5 if name == "output.weight" else 1.0) / np.sqrt(cols)
        raw = g.blocks(self.rng, ty, rows, cols, std)
        self.tensors.append((name, shape, ty, raw.tobytes()))
        w = g.dequantize(raw, ty).reshape(shape) if self.logits else np.zeros(shape, np.float32)
        if ty == "NVFP4":
            scales = g.nvfp4_scales(self.rng, shape[0] if len(shape) == 3 else 1, std); w = w * scales.reshape(-1, *[1] * (len(shape) - 1))
            self.tensors.append((name.removesuffix("weight") + "scale", scales.shape, "F32", scales.tobytes()))
        return w


def together(x, key_heads, axis=0):
    """Heads of values that take turns with the heads of keys, as those of one head of keys stand together."""
    x = np.moveaxis(x, axis, 0)
    each = x.shape[0] // key_heads
    x = x.reshape(each, key_heads, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    return np.moveaxis(x, 0, axis)


def by_heads(x, heads):
    return x.reshape(heads, -1, *x.shape[1:])


def decays(m, b, count, heads):
    """Rates of 0.02 to 1, and a bias that lets most decays forget over tens of tokens."""
    rate = m.floats(b + "ssm_a", -m.rng.uniform(0.02, 1.0, heads), (heads, 1) if m.c["arch"] == "kimi-linear" else None)
    bias = m.small(b + "ssm_dt.bias", count, 1.0)
    return np.log(-rate), bias


def delta_net(m, c, b, p):
    K, V, dk, dv, D = c["key_heads"], c["lin_heads"], c["key"], c["value"], c["dim"]
    turns = c["arch"] != "qwen3next"
    qkv = m.put(b + "attn_qkv.weight", (2 * K * dk + V * dv, D)); z = m.put(b + "attn_gate.weight", (V * dv, D))
    conv = m.small(b + "ssm_conv1d.weight", (2 * K * dk + V * dv, c["taps"]), 0.5)
    A_log, bias = decays(m, b, V, V)
    norm = m.norm(b + "ssm_norm.weight", dv); out = m.put(b + "ssm_out.weight", (D, V * dv))
    a = p + "linear_attn."
    q, k, v = np.split(qkv, [K * dk, 2 * K * dk])
    if turns:
        beta, alpha = m.put(b + "ssm_beta.weight", (V, D)), m.put(b + "ssm_alpha.weight", (V, D))
        t = lambda x: together(by_heads(x, V), K).reshape(x.shape)
        m.sd[a + "in_proj_qkv.weight"] = np.concatenate([q, k, t(v)]); m.sd[a + "in_proj_z.weight"] = t(z)
        m.sd[a + "in_proj_b.weight"], m.sd[a + "in_proj_a.weight"] = t(beta), t(alpha)
        conv = np.concatenate([conv[:2 * K * dk], t(conv[2 * K * dk:])]); A_log, bias = t(A_log), t(bias)
        out = together(out.reshape(D, V, dv), K, 1).reshape(D, V * dv)
    else:
        m.sd[a + "in_proj_ba.weight"] = m.put(b + "ssm_ba.weight", (2 * V, D))
        m.sd[a + "in_proj_qkvz.weight"] = np.concatenate([by_heads(x, K) for x in (q, k, v, z)], 1).reshape(-1, D)
    m.sd[a + "conv1d.weight"] = conv[:, None]; m.sd[a + "A_log"] = A_log; m.sd[a + "dt_bias"] = bias
    m.sd[a + "norm.weight"] = norm; m.sd[a + "out_proj.weight"] = out


def gated_attention(m, c, b, p):
    H, K, hd, D, a = c["heads"], c["kv_heads"], c["head"], c["dim"], p + "self_attn."
    m.sd[a + "q_proj.weight"] = m.put(b + "attn_q.weight", (2 * H * hd, D))
    m.sd[a + "k_proj.weight"] = m.put(b + "attn_k.weight", (K * hd, D)); m.sd[a + "v_proj.weight"] = m.put(b + "attn_v.weight", (K * hd, D))
    m.sd[a + "q_norm.weight"] = m.norm(b + "attn_q_norm.weight", hd) - 1; m.sd[a + "k_norm.weight"] = m.norm(b + "attn_k_norm.weight", hd) - 1
    m.sd[a + "o_proj.weight"] = m.put(b + "attn_output.weight", (D, H * hd))


def channel_attention(m, c, b, p):
    H, dk, D, a = c["heads"], c["key"], c["dim"], p + "self_attn."
    convs = []
    for x in "qkv":
        m.sd[a + x + "_proj.weight"] = m.put(b + f"attn_{x}.weight", (H * dk, D))
        convs.append(m.small(b + f"ssm_conv1d_{x}.weight", (H * dk, 1, c["taps"]), 0.5))
    m.sd[a + "conv1d.weight"] = np.concatenate(convs)
    m.sd[a + "forget_gate.f_a_proj.weight"] = m.put(b + "ssm_f_a.weight", (dk, D)); m.sd[a + "forget_gate.f_b_proj.weight"] = m.put(b + "ssm_f_b.weight", (H * dk, dk))
    A_log, bias = decays(m, b, H * dk, H)
    m.sd[a + "forget_gate.A_log"] = A_log.reshape(1, 1, H, 1); m.sd[a + "forget_gate.dt_bias"] = bias
    m.sd[a + "b_proj.weight"] = m.put(b + "ssm_beta.weight", (H, D))
    m.sd[a + "g_a_proj.weight"] = m.put(b + "ssm_g_a.weight", (dk, D)); m.sd[a + "g_b_proj.weight"] = m.put(b + "ssm_g_b.weight", (H * dk, dk))
    m.sd[a + "o_norm.weight"] = m.norm(b + "ssm_norm.weight", dk); m.sd[a + "o_proj.weight"] = m.put(b + "attn_output.weight", (D, H * dk))


def latent_attention(m, c, b, p):
    H, D, R, a = c["heads"], c["dim"], c["kv_lora"], p + "self_attn."
    m.sd[a + "q_proj.weight"] = m.put(b + "attn_q.weight", (H * (c["nope"] + c["rope"]), D))
    m.sd[a + "kv_a_proj_with_mqa.weight"] = m.put(b + "attn_kv_a_mqa.weight", (R + c["rope"], D)); m.sd[a + "kv_a_layernorm.weight"] = m.norm(b + "attn_kv_a_norm.weight", R)
    k_b, v_b = m.put(b + "attn_k_b.weight", (H, R, c["nope"])), m.put(b + "attn_v_b.weight", (H, c["v"], R))
    m.sd[a + "kv_b_proj.weight"] = np.concatenate([k_b.swapaxes(1, 2), v_b], 1).reshape(-1, R)
    m.sd[a + "o_proj.weight"] = m.put(b + "attn_output.weight", (D, H * c["v"]))


def feed_forward(m, c, i, b, p):
    D, E, M, kimi, f = c["dim"], c["experts"], c["moe_ff"], c["arch"] == "kimi-linear", p + "mlp."
    def three(to, end, width):
        for x, shape in (("gate", (width, D)), ("up", (width, D)), ("down", (D, width))): m.sd[f + to + x + "_proj.weight"] = m.put(b + f"ffn_{x}{end}.weight", shape)
    if E == 0 or (kimi and i < c["dense"]): return three("", "", c["ff"])
    m.sd[f + "gate.weight"] = m.small(b + "ffn_gate_inp.weight", (E, D), 2 / np.sqrt(D))
    m.sd[f + "experts.gate_up_proj"] = np.concatenate([m.put(b + "ffn_gate_exps.weight", (E, M, D)), m.put(b + "ffn_up_exps.weight", (E, M, D))], 1)
    m.sd[f + "experts.down_proj"] = m.put(b + "ffn_down_exps.weight", (E, D, M))
    if kimi:
        m.sd[f + "gate.e_score_correction_bias"] = m.small(b + "exp_probs_b.bias", E, 0.1)
        return three("shared_experts.", "_shexp", M)
    m.sd[f + "shared_expert_gate.weight"] = m.small(b + "ffn_gate_inp_shexp.weight", D, 2 / np.sqrt(D))[None]
    three("shared_expert.", "_shexp", c["shared_ff"])


def transformers_logits(name, c, sd, tokens):
    import torch, transformers
    kimi = c["arch"] == "kimi-linear"
    k = dict(vocab_size=c["vocab"], hidden_size=c["dim"], intermediate_size=c["ff"], num_hidden_layers=c["layers"], num_attention_heads=c["heads"], rms_norm_eps=c["eps"],
             tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, pad_token_id=None, max_position_embeddings=131072)
    full = c["full"] if kimi else [i for i in range(c["layers"]) if (i + 1) % c["interval"] == 0]
    k["layer_types"] = ["full_attention" if i in full else "linear_attention" for i in range(c["layers"])]
    if kimi:
        k.update(num_key_value_heads=c["heads"], kv_lora_rank=c["kv_lora"], q_lora_rank=None, qk_nope_head_dim=c["nope"], qk_rope_head_dim=c["rope"], v_head_dim=c["v"],
                 num_local_experts=c["experts"], num_experts_per_tok=c["used"], moe_intermediate_size=c["moe_ff"], n_shared_experts=1, routed_scaling_factor=c["scale"], n_group=1,
                 topk_group=1, norm_topk_prob=True, linear_head_dim=c["key"], linear_num_heads=c["heads"], linear_conv_kernel_dim=c["taps"], first_k_dense_replace=c["dense"])
    else:
        pairs = c["rotary"] // 2
        k.update(num_key_value_heads=c["kv_heads"], head_dim=c["head"], linear_conv_kernel_dim=c["taps"], linear_key_head_dim=c["key"], linear_value_head_dim=c["value"],
                 linear_num_key_heads=c["key_heads"], linear_num_value_heads=c["lin_heads"],
                 rope_parameters={"rope_type": "default", "rope_theta": c["theta"], "partial_rotary_factor": c["rotary"] / c["head"]})
        if c["experts"]: k.update(num_experts=c["experts"], num_experts_per_tok=c["used"], moe_intermediate_size=c["moe_ff"], shared_expert_intermediate_size=c["shared_ff"])
        if c["arch"] != "qwen3next": k["rope_parameters"]["mrope_section"] = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    config = c["hf"] + ("TextConfig" if c["hf"].startswith("Qwen3_5") else "Config")
    cfg = getattr(transformers, config)(**k)
    cfg._attn_implementation = cfg._experts_implementation = "eager"
    model = getattr(transformers, c["hf"] + "ForCausalLM")(cfg).float().eval()
    missing, unexpected = model.load_state_dict({n: torch.from_numpy(np.ascontiguousarray(w)) for n, w in sd.items()}, strict=False)
    missing = [x for x in missing if "inv_freq" not in x]
    assert not missing and not unexpected, (name, missing[:6], unexpected[:6])
    with torch.no_grad():
        return model(torch.from_numpy(tokens)[None], use_cache=False).logits[0].float().numpy(), transformers.__version__


def metadata(name, c):
    q, kimi = c["arch"] + ".", c["arch"] == "kimi-linear"
    ch = [chr(i) if 33 <= i < 127 or 161 <= i < 173 or 174 <= i < 256 else None for i in range(256)]; n = 0
    for i in range(256):
        if ch[i] is None: ch[i] = chr(256 + n); n += 1
    words = [(97 + i % 26, 97 + i // 26) for i in range(c["vocab"] - 264)]
    tokens = ch + [ch[a] + ch[b] for a, b in words] + ["<|endoftext|>"] + [f"<|special_{i}|>" for i in range(7)]
    meta = [kv("general.architecture", "str", c["arch"]), kv("general.name", "str", name), kv("general.alignment", "u32", 32), kv(q + "block_count", "u32", c["layers"]),
            kv(q + "context_length", "u32", 131072), kv(q + "embedding_length", "u32", c["dim"]), kv(q + "feed_forward_length", "u32", c["ff"]),
            kv(q + "attention.head_count", "u32", c["heads"]), kv(q + "attention.layer_norm_rms_epsilon", "f32", c["eps"]), kv(q + "ssm.conv_kernel", "u32", c["taps"])]
    if c["experts"]:
        meta += [kv(q + "expert_count", "u32", c["experts"]), kv(q + "expert_used_count", "u32", c["used"]), kv(q + "expert_feed_forward_length", "u32", c["moe_ff"])]
    if kimi:
        meta += [kv(q + "attention.head_count_kv", "i32s", [1 if i in c["full"] else 0 for i in range(c["layers"])]), kv(q + "kda.head_dim", "u32", c["key"]),
                 kv(q + "attention.kv_lora_rank", "u32", c["kv_lora"]), kv(q + "rope.dimension_count", "u32", c["rope"]), kv(q + "rope.freq_base", "f32", 10000.0),
                 kv(q + "attention.key_length", "u32", c["kv_lora"] + c["rope"]), kv(q + "attention.value_length", "u32", c["kv_lora"]),
                 kv(q + "attention.key_length_mla", "u32", c["nope"] + c["rope"]), kv(q + "attention.value_length_mla", "u32", c["v"]),
                 kv(q + "expert_shared_count", "u32", 1), kv(q + "leading_dense_block_count", "u32", c["dense"]), kv(q + "expert_weights_scale", "f32", c["scale"]),
                 kv(q + "expert_gating_func", "u32", 2)]
    else:
        meta += [kv(q + "attention.head_count_kv", "u32", c["kv_heads"]), kv(q + "attention.key_length", "u32", c["head"]), kv(q + "attention.value_length", "u32", c["head"]),
                 kv(q + "rope.freq_base", "f32", c["theta"]), kv(q + "rope.dimension_count", "u32", c["rotary"]), kv(q + "full_attention_interval", "u32", c["interval"]),
                 kv(q + "ssm.state_size", "u32", c["key"]), kv(q + "ssm.group_count", "u32", c["key_heads"]), kv(q + "ssm.time_step_rank", "u32", c["lin_heads"]),
                 kv(q + "ssm.inner_size", "u32", c["lin_heads"] * c["value"])]
        if c["experts"]: meta.append(kv(q + "expert_shared_feed_forward_length", "u32", c["shared_ff"]))
        if c["arch"] != "qwen3next": meta.append(kv(q + "rope.dimension_sections", "i32s", [3, 3, 2, 0]))
    return meta + [kv("tokenizer.ggml.model", "str", "gpt2"), kv("tokenizer.ggml.pre", "str", "kimi-k2" if kimi else "qwen2" if c["arch"] == "qwen3next" else "qwen35"),
                   kv("tokenizer.ggml.tokens", "strs", tokens), kv("tokenizer.ggml.token_type", "i32s", [1] * (c["vocab"] - 8) + [3] * 8),
                   kv("tokenizer.ggml.merges", "strs", [f"{ch[a]} {ch[b]}" for a, b in words]), kv("tokenizer.ggml.eos_token_id", "u32", c["vocab"] - 8)]


def write(path, tensors, meta):
    info, at = b"", 0
    for name, shape, ty, raw in tensors:
        info += s(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1]) + struct.pack("<IQ", BLOCK[ty][2], at)
        at += (len(raw) + 31) // 32 * 32
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + b"".join(meta) + info); f.write(b"\0" * (-f.tell() % 32))
        for *_, raw in tensors: f.write(raw); f.write(b"\0" * (-f.tell() % 32))


def run(name, c, out, logits):
    m = Maker(c, logits); kimi = c["arch"] == "kimi-linear"; one = 0 if kimi else 1  # qwen's norms of transformers lack 1
    m.sd["model.embed_tokens.weight"] = m.put("token_embd.weight", (c["vocab"], c["dim"])); m.sd["model.norm.weight"] = m.norm("output_norm.weight", c["dim"]) - one
    m.sd["lm_head.weight"] = m.put("output.weight", (c["vocab"], c["dim"]))
    for i in range(c["layers"]):
        b, p = f"blk.{i}.", f"model.layers.{i}."
        m.sd[p + "input_layernorm.weight"] = m.norm(b + "attn_norm.weight", c["dim"]) - one
        m.sd[p + "post_attention_layernorm.weight"] = m.norm(b + ("ffn_norm" if kimi else "post_attention_norm") + ".weight", c["dim"]) - one
        if kimi: (latent_attention if i in c["full"] else channel_attention)(m, c, b, p)
        else: (gated_attention if (i + 1) % c["interval"] == 0 else delta_net)(m, c, b, p)
        feed_forward(m, c, i, b, p)
    tokens = m.rng.integers(0, c["vocab"], c["n"])
    write(f"{out}/{name}.gguf", m.tensors, metadata(name, c))
    print(f"{name:20s} {os.path.getsize(f'{out}/{name}.gguf') / 1e6:6.2f} MB {sorted(set(t for _, _, t, _ in m.tensors))}", flush=True)
    if not logits: return
    values, version = transformers_logits(name, c, m.sd, tokens)
    values.astype("<f4").tofile(f"{out}/{name}.logits")
    json.dump({"case": name, "config": c, "transformers": version, "class": c["hf"] + "ForCausalLM", "n_vocab": c["vocab"], "tokens": tokens.tolist()}, open(f"{out}/{name}.json", "w"))
    print(f"{'':20s} logits std {values.std():.3f}, largest {np.abs(values).max():.2f}", flush=True)


def main(argv):
    logits = "--logits" in argv; argv = [x for x in argv if x != "--logits"]
    if not argv: print(__doc__); return 2
    os.makedirs(argv[0], exist_ok=True)
    for name in argv[1:] or CASES: run(name, CASES[name], argv[0], logits)
    return 0


if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
