#!/usr/bin/env python3
"""Trains a block of multi-token prediction for a finished file, with all of the file frozen, and adds it to the file.

  mtp.py run    --model fairy-tales.gguf --corpus tales.txt.xz --work work/mtp --minutes 40 --threads 1
  mtp.py export --model fairy-tales.gguf --work work/mtp --out work/fairy-tales.gguf
  mtp.py report --model work/fairy-tales.gguf --corpus tales.txt.xz

The block is DeepSeek-V3's (arXiv:2412.19437, 2.2), as GLM-4.7-Flash has it: of the trunk's row behind its last norm and
of the next token's embedding, both normed, one projection, one more layer, one norm, and the trunk's output matrix.
Row i has the trunk's row i and token i + 1, and says what token i + 2 is. It learns what the trunk itself says there,
and to end near the trunk's own row i + 1, which is what it goes on from when it drafts a second token.
"""
from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import data
import export as files
from train import Muon

NEARNESS = 0.1  # what the distance to the trunk's own row counts beside the divergence
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
        positions = torch.arange(x.shape[1])[None]
        x = self.layer(x, position_ids=positions, position_embeddings=self.rotary(x, positions))
        return self.head_norm(x[0] if isinstance(x, tuple) else x)


def load(model: str):
    trunk, tok, meta = files.load(Path(model), "cpu", "sdpa")
    for p in trunk.parameters():
        p.requires_grad_(False)
    return trunk, tok, meta


def tales_of(args, tok):
    tales = data.read_tales(args.corpus)
    tales = [t for t in tales if t.held_out] + [t for t in tales if not t.held_out][::args.tales]
    data.describe(tales)
    data.encode_tales(tok, tales)
    return [t for t in tales if not t.held_out], [t for t in tales if t.held_out]


@torch.no_grad()
def rows_of(trunk, ids):
    return trunk.model(ids, use_cache=False).last_hidden_state


def losses(trunk, block, ids, rows):
    got = block(trunk.model.embed_tokens(ids[:, 1:]), rows[:, :-1])
    with torch.no_grad():
        right = F.log_softmax(trunk.lm_head(rows[:, 1:]), -1)
    said = F.log_softmax(trunk.lm_head(got), -1)
    divergence = (right.exp() * (right - said)).sum(-1).mean()
    nearness = F.smooth_l1_loss(got, rows[:, 1:])
    agrees = (said.argmax(-1) == right.argmax(-1)).float().mean()
    return divergence, nearness, agrees


@torch.no_grad()
def acceptance(trunk, block, rows, depth: int = 3):
    """Of rows' tokens, how often the block says what the trunk finds likeliest, by draft: the next ones are counted
    where all before them were right. At temperature 1, too: how likely what it says is to be drawn."""
    right, seen, drawn = np.zeros(depth), np.zeros(depth), 0.0
    for ids in rows:
        ids = torch.as_tensor(np.asarray(ids, np.int64))[None]
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
                drawn += p[torch.arange(n), said].sum().item()
            ok = said == best[1 + d:1 + d + n]
            # Depth d counts where the text went on as it was drafted.
            follows = torch.ones(n, dtype=torch.bool) if alive is None else alive[:n]
            right[d] += (ok & follows).sum().item()
            seen[d] += follows.sum().item()
            m = ids.shape[1] - 2 - d
            alive = (follows & ok)[:m] & (said[:m] == ids[0, 2 + d:])
    return right / np.maximum(seen, 1), drawn / max(seen[0], 1)


def run(args) -> None:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    trunk, tok, _ = load(args.model)
    read, held = tales_of(args, tok)
    documents = data.Documents(tok, read, WINDOW)
    judge = [ids for ids, _ in data.held_out_rows(data.Documents(tok, held, WINDOW), held, WINDOW)][::args.every]
    block = Block(trunk)
    if (work / "block.pt").exists():  # it goes on, with fresh momenta
        block.load_state_dict(torch.load(work / "block.pt"))
    named = list(block.named_parameters())
    matrices = [p for n, p in named if p.ndim > 1 and "gate.weight" not in n]
    others = [p for n, p in named if p.ndim == 1 or "gate.weight" in n]
    muon, adam = Muon(matrices, 0.01), torch.optim.AdamW(others, lr=1e-3, weight_decay=0.0)
    rng = np.random.default_rng(args.seed)
    begin, step, tokens, told = time.time(), 0, 0, 0.0
    log = (work / "log.jsonl").open("a")
    plain, chats = documents.epoch(rng)
    windows, _ = data.pack(plain + chats, WINDOW, rng)
    known = {}  # the trunk's rows, in sixteen bits: they stay the same from epoch to epoch
    while True:
        order = rng.permutation(len(windows))
        for at in range(0, len(windows) - args.batch + 1, args.batch):
            done = (time.time() - begin) / (60 * args.minutes)
            if done >= 1:
                return save(block, work)
            lr = args.lr * min(1.0, (step + 1) / 30) * min(1.0, (1 - done) / 0.6)
            batch = order[at:at + args.batch]
            ids = torch.from_numpy(windows[batch].astype(np.int64))
            new = [i for i, w in enumerate(batch) if w not in known]
            if new:
                known |= zip(batch[new], rows_of(trunk, ids[new]).half())
            divergence, nearness, agrees = losses(trunk, block, ids, torch.stack([known[w] for w in batch]).float())
            (divergence + NEARNESS * nearness).backward()
            torch.nn.utils.clip_grad_norm_(others, 1.0)
            for group in adam.param_groups:
                group["lr"] = lr
            muon.step(lr)
            adam.step()
            block.zero_grad(set_to_none=True)
            step, tokens = step + 1, tokens + ids.numel()
            if step % 10 == 0:
                line = {"step": step, "tokens": tokens, "seconds": round(time.time() - begin), "lr": lr,
                        "divergence": divergence.item(), "nearness": nearness.item(), "agrees": agrees.item()}
                if time.time() - told > 420:
                    by_draft, drawn = acceptance(trunk, block.eval(), judge)
                    line |= {"held_out": [round(x, 4) for x in by_draft], "held_out_drawn": round(drawn, 4)}
                    block.train()
                    save(block, work)
                    told = time.time()
                print(json.dumps(line), flush=True)
                log.write(json.dumps(line) + "\n")
                log.flush()


def save(block, work: Path) -> None:
    torch.save(block.state_dict(), work / "block.new")
    (work / "block.new").replace(work / "block.pt")


def export(args) -> None:
    """The file with one block more: projection and norms in full or eight bits, its layer in four."""
    entries, tensors = files.read_file(Path(args.model))
    meta = {key: v for key, _, v in entries}
    layers, prefix = meta["deepseek2.block_count"], "deepseek2."
    assert "deepseek2.nextn_predict_layers" not in meta, "the file has a block already"
    sd = {n: x.float().numpy() for n, x in torch.load(Path(args.work) / "block.pt").items()}
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
    trunk, tok, _ = load(args.model)
    _, held = tales_of(args, tok)
    documents = data.Documents(tok, held, WINDOW)
    block = read_block(trunk, Path(args.model))
    tales = [ids for ids, _ in data.held_out_rows(documents, held, WINDOW)][::args.every]
    for name, rows in (("tales", tales), ("chats", [ids for ids, _ in data.held_out_chats(documents, held)])):
        by_draft, drawn = acceptance(trunk, block, rows)
        print(f"{name}: {sum(map(len, rows))} tokens; the trunk's likeliest token: "
              + ", ".join(f"{x:.3f}" for x in by_draft) + f"; a token drawn at temperature 1: {drawn:.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, call in (("run", run), ("export", export), ("report", report)):
        command = commands.add_parser(name)
        command.set_defaults(call=call)
        command.add_argument("--model", required=True)
        if name != "export":
            command.add_argument("--corpus", required=True)
            command.add_argument("--threads", type=int, default=1)
            command.add_argument("--tales", type=int, default=1, help="read every so many tales")
            command.add_argument("--every", type=int, default=12, help="judge by every so many windows")
        if name != "report":
            command.add_argument("--work", required=True)
        if name == "export":
            command.add_argument("--out", required=True)
        if name == "run":
            command.add_argument("--minutes", type=float, default=40)
            command.add_argument("--batch", type=int, default=4)
            command.add_argument("--lr", type=float, default=3e-3)
            command.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.call(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
