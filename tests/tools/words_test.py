#!/usr/bin/env python3
"""tools/words.py against small trees: every rule is broken once and must be named, and what is near it must not be."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Words(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = Path(folder.name)
        (self.tree / "src").mkdir()

    def write(self, name: str, text: str):
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run_it(self, *flags: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [sys.executable, ROOT / "tools/words.py", *flags, self.tree], capture_output=True, text=True, check=False
        )
        return done.returncode, (done.stdout + done.stderr).splitlines()

    def one(self, *parts: str):
        """One finding, which has all of these parts."""
        code, lines = self.run_it()
        self.assertEqual(code, 1, lines)
        self.assertEqual(len(lines), 1, lines)
        for part in parts:
            self.assertIn(part, lines[0])

    def none(self):
        self.assertEqual(self.run_it(), (0, []))

    def test_gone_words_are_parts_of_names(self):
        for name in ("board_words", "kBoard", "theBoardOf", "// a board"):
            self.write("src/backend/cuda/ops/a.cu", f"int x;\n{name};\n")
            self.one("src/backend/cuda/ops/a.cu:2:", '"board"')
        for name in ("keyboard", "kBoarding", "onboard"):
            self.write("src/backend/cuda/ops/a.cu", f"{name};\n")
            self.none()

    def test_gone_in_a_room_alone(self):
        self.write("src/cli/a.cc", "board;\nmany_rows;\n")
        self.none()

    def test_plain_words_are_gone_in_names_alone(self):
        self.write("src/backend/cuda/a.cc", "// few rows, and wide ones\nint few;\n")
        self.none()
        self.write("src/backend/cuda/a.cc", "int norm_matmul_few;\n")
        self.one("a.cc:1:", '"few"')

    def test_phrases(self):
        self.write("src/backend/cuda/a.cc", "// by the copy engine\n")
        self.one("a.cc:1:", "TMA")

    def function(self, lines: int, head: str = "void f(int a) {") -> str:
        return "\n".join([head, *["  g();"] * (lines - 2), "}", ""])

    def test_long_functions(self):
        self.write("src/base/a.cc", self.function(120))
        self.none()
        self.write("src/base/a.cc", "int x;\n" + self.function(121))
        self.one("src/base/a.cc:2:", "121 lines")

    def test_a_class_is_no_function_and_its_methods_are(self):
        method = self.function(60, "  void f() {")
        self.write("src/base/a.h", "namespace a {\nclass B : public C<int (*)()> {\n" + method * 4 + "};\n}\n")
        self.none()
        self.write("src/base/a.h", "namespace a {\nstruct B {\n" + self.function(130, "void f() {") + "};\n}\n")
        self.one("src/base/a.h:3:", "130 lines")

    def test_braces_in_text_are_no_braces(self):
        text = 'const char* x = "{"; // {\nchar y = \'{\';\nauto z = R"x({{{)x";\n#define A {\n'
        self.write("src/base/a.cc", "void f() {\n" + text + "}\n" + self.function(110))
        self.none()

    def test_long_files(self):
        self.write("src/base/a.cc", "int x;\n" * 501)
        self.one("501 lines, at most 500")
        (self.tree / "src/base/a.cc").unlink()
        self.write("src/backend/cuda/a.cu", "int x;\n" * 501)
        self.none()

    def test_a_room_has_a_budget(self):
        for i in range(42):
            self.write(f"src/backend/cuda/a{i}.cc", "int x;\n" * 500)
        self.one("src/backend/cuda: 21000 lines")

    def test_sentences_and_paragraphs(self):
        self.write("docs/a.md", "# One\n\n" + "word " * 40 + "end.\n")
        self.one("docs/a.md:3:", "41 words")
        self.write("docs/a.md", ("word " * 29 + "end. ") * 4 + "\n")
        self.none()
        self.write("docs/a.md", ("word " * 29 + "end. ") * 4 + "More.\n")
        self.one("docs/a.md:1:", "a paragraph of 121 words")

    def test_what_is_no_sentence(self):
        row = "| " + "word " * 50 + "|\n"
        code = "```\n" + "word " * 50 + "\n```\n"
        items = "".join("- " + "word " * 35 + "\n" for _ in range(5))
        self.write("docs/a.md", row + "\n" + code + "\n" + items + "\n`" + "code " * 50 + "` is one.\n")
        self.none()

    def test_logs_are_not_read(self):
        self.write("docs/lab/a.md", "word " * 50 + ".\n")
        self.none()
        self.write("docs/lab/a.md", "[but their links](b.md)\n")
        self.one("docs/lab/a.md:1: b.md is not there")

    def test_pages_of_rooms(self):
        self.write("src/text/README.md", "Line.\n\n" * 31)
        self.one("src/text/README.md: 62 lines, at most 60")
        self.write("src/text/README.md", "x" * 121 + "\n")
        self.one("src/text/README.md:1: 121 characters")

    def test_tolerated(self):
        self.write("src/backend/cuda/a.cc", "board;\nboard;\n")
        self.write("tools/words_tolerated.txt", "# why\nword:board backend/cuda 2\nsentence docs/gone.md 3\n")
        self.none()
        self.write("src/backend/cuda/a.cc", "board;\nboard;\nboard;\n")
        code, lines = self.run_it()
        self.assertEqual((code, len(lines)), (1, 4), lines)
        self.assertIn("words_tolerated.txt has 2", lines[3])
        self.assertEqual(self.run_it("--shrink")[0], 1)  # never raised
        self.write("src/backend/cuda/a.cc", "board;\n")
        self.assertEqual(self.run_it("--shrink"), (0, []))
        text = (self.tree / "tools/words_tolerated.txt").read_text(encoding="utf-8")
        self.assertEqual(text, "# why\nword:board backend/cuda 1\n")

    def test_a_size_is_tolerated_up_to_itself(self):
        self.write("src/base/a.cc", "int x;\n" * 510)
        self.write("tools/words_tolerated.txt", "file src/base/a.cc 510\n")
        self.none()
        self.write("src/base/a.cc", "int x;\n" * 511)
        self.assertEqual(self.run_it()[0], 1)

    def test_links(self):
        self.write("docs/a.md", "[there](b.md#part), [not there](c.md), [a site](https://c.md), `[code](d.md)`\n")
        self.write("docs/b.md", "b\n")
        self.one("docs/a.md:1: c.md is not there")
        self.write("docs/c.md", "c\n")
        self.none()


if __name__ == "__main__":
    unittest.main()
