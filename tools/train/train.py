#!/usr/bin/env python3
"""Trains the bundled model: transformers' Glm4MoeLiteForCausalLM, small, on GPUs, in runs that can be resumed.

  train.py tokenizer --corpus tales.txt.xz --out work/tokenizer.json
  train.py run --corpus tales.txt.xz --tokenizer work/tokenizer.json --work work/fairy --steps 6000 --minutes 9
  train.py run ... --shape big --leave-out 0     a larger model that sees three quarters of the tales, to teach the rest
  train.py run ... --teachers work/big           learns from what work/big0 .. work/big3 predict, each on its rest
  torchrun --nproc-per-node 4 train.py run ...   the same on several GPUs: each takes its share of a step's rows

A run stops after --minutes, or at --steps, and leaves in --work: state.pt (everything; the next run continues from it),
weights.NNN (bf16 weights in parts of under 16 MiB, to carry elsewhere; a run continues from these where state.pt is
missing), config.json and log.jsonl.
"""
from __future__ import annotations

import argparse
import io
import json
import math
import os
import sys
import time
import types
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import data

PART_BYTES = 15 << 20
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))  # torchrun sets these

# Shapes. Every width that a weight matrix reads from is a multiple of 32, the block of Q8_0 and Q4_0.
SHAPES = {
    "fairy": dict(hidden_size=320, num_hidden_layers=8, num_attention_heads=8, q_lora_rank=128, kv_lora_rank=128,
                  qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=64, intermediate_size=896, n_routed_experts=8,
                  num_experts_per_tok=3, moe_intermediate_size=128, routed_scaling_factor=1.8),
    "big": dict(hidden_size=512, num_hidden_layers=10, num_attention_heads=8, q_lora_rank=256, kv_lora_rank=192,
                qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=64, intermediate_size=1536, n_routed_experts=8,
                num_experts_per_tok=3, moe_intermediate_size=224, routed_scaling_factor=1.8),
}


# --- the model -------------------------------------------------------------------------------------------------------

def make_config(shape: dict, context: int):
    from transformers import Glm4MoeLiteConfig
    layers = shape["num_hidden_layers"]
    return Glm4MoeLiteConfig(**shape, vocab_size=data.VOCAB_SIZE, num_key_value_heads=shape["num_attention_heads"],
                             n_shared_experts=1, norm_topk_prob=True, n_group=1, topk_group=1, rms_norm_eps=1e-6,
                             max_position_embeddings=context, tie_word_embeddings=False, use_cache=False,
                             rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                             mlp_layer_types=["dense"] + ["sparse"] * (layers - 1), bos_token_id=None,
                             eos_token_id=data.VOCAB_SIZE - len(data.SPECIAL), pad_token_id=None)


def dense_experts(self, x, index, weight):
    """All experts on all tokens in two matrix products, the unselected ones with weight zero. The same sums as the
    class's own loop over experts, without gathering tokens: at this size it is the fastest form."""
    n, experts, inner = x.shape[0], self.num_experts, self.intermediate_dim
    w = torch.zeros(n, experts, device=x.device, dtype=weight.dtype).scatter(1, index, weight)
    gate, up = F.linear(x, self.gate_up_proj.flatten(0, 1)).view(n, experts, 2 * inner).chunk(2, dim=-1)
    mid = F.silu(gate) * up * w.to(gate.dtype)[..., None]
    return F.linear(mid.flatten(1), self.down_proj.transpose(0, 1).flatten(1)).to(x.dtype)


def build(shape: dict, context: int, dropout: float = 0.0, attention_dropout: float = 0.0, seed: int = 0):
    """The model on the GPU in float32, with dropout after the embedding and after each block, and load counters."""
    from transformers import Glm4MoeLiteForCausalLM
    torch.manual_seed(seed)
    config = make_config(shape, context)
    config._attn_implementation = "sdpa"
    config.attention_dropout = attention_dropout
    model = Glm4MoeLiteForCausalLM(config).float().cuda()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.normal_(0, 0.2 if "embed" in name else 0.7 / math.sqrt(p.shape[-1]))
            if name.endswith(("o_proj.weight", "down_proj.weight", "experts.down_proj")):
                p.mul_(1 / math.sqrt(2 * config.num_hidden_layers))
        model.lm_head.weight.mul_(0.3)

    def drop(module, _, out):
        if not module.training or dropout == 0:
            return out
        return (F.dropout(out[0], dropout),) + out[1:] if isinstance(out, tuple) else F.dropout(out, dropout)

    def count(module, _, out):
        module.load += F.one_hot(out[2], module.num_experts).sum((0, 1))

    if dropout:
        model.model.embed_tokens.register_forward_hook(drop)
    for layer in model.model.layers:
        if dropout:
            layer.self_attn.register_forward_hook(drop)
            layer.mlp.register_forward_hook(drop)
        if hasattr(layer.mlp, "gate"):
            load = torch.zeros(config.n_routed_experts, device="cuda", dtype=torch.int64)
            layer.mlp.gate.register_buffer("load", load, persistent=False)
            layer.mlp.gate.register_forward_hook(count)
            layer.mlp.experts.forward = types.MethodType(dense_experts, layer.mlp.experts)
    return model


def routers(model):
    return [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]


def balance(model, rate: float) -> None:
    """Moves each selection bias by `rate` towards the experts that got less than their share, and clears the counts."""
    for gate in routers(model):
        load = gate.load.float()
        if WORLD > 1:
            dist.all_reduce(load)
        gate.e_score_correction_bias += rate * torch.sign(load.mean() - load)
        gate.load.zero_()


def compile_layers(model) -> None:
    torch._dynamo.config.recompile_limit = 64
    for layer in model.model.layers:
        layer.compile()


# --- the optimizer ---------------------------------------------------------------------------------------------------

class Muon:
    """Momentum made orthogonal (Newton-Schulz) for the matrices of the layers; experts and stacked gate/up apart.

    Steps are scaled to the size of Adam's, so that both take the same learning rate."""

    def __init__(self, params: list[torch.nn.Parameter], weight_decay: float, momentum: float = 0.95):
        self.params, self.weight_decay, self.momentum = params, weight_decay, momentum
        self.buffers = [torch.zeros_like(p) for p in params]
        self.groups: dict[tuple, list[int]] = {}
        for i, p in enumerate(params):
            self.groups.setdefault(tuple(p.shape), []).append(i)

    @staticmethod
    def matrices(x: torch.Tensor, expert_gate_up: bool) -> torch.Tensor:
        return x.reshape(-1, x.shape[-2] // 2, x.shape[-1]) if expert_gate_up else x.reshape(-1, *x.shape[-2:])

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for shape, members in self.groups.items():
            updates = []
            for i in members:
                g, b = self.params[i].grad, self.buffers[i]
                b.lerp_(g, 1 - self.momentum)
                updates.append(g.lerp(b, self.momentum))
            stacked = torch.stack(updates)
            flat = self.matrices(stacked, len(shape) == 3 and shape[1] < shape[2])
            flat = newton_schulz(flat) * (0.2 * math.sqrt(max(flat.shape[-2:])))
            for i, u in zip(members, flat.reshape(stacked.shape)):
                self.params[i].mul_(1 - lr * self.weight_decay).add_(u, alpha=-lr)

    def state_dict(self):
        return {"buffers": self.buffers}

    def load_state_dict(self, state):
        for b, s in zip(self.buffers, state["buffers"]):
            b.copy_(s)


def newton_schulz(g: torch.Tensor, steps: int = 5) -> torch.Tensor:
    x = g.bfloat16()
    if tall := x.shape[-2] > x.shape[-1]:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).float()


class Optimizer:
    """Muon for the layers' matrices (or AdamW, where asked for), AdamW for embedding, head, routers and norms."""

    def __init__(self, model, kind: str, weight_decay: float, embed_decay: float):
        matrix, table, rest = [], [], []
        for name, p in model.named_parameters():
            if "embed_tokens" in name or "lm_head" in name:
                table.append(p)
            elif p.dim() < 2 or name.endswith("mlp.gate.weight"):
                rest.append(p)
            else:
                matrix.append(p)
        groups = [dict(params=table, weight_decay=embed_decay), dict(params=rest, weight_decay=0.0)]
        if kind == "adamw":
            groups.append(dict(params=matrix, weight_decay=weight_decay))
        self.muon = Muon(matrix, weight_decay) if kind == "muon" else None
        self.adam = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-10, fused=True)
        self.params = list(model.parameters())

    def step(self, lr: float) -> None:
        if WORLD > 1:
            flat = torch.cat([p.grad.flatten() for p in self.params])
            dist.all_reduce(flat, dist.ReduceOp.AVG)
            for p, g in zip(self.params, flat.split([p.numel() for p in self.params])):
                p.grad = g.view_as(p)
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        for g in self.adam.param_groups:
            g["lr"] = lr
        self.adam.step()
        if self.muon:
            self.muon.step(lr)
        for p in self.params:
            p.grad = None

    def state_dict(self):
        return {"adam": self.adam.state_dict(), "muon": self.muon.state_dict() if self.muon else None}

    def load_state_dict(self, state):
        self.adam.load_state_dict(state["adam"])
        if self.muon:
            self.muon.load_state_dict(state["muon"])


def learning_rate(step: int, args) -> float:
    """Warm-up, constant, then linear to zero from --decay-from to --steps."""
    lr = args.lr * min(1.0, (step + 1) / args.warmup)
    if step >= args.decay_from:
        lr *= max(0.0, (args.steps - step) / max(1, args.steps - args.decay_from))
    return lr


# --- loss ------------------------------------------------------------------------------------------------------------

def hidden(model, ids):
    return model.model(input_ids=ids, use_cache=False).last_hidden_state


def plain_loss(logits, target, mask):
    loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), reduction="none")
    return (loss * mask.flatten()).sum() / mask.sum()


def taught_loss(logits, target, mask, taught, share: float):
    """(1 - share) * cross-entropy with the text + share * cross-entropy with the teacher's distribution."""
    logp = F.log_softmax(logits.float().flatten(0, 1), dim=-1)
    hard = -logp.gather(1, target.reshape(-1, 1))[:, 0]
    soft = F.softmax(taught.float().flatten(0, 1), dim=-1)
    loss = (1 - share) * hard - share * (soft * logp).sum(-1)
    return (loss * mask.flatten()).sum() / mask.sum()


class measuring:
    """A block in evaluation mode, uncompiled (its shapes differ), after which the load counts are cleared again."""

    def __init__(self, model):
        self.model, self.stance = model, torch.compiler.set_stance("force_eager")

    def __enter__(self):
        self.was_training = self.model.training
        self.model.eval()
        self.stance.__enter__()

    def __exit__(self, *error):
        self.stance.__exit__(*error)
        self.model.train(self.was_training)
        for gate in routers(self.model):
            gate.load.zero_()


@torch.no_grad()
def held_out_loss(model, rows, context: int, batch: int = 32, dtype=torch.bfloat16):
    """(nats a token, bits a byte) over the windows of held_out_rows."""
    total, tokens, size = 0.0, 0, 0
    for k in range(0, len(rows), batch):
        part = rows[k:k + batch]
        ids = torch.zeros(len(part), context + 1, dtype=torch.long)
        mask = torch.zeros(len(part), context)
        for j, (w, _) in enumerate(part):
            ids[j, :len(w)] = torch.from_numpy(w.astype(np.int64)); mask[j, :len(w) - 1] = 1
        ids, mask = ids.cuda(), mask.cuda()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = model.lm_head(hidden(model, ids[:, :-1]))
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        total += (loss * mask.flatten()).sum().item(); tokens += int(mask.sum()); size += sum(b for _, b in part)
    return total / tokens, total / math.log(2) / size


@torch.no_grad()
def chat_loss(model, docs, context: int):
    """nats a token over the answers of held-out tales in chat form."""
    ids = torch.zeros(len(docs), context + 1, dtype=torch.long); mask = torch.zeros(len(docs), context + 1)
    for j, (w, m) in enumerate(docs):
        ids[j, :len(w)] = torch.from_numpy(w.astype(np.int64))
        mask[j, :len(w)] = torch.from_numpy(m.astype(np.float32))
    ids, mask = ids.cuda(), mask.cuda()[:, 1:]
    with torch.autocast("cuda", torch.bfloat16):
        logits = model.lm_head(hidden(model, ids[:, :-1]))
    return plain_loss(logits, ids[:, 1:], mask).item()


# --- checkpoints -----------------------------------------------------------------------------------------------------

def save_weights(model, work: Path, extra: dict) -> None:
    """bf16 weights (routers and norms float32) as one torch file, cut into parts of under 16 MiB."""
    small = {n: t.detach().cpu() if t.dim() < 2 or "mlp.gate" in n else t.detach().bfloat16().cpu()
             for n, t in model.state_dict().items()}
    blob = io.BytesIO()
    torch.save({"model": small, **extra}, blob)
    raw = blob.getvalue()
    for old in work.glob("weights.[0-9]*"):
        old.unlink()
    for k in range(0, len(raw), PART_BYTES):
        (work / f"weights.{k // PART_BYTES:03d}").write_bytes(raw[k:k + PART_BYTES])


def load_weights(work: Path) -> dict:
    """What save_weights wrote, or the model part of state.pt where that is there."""
    if (work / "state.pt").exists():
        return torch.load(work / "state.pt", map_location="cpu", weights_only=False)
    raw = b"".join(p.read_bytes() for p in sorted(work.glob("weights.[0-9]*")))
    if not raw:
        raise SystemExit(f"{work}: no state.pt and no weights.NNN")
    return torch.load(io.BytesIO(raw), map_location="cpu", weights_only=False)


def load_model(work: Path, context: int):
    saved = load_weights(work)
    model = build(saved["shape"], context)
    model.load_state_dict({n: t.float() for n, t in saved["model"].items()})
    return model.eval()


# --- the run ---------------------------------------------------------------------------------------------------------

class Rows:
    """Packed rows of some documents, epoch after epoch, on the GPU; every `of`-th row of a step from `first` on."""

    def __init__(self, documents, seed: list[int], count: int, first: int, of: int, teacher=None):
        self.documents, self.seed, self.teacher = documents, seed, teacher
        self.count, self.first, self.of = count, first, of
        self.epoch, self.at, self.ids = -1, 0, ()

    def take(self):
        """(ids [rows, context + 1], mask of the predicted ones [rows, context])"""
        if self.at + self.count > len(self.ids):
            self.epoch += 1
            rng = np.random.default_rng(self.seed + [self.epoch])
            plain, chat = self.documents.epoch(rng)
            ids, masks = data.pack(plain + chat, self.documents.context, rng)
            self.ids, self.masks, self.at = torch.from_numpy(ids).cuda(), torch.from_numpy(masks).cuda(), 0
            if self.epoch == 0:
                share = sum(len(a) for a, _ in chat) / ids.size
                say(f"an epoch: {ids.size / 1e6:.2f} M tokens, {share:.1%} of them chat")
        part = slice(self.at + self.first, self.at + self.count, self.of)
        self.at += self.count
        return self.ids[part].long(), self.masks[part, 1:].float()


def say(text: str) -> None:
    if RANK == 0:
        print(text, flush=True)


def run(args) -> None:
    began = time.time()
    if WORLD > 1:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    torch.set_float32_matmul_precision("high")
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    tok = data.load_tokenizer(args.tokenizer)
    tales = data.read_tales(args.corpus)
    data.describe(tales)
    data.encode_tales(tok, tales)
    held = [t for t in tales if t.held_out]
    seen = [t for t in tales if not t.held_out and t.fold != args.leave_out]
    documents = data.Documents(tok, seen, args.context)
    held_rows = data.held_out_rows(documents, held, args.context)
    held_chat = data.held_out_chats(documents, held)
    say(f"{len(tales)} tales, {len(held)} held out ({sum(len(w) - 1 for w, _ in held_rows)} tokens); data ready after "
        f"{time.time() - began:.0f} s")

    model = build(SHAPES[args.shape], args.context, args.dropout, args.attention_dropout, args.seed)
    optimizer = Optimizer(model, args.optimizer, args.weight_decay, args.embed_decay)
    step, epoch, tokens, log = 0, 0, 0, work / "log.jsonl"
    if (work / "state.pt").exists() or list(work.glob("weights.[0-9]*")):
        saved = load_weights(work)
        model.load_state_dict({n: t.float() for n, t in saved["model"].items()})
        step, epoch, tokens = saved["step"], saved["epoch"], saved["tokens"]
        if "optimizer" in saved:
            optimizer.load_state_dict(saved["optimizer"])
        say(f"continues from step {step}")
    rows = []  # where this process' rows come from: each with the teacher that has not seen them
    if args.teachers:
        for fold in range(RANK, data.FOLDS, WORLD):
            part = data.Documents(tok, [t for t in seen if t.fold == fold], args.context)
            rows.append(Rows(part, [args.seed, step, fold], args.batch // data.FOLDS, 0, 1,
                             load_model(Path(f"{args.teachers}{fold}"), args.context).bfloat16()))
    else:
        rows.append(Rows(documents, [args.seed, step], args.batch, RANK, WORLD))
    torch.manual_seed(1000 * args.seed + step + RANK)  # for dropout
    total = sum(p.numel() for p in model.parameters())
    say(f"{total / 1e6:.2f} M parameters")
    note = {"shape": SHAPES[args.shape], "args": vars(args), "parameters": total}
    (work / "config.json").write_text(json.dumps(note, indent=1))
    if args.compile:
        for m in [model] + [r.teacher for r in rows if r.teacher]:
            compile_layers(m)
    plain_fn, taught_fn = (torch.compile(f) if args.compile else f for f in (plain_loss, taught_loss))

    def losses(ids, target, mask, teacher):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model.lm_head(hidden(model, ids))
            if teacher is None:
                return plain_fn(logits, target, mask)
            with torch.no_grad():
                taught = teacher.lm_head(hidden(teacher, ids))
            return taught_fn(logits, target, mask, taught, args.teacher_share)

    def report(loss):
        if RANK:
            return
        with measuring(model):
            nats, bits = held_out_loss(model, held_rows, args.context)
            chat = chat_loss(model, held_chat, args.context)
        line = dict(step=step, epoch=epoch, tokens=tokens, lr=learning_rate(step, args), train=loss, held_out=nats,
                    perplexity=math.exp(nats), bits_per_byte=bits, chat=chat,
                    seconds=round(time.time() - began, 1))
        with log.open("a") as f:
            f.write(json.dumps(line) + "\n")
        print(" ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items()), flush=True)

    def save():
        if RANK:
            return
        state = dict(shape=SHAPES[args.shape], step=step, epoch=epoch, tokens=tokens)
        weights = {n: t.cpu() for n, t in model.state_dict().items()}
        torch.save({"model": weights, "optimizer": optimizer.state_dict(), **state}, work / "state.tmp")
        (work / "state.tmp").rename(work / "state.pt")
        save_weights(model, work, state)

    def out_of_time():
        late = torch.tensor(float(time.time() - began > args.minutes * 60), device="cuda")
        if WORLD > 1:
            dist.all_reduce(late)
        return late.item() > 0

    model.train()
    loss, t0, first, epochs = torch.zeros(()), time.time(), step, epoch
    while step < args.steps and not (step % 10 == 0 and step > first and out_of_time()):
        for r in rows:
            ids, mask = r.take()
            micro = args.micro or len(ids)
            for j in range(0, len(ids), micro):
                part = slice(j, j + micro)
                loss = losses(ids[part, :-1], ids[part, 1:], mask[part], r.teacher)
                (loss * (ids[part].shape[0] / len(ids) / len(rows))).backward()
        lr = learning_rate(step, args)
        optimizer.step(lr)
        balance(model, args.bias_rate * lr / args.lr)
        step += 1; tokens += args.batch * args.context; epoch = epochs + rows[0].epoch
        if step - first == 20:
            torch.cuda.synchronize(); t0 = time.time(); say(f"20 steps after {t0 - began:.0f} s")
        if step % args.every == 0:
            report(loss.item())
    torch.cuda.synchronize()
    if step - first > 20:
        say(f"{(step - first - 20) * args.batch * args.context / (time.time() - t0) / 1e3:.0f} k tokens/s, "
            f"{torch.cuda.max_memory_allocated() / 2**30:.0f} GiB")
    report(loss.item())
    if not args.no_save:
        save()
    if WORLD > 1:
        dist.destroy_process_group()


def main() -> int:
    show = dict(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0], **show)
    sub = p.add_subparsers(dest="command", required=True)
    t = sub.add_parser("tokenizer", help="train the tokenizer", **show)
    t.add_argument("--corpus", required=True, help="the tales, .txt or .txt.xz")
    t.add_argument("--out", required=True, help="where tokenizer.json goes")
    r = sub.add_parser("run", help="train, or go on training", **show)
    r.add_argument("--corpus", required=True, help="the tales, .txt or .txt.xz")
    r.add_argument("--tokenizer", required=True, help="tokenizer.json")
    r.add_argument("--work", required=True, help="folder of the checkpoint; continued from where it holds one")
    r.add_argument("--shape", choices=SHAPES, default="fairy", help="the model's size")
    r.add_argument("--context", type=int, default=2048, help="tokens a row")
    r.add_argument("--batch", type=int, default=48, help="rows a step")
    r.add_argument("--micro", type=int, default=0, help="rows at once; 0: all of a step's")
    r.add_argument("--steps", type=int, default=4000, help="steps of the whole schedule, over all runs")
    r.add_argument("--decay-from", type=int, default=10**9, help="step from which the learning rate falls to zero")
    r.add_argument("--warmup", type=int, default=150, help="steps of warm-up")
    r.add_argument("--minutes", type=float, default=9.0, help="stop this run after so many minutes")
    r.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    r.add_argument("--optimizer", choices=["muon", "adamw"], default="muon", help="for the layers' matrices")
    r.add_argument("--weight-decay", type=float, default=0.3, help="of the layers' matrices")
    r.add_argument("--embed-decay", type=float, default=0.1, help="of embedding and output")
    r.add_argument("--dropout", type=float, default=0.1, help="after the embedding and each block")
    r.add_argument("--attention-dropout", type=float, default=0.0, help="on attention weights")
    r.add_argument("--bias-rate", type=float, default=1e-3,
                   help="step of the experts' selection bias; falls with the learning rate")
    r.add_argument("--leave-out", type=int, default=-1,
                   help=f"train on all tales but those of this part (0..{data.FOLDS - 1})")
    r.add_argument("--teachers", help=f"path of {data.FOLDS} models' folders without their last digit; model k was "
                                      "trained with --leave-out k and teaches that part")
    r.add_argument("--teacher-share", type=float, default=0.7, help="share of the loss that the teacher sets")
    r.add_argument("--every", type=int, default=250, help="steps between measurements on held-out tales")
    r.add_argument("--seed", type=int, default=1)
    r.add_argument("--no-compile", dest="compile", action="store_false", help="run the layers uncompiled")
    r.add_argument("--no-save", action="store_true", help="leave no checkpoint")
    args = p.parse_args()
    if args.command == "tokenizer":
        data.train_tokenizer([t.text() for t in data.read_tales(args.corpus) if not t.held_out], args.out)
    else:
        run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
