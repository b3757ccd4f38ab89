#!/usr/bin/env python3
"""Trains a block of multi-token prediction for a finished file, with all of the file frozen, and adds it to the file.

  mtp.py prepare --model fairy-tales.gguf --corpus tales.txt.xz --out work/tales.npz    its tokens, once
  mtp.py run    --model fairy-tales.gguf --corpus work/tales.npz --work work/mtp --device cuda --batch 32 --minutes 4
  mtp.py export --model fairy-tales.gguf --work work/mtp --out work/fairy-tales.gguf
  mtp.py report --model work/fairy-tales.gguf --corpus work/tales.npz

A corpus is its text, or what `prepare` made of it. The block is DeepSeek-V3's (arXiv:2412.19437, 2.2), as
GLM-4.7-Flash has it: of the trunk's row behind its last norm and of the next token's embedding, both normed, one
projection, one more layer, one norm, and the trunk's output matrix. Row i has the trunk's row i and token i + 1, and
says what token i + 2 is. It learns what the trunk itself says there, and to end near the trunk's own row i + 1, which
is what it goes on from when it drafts a second token; with --drafts 2 it goes on from its own rows in training, too.
"""
from __future__ import annotations

import argparse
import copy
import json
import sys
import time
import types
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import data
import export as files
from train import Muon, dense_experts

NEARNESS = 0.1  # what the distance to the trunk's own row counts beside the divergence
LATER = 0.5     # what each further draft counts of the one before it
WINDOW = 512    # tokens


class Block(torch.nn.Module):
    def __init__(self, trunk):
        super().__init__()
        inner = trunk.model
        self.layer = copy.deepcopy(inner.layers[-1])
        self.enorm, self.hnorm, self.head_norm = (copy.deepcopy(inner.norm) for _ in range(3))
        dim = inner.norm.weight.numel()
        self.eh_proj = torch.nn.Linear(2 * dim, dim, bias=False)
        self.rotary = inner.rotary_emb
        for p in self.parameters():
            p.requires_grad_(True)
        with torch.no_grad():  # it begins as the trunk's last layer, once more
            self.enorm.weight.fill_(1)
            self.hnorm.weight.copy_(1 / inner.norm.weight.clamp(min=0.05))
            self.eh_proj.weight.normal_(0, 0.02)
            self.eh_proj.weight[:, dim:] += torch.eye(dim)

    def forward(self, embedded, rows):
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(rows)], -1))
        positions = torch.arange(x.shape[1], device=x.device)[None]
        x = self.layer(x, position_ids=positions, position_embeddings=self.rotary(x, positions))
        return self.head_norm(x[0] if isinstance(x, tuple) else x)


def load(model: str, device: str):
    trunk, tok, meta = files.load(Path(model), device, "sdpa")
    for p in trunk.parameters():
        p.requires_grad_(False)
    for layer in trunk.model.layers:
        if hasattr(layer.mlp, "experts") and device != "cpu":  # a GPU waits in the class's loop over experts
            layer.mlp.experts.forward = types.MethodType(dense_experts, layer.mlp.experts)
    return trunk, tok, meta


def texts_of(args, tok):
    """Tokens of an epoch in one row, and windows of tales and of chats that nothing is trained on."""
    if args.corpus.endswith(".npz"):
        kept = np.load(args.corpus)
        return (kept["stream"],
                *(np.split(kept[name], np.cumsum(kept[name + "_lengths"])[:-1]) for name in ("tales", "chats")))
    tales = data.read_tales(args.corpus)
    tales = [t for t in tales if t.held_out] + [t for t in tales if not t.held_out][::args.tales]
    data.describe(tales)
    data.encode_tales(tok, tales)
    held = [t for t in tales if t.held_out]
    read = data.Documents(tok, [t for t in tales if not t.held_out], WINDOW)
    rng = np.random.default_rng(1)
    plain, chats = read.epoch(rng)
    documents = plain + chats
    stream = np.concatenate([documents[i][0] for i in rng.permutation(len(documents))])
    judges = data.Documents(tok, held, WINDOW)
    return (stream, [ids for ids, _ in data.held_out_rows(judges, held, WINDOW)],
            [ids for ids, _ in data.held_out_chats(judges, held)])


def prepare(args) -> None:
    _, tok, _ = load(args.model, "cpu")
    stream, tales, chats = texts_of(args, tok)
    kept = {"stream": stream.astype(np.uint16)}
    for name, rows in (("tales", tales), ("chats", chats)):
        kept |= {name: np.concatenate(rows).astype(np.uint16), name + "_lengths": np.array([len(r) for r in rows])}
    np.savez_compressed(args.out, **kept)
    print(f"{args.out}: {len(stream)} tokens to train on, {len(kept['tales'])} and {len(kept['chats'])} to judge by")


@torch.no_grad()
def rows_of(trunk, ids):
    return trunk.model(ids, use_cache=False).last_hidden_state


def losses(trunk, block, ids, rows, drafts: int):
    """Divergence from the trunk's tokens and distance to its rows, of `drafts` tokens each made from the one before;
    and how often the first is the trunk's likeliest."""
    with torch.no_grad():
        right = F.log_softmax(trunk.lm_head(rows[:, 1:]).float(), -1)
    divergence, nearness, agrees, carried = 0.0, 0.0, None, rows
    for d in range(drafts):  # row i of `got` foresees the trunk's row i + 1 + d
        got = block(trunk.model.embed_tokens(ids[:, 1 + d:]), carried[:, :-1])
        said = F.log_softmax(trunk.lm_head(got).float(), -1)
        divergence += LATER**d * F.kl_div(said, right[:, d:], reduction="none", log_target=True).sum(-1).mean()
        nearness += LATER**d * F.smooth_l1_loss(got.float(), rows[:, 1 + d:].float())
        agrees = (said.argmax(-1) == right.argmax(-1)).float().mean() if d == 0 else agrees
        carried = got
    return divergence, nearness, agrees


@torch.no_grad()
def acceptance(trunk, block, rows, depth: int = 3):
    """Of rows' tokens, how often the block says what the trunk finds likeliest, by draft: the next ones are counted
    where all before them were right. At temperature 1, too: how likely what it says is to be drawn."""
    right, seen, drawn = np.zeros(depth), np.zeros(depth), 0.0
    for ids in rows:
        ids = torch.as_tensor(np.asarray(ids, np.int64), device=trunk.device)[None]
        if ids.shape[1] < depth + 3:
            continue
        trunk_rows = rows_of(trunk, ids)
        logits = trunk.lm_head(trunk_rows)[0]
        best = logits.argmax(-1)
        carried, token = trunk_rows, ids[0]
        alive = None
        for d in range(depth):  # row i: token i + 1 + d, which was right where it counts
            n = ids.shape[1] - 1 - d
            carried = block(trunk.model.embed_tokens(ids[:, 1 + d:]), carried[:, :n])
            said = trunk.lm_head(carried)[0].argmax(-1)
            if d == 0:
                p = F.softmax(logits[1:1 + n], -1)
                drawn += p[torch.arange(n, device=p.device), said].sum().item()
            ok = said == best[1 + d:1 + d + n]
            # Depth d counts where the text went on as it was drafted.
            follows = torch.ones_like(ok) if alive is None else alive[:n]
            right[d] += (ok & follows).sum().item()
            seen[d] += follows.sum().item()
            m = ids.shape[1] - 2 - d
            alive = (follows & ok)[:m] & (said[:m] == ids[0, 2 + d:])
    return right / np.maximum(seen, 1), drawn / max(seen[0], 1)


def batches(stream, batch: int, rng, device):
    """Windows of the stream, epoch after epoch, each cut in other places."""
    stream = torch.from_numpy(stream.astype(np.int32)).to(device)
    row = WINDOW + 1
    while True:
        begin = int(rng.integers(row))
        windows = stream[begin:begin + (len(stream) - begin) // row * row].view(-1, row)
        order = torch.from_numpy(rng.permutation(len(windows))).to(device)
        for part in order.split(batch):
            if len(part) == batch:
                yield windows[part].long()


def run(args) -> None:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    trunk, tok, _ = load(args.model, args.device)
    stream, judge, _ = texts_of(args, tok)
    judge = judge[::args.every]
    torch.set_float32_matmul_precision("high")
    sixteen = torch.autocast(args.device, torch.bfloat16, enabled=args.device != "cpu")
    block = Block(trunk).to(args.device)
    if (work / "block.pt").exists():  # it goes on, with fresh momenta
        block.load_state_dict(torch.load(work / "block.pt", map_location=args.device))
    named = list(block.named_parameters())
    matrices = [p for n, p in named if p.ndim > 1 and "gate.weight" not in n]
    others = [p for n, p in named if p.ndim == 1 or "gate.weight" in n]
    muon = Muon(matrices, args.weight_decay)
    adam = torch.optim.AdamW(others, lr=1e-3, weight_decay=0.0)
    begin, step, tokens, told = time.time(), 0, 0, time.time()
    with (work / "log.jsonl").open("a") as log:
        for ids in batches(stream, args.batch, np.random.default_rng(args.seed), args.device):
            done = (time.time() - begin) / (60 * args.minutes)
            if done >= 1:
                break
            lr = args.lr * min(1.0, (step + 1) / 30) * min(1.0, (1 - done) / 0.6)
            with sixteen:
                divergence, nearness, agrees = losses(trunk, block, ids, rows_of(trunk, ids), args.drafts)
            (divergence + NEARNESS * nearness).backward()
            torch.nn.utils.clip_grad_norm_(others, 1.0)
            for group in adam.param_groups:
                group["lr"] = lr
            muon.step(lr)
            adam.step()
            block.zero_grad(set_to_none=True)
            step, tokens = step + 1, tokens + ids.numel()
            if step % args.tell:
                continue
            line = {"step": step, "tokens": tokens, "seconds": round(time.time() - begin), "lr": lr,
                    "divergence": divergence.item(), "nearness": nearness.item(), "agrees": agrees.item()}
            if time.time() - told > 60 * args.judge:
                line |= judged(trunk, block, judge)
                save(block, work)
                told = time.time()
            print(json.dumps(line), flush=True)
            log.write(json.dumps(line) + "\n")
            log.flush()
        save(block, work)
        print(json.dumps({"step": step, "tokens": tokens} | judged(trunk, block, judge)), file=log)
    print((work / "log.jsonl").read_text().splitlines()[-1])


def judged(trunk, block, rows) -> dict:
    by_draft, drawn = acceptance(trunk, block.eval(), rows)
    block.train()
    return {"held_out": [round(x, 4) for x in by_draft], "held_out_drawn": round(drawn, 4)}


def save(block, work: Path) -> None:
    torch.save(block.state_dict(), work / "block.new")
    (work / "block.new").replace(work / "block.pt")


def export(args) -> None:
    """The file with one block more: projection and norms in full or eight bits, its layer in four."""
    entries, tensors = files.read_file(Path(args.model))
    meta = {key: v for key, _, v in entries}
    layers, prefix = meta["deepseek2.block_count"], "deepseek2."
    assert "deepseek2.nextn_predict_layers" not in meta, "the file has a block already"
    sd = {n: x.float().numpy() for n, x in torch.load(Path(args.work) / "block.pt", map_location="cpu").items()}
    shape = {"num_attention_heads": meta[prefix + "attention.head_count"], "num_hidden_layers": 1,
             "qk_nope_head_dim": meta[prefix + "attention.key_length_mla"] - meta[prefix + "rope.dimension_count"],
             "v_head_dim": meta[prefix + "attention.value_length_mla"]}
    as_model = {"model.layers.0." + n[len("layer."):]: x for n, x in sd.items() if n.startswith("layer.")}
    as_model |= dict.fromkeys(("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"), np.zeros(1))
    block = {n.replace("blk.0.", f"blk.{layers}."): x for n, x in files.file_tensors(as_model, shape).items()
             if n.startswith("blk.")}
    nextn = f"blk.{layers}.nextn."
    block |= {nextn + "eh_proj.weight": sd["eh_proj.weight"], nextn + "enorm.weight": sd["enorm.weight"],
              nextn + "hnorm.weight": sd["hnorm.weight"], nextn + "shared_head_norm.weight": sd["head_norm.weight"]}
    rows = [(n, s, kind, raw) for n, (s, kind, raw) in tensors.items()]
    for name, x in block.items():
        kind = files.F32 if x.ndim == 1 or "ffn_gate_inp" in name else files.Q8_0 if "eh_proj" in name else files.Q4_0
        rows.append((name, x.shape, kind, files.quantise(np.ascontiguousarray(x), kind)))
    at = next(i for i, e in enumerate(entries) if e[0] == prefix + "block_count")
    entries[at] = (prefix + "block_count", "u32", layers + 1)
    entries.insert(at + 1, (prefix + "nextn_predict_layers", "u32", 1))
    files.write_gguf(Path(args.out), entries, rows)
    print(f"{args.out}: {Path(args.out).stat().st_size} bytes")


def read_block(trunk, path: Path) -> Block:
    """The block of a file, dequantised."""
    meta, tensors = files.read_gguf(path)
    index = meta["deepseek2.block_count"] - meta["deepseek2.nextn_predict_layers"]
    w = {n: files.dequantise(raw, kind, shape) for n, (shape, kind, raw) in tensors.items()}
    sd = files.hf_weights({n.replace(f"blk.{index}.", "blk.0."): x for n, x in w.items()
                           if n.startswith(f"blk.{index}.") or not n.startswith("blk.")}, 1, 0)
    block, nextn = Block(trunk), f"blk.{index}.nextn."
    state = {"layer." + n[len("model.layers.0."):]: x for n, x in sd.items() if n.startswith("model.layers.0.")}
    state |= {"eh_proj.weight": w[nextn + "eh_proj.weight"], "enorm.weight": w[nextn + "enorm.weight"],
              "hnorm.weight": w[nextn + "hnorm.weight"], "head_norm.weight": w[nextn + "shared_head_norm.weight"]}
    missing, unexpected = block.load_state_dict(
        {n: torch.from_numpy(np.ascontiguousarray(x)) for n, x in state.items()}, strict=False)
    assert not [m for m in missing if "rotary" not in m] and not unexpected, (missing, unexpected)
    return block.eval()


def report(args) -> None:
    torch.set_num_threads(args.threads)
    trunk, tok, _ = load(args.model, args.device)
    _, tales, chats = texts_of(args, tok)
    block = read_block(trunk, Path(args.model)).to(args.device)
    for name, rows in (("tales", tales[::args.every]), ("chats", chats)):
        by_draft, drawn = acceptance(trunk, block, rows)
        print(f"{name}: {sum(map(len, rows))} tokens; the trunk's likeliest token: "
              + ", ".join(f"{x:.3f}" for x in by_draft) + f"; a token drawn at temperature 1: {drawn:.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, call in (("prepare", prepare), ("run", run), ("export", export), ("report", report)):
        command = commands.add_parser(name)
        command.set_defaults(call=call)
        command.add_argument("--model", required=True)
        if name != "export":
            command.add_argument("--corpus", required=True, help="a text, or what prepare made of one")
            command.add_argument("--tales", type=int, default=1, help="read every so many tales of a text")
        if name in ("run", "report"):
            command.add_argument("--device", default="cpu", help="cpu, or cuda: there products are in bfloat16")
            command.add_argument("--threads", type=int, default=1)
            command.add_argument("--every", type=int, default=12, help="judge by every so many windows")
        if name in ("run", "export"):
            command.add_argument("--work", required=True)
        if name in ("prepare", "export"):
            command.add_argument("--out", required=True)
        if name == "run":
            command.add_argument("--minutes", type=float, default=40)
            command.add_argument("--batch", type=int, default=4, help="windows of 512 tokens")
            command.add_argument("--drafts", type=int, default=1, help="tokens drafted one from the other in training")
            command.add_argument("--lr", type=float, default=3e-3)
            command.add_argument("--weight-decay", type=float, default=0.01)
            command.add_argument("--tell", type=int, default=10, help="a line every so many steps")
            command.add_argument("--judge", type=float, default=7, help="minutes between two judgements")
            command.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.call(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
