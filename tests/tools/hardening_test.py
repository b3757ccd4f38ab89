#!/usr/bin/python3
"""hardening_test.py PROGRAM [CONFIGURATION]: what binutils' readelf says of how the program was made."""
import re
import shutil
import subprocess
import sys
import unittest


def readelf(*options):
    return subprocess.run(["readelf", "--wide", *options, PROGRAM], text=True, capture_output=True, check=True).stdout


class Hardening(unittest.TestCase):
    def says(self, pattern, *options):
        self.assertTrue(re.search(pattern, readelf(*options), re.M), f"readelf {' '.join(options)}: no {pattern}")

    def says_not(self, pattern, *options):
        found = re.search(pattern, readelf(*options), re.M)
        self.assertIsNone(found, f"readelf {' '.join(options)}")

    def test_lies_anywhere(self):
        self.says(r"Type: +DYN", "--file-header")
        self.says(r"\(FLAGS_1\).*\bPIE\b", "--dynamic")
        self.says_not("TEXTREL", "--dynamic")

    def test_addresses_of_functions_are_not_written_after_the_start(self):
        self.says("GNU_RELRO", "--program-headers")
        self.says(r"BIND_NOW|\(FLAGS_1\).*\bNOW\b", "--dynamic")

    def test_no_memory_can_be_written_and_run(self):
        self.says(r"^ +GNU_STACK .* RW +0x", "--program-headers")
        self.says_not(r"^ +LOAD .* RWE 0x", "--program-headers")

    def test_looks_for_libraries_where_the_system_has_them(self):
        self.says_not(r"\((RPATH|RUNPATH)\)(?!.*\[\$ORIGIN\])", "--dynamic")

    def test_guards_stack_frames(self):
        self.says(r"UND __stack_chk_fail\b", "--dyn-syms")

    @unittest.skipIf("Release" not in sys.argv[2:], "checked variants of libc's functions are a release build's")
    def test_calls_checked_variants(self):
        called = set(re.findall(r"UND (__\w+_chk)@", readelf("--dyn-syms")))
        self.assertTrue(called)

    def test_indirect_jumps_land_at_marked_places(self):
        if "X86-64" not in readelf("--file-header"):
            self.skipTest("endbr64 is x86-64's")
        address = re.search(r"Entry point address: +0x([0-9a-f]+)", readelf("--file-header"))
        self.assertIsNotNone(address)
        main = re.search(r"^ *\d+: ([0-9a-f]+) +\d+ FUNC +GLOBAL +\w+ +\d+ main$", readelf("--syms"), re.M)
        if main is None:
            self.skipTest("the program has no symbols")
        start = int(main.group(1), 16)
        code = subprocess.run(["objdump", "-d", f"--start-address={start}", f"--stop-address={start + 4}", PROGRAM],
                              text=True, capture_output=True, check=True).stdout
        self.assertIn("endbr64", code)


if __name__ == "__main__":
    if not shutil.which("readelf") or not shutil.which("objdump"):
        print("skipped: hardening: no readelf and objdump (binutils)")
        sys.exit(77)
    PROGRAM = sys.argv[1]
    unittest.main(argv=sys.argv[:1])
