#!/usr/bin/env python3
"""README's picture and table of speeds beside llama.cpp, made from the files that bench/against_llama_bench.py wrote and
from nothing else.

usage: figures.py [--check] [FOLDER]

FOLDER (docs/figures): its *.json are read, against_llama.svg is written, and README.md between `<!-- figures -->` and
`<!-- end -->`. --check writes nothing: exit code 1 where one of them is not what the files say.
"""

import html
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- figures -->\n", "<!-- end -->"
BARS, BAR, GAP = 420, 16, 14  # pixels: the longest bar, a bar's height, between tests
OURS, THEIRS = "#2563eb", "#9ca3af"


def documents(folder: Path) -> list:
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    if not found:
        raise SystemExit(f"figures: {folder}: no *.json; bench/against_llama_bench.py -o writes them")
    return found


def machine(document: dict) -> str:
    name = document["machine"]["gpu"] or document["machine"]["cpu"] or document["machine"]["device"]
    threads = document["machine"]["threads"]
    return name if document["machine"]["gpu"] else f"{name}, {threads} thread{'s' if threads != 1 else ''}"


def table(found: list) -> str:
    lines = ["| file | test | Sluice, tokens/s | llama.cpp | ratio (least to most of the turns) |", "|---|---|---|---|---|"]
    for document in found:
        for row in document["table"]:
            lines.append(f"| {document['title']} | {row['test']} | {row['sluice']:.1f} | {row['llama.cpp']:.1f} | {row['ratio']:.2f} "
                         f"({row['least']:.2f} to {row['most']:.2f}) |")
    lines.append("")
    said = []  # what several files have in common is said once
    for document in found:
        ours, theirs = document["sluice"], document["llama.cpp"]
        where = (f"{machine(document)}, {document['date']}; Sluice {ours['build_commit']}, {theirs['build_commit']} "
                 f"({theirs['program']}). {document.get('note', '')}").strip()
        if where not in said:
            said.append(where)
    lines += said
    return "\n".join(lines) + "\n"


def picture(found: list) -> str:
    """Bars of each test, llama.cpp's of one length: a ratio is read off at a glance."""
    rows = [(document, row) for document in found for row in document["table"]]
    longest = max(1.0, *(row["ratio"] for _, row in rows))
    unit = BARS / longest
    label = 24 + 7 * max(len(f"{document['title']}, {row['test']}") for document, row in rows)
    width = label + BARS + 90
    height = 34 + len(rows) * (2 * BAR + GAP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
             'font-family="system-ui, sans-serif" font-size="12" role="img">',
             "<title>Tokens a second beside llama.cpp on the same file and machine</title>",
             f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
             f'<rect x="{label}" y="8" width="12" height="12" fill="{OURS}"/><text x="{label + 18}" y="18" fill="#111827">Sluice</text>',
             f'<rect x="{label + 80}" y="8" width="12" height="12" fill="{THEIRS}"/><text x="{label + 98}" y="18" fill="#111827">llama.cpp'
             "</text>"]
    for i, (document, row) in enumerate(rows):
        y = 34 + i * (2 * BAR + GAP)
        parts.append(f'<text x="{label - 10}" y="{y + BAR + 4}" text-anchor="end" fill="#111827">'
                     f"{html.escape(document['title'])}, {html.escape(row['test'])}</text>")
        for at, (name, ratio, colour) in enumerate((("sluice", row["ratio"], OURS), ("llama.cpp", 1.0, THEIRS))):
            length = unit * ratio
            parts.append(f'<rect x="{label}" y="{y + at * BAR}" width="{length:.1f}" height="{BAR - 2}" fill="{colour}"/>')
            parts.append(f'<text x="{label + length + 6:.1f}" y="{y + at * BAR + 11}" fill="#374151">{row[name]:.0f} tokens/s</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(arguments: list) -> int:
    check = "--check" in arguments
    rest = [argument for argument in arguments if argument != "--check"]
    if len(rest) > 1 or any(argument.startswith("-") for argument in rest):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    folder = Path(rest[0]) if rest else ROOT / "docs/figures"
    found = documents(folder)
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    begin = text.find(BEGIN)
    end = text.find(END, begin)
    if begin < 0 or end < 0:
        raise SystemExit(f"figures: {readme} lacks {BEGIN.strip()} ... {END}")
    wanted = {readme: text[:begin + len(BEGIN)] + table(found) + text[end:], folder / "against_llama.svg": picture(found)}
    wrong = [path for path, content in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != content]
    for path in wrong:
        if check:
            print(f"figures: {path} is not what {folder}/*.json say; tools/figures.py writes it", file=sys.stderr)
        else:
            path.write_text(wanted[path], encoding="utf-8")
    return 1 if check and wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
