#!/usr/bin/python3
"""tools/man_pages.py on a program that says little: pages and completions have all of it.

usage: man_pages_test.py [BINARY]    BINARY: sluice, whose own pages must have each of its commands
"""

import gzip
import subprocess
import sys
import tempfile
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
    unittest.main()
