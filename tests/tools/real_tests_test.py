#!/usr/bin/env python3
"""The runner of the tests that need PyPI, with interpreters that do what a test says."""

import contextlib
import hashlib
import io
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import real_tests  # noqa: E402


class RealTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.packages = self.root / "tests/real/packages/some.txt"
        self.packages.parent.mkdir(parents=True)
        self.packages.write_text("none==1\n")
        self.suites = {"some": (["some_test.py", "word"], "some.txt", ""), "long": (["long_test.py"], "some.txt", "it is long")}
        self.interpreter("")

    def interpreter(self, script):
        """An environment that has all of the list, and whose Python is this script."""
        folder = self.root / "build/real/some"
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / ".installed").write_text(hashlib.sha256(self.packages.read_bytes()).hexdigest())
        (folder / "bin/python").write_text("#!/bin/sh\n" + script + "\n")
        (folder / "bin/python").chmod(0o755)

    def run_all(self, *suites):
        out = io.StringIO()
        with mock.patch.object(real_tests, "ROOT", self.root), mock.patch.object(real_tests, "SUITES", self.suites), \
                mock.patch.object(sys, "argv", ["real_tests.py", "/bin/true", *suites]), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = real_tests.main()
        return code, out.getvalue().splitlines()

    def test_counts_what_suites_say(self):
        self.interpreter('echo "arguments: $*"; echo passed: real.$SLUICE_SUITE.a; echo "skipped: real.some.b: why"')
        code, lines = self.run_all()
        self.assertEqual(code, 0)
        self.assertEqual(lines[0], f"arguments: {self.root}/tests/real/some_test.py word")
        self.assertEqual(lines[1], "passed: real.some.a")
        self.assertEqual(lines[-2], "skipped: real.long: it is long; `./dev test --real long` runs it")
        self.assertEqual(lines[-1], "real: 1 passed, 0 failed, 2 skipped")

    def test_a_suite_that_has_to_be_named_is_named(self):
        self.interpreter("echo passed: real.$SLUICE_SUITE.a")
        self.assertEqual(self.run_all("long"), (0, ["passed: real.long.a", "real: 1 passed, 0 failed, 0 skipped"]))

    def test_a_failure_fails(self):
        self.interpreter("echo passed: real.some.a; echo failed: real.some.b; exit 1")
        code, lines = self.run_all("some")
        self.assertEqual((code, lines[-1]), (1, "real: 1 passed, 1 failed, 0 skipped"))

    def test_a_suite_that_breaks_or_says_nothing_fails(self):
        for script, why in (("echo passed: real.some.a; exit 3", "Python ended with 3"), ("true", "no test ran")):
            self.interpreter(script)
            code, lines = self.run_all("some")
            self.assertEqual((code, lines[-2]), (1, f"failed: real.some: {why}"))

    def test_a_suite_that_does_not_end_is_ended(self):
        self.interpreter("sleep 60")
        with mock.patch.object(real_tests, "TEST_SECONDS", 1):
            code, lines = self.run_all("some")
        self.assertEqual((code, lines[-2]), (1, "failed: real.some: not done after 1 s"))

    def test_no_registry_is_no_failure_and_a_wrong_list_is(self):
        self.packages.write_text("other==1\n")
        trouble = "ERROR: Could not find a version that satisfies the requirement other==1 (from versions: none)"
        for said, word in ((trouble, "skipped"), ("ERROR: Invalid requirement: 'other'", "failed")):
            # What makes the environment makes an interpreter whose pip says this.
            with mock.patch.object(real_tests.venv, "EnvBuilder") as builder:
                builder.return_value.create = lambda folder, said=said: self.interpreter_without_packages(said)
                code, lines = self.run_all("some")
            self.assertEqual(code, 1 if word == "failed" else 0)
            self.assertTrue(lines[0].startswith(f"{word}: real.some: ") and said in lines[0], lines)

    def interpreter_without_packages(self, said):
        self.interpreter(f'echo "{said}"; exit 1')
        (self.root / "build/real/some/.installed").unlink()

    def test_unknown_suites_are_told(self):
        self.assertEqual(self.run_all("nothing")[0], 2)


if __name__ == "__main__":
    unittest.main()
