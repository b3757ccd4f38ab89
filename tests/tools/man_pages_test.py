#!/usr/bin/python3
"""tools/man_pages.py on a program that says little: pages and completions have all of it.

usage: man_pages_test.py [BINARY]    BINARY: sluice, whose own pages must have each of its commands
"""

import gzip
import os
import pty
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = sys.argv.pop(1) if len(sys.argv) > 1 else None
PROGRAM = r"""#!/bin/sh
case $1 in
--version) echo "1.2.3 (abc)"; exit ;;
--help) cat <<'END'
A program.
Usage: sluice [OPTIONS] [SUBCOMMAND]

Options:
  -h,--help                   Print this help message and exit

Subcommands:
  run                         Write it's text
END
;;
*) cat <<'END'
Write it's text
Usage: sluice run [OPTIONS]

Options:
  -h,--help                   Print this help message and exit
  -p,--prompt TEXT Excludes: --file
                              text: the [first] one
  --fast                      at once
  --system TEXT Needs: --chat with --chat: it

.More words.
END
;;
esac
"""


def typed(words: list[str], setup: str, text: str, wanted: str) -> str:
    """What an interactive shell shows when it is typed at, until that holds what is wanted, or for twenty seconds."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(words[0], words, {**os.environ, "TERM": "dumb", "PS1": "% "})
    shown, sent = "", 0
    end = time.monotonic() + 20
    os.write(terminal, (setup + "; echo set$((6 * 7))up\n").encode())
    while time.monotonic() < end:
        if sent == 0 and "set42up" in shown:
            shown, sent = "", os.write(terminal, text.encode())
        if sent and wanted in shown.replace("\r", ""):
            break
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                shown += os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                break
    os.kill(child, 9)
    os.waitpid(child, 0)
    os.close(terminal)
    return shown


class Shells(unittest.TestCase):
    """The shells load what is made for them, and complete."""

    @classmethod
    def setUpClass(cls):
        if not BINARY:
            raise unittest.SkipTest("no binary was given")
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        subprocess.run([sys.executable, ROOT / "tools/man_pages.py", BINARY, cls.folder.name], check=True)
        cls.files = Path(cls.folder.name) / "completions"

    def shell(self, name: str) -> str:
        if shutil.which(name) is None:
            self.skipTest(f"no {name} here")
        return name

    def test_bash(self):
        def complete(*words: str) -> list[str]:
            script = (f'source {self.files}/sluice.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sluice; '
                      'printf "%s\\n" "${COMPREPLY[@]}"')
            return subprocess.run([self.shell("bash"), "-c", script, "bash", *words], check=True, capture_output=True,
                                  text=True).stdout.split()

        self.assertEqual(complete("sluice", "ser"), ["serve"])
        self.assertEqual(complete("sluice", "serve", "--models-d"), ["--models-dir"])
        self.assertEqual(complete("sluice", "rm", "--models-d"), [])

    def test_zsh(self):
        setup = f"fpath=({self.files} $fpath); autoload -U compinit; compinit -u -D"
        words = [self.shell("zsh"), "-f", "-i"]
        self.assertIn("sluice serve ", typed(words, setup, "sluice serv\t", "sluice serve "))
        self.assertIn("--models-dir", typed(words, setup, "sluice serve --models-d\t", "--models-dir"))

    def test_fish(self):
        def complete(line: str) -> list[str]:
            with tempfile.TemporaryDirectory() as home:
                told = subprocess.run([self.shell("fish"), "--no-config", "-c",
                                       f"source {self.files}/sluice.fish; complete -C '{line}'"], check=True, text=True,
                                      capture_output=True, env={**os.environ, "HOME": home})
            self.assertEqual(told.stderr, "")
            return [one.split("\t")[0] for one in told.stdout.splitlines()]

        self.assertEqual(complete("sluice ser"), ["serve"])
        self.assertEqual(complete("sluice serve --models-d"), ["--models-dir"])

    def test_man_reads_every_page_without_a_warning(self):
        self.shell("man")
        if shutil.which("groff") is None and shutil.which("nroff") is None:
            self.skipTest("no groff here")
        for page in (Path(self.folder.name) / "man").iterdir():
            told = subprocess.run(["man", "--warnings", "-l", "-E", "UTF-8", page], check=True, capture_output=True, text=True,
                                  env={**os.environ, "MANWIDTH": "80", "MANPAGER": "cat", "LC_ALL": "C.UTF-8"})
            # That a word is longer than a line is no fault of the page.
            warnings = [line for line in told.stderr.splitlines() if "can't break line" not in line]
            self.assertEqual(warnings, [], page)
            self.assertIn("SYNOPSIS", told.stdout)


class ManPages(unittest.TestCase):
    def made(self, binary: str, folder: Path) -> dict[str, str]:
        subprocess.run([sys.executable, ROOT / "tools/man_pages.py", binary, folder], check=True)
        pages = {path.name: gzip.decompress(path.read_bytes()).decode() for path in (folder / "man").iterdir()}
        return pages | {path.name: path.read_text() for path in (folder / "completions").iterdir()}

    def test_pages_and_completions_have_what_the_program_says(self):
        with tempfile.TemporaryDirectory() as name:
            program = Path(name) / "sluice"
            program.write_text(PROGRAM)
            program.chmod(0o755)
            made = self.made(str(program), Path(name))
            self.assertEqual(sorted(made), ["_sluice", "sluice-run.1.gz", "sluice.1.gz", "sluice.bash", "sluice.fish"])
            page = made["sluice-run.1.gz"]
            self.assertIn('.TH SLUICE-RUN 1 "" "Sluice 1.2.3"', page)
            self.assertIn("\\fB\\-p\\fR, \\fB\\-\\-prompt\\fR TEXT\ntext: the [first] one\n", page)
            self.assertIn(".B sluice\nrun [OPTIONS]\n", page)
            self.assertIn("\\fB\\-\\-fast\\fR\nat once\n", page)
            self.assertIn("\\fB\\-\\-system\\fR TEXT\nwith \\-\\-chat: it\n", page)
            self.assertIn("\\&.More words.", page)
            self.assertIn('run) words="-h --help -p --prompt --fast --system" ;;', made["sluice.bash"])
            subprocess.run(["bash", "-n"], input=made["sluice.bash"], text=True, check=True)
            self.assertIn("-l prompt", made["sluice.fish"])

    @unittest.skipUnless(BINARY, "no binary was given")
    def test_every_command_of_the_program_has_a_page(self):
        with tempfile.TemporaryDirectory() as name:
            made = self.made(BINARY, Path(name))
            for command in ("run", "chat", "serve", "pull", "list", "rm", "inspect", "bench"):
                self.assertIn(f"sluice-{command}.1.gz", made)
            self.assertIn("\\fB\\-\\-hf\\-repo\\fR", made["sluice-serve.1.gz"])


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    for test, why in result.skipped:
        print(f"skipped: {test.id()}: {why}")
    sys.exit(not result.wasSuccessful())
