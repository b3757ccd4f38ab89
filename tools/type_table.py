#!/usr/bin/env python3
"""How fast each number format is in each regime of rows: a table of `sluice opbench`.

usage: type_table.py SLUICE [ARGUMENTS of sluice opbench, as --backend cuda]

Three ops at GLM-4.7-Flash's shapes (a dense product, a gated pair, the experts' second product) with weights of one
type each, read from memory (cold). A figure is microseconds and the share of what the hardware could do; a type that
has none is a hole: "-".
"""

import json
import re
import subprocess
import sys

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
         "IQ4_XS", "MXFP4", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "NVFP4")
ROWS = (1, 16, 512)
OPS = (("matmul_add", "attn_output"), ("gate_up", "ffn_gate"), ("moe_down_add", "ffn_down_exps"))


def measure(sluice: str, arguments: list, op: str, weight: str) -> dict:
    """(type, rows) to its record, of one op."""
    command = [sluice, "opbench", op, "--weight", weight, "--shapes", "glm-4.7-flash", "--mix", ",".join(TYPES),
               "--rows", ",".join(map(str, ROWS)), "--cold", "-o", "json", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found = {}
    for record in json.loads(done.stdout)["ops"]:
        first = re.search(r"\b[A-Z]+[0-9A-Z_]*\b", record["shape"])  # the first weight's type
        found[first.group(), record["rows"]] = record
    return found


def cell(record: dict) -> str:
    if record is None:
        return "-"
    cold = record["cold"]
    return f"{cold['us']:.1f} ({100 * cold['share_of_peak']:.0f}%)"


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    found = {}
    for op, weight in OPS:
        for (kind, rows), record in measure(sys.argv[1], sys.argv[2:], op, weight).items():
            found[kind, op, rows] = record
    print("| type |" + "".join(f" {op} {rows} |" for op, _ in OPS for rows in ROWS))
    print("|---|" + "---|" * (len(OPS) * len(ROWS)))
    for kind in TYPES:
        print(f"| {kind} |" + "".join(f" {cell(found.get((kind, op, rows)))} |" for op, _ in OPS for rows in ROWS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
