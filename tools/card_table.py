#!/usr/bin/env python3
"""README's table of what a graphics card could do at most with a model, by `sluice forecast`.

usage: card_table.py SLUICE [--check]

Without --check README.md is written between `<!-- cards -->` and `<!-- end -->`; with it the exit code is 1 where that
is not the table.
"""

import json
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- cards -->\n", "<!-- end -->"
DEPTH = 4096
CARDS = [  # title and flags; the first has no preset: NVIDIA, GeForce RTX 4060: 128 bits x 17 Gb/s, PCIe 4.0 x8
    ("8 GB (RTX 4060)", ["--bandwidth", "272GB/s", "--link", "15.75GB/s", "--gpu-memory", "8GiB"]),
    ("12 GB (RTX 3060)", ["--preset", "rtx-3060"]),
    ("16 GB (RTX 4060 Ti)", ["--preset", "rtx-4060-ti"]),
    ("24 GB (RTX 4090)", ["--preset", "rtx-4090"]),
]
MODELS = [
    ("GLM-4.7-Flash", "glm-4.7-flash", "q4_k_m"),
    ("GLM-4.7-Flash", "glm-4.7-flash", "q8_0"),
    ("DeepSeek-V2-Lite", "deepseek-v2-lite", "q4_k_m"),
    ("Youtu-LLM-2B", "youtu-llm-2b", "q8_0"),
    ("Qwen3-30B-A3B", "qwen3-30b-a3b", "q4_k_m"),
    ("gpt-oss-20b", "gpt-oss-20b", "mxfp4"),
    ("GLM-4.5-Air", "glm-4.5-air", "q4_k_m"),
    ("Qwen3-8B", "qwen3-8b", "q4_k_m"),
    ("Llama-3.1-8B", "llama-3.1-8b", "q8_0"),
]


def cell(sluice: str, shapes: str, mix: str, flags: list) -> str:
    command = [sluice, "forecast", "--shapes", shapes, "--mix", mix, "-d", str(DEPTH), "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if "does not fit" in done.stderr:
            return "no"
        raise SystemExit(f"card_table: {' '.join(command)}: {done.stderr.strip()}")
    answer = json.loads(done.stdout)
    if "shared" not in answer:
        report = answer["reports"][0]
        return f"{1e6 * report['tokens'] / report['limit_us']:.0f}"
    step = answer["shared"][0]
    share = "" if step["hit_rate"] >= 1 else f" ({100 * step['hit_rate']:.0f}%)"
    return f"{step['tokens_per_second']:.0f}{share}"


def table(sluice: str) -> str:
    lines = ["| tokens/s at most | " + " | ".join(title for title, _ in CARDS) + " |", "|---|" + "---|" * len(CARDS)]
    for title, shapes, mix in MODELS:
        cells = [cell(sluice, shapes, mix, flags) for _, flags in CARDS]
        lines.append(f"| {title} {mix.upper()} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: list) -> int:
    check = "--check" in arguments
    rest = [argument for argument in arguments if argument != "--check"]
    if len(rest) != 1:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    text = README.read_text(encoding="utf-8")
    begin = text.find(BEGIN)
    end = text.find(END, begin)
    if begin < 0 or end < 0:
        raise SystemExit(f"card_table: {README} lacks {BEGIN.strip()} ... {END}")
    wanted = text[:begin + len(BEGIN)] + table(rest[0]) + text[end:]
    if check and wanted != text:
        print(f"card_table: {README} is not what `sluice forecast` says; tools/card_table.py SLUICE writes it:\n{table(rest[0])}",
              file=sys.stderr)
        return 1
    if not check:
        README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
