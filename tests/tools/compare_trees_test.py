#!/usr/bin/env python3
"""The comparison of two builds: turns, medians, losses, what is kept; builds are scripts that say given speeds."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "bench" / "compare_trees"

# Says the next of its speeds at every run, and logs what it was asked.
FAKE = """#!{python}
import json, sys
from pathlib import Path
here = Path(__file__).parent
log = here.parent / "log"
with log.open("a") as file: file.write(here.name + " " + sys.argv[1] + "\\n")
if sys.argv[1] == "synth":
    Path(sys.argv[3]).write_text("a model")
    sys.exit(0)
if "{fails}": sys.exit("out of memory")
speeds = json.loads((here / "speeds").read_text())
(here / "speeds").write_text(json.dumps(speeds[1:]))
print(json.dumps([{{"test": "tg24", "samples_ts": [speeds[0]] * 2, "share_of_limit": 0.5}}]))
"""


class CompareTrees(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def build(self, name: str, speeds: list, fails: str = "") -> Path:
        folder = self.folder / name
        folder.mkdir()
        (folder / "speeds").write_text(json.dumps(speeds))
        (folder / "sluice").write_text(FAKE.format(python=sys.executable, fails=fails))
        (folder / "sluice").chmod(0o755)
        return folder

    def compare(self, old: list, new: list, *flags, fails: str = ""):
        builds = [self.build("old", old), self.build("new", new, fails)]
        return subprocess.run([TOOL, "--backend", "cpu", "--only", "youtu.*q4_k_m", "--files", self.folder / "files", "--json",
                               self.folder / "kept.json", *flags, *builds], capture_output=True, text=True, check=False)

    def kept(self):
        return json.loads((self.folder / "kept.json").read_text())

    def test_folders_may_be_relative(self):
        old = self.build("old", [100, 100])
        new = self.build("new", [100, 100])
        done = subprocess.run([TOOL, "--backend", "cpu", "--only", "youtu.*q4_k_m", "--turns", "1", "../old", "."], cwd=new,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, f"{old}: {done.stderr}")

    def test_ratios_are_of_turns_and_figures_medians(self):
        # One slow minute that meets both builds of a turn changes no ratio.
        done = self.compare([100, 50, 100], [110, 55, 110], "--turns", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        row = self.kept()["table"][0]
        self.assertEqual((row["file"], row["test"], row["turns"]), ("youtu-llm-2b q4_k_m", "tg24", 3))
        self.assertEqual((row["old"], row["new"]), (100, 110))
        for figure in ("ratio", "least", "most"):
            self.assertAlmostEqual(row[figure], 1.1)

    def test_a_loss_is_exit_code_3(self):
        self.assertEqual(self.compare([100] * 3, [97] * 3, "--turns", "3").returncode, 3)

    def test_what_is_a_loss_may_be_said(self):
        self.assertEqual(self.compare([100] * 3, [97] * 3, "--turns", "3", "--loss", "4").returncode, 0)

    def test_builds_take_turns(self):
        self.compare([100] * 2, [100] * 2, "--turns", "2")
        self.assertEqual((self.folder / "log").read_text().split("\n")[:-1],
                         ["new synth", "old bench", "new bench", "new bench", "old bench"])
        self.assertEqual([(r["tree"], r["turn"]) for r in self.kept()["records"]],
                         [("old", 1), ("new", 1), ("new", 2), ("old", 2)])

    def test_time_that_is_up_leaves_one_turn(self):
        self.compare([100] * 5, [100] * 5, "--minutes", "0")
        self.assertEqual(self.kept()["table"][0]["turns"], 1)

    def test_a_build_that_fails_is_named(self):
        done = self.compare([100], [100], fails="yes")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"new/sluice bench .*exit code 1: out of memory")

    def test_folders_without_a_program_are_refused(self):
        done = subprocess.run([TOOL, self.folder, self.folder], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("holds no program sluice", done.stderr)


if __name__ == "__main__":
    unittest.main()
