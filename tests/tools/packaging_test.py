#!/usr/bin/python3
"""The systemd unit and the container's script: what they promise. Needs no container and no systemd that runs."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PACKAGING = pathlib.Path(__file__).resolve().parents[2] / "packaging"


class Container(unittest.TestCase):
    """serve-container with a stand-in for sluice that tells how it was called."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        root = pathlib.Path(self.folder.name)
        stand_in = root / "sluice"
        stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n'
                            'while [ "$1" != --api-key-file ]; do shift; done\n'
                            'echo "keys: $(cat "$2")"\nstat -c "mode %a" "$2"\n'
                            'echo "variable: ${SLUICE_API_KEY-none}"\n')
        stand_in.chmod(0o755)
        self.keys = root / "keys"

    def run_script(self, *arguments, **variables):
        variables = {"PATH": f"{self.folder.name}:/usr/bin:/bin", "SLUICE_KEY_FILE": str(self.keys),
                     "TMPDIR": self.folder.name, **variables}
        return subprocess.run([PACKAGING / "serve-container", *arguments], env=variables, text=True,
                              capture_output=True, check=False)

    def test_never_opens_without_a_key(self):
        for content in (None, "", "\n", "  \n\t\n"):
            if content is not None:
                self.keys.write_text(content)
            result = self.run_script("-m", "m.gguf")
            self.assertEqual(result.returncode, 2, content)
            self.assertEqual(result.stdout, "", content)
            self.assertIn("sluice: no key", result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)
        self.assertEqual(self.run_script(SLUICE_API_KEY="").returncode, 2)

    def test_takes_a_key_of_the_environment_and_passes_it_on_in_a_file(self):
        result = self.run_script("-m", "a file.gguf", SLUICE_API_KEY="se cret$x")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("keys: se cret$x\nmode 600\nvariable: none\n", result.stdout)
        self.assertEqual(result.stdout.split("\n")[:4], ["serve", "--host", "0.0.0.0", "--port"])
        self.assertIn("\n-m\na file.gguf\n", result.stdout)

    def test_takes_a_file_of_keys(self):
        self.keys.write_text("one\ntwo\n")
        result = self.run_script("-m", "m.gguf")
        self.assertIn(f"\n--api-key-file\n{self.keys}\n", result.stdout)
        self.assertIn("keys: one\ntwo\n", result.stdout)


class Unit(unittest.TestCase):
    def exposure(self, text):
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder) / "sluice.service"
            unit.write_text(text)
            told = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", unit], text=True,
                                  capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}).stdout
        return float(told.strip().split("\n")[-1].split(":")[1].split()[0])

    def test_is_little_exposed(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("no systemd-analyze here")
        unit = (PACKAGING / "sluice.service").read_text()
        self.assertLess(self.exposure(unit), 2.5)
        drop_in = (PACKAGING / "sluice-gpu.conf").read_text()
        service, install = unit.split("[Install]")
        self.assertLess(self.exposure(service + drop_in + "[Install]" + install), 2.5)


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    for test, why in result.skipped:
        print(f"skipped: {test.id()}: {why}")
    sys.exit(not result.wasSuccessful())
