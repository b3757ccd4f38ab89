#!/usr/bin/env python3
"""clang reads every file as the presets asan and fuzz compile it, and makes nothing of it: errors and warnings of what
is not built every day, for a small part of the time. A warning is an error. tsan has asan's files and macros.
What only a linker sees, it does not."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def configured(preset: str) -> list[dict]:
    """What the preset compiles, tests included; what is generated is there, too."""
    folder = ROOT / "build" / f"read-{preset}"
    for command in (["cmake", "--preset", preset, "-B", folder, "-DSLUICE_TESTS=ON"],
                    ["cmake", "--build", folder, "--target", "vulkan_words"]):
        subprocess.run(command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return json.loads((folder / "compile_commands.json").read_text(encoding="utf-8"))


def read(entry: dict) -> bool:
    done = subprocess.run(entry["command"].replace(" -c ", " -fsyntax-only -Werror "), shell=True, cwd=entry["directory"],
                          stdin=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def main() -> int:
    asan = configured("asan")
    fuzz = [entry for entry in configured("fuzz") if entry["file"].startswith(f"{ROOT}/tests/fuzz/")]
    with ThreadPoolExecutor(int(os.environ.get("JOBS", "1"))) as readers:
        return 0 if all(list(readers.map(read, asan + fuzz))) else 1


if __name__ == "__main__":
    sys.exit(main())
