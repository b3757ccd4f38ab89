#!/usr/bin/env python3
"""tools/floors.py against deliberately bad trees: every rule of the house is broken once and must be named."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def floors(files: dict[str, str]) -> tuple[int, list[str]]:
    """Exit code and lines for a tree that holds these files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder, "src", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, ROOT / "tools/floors.py", folder], capture_output=True, text=True, check=False
        )
        return done.returncode, (done.stdout + done.stderr).splitlines()


class Floors(unittest.TestCase):
    def good(self, name: str, *includes: str):
        self.assertEqual(floors({name: "".join(f"#include {i}\n" for i in includes)}), (0, []))

    def bad(self, name: str, include: str, why: str):
        code, lines = floors({name: f"#pragma once\n\n#include {include}\n"})
        self.assertEqual(code, 1, lines)
        self.assertEqual(len(lines), 1, lines)
        self.assertTrue(lines[0].startswith(f"src/{name}:3: includes {include[1:-1]}: "), lines)
        self.assertIn(why, lines[0])

    def test_downward(self):
        self.good("quant/types.cc", '"quant/types.h"', '"base/span.h"', "<vector>", "<fmt/format.h>")
        self.good("model/spec.cc", '"gguf/gguf.h"', '"text/tokenizer.h"', '"program/op.h"', '"quant/types.h"')
        self.good("cli/assemble.cc", '"backend/cpu/cpu.h"', '"backend/ref/ref.h"', '"engine/engine.h"', '"gguf/gguf.h"')
        self.good("backend/cpu/simd/avx2/a.cc", '"backend/cpu/kernels.h"', '"program/op.h"')
        self.good("program/ops/route.cc", '"program/op_info.h"')
        self.good("server/api.cc", '"engine/engine.h"', '"text/chat.h"', '"base/error.h"')

    def test_a_comment_is_no_include(self):
        self.good("base/error.h", '<string>\n// #include "cli/run.h"')

    def test_upward(self):
        self.bad("base/file.cc", '"quant/types.h"', "above it")
        self.bad("program/op.h", '"model/spec.h"', "above it")
        self.bad("engine/engine.cc", '"cli/assemble.h"', "above it")

    def test_siblings(self):
        self.bad("gguf/gguf.cc", '"text/tokenizer.h"', "siblings")
        self.bad("model/spec.cc", '"engine/engine.h"', "siblings")
        self.bad("engine/engine.cc", '"model/spec.h"', "siblings")
        self.bad("engine/engine.cc", '"backend/cpu/cpu.h"', "siblings")
        self.bad("backend/cpu/simd/generic/a.cc", '"backend/ref/ref.h"', "siblings")
        self.bad("profile/report.cc", '"backend/null/null.h"', "siblings")

    def test_doors(self):
        self.bad("engine/engine.cc", '"gguf/gguf.h"', "gguf is for cli and model alone")
        self.bad("server/http.cc", '"backend/cpu/cpu.h"', "server includes from base, engine, text alone")
        self.bad("server/http.cc", '"model/spec.h"', "server includes from")

    def test_form(self):
        self.bad("quant/types.cc", '"types.h"', "room/file.h")
        self.bad("quant/types.cc", '"../base/span.h"', "room/file.h")
        self.bad("quant/types.cc", "<base/span.h>", "in quotes")

    def test_unknown_rooms(self):
        for name in ("attic/a.cc", "backend/metal/a.cc", "backend/a.cc", "a.h"):
            code, lines = floors({name: ""})
            self.assertEqual(code, 1, name)
            self.assertEqual(len(lines), 1, lines)
            self.assertIn(f"src/{name}:1: ", lines[0])
            self.assertIn("not in the table", lines[0])

    def test_all_are_listed(self):
        code, lines = floors({"base/a.h": '#include "cli/b.h"\n#include "text/c.h"\n', "text/d.h": '#include "gguf/e.h"\n'})
        self.assertEqual(code, 1)
        self.assertEqual([line.split(": ")[0] for line in lines], ["src/base/a.h:1", "src/base/a.h:2", "src/text/d.h:1"])


if __name__ == "__main__":
    unittest.main()
