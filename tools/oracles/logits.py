#!/usr/bin/env python3
"""The oracles: what Hugging Face transformers computes, in float32 on a CPU, from the models of models.py.

    logits.py OUTDIR [MODEL...]    writes MODEL.json (tokens and facts) and MODEL.logits, little-endian float32
                                   [tokens, vocabulary]: row i is the logits after token i of one sequence from position 0

Needs torch and transformers 5.17. Weights are dequantised by tests/quant/dequantize.py, which shares no code with Sluice.
Of files with a block of multi-token prediction (glm-mtp) row i is that block's, of token i + 1. A case that fails prints why, and the others go on; the exit status is 1 then.
"""
import hashlib
import json
import sys
import traceback
from pathlib import Path

import numpy as np

import models

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "quant"))
import dequantize  # noqa: E402


def decoded(t):
    return {name: dequantize.decode(kind, np.frombuffer(raw.tobytes(), np.uint8)).astype(np.float32).reshape(shape)
            for name, (shape, kind, raw) in t.all.items()}


def halves(w, heads):
    """Rows of a query or key matrix from neighbouring pairs, as llama's files hold them, to transformers' two halves."""
    return w.reshape(heads, -1, 2, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)


def standard_state(c, w):
    sd = {}
    for i in range(c["layers"]):
        b, p = f"blk.{i}.", f"model.layers.{i}."
        same = {"attn_norm": "input_layernorm", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
                "ffn_norm": "post_attention_layernorm"} | {f"ffn_{n}": f"mlp.{n}_proj" for n in ("gate", "up", "down")}
        if c["qk_norm"]:
            same |= {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
        sd |= {f"{p}{theirs}.weight": w[f"{b}{ours}.weight"] for ours, theirs in same.items()}
        for n, heads in (("q", c["heads"]), ("k", c["kv_heads"])):
            m = w[b + f"attn_{n}.weight"]
            sd[p + f"self_attn.{n}_proj.weight"] = halves(m, heads) if c["arch"] == "llama" else m
        if c["bias"]:
            sd |= {p + f"self_attn.{n}_proj.bias": w[b + f"attn_{n}.bias"] for n in "qkv"}
    return sd


def latent_state(c, w):
    sd, names = {}, ("gate", "up", "down")
    same = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
            "attn_output": "self_attn.o_proj"}
    same |= ({"attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj"}
             if c["q_lora"] else {"attn_q": "self_attn.q_proj"})
    for i in range(c["layers"]):
        b, p = f"blk.{i}.", f"model.layers.{i}."
        sd |= {f"{p}{theirs}.weight": w[f"{b}{ours}.weight"] for ours, theirs in same.items()}
        kv = np.concatenate([w[b + "attn_k_b.weight"].transpose(0, 2, 1), w[b + "attn_v_b.weight"]], 1)
        sd[p + "self_attn.kv_b_proj.weight"] = kv.reshape(-1, kv.shape[-1])
        if i < c["dense"]:
            sd |= {p + f"mlp.{n}_proj.weight": w[b + f"ffn_{n}.weight"] for n in names}
            continue
        sd[p + "mlp.gate.weight"] = w[b + "ffn_gate_inp.weight"]
        if c["sigmoid"]:
            sd[p + "mlp.gate.e_score_correction_bias"] = w[b + "exp_probs_b.bias"]
        sd[p + "mlp.experts.gate_up_proj"] = np.concatenate([w[b + f"ffn_{n}_exps.weight"] for n in ("gate", "up")], 1)
        sd[p + "mlp.experts.down_proj"] = w[b + "ffn_down_exps.weight"]
        sd |= {p + f"mlp.shared_experts.{n}_proj.weight": w[b + f"ffn_{n}_shexp.weight"] for n in names}
    return sd


def rope_parameters(c):
    r = c.get("rope")
    if not r:
        return {"rope_type": "default", "rope_theta": c["theta"]}
    if r["kind"] == "linear":
        return {"rope_type": "linear", "rope_theta": c["theta"], "factor": r["factor"]}
    common = {"rope_theta": c["theta"], "factor": r["factor"], "original_max_position_embeddings": r["original"]}
    if "all_dim" in r:  # latent attention: the rotation keeps its magnitude, scores are multiplied
        common |= {"mscale": r["all_dim"], "mscale_all_dim": r["all_dim"]}
    common |= {n: r[n] for n in ("beta_fast", "beta_slow") if n in r}
    if "temperature" in c:
        common |= {"llama_4_scaling_beta": c["temperature"]}
    if r["kind"] == "yarn":
        return {"rope_type": "yarn"} | common
    return {"rope_type": "llama3", "low_freq_factor": r["low"], "high_freq_factor": r["high"]} | common


def config_of(transformers, c):
    r = c.get("rope")
    k = dict(vocab_size=c["vocab"], hidden_size=c["dim"], intermediate_size=c["ff"], num_hidden_layers=c["layers"],
             num_attention_heads=c["heads"], rms_norm_eps=c["eps"], rope_parameters=rope_parameters(c),
             max_position_embeddings=int(r["factor"] * r["original"]) if r else 4096, tie_word_embeddings=c["tied"],
             bos_token_id=0, eos_token_id=1)
    if "kv_lora" not in c:
        k |= dict(num_key_value_heads=c["kv_heads"])
        if c["arch"] != "qwen2":  # its heads share the width out
            k |= dict(head_dim=c["head"])
    else:
        k |= dict(num_key_value_heads=c["heads"], kv_lora_rank=c["kv_lora"], q_lora_rank=c["q_lora"] or None,
                  qk_rope_head_dim=c["rope_dim"], qk_nope_head_dim=c["nope"], v_head_dim=c["value"],
                  n_routed_experts=c["experts"], n_shared_experts=c["shared"], num_experts_per_tok=c["used"],
                  moe_intermediate_size=c["moe_ff"], routed_scaling_factor=c["scale"], norm_topk_prob=c["normalize"],
                  n_group=c["groups"], topk_group=c["groups_used"])
        if c["hf"] == "DeepseekV2":
            k |= dict(first_k_dense_replace=c["dense"], topk_method="group_limited_greedy", head_dim=c["rope_dim"])
        elif c["hf"] != "Glm4MoeLite":
            k |= dict(first_k_dense_replace=c["dense"])
        else:
            k |= dict(mlp_layer_types=["dense"] * c["dense"] + ["sparse"] * (c["layers"] - c["dense"]))
    config = getattr(transformers, c["hf"] + "Config")(**k)
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    return config


def rms(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotated(c, x):
    """Neighbouring pairs of the last axis, by the position along the first."""
    angles = np.arange(len(x))[:, None] * c["theta"] ** (-np.arange(0, c["rope_dim"], 2) / c["rope_dim"])
    angles = angles.reshape(len(x), *[1] * (x.ndim - 2), -1)
    even, odd = x[..., ::2], x[..., 1::2]
    return np.stack([even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles)],
                    -1).reshape(x.shape)


def silu_network(x, gate, up, down):
    g = x @ gate.T
    return (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T


def predicted(c, w, b, table, head, rows, ids):
    """DeepSeek-V3's block of multi-token prediction as its paper (arXiv:2412.19437, 2.2 and 2.1) and published code say
    it, in plain numpy and float64: of the trunk's normed rows and the tokens behind them the logits of the next ones."""
    get = {n[len(b):-len(".weight")]: x.astype(np.float64) for n, x in w.items() if n.startswith(b) and n.endswith(".weight")}
    eps, n, heads = c["eps"], len(rows), c["heads"]
    x = np.concatenate([rms(table[ids], get["nextn.enorm"], eps), rms(rows, get["nextn.hnorm"], eps)], 1)
    x = x @ get["nextn.eh_proj"].T
    a = rms(x, get["attn_norm"], eps)
    q = (rms(a @ get["attn_q_a"].T, get["attn_q_a_norm"], eps) @ get["attn_q_b"].T).reshape(n, heads, -1)
    kv = a @ get["attn_kv_a_mqa"].T
    latent, key = rms(kv[:, :c["kv_lora"]], get["attn_kv_a_norm"], eps), rotated(c, kv[:, c["kv_lora"]:])
    k = np.einsum("nl,hlk->nhk", latent, get["attn_k_b"])
    v = np.einsum("nl,hvl->nhv", latent, get["attn_v_b"])
    scores = np.einsum("ihk,jhk->hij", q[..., :c["nope"]], k)
    scores += np.einsum("ihk,jk->hij", rotated(c, q[..., c["nope"]:]), key)
    scores /= np.sqrt(c["nope"] + c["rope_dim"])
    scores = np.exp(np.where(np.tri(n, dtype=bool), scores, -np.inf) - scores.max(-1, keepdims=True))
    context = np.einsum("hij,jhv->ihv", scores / scores.sum(-1, keepdims=True), v)
    x = x + context.reshape(n, -1) @ get["attn_output"].T
    a = rms(x, get["ffn_norm"], eps)
    chances = 1 / (1 + np.exp(-a @ get["ffn_gate_inp"].T))
    chosen = np.argsort(-(chances + w[b + "exp_probs_b.bias"]), -1)[:, :c["used"]]
    share = np.take_along_axis(chances, chosen, 1)
    share = share / share.sum(-1, keepdims=True) * c["scale"]
    out = silu_network(a, *(get[f"ffn_{m}_shexp"] for m in ("gate", "up", "down")))
    for i in range(n):
        for e, s in zip(chosen[i], share[i]):
            out[i] += s * silu_network(a[i], *(get[f"ffn_{m}_exps"][e] for m in ("gate", "up", "down")))
    return rms(x + out, get["nextn.shared_head_norm"], eps) @ head.T


def prediction_oracle(name, folder):
    """A file with such a block: row i is of the trunk's row i and token i + 1. The trunk's rows are transformers'."""
    import torch
    import transformers
    model_name, layout = models.FILES[name]
    c, t, w, model = loaded(model_name)
    w = decoded(t) | decoded(models.prediction(c, layout))
    ids = models.tokens(c)
    with torch.no_grad():
        rows = model.model(torch.from_numpy(ids)[None]).last_hidden_state[0].double().numpy()
    b = f"blk.{c['layers']}."
    own = lambda ours, theirs: w.get(b + f"nextn.{ours}.weight", w[theirs]).astype(np.float64)  # noqa: E731
    table, head = own("embed_tokens", "token_embd.weight"), own("shared_head_head", "output.weight")
    logits = predicted(c, w, b, table, head, rows[:-1], ids[1:])
    logits.astype("<f4").tofile(folder / f"{name}.logits")
    facts = {"case": name, "of": "numpy, of transformers' rows", "transformers": transformers.__version__,
             "n_vocab": c["vocab"], "tokens": ids.tolist()}
    (folder / f"{name}.json").write_text(json.dumps(facts) + "\n")
    print(f"{name:16s} logits std {logits.std():.3f}, largest {np.abs(logits).max():.2f}", flush=True)


def loaded(name):
    """A model's facts, tensors and numbers, and transformers' class with them."""
    import torch
    import transformers
    c, t = models.weights(name)
    w = decoded(t)
    state = (latent_state if "kv_lora" in c else standard_state)(c, w)
    state |= {"model.embed_tokens.weight": w["token_embd.weight"], "model.norm.weight": w["output_norm.weight"],
              "lm_head.weight": w["token_embd.weight" if c["tied"] else "output.weight"]}
    model = getattr(transformers, c["hf"] + "ForCausalLM")(config_of(transformers, c)).float().eval()
    missing, unexpected = model.load_state_dict(
        {n: torch.from_numpy(np.ascontiguousarray(x)) for n, x in state.items()}, strict=False)
    missing = [m for m in missing if "inv_freq" not in m]
    if missing or unexpected:
        raise ValueError(f"missing {missing}, unexpected {unexpected}")
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):  # GGUF has one epsilon; some classes fix that of the latent norms
            module.variance_epsilon = c["eps"]
        if type(module).__name__ == "DeepseekV2Moe" and not hasattr(module, "num_experts"):
            module.num_experts = c["experts"]  # some versions read it without ever setting it
    return c, t, w, model


def oracle(name, folder):
    import torch
    import transformers
    if name not in models.MODELS:
        return prediction_oracle(name, folder)
    c, t, _, model = loaded(name)
    ids = models.tokens(c)
    largest = 0.0  # product of gate and up; experts are no modules of their own and go unseen

    def watch(_, inputs):
        nonlocal largest
        largest = max(largest, float(inputs[0].abs().max()))

    for n, module in model.named_modules():
        if n.endswith("down_proj"):
            module.register_forward_pre_hook(watch)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)[None]).logits[0].float().numpy()
    if not np.isfinite(logits).all():
        raise ValueError("logits are not finite")
    logits.astype("<f4").tofile(folder / f"{name}.logits")
    digest = hashlib.sha256(b"".join(raw.tobytes() for _, _, raw in t.all.values())).hexdigest()
    facts = {"case": name, "config": c, "transformers": transformers.__version__, "torch": torch.__version__,
             "class": c["hf"] + "ForCausalLM", "weights_sha256": digest,
             "largest_into_down": largest, "n_vocab": c["vocab"], "tokens": ids.tolist()}
    (folder / f"{name}.json").write_text(json.dumps(facts) + "\n")
    print(f"{name:16s} logits std {logits.std():.3f}, largest {np.abs(logits).max():.2f}; largest into a down matrix "
          f"{largest:.0f}; {getattr(model.config, 'rope_parameters', None)}", flush=True)


def main(argv):
    if not argv:
        print(__doc__)
        return 2
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in argv[1:] or [*models.MODELS, "glm-mtp", "glm-mtp-experts"]:
        try:
            oracle(name, folder)
        except Exception:  # noqa: BLE001  the other cases still count
            failed = 1
            print(f"{name}: FAILED", flush=True)
            traceback.print_exc(file=sys.stdout)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
