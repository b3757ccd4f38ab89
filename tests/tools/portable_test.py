#!/usr/bin/python3
"""What keeps the archive for old C libraries together: its program, linked as ./dev package links it but against this
machine's C library, finds every name that it wants in glibc 2.31, and nothing else than a C library (and libcurl, which
./dev package builds) in any shared object.

usage: portable_test.py PROGRAM | --missing ARCHIVE...     (the archives that this machine lacks)

Which names 2.31 has is read from this machine's libraries, which keep every version of a name that there ever was.
"""
import re
import subprocess
import sys
import unittest

OLD = (2, 31)
# What 2.31 has in libc_nonshared.a, and newer ones as names of libc.so.6 alone.
LINKED_IN = {"stat", "stat64", "fstat", "fstat64", "lstat", "lstat64", "fstatat", "fstatat64", "mknod", "mknodat"}
SHARED = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}


def readelf(*words):
    return subprocess.run(["readelf", "--wide", *words], text=True, capture_output=True, check=True).stdout


def loaded():
    """Shared objects of the program by name, where they lie."""
    told = subprocess.run(["ldd", PROGRAM], text=True, capture_output=True, check=True).stdout
    return {path.split("/")[-1]: path for path in re.findall(r"(/\S+) \(0x", told)}


def names(file, defined):
    """Dynamic names of a file with their versions: {name: {version}}; a name without any has the version ""."""
    found = {}
    for line in readelf("--dyn-syms", file).splitlines():
        words = line.split()
        if len(words) < 8 or words[4] not in ("GLOBAL", "WEAK") or (words[6] != "UND") != defined:
            continue
        if words[4] == "WEAK" and not defined:
            continue  # may be absent
        name, _, version = words[7].replace("@@", "@").partition("@")
        found.setdefault(name, set()).add(version)
    return found


def is_old(version):
    numbers = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) <= OLD


class Portable(unittest.TestCase):
    def test_needs_a_c_library_and_curl_alone(self):
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("--dynamic", PROGRAM)))
        curl = {name for name in needed if name.startswith("libcurl.so.")}
        self.assertEqual(len(curl), 1)
        self.assertLessEqual(needed - curl, SHARED)

    def test_wants_no_name_that_the_old_c_library_lacks(self):
        old, curls = set(), set()
        for name, path in loaded().items():
            if name.startswith("libcurl.so."):
                curls |= set(names(path, defined=True))
            elif name in SHARED:
                old |= {symbol for symbol, versions in names(path, defined=True).items() if any(map(is_old, versions))}
        self.assertLessEqual({"malloc", "pthread_create", "dlopen", "exp"}, old)
        self.assertFalse({"arc4random", "_dl_find_object", "__libc_single_threaded"} & old)
        copied = {name for name, versions in names(PROGRAM, defined=True).items() if any("GLIBC_" in it for it in versions)}
        wanted = set(names(PROGRAM, defined=False)) | copied
        self.assertGreater(len(wanted), 100)
        self.assertEqual(sorted(wanted - old - curls - LINKED_IN), [])

    def test_runs(self):
        told = subprocess.run([PROGRAM, "run", "-n", "8", "-s", "2"], text=True, capture_output=True, check=True).stdout
        self.assertTrue(told.startswith("Once upon a time"), told)
        wrong = subprocess.run([PROGRAM, "run", "--nonsense"], text=True, capture_output=True, check=False)
        self.assertEqual(wrong.returncode, 2, wrong.stderr)  # an exception finds its way by _dl_find_object
        self.assertIn("--nonsense", wrong.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--missing"]:
        print("skipped: portable: this machine has no", " ".join(sys.argv[2:]))
        sys.exit(77)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
