#!/usr/bin/env python3
"""Proves the floors of the house: a room includes rooms of lower floors only, never a sibling.

usage: floors.py [TREE]    TREE holds src/; the default is this project

Prints `FILE:LINE: includes X: RULE` for each violation and exits with 1 if there is one. A room of src/ that
is not in the table is a violation too, so that the table stays the map of the house.
"""

import re
import sys
from pathlib import Path

# Room -> floor. Rooms of one floor are strangers to each other.
FLOORS = {
    "base": 0,
    "quant": 1,
    "hub": 1,
    "store": 1,
    "events": 1,
    "gguf": 2,
    "text": 2,
    "program": 2,
    "model": 3,
    "backend/ref": 3,
    "backend/null": 3,
    "backend/cpu": 3,
    "backend/cuda": 3,
    "backend/vulkan": 3,
    "backend/places": 3,
    "backend/ranks": 3,
    "engine": 3,
    "profile": 3,
    "server": 4,
    "cli": 5,
}

# Rooms that not everyone above may enter, and who may: one door to files, one place that names a backend.
READERS = {
    "hub": {"cli"},
    "store": {"engine", "cli"},
    "events": {"engine", "cli"},
    "gguf": {"model", "cli"},
    "backend/ref": {"cli"},
    "backend/null": {"cli"},
    "backend/cpu": {"cli"},
    "backend/cuda": {"cli"},
    "backend/vulkan": {"cli"},
    "backend/places": {"cli"},
    "backend/ranks": {"cli"},
}

# Rooms that may look at a few others only: a server translates between the wire and the engine.
ONLY = {"server": {"base", "text", "engine"}}

SUFFIXES = {".cc", ".h", ".cu", ".cuh", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def room_of(path: str) -> str | None:
    """The room that a path below src/ lies in: its first folder, or its first two below backend/."""
    parts = path.split("/")[:-1]
    if not parts:
        return None
    return "/".join(parts[:2]) if parts[0] == "backend" else parts[0]


def broken_rule(here: str, there: str) -> str | None:
    """Why room `here` may not include from room `there`; None if it may."""
    if here == there:
        return None
    if FLOORS[there] > FLOORS[here]:
        return f"{here} is on floor {FLOORS[here]}, {there} above it on {FLOORS[there]}: include downward only"
    if FLOORS[there] == FLOORS[here]:
        return f"{here} and {there} are siblings on floor {FLOORS[here]}: include downward only"
    if here in ONLY and there not in ONLY[here]:
        return f"{here} includes from {', '.join(sorted(ONLY[here]))} alone"
    if there in READERS and here not in READERS[there]:
        return f"{there} is for {' and '.join(sorted(READERS[there]))} alone"
    return None


def violations(src: Path) -> list[str]:
    found = []
    files = sorted(f for f in src.rglob("*") if f.suffix in SUFFIXES and f.is_file())
    unknown = {}
    for file in files:
        name = f"src/{file.relative_to(src).as_posix()}"
        here = room_of(name.removeprefix("src/"))
        if here not in FLOORS:
            unknown.setdefault(here, name)
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quoted, angled = match.groups()
            include = quoted or angled
            there = room_of(include)
            if there in FLOORS:
                rule = broken_rule(here, there)
                if not rule and angled:
                    rule = "the project's own headers go in quotes"
            elif quoted:
                rule = "quotes are for paths that start at src/: room/file.h"
            else:
                rule = None
            if rule:
                found.append(f"{name}:{number}: includes {include}: {rule}")
    for room, name in sorted(unknown.items(), key=lambda item: item[1]):
        found.append(f"{name}:1: {f'room {room}' if room else 'a file outside any room'} is not in the table of tools/floors.py")
    return found


def main() -> int:
    if len(sys.argv) > 2 or sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    tree = Path(sys.argv[1]) if len(sys.argv) == 2 else Path(__file__).resolve().parent.parent
    src = tree / "src"
    if not src.is_dir():
        print(f"floors: {src} is no folder", file=sys.stderr)
        return 2
    found = violations(src)
    print("\n".join(found) + "\n" if found else "", end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
