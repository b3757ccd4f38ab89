#!/usr/bin/env python3
"""Which targets have the tests whose names a regular expression finds, so that `dev test NAME` builds no others.

usage: test_targets.py BUILD REGEX

Tests are read from tests/ROOM/*_test.cc (program test_ROOM) and, since values name tests, too, from what ctest heard of
the programs that were built before. Where neither has the name, programs with tests of values that were never built may
have it. What is no program of tests needs everything. Prints the targets, or `all`.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEST = re.compile(r"^(?:TYPED_)?TEST(_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)


def written(room: Path) -> tuple[set, bool]:
    """Names of a room's tests, and whether values make more of them."""
    names, values = set(), False
    for source in room.glob("*_test.cc"):
        for kind, suite, name in TEST.findall(source.read_text(encoding="utf-8", errors="replace")):
            values |= kind == "_P"
            names.add(f"{suite}.{name}")
    return names, values


def heard(build: Path, program: str) -> set | None:
    """Names that ctest has of a program; None: it was never built."""
    lists = list(build.glob(f"tests/{program}[[]*[]]_tests.cmake"))
    return {name for one in lists for name in re.findall(r"^add_test\(\[=*\[(.*?)\]=*\]", one.read_text(), re.MULTILINE)} if lists else None


def targets(tests: Path, build: Path, pattern: str) -> list:
    wanted = re.compile(pattern)
    found, perhaps = set(), set()
    for room in sorted(path for path in tests.iterdir() if path.is_dir()):
        program = f"test_{room.name}"
        names, values = written(room)
        known = heard(build, program)
        if not names or room.name in ("gpu", "vulkan"):  # one entry each
            continue
        if any(map(wanted.search, names | (known or set()))):
            found.add(program)
        elif values and known is None:
            perhaps.add(program)
    entries = re.findall(r"test_tool\((\w+)", (tests / "CMakeLists.txt").read_text())
    found = found or perhaps
    if not found or any(map(wanted.search, ["gpu", "vulkan", *(f"tools.{name}" for name in entries)])):
        return ["all"]
    return sorted(found)


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print("\n".join(targets(ROOT / "tests", Path(sys.argv[1]), sys.argv[2])))
    except re.error:  # ctest has expressions of its own
        print("all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
