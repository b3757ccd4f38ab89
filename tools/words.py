#!/usr/bin/env python3
"""Holds the tree to its words and lengths: docs/glossary.md says which words have gone.

usage: words.py [--shrink] [TREE]    TREE is this project by default

Rules: words that have gone, by room (also as parts of identifiers); sentences of at most 40 words and paragraphs of at
most 120 in documents; functions of at most 120 lines, files of at most 500 (kernels 600); lines of rooms with a budget;
docs/house.md and the READMEs of rooms; links between documents lead to files. What stands in the tree all the same is counted by rule and place in
tools/words_tolerated.txt: more than that is an error, less can be written there by --shrink, which never raises.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

SOURCES = {".cc", ".h", ".cu", ".cuh"}
KERNELS = {".cu", ".cuh"}
TOLERATED = "tools/words_tolerated.txt"

FUNCTION_LINES, FILE_LINES, KERNEL_FILE_LINES = 120, 500, 600
SENTENCE_WORDS, PARAGRAPH_WORDS = 40, 120
ROOM_LINES = {"backend/cuda": 20_800}
# Documents with bounds of their own: lines, characters a line.
PAGE_LINES = {"docs/house.md": (300, 120)}
README_LINES = (60, 120)
# Logs, what is generated, and lists of changes.
NOT_READ = ("docs/lab/", "docs/analysis.md", "CHANGELOG.md")

# Word -> rooms (and all below them) where it has gone, and what stands there now. Everywhere: as a word of a comment or
# a part of a name.
GONE = {
    "turned": (("program", "model", "backend"), "rotated (rope), transposed (a matrix)"),
    "turning": (("program", "model", "backend"), "rotating"),
    "recital": (("cli",), "replay"),
    "board": (("backend/cuda",), "mailbox"),
    "multiprocessor": (("backend/cuda",), "SM"),
    "multiprocessors": (("backend/cuda",), "SMs"),
    "meeting": (("backend/cuda",), "reduction"),
    "strips": (("backend/cuda",), "n-tiles"),
}
# Parts of names alone: in prose they are plain words.
GONE_IN_NAMES = {
    word: (("backend/cuda",), "the range of rows or context")
    for word in ("few", "some", "many", "wide", "tall", "deep", "short", "pieces")
}
GONE_IN_NAMES["likeliest"] = (("program", "engine", "server", "cli", "backend"), "top, top-k")
PHRASES = {
    "matrix units": (("backend/cuda",), "tensor cores"),
    "copy engine": (("backend/cuda",), "TMA"),
    "second cache": (("backend/cuda",), "L2"),
    "second-level cache": (("backend/cuda",), "L2"),
}

# Names that are not ours to choose.
PROPER = ("cuda", "DeepSeek", "multiProcessor")
NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# What is no code, or holds braces that open nothing: comments, raw strings, strings, characters.
NO_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|R\"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)\"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
NO_FUNCTION = re.compile(r"^(?:namespace|extern|enum|union)\b|^(?:template\s*<.*>\s*)?(?:class|struct)\b|=\s*$", re.DOTALL)


def room_of(name: str) -> str:
    """src/backend/cpu/simd/a.h -> backend/cpu"""
    parts = name.split("/")[1:-1]
    return "/".join(parts[:2] if parts[:1] == ["backend"] else parts[:1])


def applies(room: str, rooms: tuple[str, ...]) -> bool:
    return any(room == r or room.startswith(r + "/") for r in rooms)


def gone_words(line: str, room: str):
    """(word, what stands there now) for each that this line of a room has."""
    for name in NAME.findall(line):
        if name.startswith(PROPER):
            continue
        parts = [part.lower() for part in PART.findall(name)]
        for part in parts:
            if part in GONE and applies(room, GONE[part][0]):
                yield part, GONE[part][1]
            elif len(parts) > 1 and part in GONE_IN_NAMES and applies(room, GONE_IN_NAMES[part][0]):
                yield part, GONE_IN_NAMES[part][1]
    for phrase, (rooms, now) in PHRASES.items():
        if phrase in line and applies(room, rooms):
            yield phrase, now


def long_functions(text: str):
    """(first line, lines) of each function of more than FUNCTION_LINES: its braces and what is between them."""
    if text.count("\n") <= FUNCTION_LINES:
        return
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())
    text = DIRECTIVE.sub(blank, NO_CODE.sub(blank, text))
    opened, line, begin = [], 1, 0  # opened: (line, is a function's)
    for match in re.finditer(r"[{};\n]", text):
        if match.group() == "\n":
            line += 1
            continue
        if match.group() == "{":
            head = text[begin : match.start()].strip()
            inside = any(function for _, function in opened)
            opened.append((line, not inside and ")" in head and not NO_FUNCTION.search(head)))
        elif match.group() == "}" and opened:
            first, function = opened.pop()
            if function and line - first + 1 > FUNCTION_LINES:
                yield first, line - first + 1
        begin = match.end()


def paragraphs(text: str):
    """(first line, text) of each paragraph or item of a list: no code, no tables, no headings."""
    fenced, first, lines = False, 0, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
        starts = re.match(r"(?:[-*]|\d+\.) ", stripped)
        ends = fenced or not stripped or stripped[0] in "|#<" or stripped.startswith("```")
        if (ends or starts) and lines:
            yield first, " ".join(lines)
            lines = []
        if not ends:
            first = first if lines else number
            lines.append(stripped)


def words_in(text: str) -> int:
    return len(re.findall(r"[^\s]*[A-Za-z0-9][^\s]*", text))


def sentences(text: str) -> list[str]:
    text = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", text))
    return re.split(r"(?<=[.!?])[)*_]*\s+", text)


class Findings:
    def __init__(self):
        self.places = defaultdict(list)  # (rule, place) -> messages
        self.sizes = {}  # of what is one number and not a list

    def add(self, rule: str, place: str, message: str):
        self.places[rule, place].append(message)

    def size(self, rule: str, place: str, found: int, most: int, message: str):
        if found > most:
            self.places[rule, place].append(message)
            self.sizes[rule, place] = found

    def count(self, key: tuple[str, str]) -> int:
        return self.sizes.get(key, len(self.places.get(key, [])))


def look_at_sources(tree: Path, found: Findings):
    lines_of = defaultdict(int)
    for path in sorted((tree / "src").rglob("*")):
        if path.suffix not in SOURCES or not path.is_file():
            continue
        name, text = path.relative_to(tree).as_posix(), path.read_text(encoding="utf-8")
        room, lines = room_of(name), text.splitlines()
        lines_of[room] += len(lines)
        most = KERNEL_FILE_LINES if path.suffix in KERNELS else FILE_LINES
        found.size("file", name, len(lines), most, f"{name}: {len(lines)} lines, at most {most}")
        for first, length in long_functions(text):
            found.add("function", room, f"{name}:{first}: a function of {length} lines, at most {FUNCTION_LINES}")
        for number, line in enumerate(lines, 1):
            for word, now in gone_words(line, room):
                found.add(f"word:{word.replace(' ', '-')}", room, f'{name}:{number}: "{word}" has gone: {now}')
    for room, most in ROOM_LINES.items():
        lines = lines_of[room]
        found.size("lines", room, lines, most, f"src/{room}: {lines} lines, at most {most}")


def documents(tree: Path):
    for path in [*tree.glob("*.md"), *(p for top in ("docs", "src") for p in (tree / top).rglob("*.md"))]:
        yield path.relative_to(tree).as_posix(), path.read_text(encoding="utf-8")


def look_at_documents(tree: Path, found: Findings):
    for name, text in sorted(documents(tree)):
        for number, line in enumerate(text.splitlines(), 1):
            for link in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                if "://" not in link and not (tree / name).parent.joinpath(link).exists():
                    found.add("link", name, f"{name}:{number}: {link} is not there")
        if name.startswith(NOT_READ):
            continue
        for first, paragraph in paragraphs(text):
            if (count := words_in(paragraph)) > PARAGRAPH_WORDS:
                found.add("paragraph", name, f"{name}:{first}: a paragraph of {count} words, at most {PARAGRAPH_WORDS}")
            for sentence in sentences(paragraph):
                if (count := words_in(sentence)) > SENTENCE_WORDS:
                    start = " ".join(sentence.split()[:6])
                    found.add("sentence", name, f'{name}:{first}: "{start} ...": {count} words, at most {SENTENCE_WORDS}')
        bounds = README_LINES if name.startswith("src/") else PAGE_LINES.get(name)
        if bounds:
            lines = text.splitlines()
            found.size("page", name, len(lines), bounds[0], f"{name}: {len(lines)} lines, at most {bounds[0]}")
            for number, line in enumerate(lines, 1):
                if len(line) > bounds[1]:
                    found.add("line", name, f"{name}:{number}: {len(line)} characters, at most {bounds[1]}")


def read_tolerated(path: Path) -> dict[tuple[str, str], int]:
    if not path.is_file():
        return {}
    rows = (line.split() for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#")
    return {(rule, place): int(count) for rule, place, count in rows}


def shrink(path: Path, tolerated: dict[tuple[str, str], int], found: Findings):
    rows = {key: min(count, found.count(key)) for key, count in tolerated.items()}
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    body = [f"{rule} {place} {count}" for (rule, place), count in sorted(rows.items()) if count > 0]
    path.write_text("\n".join([*head, *body]) + "\n", encoding="utf-8")


def main() -> int:
    arguments = sys.argv[1:]
    wants_less = "--shrink" in arguments
    arguments = [a for a in arguments if a != "--shrink"]
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    tree = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if not (tree / "src").is_dir():
        print(f"words: {tree / 'src'} is no folder", file=sys.stderr)
        return 2
    found = Findings()
    look_at_sources(tree, found)
    look_at_documents(tree, found)
    tolerated = read_tolerated(tree / TOLERATED)
    if wants_less and tolerated:
        shrink(tree / TOLERATED, tolerated, found)
    too_many = [key for key in sorted(found.places) if found.count(key) > tolerated.get(key, 0)]
    for key in too_many:
        messages = found.places[key]
        for message in messages[:5]:
            print(message)
        if len(messages) > 5:
            print(f"{key[1]}: {len(messages) - 5} more of these")
        if tolerated.get(key):
            print(f"{key[1]}: {found.count(key)} by rule {key[0]}, and {TOLERATED} has {tolerated[key]}")
    return 1 if too_many else 0


if __name__ == "__main__":
    sys.exit(main())
