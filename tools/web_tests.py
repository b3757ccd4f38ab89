#!/usr/bin/env python3
"""Tests that need Node: clients from npm and the web page in a browser, each against a sluice serve of its own, and
what sluice profile writes, read by a browser.

usage: web_tests.py BINARY [FOLDER...]

A folder is tests/clients, tests/agents, tests/trace or webui. Its packages are what its lock file says (`npm ci`, when they are not that
yet); tests/agents has none, since what agents bring along for other systems is not in every registry: there the versions in
package.json are exact. Prints `skipped: NAME: WHY` for what cannot run here (no Node, no browser, no npm registry within reach),
`failed: NAME`, and, last, `web: N passed, N failed, N skipped`. Exit code 1 if something failed.
Where up to three tests of a folder fail, their files run once more: what passes then is named as flaky, which is a fault of the
test or of the program still.
"""

import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEAST_NODE = 20
INSTALL_SECONDS, TEST_SECONDS = 600, 1200
MOST_AGAIN = 3

# What npm says when the fault is the network's or the registry's, and not the lock file's.
REGISTRY_TROUBLE = re.compile(r"\b(ENOTFOUND|EAI_AGAIN|ECONN\w+|ETIMEDOUT|E?TIMEOUT|EHOSTUNREACH|ENETUNREACH|EPIPE|EPROTO|"
                              r"ERR_SOCKET_TIMEOUT|\w*CERT\w*|E40[134]|E429|E5\d\d)\b")

SUITES = {  # folder: (name, steps before the tests, test files)
    "tests/clients": ("clients", {}, ["*.test.mjs"]),
    "tests/agents": ("agents", {}, ["*.test.mjs"]),
    "tests/trace": ("trace", {}, ["*.test.mjs"]),
    "webui": ("page", {"page.committed": ["npm", "run", "--silent", "check"]},
              ["test/unit/*.test.mjs", "test/browser/*.test.mjs"]),
}


class Totals:
    def __init__(self):
        self.passed, self.failed, self.flaky, self.skipped = 0, [], [], 0

    def skip(self, name, why):
        self.skipped += 1
        print(f"skipped: {name}: {why}", flush=True)

    def all(self):
        return self.passed + len(self.failed) + len(self.flaky) + self.skipped

    def end(self):
        for name in self.flaky:
            print(f"flaky: {name}: failed at first, passed when its file ran once more")
        for name in self.failed:
            print(f"failed: {name}")
        flaky = f"{len(self.flaky)} flaky, " if self.flaky else ""
        print(f"web: {self.passed} passed, {flaky}{len(self.failed)} failed, {self.skipped} skipped", flush=True)
        return 1 if self.failed else 0


def run(command, folder, seconds, **options):
    """The finished process, or None: its time was over, and all that it had started has been ended."""
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True, **options) as process:
        try:
            output = process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None
        return subprocess.CompletedProcess(command, process.returncode, output)


def node_trouble():
    """Why no test can run; None: Node is well."""
    for program in ("node", "npm"):
        try:
            version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return f"no {program} here (Debian packages nodejs and npm)"
        if program == "node" and int(re.match(r"v?(\d+)", version)[1]) < LEAST_NODE:
            return f"needs Node {LEAST_NODE}, here is {version}"
    return None


def install(folder):
    """Packages as the lock file says: (it worked, why not, whether that is the registry's fault)."""
    stamp = folder / "node_modules" / ".installed"
    lock = folder / "package-lock.json"
    verb = ["ci"] if lock.exists() else ["install", "--no-package-lock"]
    wanted = hashlib.sha256((lock if lock.exists() else folder / "package.json").read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return True, "", False
    print(f"npm {verb[0]} in {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
    done = run(["npm", *verb, "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=2", "--fetch-timeout=60000"],
               folder, INSTALL_SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done is None:
        return False, f"npm {verb[0]} was not done after {INSTALL_SECONDS} s", True
    sys.stderr.write(done.stdout)
    if done.returncode == 0:
        stamp.write_text(wanted)
        return True, "", False
    lines = [line for line in done.stdout.splitlines() if re.match(r"npm (ERR!|error) ", line)]
    told = next((line for line in lines if REGISTRY_TROUBLE.search(line)), None)
    if told:
        return False, "npm's registry is out of reach or does not give the packages: " + told, True
    return False, lines[0] if lines else f"npm {verb[0]} ended with {done.returncode}", False


def read(tap):
    """The tests of Node's TAP report, not the groups that hold them: those that passed, those that failed with their
    files, and those that were skipped with the reason."""
    passed, failed, skipped = [], [], []
    lines = tap.splitlines()
    for at, line in enumerate(lines):
        found = re.match(r"\s*(not )?ok \d+ - (.*?)(?: # (SKIP|TODO)\s*(.*))?$", line)
        if not found:
            continue
        end = next((i for i in range(at, len(lines)) if lines[i].strip() == "..."), at)
        told = "\n".join(lines[at:end])
        if found[3]:
            skipped.append((found[2], found[4] or "it does not say why"))
        elif not re.search(r"^\s*type: 'suite'$", told, re.MULTILINE):
            where = re.search(r"^\s*location: '(.+):\d+:\d+'$", told, re.MULTILINE)
            if found[1]:
                failed.append((found[2], where and where[1]))
            else:
                passed.append(found[2])
    return passed, failed, skipped


def run_files(folder, files):
    """What ran, and Node's exit code; None: its time was over."""
    with tempfile.TemporaryDirectory() as reports:
        report = Path(reports) / "tap"
        done = run(["node", "--test", "--test-concurrency=1", "--test-reporter=spec", "--test-reporter-destination=stderr",
                    "--test-reporter=tap", f"--test-reporter-destination={report}", *files], folder, TEST_SECONDS)
        return read(report.read_text(errors="replace") if report.exists() else ""), done and done.returncode


def pass_again(folder, failed):
    """Those of few failures that pass when their files run once more."""
    files = {file for _, file in failed}
    if not failed or len(failed) > MOST_AGAIN or None in files:
        return set()
    (passed, again, _), _ = run_files(folder, sorted(files))
    return {name for name, _ in failed} & set(passed) - {name for name, _ in again}


def test(folder, name, patterns, totals):
    files = sorted(str(path.relative_to(folder)) for pattern in patterns for path in folder.glob(pattern))
    before = totals.all()
    (passed, failed, skipped), code = run_files(folder, files)
    flaky = pass_again(folder, failed)
    totals.passed += len(passed)
    for one, why in skipped:
        totals.skip(f"{name}: {one}", why)
    for one, _ in failed:
        (totals.flaky if one in flaky else totals.failed).append(f"{name}: {one}")
    if code is None:
        totals.failed.append(f"{name}: not done after {TEST_SECONDS} s")
    elif code != 0 and not failed:
        totals.failed.append(f"{name}: Node ended with {code}")
    elif totals.all() == before:
        totals.failed.append(f"{name}: no test ran")


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    os.environ["SLUICE_BINARY"] = os.path.abspath(sys.argv[1])
    totals = Totals()
    trouble = node_trouble()
    for folder in sys.argv[2:] or SUITES:
        name, steps, patterns = SUITES[folder]
        if trouble:
            totals.skip(name, trouble)
            continue
        installed, why, registry = install(ROOT / folder)
        if not installed and registry:
            totals.skip(name, why)
        elif not installed:
            totals.failed.append(f"{name}: {why}")
        else:
            for step, command in steps.items():
                done = run(command, ROOT / folder, TEST_SECONDS, stdout=sys.stderr)
                if done is not None and done.returncode == 0:
                    totals.passed += 1
                else:
                    totals.failed.append(step)
            test(ROOT / folder, name, patterns, totals)
    return totals.end()


if __name__ == "__main__":
    sys.exit(main())
