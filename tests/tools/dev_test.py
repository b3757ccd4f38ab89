#!/usr/bin/env python3
"""./dev at its door, what it builds for a test's name, and the count that closes ./dev test. Nothing here installs or builds."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import test_targets  # noqa: E402


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, **options)


def dpkg(folder: str, installed: str) -> dict[str, str]:
    """An environment whose dpkg-query knows these packages alone and whose apt-get only tells how it was called."""
    query = f'for p in "$@"; do case " {installed} " in *" $p "*) printf "installed:%s " "$p";; esac; done; exit 1\n'
    Path(folder, "dpkg-query").write_text("#!/bin/bash\n" + query, encoding="utf-8")
    Path(folder, "apt-get").write_text('#!/bin/bash\necho "APT $*"; exit ${APT_CODE-0}\n', encoding="utf-8")
    for name in ("dpkg-query", "apt-get"):
        Path(folder, name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


class Door(unittest.TestCase):
    def test_help_lists_every_verb(self):
        for command in ([ROOT / "dev"], [ROOT / "dev", "help"]):
            done = run(*command)
            self.assertEqual(done.returncode, 0)
            for verb in "setup build run test bench profile check fmt help".split():
                self.assertIn(f"\n  {verb} ", done.stdout)

    def test_wrong_words(self):
        for words in (["fly"], ["build", "debug"], ["setup", "everything"], ["test", "--preset", "fuzz"], ["test", "-x"], ["check", "x"], ["package", "debug"], ["package", "none.so"]):
            done = run(ROOT / "dev", *words)
            self.assertEqual(done.returncode, 2, words)
            self.assertEqual(done.stdout, "")
            self.assertIn("dev: ", done.stderr)

    def test_it_needs_bash_alone(self):
        """What it calls before it has installed anything must be in a minimal Debian: no python, no git, no cmake."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("bash", "dirname", "cat"):
                Path(folder, name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
            done = run(ROOT / "dev", "help", env={"PATH": folder})
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_setup_installs_what_is_missing(self):
        if os.geteuid() != 0:
            self.skipTest("only root installs packages")
        with tempfile.TemporaryDirectory() as folder:
            done = run(ROOT / "dev", "setup", "build", env=dpkg(folder, "g++ cmake ninja-build pkg-config git libfmt-dev libcli11-dev"))
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
            self.assertIn("APT update\n", done.stderr)
            self.assertIn("APT install -y --no-install-recommends nlohmann-json3-dev libpcre2-dev libedit-dev libboost-dev libssl-dev zlib1g-dev libzstd-dev libbrotli-dev libcurl4-openssl-dev libvulkan-dev glslang-tools\n", done.stderr)

    def test_setup_with_nothing_missing_calls_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run(ROOT / "dev", "setup", "bench", env=dpkg(folder, "libbenchmark-dev"))
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
            self.assertNotIn("APT", done.stderr)

    def test_setup_without_dpkg_tells_what_is_wanted(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("bash", "dirname", "cat"):
                Path(folder, name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
            done = run(ROOT / "dev", "setup", "build", env={"PATH": folder})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("nlohmann-json3-dev", done.stderr)
            self.assertNotIn("brew", done.stderr)
            Path(folder, "brew").write_text("#!/bin/bash\nexit 1\n", encoding="utf-8")  # asked for, never called
            Path(folder, "brew").chmod(0o755)
            done = run(ROOT / "dev", "setup", "build", env={"PATH": folder})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("brew install cmake ninja ", done.stderr)

    def test_setup_without_network(self):
        if os.geteuid() != 0:
            self.skipTest("only root installs packages")
        with tempfile.TemporaryDirectory() as folder:
            done = run(ROOT / "dev", "setup", "bench", env={**dpkg(folder, ""), "APT_CODE": "100"})
            self.assertEqual(done.returncode, 1)
            self.assertIn("could not install libbenchmark-dev", done.stderr)

    def test_setup_as_a_user_prints_the_line(self):
        become = ["setpriv", "--reuid", "65534", "--clear-groups"] if os.geteuid() == 0 else []
        if run(*become, "/usr/bin/env", "bash", "-c", "exit 0").returncode != 0:
            self.skipTest("no other user can run programs here")
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            dev = shutil.copy(ROOT / "dev", folder)  # that user may not be able to read this tree
            done = run(*become, dev, "setup", "bench", env=dpkg(folder, ""))
            self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
            line = "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends libbenchmark-dev"
            self.assertIn(f"\n{line}\n", done.stderr)
            self.assertNotIn("APT", done.stderr)


REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="t" tests="6" failures="1" disabled="1" skipped="3" time="1">
  <testcase name="A.runs" classname="A.runs" time="0.1" status="run"><system-out>fine</system-out></testcase>
  <testcase name="A.skips" classname="A.skips" time="0.1" status="notrun">
    <skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
    <system-out>[ RUN      ] A.skips
/some where/a_test.cc:12: Skipped
no GPU here

[  SKIPPED ] A.skips (0 ms)
</system-out></testcase>
  <testcase name="A.script" classname="A.script" time="0.1" status="notrun">
    <skipped message="SKIP_RETURN_CODE=77"/><system-out>skipped: no oracle
</system-out></testcase>
  <testcase name="A.off" classname="A.off" time="0" status="disabled"/>
"""
FAILS = '<testcase name="A.fails" status="fail"><failure message=""/><system-out>no</system-out></testcase>'
ABSENT = '<testcase name="A.absent" status="notrun"><skipped message="Unable to find executable"/></testcase>'


class Summary(unittest.TestCase):
    def summary(self, *reports: str):
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, f"{i}.xml") for i in range(len(reports))]
            for path, xml in zip(paths, reports):
                path.write_text(xml)
            done = run(sys.executable, ROOT / "tools/test_summary.py", *paths)
            return done.returncode, done.stdout.splitlines()

    def test_skips_are_named(self):
        code, lines = self.summary(REPORT + "</testsuite>")
        self.assertEqual(code, 0)
        self.assertEqual(
            lines,
            ["skipped: A.skips: no GPU here", "skipped: A.script: no oracle",
             "skipped: A.off: disabled in its source", "1 passed, 0 failed, 3 skipped"],
        )

    def test_failures_fail(self):
        code, lines = self.summary(REPORT + FAILS + ABSENT + "</testsuite>")
        self.assertEqual(code, 1)
        self.assertEqual(lines[-3:], ["failed: A.fails", "failed: A.absent", "1 passed, 2 failed, 3 skipped"])

    def test_what_passes_alone_is_named(self):
        alone = '<testsuite><testcase name="A.fails" status="run"/></testsuite>'
        code, lines = self.summary(REPORT + FAILS + "</testsuite>", alone)
        self.assertEqual((code, lines[-2:]), (0, ["flaky: A.fails: failed beside others, passed alone", "1 passed, 1 flaky, 0 failed, 3 skipped"]))
        code, lines = self.summary(REPORT + FAILS + ABSENT + "</testsuite>", alone)
        self.assertEqual((code, lines[-2:]), (1, ["failed: A.absent", "1 passed, 1 flaky, 1 failed, 3 skipped"]))
        still = f"<testsuite>{FAILS}</testsuite>"
        self.assertEqual(self.summary(REPORT + FAILS + "</testsuite>", still)[0], 1)

    def test_nothing_ran(self):
        self.assertEqual(self.summary("<testsuite/>"), (1, ["0 passed, 0 failed, 0 skipped"]))
        self.assertEqual(self.summary("torn <"), (1, ["0 passed, 0 failed, 0 skipped"]))


class Targets(unittest.TestCase):
    """Which programs hold the tests of a name."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tests, self.build = Path(folder.name, "tests"), Path(folder.name, "build")
        for name, text in {
            "CMakeLists.txt": "test_tool(metrics script)\n",
            "text/a_test.cc": "TEST(Grammar, Holds) {}\nTEST_F(Chat,\n       Answers) {}\n",
            "model/a_test.cc": "TEST_P(Golden, Agrees) {}\n",
            "cli/a_test.cc": "TEST(Run, Tells) {}\n",
            "gpu/a_test.cc": "TEST(Grammar, OnAGpu) {}\n",
        }.items():
            path = self.tests / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def of(self, pattern):
        return test_targets.targets(self.tests, self.build, pattern)

    def test_programs_that_have_the_name(self):
        self.assertEqual(self.of("Grammar"), ["test_text"])
        self.assertEqual(self.of("Chat.Answers|Golden"), ["test_model", "test_text"])
        self.assertEqual(self.of("Tells$"), ["test_cli"])

    def test_names_that_values_make(self):
        self.assertEqual(self.of("glm_q4_0"), ["test_model"])  # never built: it may have them
        heard = self.build / "tests/test_model[1]_tests.cmake"
        heard.parent.mkdir(parents=True)
        heard.write_text("add_test([=[All/Golden.Agrees/glm_q4_0]=] program)\n")
        self.assertEqual(self.of("glm_q4_0"), ["test_model"])
        self.assertEqual(self.of("qwen"), ["all"])

    def test_what_is_no_program_needs_all(self):
        self.assertEqual(self.of("tools.metrics"), ["all"])
        self.assertEqual(self.of("gpu"), ["all"])


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    if not result.wasSuccessful():
        sys.exit(1)
    if result.skipped:  # the rest passed, but what did not run is to be seen
        print(f"skipped: {'; '.join(sorted({why for _, why in result.skipped}))}")
        sys.exit(77)
