#!/usr/bin/env python3
"""The runner of the tests that need Node, with programs called node and npm that do what a test says."""

import contextlib
import io
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import web_tests  # noqa: E402

TAP = """TAP version 13
# Subtest: the page
    # Subtest: sends
    ok 1 - sends
      ---
      duration_ms: 1
      ...
    # Subtest: stops
    {stops}ok 2 - stops
      ---
      duration_ms: 1
      location: '/suite/a.test.mjs:7:3'
      ...
    1..2
{stops}ok 1 - the page
  ---
  type: 'suite'
  ...
ok 2 - looks # SKIP no browser
  ---
  duration_ms: 1
  ...
1..2
"""


class WebTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.bin = self.root / "bin"
        self.bin.mkdir()
        self.suite = self.root / "suite"
        (self.suite / "node_modules").mkdir(parents=True)
        (self.suite / "package-lock.json").write_text("{}")
        (self.suite / "a.test.mjs").write_text("")
        self.program("npm", "echo 11")
        self.node()

    def program(self, name, script):
        path = self.bin / name
        path.write_text("#!/bin/sh\n" + script + "\n")
        path.chmod(0o755)

    def node(self, version="v20.1.0", tap=TAP.format(stops=""), code=0):
        (self.root / "tap").write_text(tap)
        self.program("node", f"""[ "$1" = --version ] && {{ echo {version}; exit; }}
for argument; do case $argument in --test-reporter-destination=/*) cp {self.root}/tap "${{argument#*=}}";; esac; done
exit {code}""")

    def node_twice(self, first, again):
        """Writes one report, and the other when it runs once more."""
        for name, tap in ("first", first), ("again", again):
            (self.root / name).write_text(tap)
        self.program("node", f"""[ "$1" = --version ] && {{ echo v20.1.0; exit; }}
echo "$@" >> {self.root}/runs
tap={self.root}/first; [ "$(wc -l < {self.root}/runs)" -gt 1 ] && tap={self.root}/again
for argument; do case $argument in --test-reporter-destination=/*) cp $tap "${{argument#*=}}";; esac; done
grep -q "not ok" $tap && exit 1 || exit 0""")

    def npm(self, message, code):
        self.program("npm", f'[ "$1" = --version ] && {{ echo 11; exit; }}\necho run >> {self.root}/installs\necho "{message}"\nexit {code}')

    def run_tool(self, steps=None):
        suites = {"suite": ("page", steps or {}, ["*.test.mjs"])}
        out = io.StringIO()
        with mock.patch.object(web_tests, "ROOT", self.root), mock.patch.object(web_tests, "SUITES", suites), \
                mock.patch.object(sys, "argv", ["web_tests.py", "sluice"]), \
                mock.patch.dict(os.environ, {"PATH": f"{self.bin}:/usr/bin:/bin"}), \
                contextlib.redirect_stdout(out):
            code = web_tests.main()
        return code, out.getvalue().splitlines()

    def test_counts_tests_and_names_what_was_skipped(self):
        self.npm("added 1 package", 0)
        code, lines = self.run_tool({"page.committed": ["true"]})
        self.assertEqual(code, 0)
        self.assertEqual(lines, ["skipped: page: looks: no browser", "web: 3 passed, 0 failed, 1 skipped"])

    def test_failures_are_failures(self):
        self.npm("added 1 package", 0)
        self.node(tap=TAP.format(stops="not "), code=1)
        code, lines = self.run_tool({"page.committed": ["false"]})
        self.assertEqual(code, 1)
        self.assertEqual(lines[1:], ["failed: page.committed", "failed: page: stops", "web: 1 passed, 2 failed, 1 skipped"])
        for code, why in [(7, "Node ended with 7"), (0, "no test ran")]:
            self.node(tap="TAP version 13\n1..0\n", code=code)
            self.assertEqual(self.run_tool()[1], [f"failed: page: {why}", "web: 0 passed, 1 failed, 0 skipped"])

    def test_what_passes_when_its_file_runs_once_more_is_flaky(self):
        self.npm("added 1 package", 0)
        self.node_twice(TAP.format(stops="not "), TAP.format(stops=""))
        code, lines = self.run_tool()
        self.assertEqual(code, 0)
        self.assertEqual(lines[1:], ["flaky: page: stops: failed at first, passed when its file ran once more",
                                     "web: 1 passed, 1 flaky, 0 failed, 1 skipped"])
        runs = (self.root / "runs").read_text().splitlines()
        self.assertEqual([run.split()[-1] for run in runs], ["a.test.mjs", "/suite/a.test.mjs"])

    def test_what_fails_twice_has_failed_and_many_are_not_tried_again(self):
        self.npm("added 1 package", 0)
        self.node_twice(TAP.format(stops="not "), TAP.format(stops="not "))
        self.assertEqual(self.run_tool()[1][1:], ["failed: page: stops", "web: 1 passed, 1 failed, 1 skipped"])
        (self.root / "runs").unlink()
        one = "not ok {0} - test {0}\n  ---\n  location: '/suite/a.test.mjs:{0}:1'\n  ...\n"
        self.node_twice("TAP version 13\n" + "".join(map(one.format, range(1, 5))), TAP.format(stops=""))
        self.assertEqual(self.run_tool()[1][-1], "web: 0 passed, 4 failed, 0 skipped")
        self.assertEqual(len((self.root / "runs").read_text().splitlines()), 1)

    def test_a_registry_out_of_reach_is_no_failure(self):
        for message in ["npm error code EAI_AGAIN", "npm ERR! code ECONNREFUSED", "npm error code E503", "npm error code ETIMEDOUT"]:
            self.npm(message, 1)
            code, lines = self.run_tool()
            self.assertEqual(code, 0, message)
            self.assertIn("skipped: page: npm's registry is out of reach", lines[0])
            self.assertEqual(lines[-1], "web: 0 passed, 0 failed, 1 skipped")

    def test_a_lock_file_that_does_not_fit_is_a_failure(self):
        for message in ["npm error code EUSAGE", "npm error code EINTEGRITY", "Segmentation fault"]:
            self.npm(message, 1)
            code, lines = self.run_tool()
            self.assertEqual(code, 1, message)
            self.assertEqual(lines[-1], "web: 0 passed, 1 failed, 0 skipped")

    def test_packages_are_installed_once(self):
        self.npm("added 1 package", 0)
        self.run_tool()
        self.run_tool()
        self.assertEqual((self.root / "installs").read_text(), "run\n")
        (self.suite / "package-lock.json").write_text("{ }")
        self.run_tool()
        self.assertEqual((self.root / "installs").read_text(), "run\nrun\n")

    def test_an_old_node_or_none(self):
        self.node(version="v18.20.4")
        code, lines = self.run_tool()
        self.assertEqual((code, lines[0]), (0, "skipped: page: needs Node 20, here is v18.20.4"))
        (self.bin / "node").unlink()
        with mock.patch.object(web_tests.subprocess, "run", side_effect=FileNotFoundError):
            code, lines = self.run_tool()
        self.assertEqual((code, lines[0]), (0, "skipped: page: no node here (Debian packages nodejs and npm)"))


if __name__ == "__main__":
    unittest.main()
