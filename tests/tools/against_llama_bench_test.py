#!/usr/bin/env python3
"""The comparison with llama-bench: turns, flags, medians, what is kept; both programs are scripts that say given speeds."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "bench" / "against_llama_bench.py"

# Says a speed by its flags and by how often it was run with them; "refused" among them ends it.
FAKE = """#!{python}
import json, sys
from pathlib import Path
here = Path(__file__).parent
arguments = sys.argv[1:]
value = lambda flag: int(arguments[arguments.index(flag) + 1])
with (here / "log").open("a") as log: log.write(Path(__file__).name + " " + " ".join(arguments) + "\\n")
if "--refused" in arguments: sys.exit("no such flag: --refused")
speeds = json.loads((here / (Path(__file__).name + ".json")).read_text())
key = ("fast " if "--fast" in arguments else "") + ("pp" if value("-p") else "tg")
first = speeds[key][0]
if value("-r") > 1 and len(speeds[key]) > 1: speeds[key].pop(0)
(here / (Path(__file__).name + ".json")).write_text(json.dumps(speeds))
if {broken}: print("not JSON"); sys.exit(0)
print(json.dumps([{{"n_prompt": value("-p"), "n_gen": value("-n"), "avg_ts": first, "build_commit": "abc", "cpu_info": "a CPU",
                   "n_threads": value("-t")}}]))
"""


class AgainstLlamaBench(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        (self.folder / "m.gguf").write_bytes(b"a model")

    def program(self, name: str, speeds: dict, broken: bool = False) -> Path:
        (self.folder / (name + ".json")).write_text(json.dumps(speeds))
        path = self.folder / name
        path.write_text(FAKE.format(python=sys.executable, broken=broken))
        path.chmod(0o755)
        return path

    def run_tool(self, ours: dict, theirs: dict, *flags, broken: bool = False):
        return subprocess.run([TOOL, "--llama-bench", self.program("llama-bench", theirs, broken), "--sluice", self.program("sluice", ours),
                               "-m", self.folder / "m.gguf", "-t", "2", "-o", self.folder / "out.json", *flags],
                              capture_output=True, text=True, check=False)

    def kept(self) -> dict:
        return json.loads((self.folder / "out.json").read_text())

    def test_ratios_are_of_turns(self):
        done = self.run_tool({"pp": [100, 50, 100], "tg": [30]}, {"pp": [50, 25, 40], "tg": [60]}, "--turns", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        pp, tg = self.kept()["table"]
        self.assertEqual((pp["test"], pp["sluice"], pp["llama.cpp"], pp["ratio"], pp["least"], pp["most"]),
                         ("pp512", 100, 40, 2, 2, 2.5))
        self.assertEqual((tg["test"], tg["ratio"], tg["turns"]), ("tg128", 0.5, 3))
        order = [line.split()[0] for line in (self.folder / "log").read_text().splitlines() if "-r 2" in line]
        self.assertEqual(order, ["sluice", "llama-bench"] * 2 + ["llama-bench", "sluice"] * 2 + ["sluice", "llama-bench"] * 2)

    def test_each_is_measured_with_the_flags_that_suit_it(self):
        speeds = {"pp": [100], "fast pp": [200], "tg": [30], "fast tg": [20]}
        done = self.run_tool(speeds, speeds, "--turns", "1", "--llama-flags=", "--llama-flags=--fast", "--llama-flags=--refused",
                             "--sluice-flags=")
        self.assertEqual(done.returncode, 0, done.stderr)
        kept = self.kept()
        self.assertEqual([(row["llama_flags"], row["ratio"]) for row in kept["table"]], [("--fast", 0.5), ("", 1)])
        refused = [one for one in kept["tried"]["llama.cpp"] if "refused" in one]
        self.assertEqual(len(refused), 2)
        self.assertIn("no such flag: --refused", refused[0]["refused"])

    def test_everything_is_kept(self):
        self.run_tool({"tg": [30]}, {"tg": [60]}, "-p", "0", "-d", "0,64", "--turns", "2", "--title", "A model")
        kept = self.kept()
        self.assertEqual([row["test"] for row in kept["table"]], ["tg128", "tg128 @ d64"])
        self.assertEqual(len(kept["records"]["sluice"]), 4)
        self.assertEqual(kept["records"]["llama.cpp"][0]["record"]["cpu_info"], "a CPU")
        self.assertEqual((kept["title"], kept["model"]["bytes"], kept["machine"]["cpu"], kept["machine"]["threads"]),
                         ("A model", 7, "a CPU", 2))
        self.assertEqual(kept["llama.cpp"]["build_commit"], "abc")
        self.assertEqual(kept["sluice"]["command"][:4], ["sluice", "bench", "-m", "m.gguf"])
        self.assertNotIn(str(self.folder), json.dumps(kept))
        self.assertEqual(kept["sluice"]["build_commit"], "abc")

    def test_failures_are_told(self):
        done = self.run_tool({"tg": [30], "pp": [1]}, {"tg": [60], "pp": [1]}, "--llama-flags=--refused")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no such flag: --refused", done.stderr)
        self.assertFalse((self.folder / "out.json").exists())
        done = self.run_tool({"tg": [30], "pp": [1]}, {"tg": [60], "pp": [1]}, broken=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no records of llama-bench's form", done.stderr)

    def test_what_cannot_be_measured_is_refused(self):
        for flags in (("-p", "0", "-n", "0"), ("--turns", "0"), ("-m", "/no/such.gguf")):
            self.assertEqual(self.run_tool({}, {}, *flags).returncode, 2, flags)


if __name__ == "__main__":
    unittest.main()
