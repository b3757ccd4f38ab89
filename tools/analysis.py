#!/usr/bin/env python3
"""Writes docs/analysis.md: one token of GLM-4.7-Flash, record by record, and what hardware could do with it.

usage: analysis.py SLUICE [--check]

Every figure comes out of `sluice forecast`, that is, of the Program's own costs and of the presets: nothing is
measured, no model file is needed, and the page is the same on every machine. --check compares the page in the
tree with what would be written: exit code 1 when they differ.
"""

import json
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "analysis.md"
USUAL = 10  # a layer whose types most layers share: the first eighth have Q4_1 down matrices
MIXES = {"q4_0_plain": "all Q4_0, output Q6_K", "q4_0": "Q4_0 with larger shared experts, k_b and v_b",
         "q4_k_m": "Q4_K with half of the down matrices Q6_K"}
HARDWARE = {"ddr5-desktop": "DDR5 desktop", "m2": "Apple M2", "m3-max": "Apple M3 Max", "m4-max": "Apple M4 Max",
            "rtx-4090": "RTX 4090", "rtx-5090": "RTX 5090", "h100": "H100", "h200": "H200"}
WHAT = {
    ("norm_mla_heads", "attn_norm"): "norm; queries, compressed; the latent row and its key; queries of all heads into the latent space; scores, softmax, values; out of it",
    ("matmul_add", "attn_output"): "output projection and residual",
    ("norm_moe_gate_up", "ffn_norm"): "norm, router, 4 of 64 experts and their weights; gate, SiLU and up of them and the shared one",
    ("moe_down_add", "ffn_down_exps"): "down, weighted sum, shared expert, residual",
}


class Sluice:
    def __init__(self, binary: str):
        self.binary = binary

    def forecast(self, *arguments: str) -> list:
        done = subprocess.run([self.binary, "forecast", "--shapes", "glm-4.7-flash", "--json", *arguments],
                              check=True, capture_output=True, text=True)
        return json.loads(done.stdout)["reports"]


def table(head: list, rows: list, left: int = 1) -> str:
    """A Markdown table; the first `left` columns are text, the others numbers."""
    lines = [f"| {' | '.join(head)} |", "|" + "|".join("---" if i < left else "---:" for i in range(len(head))) + "|"]
    return "\n".join(lines + [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]) + "\n"


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.095 else f"{value:.3f}"


def block_table(rows: list) -> str:
    lines = []
    for i, row in enumerate(r for r in rows if r["layer"] == USUAL):
        lines.append([i + 1, row["op"], row["weight"], row["shape"], WHAT[row["op"], row["weight"]],
                      number(row["bytes_read"] / 1e6), number(row["flops"] / 1e6), number(row["limit_us"]),
                      f"{row['flops'] / max(row['bytes_read'], 1):.1f}"])
    return table(["#", "op", "weight", "shape", "what", "MB read", "MFLOP", "us at 100 GB/s", "FLOP a byte"], lines, 5)


def budget_table(rows: list, total: float) -> str:
    sums: dict = {}
    for row in rows:
        key = row["op"], row["weight"]
        calls, bytes_read, flops = sums.get(key, (0, 0.0, 0.0))
        sums[key] = calls + 1, bytes_read + row["bytes_read"], flops + row["flops"]
    lines = [[op, weight, calls, number(read / 1e6), f"{100 * read / total:.1f} %", number(flops / 1e6)]
             for (op, weight), (calls, read, flops) in sorted(sums.items(), key=lambda item: -item[1][1])]
    return table(["op", "weight", "calls", "MB read", "share", "MFLOP"], lines, 2)


def part_of(row: dict) -> str:
    if row["layer"] < 0:
        return "embedding, last norm, output matrix"
    if row["op"] in ("gate_up",) or row["weight"] == "ffn_down":
        return "dense layer's feed-forward"
    if row["op"].startswith("moe"):
        return "experts, routed and shared"
    if row["weight"] == "ffn_norm":
        return "routers and norms before them"
    return "attention of all layers"


def parts_table(by_mix: dict) -> str:
    parts = {mix: {} for mix in by_mix}
    for mix, report in by_mix.items():
        for row in report["rows"]:
            parts[mix][part_of(row)] = parts[mix].get(part_of(row), 0) + row["bytes_read"]
    order = sorted(parts["q4_0"], key=lambda part: -parts["q4_0"][part])
    lines = [[part, *(f"{parts[mix][part] / 1e9:.3f}" for mix in by_mix)] for part in order]
    lines.append(["**all, GB a token**", *(f"**{r['bytes_read'] / 1e9:.3f}**" for r in by_mix.values())])
    lines.append(["tokens/s at 100 GB/s, at most", *(f"{1e11 / r['bytes_read']:.1f}" for r in by_mix.values())])
    return table(["GB a token at depth 0", *by_mix], lines)


def hardware_table(sluice: Sluice, depths: list, batches: list) -> str:
    lines = []
    for preset, name in HARDWARE.items():
        reports = sluice.forecast("--preset", preset, "-d", ",".join(map(str, depths)), "--batch", "1")
        reports += sluice.forecast("--preset", preset, "--batch", ",".join(map(str, batches)), "-p", "512")
        speeds = [1e6 * r["tokens"] / r["limit_us"] for r in reports]
        prompt = next(i for i, r in enumerate(reports) if r["test"] == "pp512")
        speeds.append(speeds.pop(prompt))
        lines.append([name, *(number(speed) for speed in speeds)])
    return table(["tokens/s at most", *(f"depth {d}" for d in depths), *(f"batch {b}" for b in batches), "prompt of 512"], lines)


def intensity(row: dict) -> float:
    return row["flops"] / row["bytes_read"] if row["bytes_read"] > 1000 else 0.0


def page(sluice: Sluice) -> str:
    by_mix = {mix: sluice.forecast("--bandwidth", "100GB/s", "--records", "--mix", mix)[0] for mix in MIXES}
    main = by_mix["q4_0"]
    rows, total = main["rows"], main["bytes_read"]
    block = [r for r in rows if r["layer"] == USUAL]
    block_mb = sum(r["bytes_read"] for r in block) / 1e6
    experts = {mix: sum(r["bytes_read"] for r in report["rows"] if part_of(r).startswith("experts"))
               for mix, report in by_mix.items()}
    plain = by_mix["q4_0_plain"]["bytes_read"]
    deep = sluice.forecast("--bandwidth", "100GB/s", "-d", "16384")[0]["bytes_read"]
    batch = sluice.forecast("--bandwidth", "100GB/s", "--batch", "8,32")
    depths, batches = [0, 4096, 32768], [8, 32]
    long_context = sluice.forecast("--bandwidth", "100GB/s", "--records", "-d", "32768")[0]["rows"]
    attend = next(r for r in long_context if r["op"] == "norm_mla_heads")
    peaks = [sluice.forecast("--preset", preset)[0]["peaks"] for preset in HARDWARE]
    least_ridge = min(p["flops"] / p["bytes_per_second"] for p in peaks)
    return f"""# One token of GLM-4.7-Flash

This page is made by `./dev analysis` (tools/analysis.py) out of `sluice forecast --shapes glm-4.7-flash --records`: the costs are
those of the Program that runs, the hardware is that of the presets (`sluice forecast --help` states their sources). Nothing here is
measured; `sluice profile` shows what a backend makes of these records, with times beside.

A decode step is {main['records']} records. The tables are of the mix `q4_0` ({MIXES['q4_0']}) at depth 0 unless they say otherwise.

## One block

Layer {USUAL}, one of 46 with experts: {len(block)} records, {block_mb:.1f} MB, {1e-2 * block_mb * 1e3:.0f} us at 100 GB/s.

{block_table(rows)}
- The two expert ops are {100 * sum(r['bytes_read'] for r in block if 'moe' in r['op']) / 1e6 / block_mb:.0f} % of the block's bytes: 4 of 64 routed experts and the shared one. Experts that are not
  selected cost nothing, and nothing is gathered: ids are read inside the kernel.
- No record computes more than {max(intensity(r) for r in block):.1f} FLOP for a byte that it reads. Every machine below could compute more than that in the time it takes
  to read the byte ({least_ridge:.0f} FLOP a byte and more), so at batch 1 the block is bound by memory all through; what is short is bound by
  starting it. Over a long context norm_mla_heads comes to {intensity(attend):.0f} FLOP a byte, because 20 heads share each row of the cache: a desktop processor is then bound by
  arithmetic.
- Attention reads one cache row of 512 + 64 16-bit numbers a token and layer, 1,152 bytes: {47 * 1152 / 1e3:.1f} kB a token of context over all layers.
  At depth 16,384 a token reads {deep / 1e9:.2f} GB instead of {total / 1e9:.2f}.

## The token

{budget_table(rows, total)}
## How many gigabytes is a token?

{parts_table(by_mix)}
A hand-made count for this model came to 1.24 GB a token, and from that to 80 tokens/s at 100 GB/s. That is about what the experts alone read in plain Q4_0
({experts['q4_0_plain'] / 1e9:.2f} GB: 46 layers of 4 + 1 experts, each 3 x 2048 x 1536 weights of 18 bytes for 32). Attention, the output matrix and the dense layer are the rest:
{(plain - experts['q4_0_plain']) / 1e9:.2f} GB that every token reads. With all of it a token is {min(r['bytes_read'] for r in by_mix.values()) / 1e9:.1f} to {max(r['bytes_read'] for r in by_mix.values()) / 1e9:.1f} GB, depending on the mix, and 100 GB/s allow {1e11 / max(r['bytes_read'] for r in by_mix.values()):.0f} to {1e11 / min(r['bytes_read'] for r in by_mix.values()):.0f} tokens/s. The 17.9
tokens/s that were measured there with 1,404 kernels a token were thus not 22 % of what the memory could do, but {100 * 17.93 * plain / 1e11:.0f} %.

## What hardware could do at most

Every byte read once at full bandwidth, every op at full rate, nothing between ops. Batches: sequences that decode together, all tokens counted,
distinct experts as under uniform selection.

{hardware_table(sluice, depths, batches)}
Eight sequences do not read eight times as much: {batch[0]['bytes_read'] / 1e9:.1f} GB a step, {batch[0]['bytes_read'] / 8e9:.2f} a token; 32 read {batch[1]['bytes_read'] / 1e9:.1f} GB, {batch[1]['bytes_read'] / 32e9:.2f} a token. They share attention's and the output's
weights, and the more experts they select together, the more rows share each.
"""


def main() -> int:
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    text = page(Sluice(arguments[0]))
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE.name} is not what the Program costs any more: ./dev analysis writes it anew", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
