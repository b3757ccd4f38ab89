#!/usr/bin/env python3
"""Man pages, and completions for bash, zsh and fish, out of what the program says of itself.

usage: man_pages.py [EMULATOR...] BINARY FOLDER

Writes FOLDER/man/sluice.1 and a page for each command, and FOLDER/completions/{sluice.bash,_sluice,sluice.fish}.
"""

import gzip
import re
import subprocess
import sys
from pathlib import Path

OPTION = re.compile(r"^  (-[^\s,]+(?:,-[^\s,]+)*)(.*)$")
COMMAND = re.compile(r"^  ([a-z]+)\s+(\S.*)$")
GAP = re.compile(r"\s{2,}")
BESIDE = re.compile(r" (?:Needs|Excludes):(?: --?[a-z][-a-z]*)+")


def help_of(program: list[str], *words: str) -> str:
    return subprocess.run([*program, *words, "--help"], check=True, capture_output=True, text=True).stdout


class Page:
    """The parts of a help text: what a command is, its options (names, kind of value, what it says), words behind."""

    def __init__(self, text: str):
        self.about, self.usage, self.options, self.commands, behind = "", "", [], {}, []
        part = "about"
        for line in text.splitlines():
            option, command = OPTION.match(line), COMMAND.match(line)
            if line.startswith(("Usage:", "Options:", "Subcommands:", "Positionals:")):
                part = line.split(":")[0]
                if part == "Usage":
                    self.usage = line.removeprefix("Usage: sluice").strip()
            elif part == "about":
                self.about = self.about or line.strip()
            elif part == "Options" and option:
                rest = BESIDE.sub("  ", option[2])
                kind, *said = GAP.split(rest.strip(), maxsplit=1)
                if rest.startswith("  "):  # a flag: no value, words at once
                    kind, said = "", [rest.strip()]
                self.options.append([option[1].split(","), kind, " ".join(said).strip()])
            elif part == "Options" and self.options and line.startswith("    "):
                self.options[-1][2] = (self.options[-1][2] + " " + line.strip()).strip()
            elif part == "Subcommands" and command:
                self.commands[command[1]] = command[2]
            elif line and not line.startswith(" "):
                behind.append(line)
        self.behind = " ".join(behind)


def roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in ".'" else text


def man(name: str, page: Page, version: str) -> str:
    title = name.upper().replace(" ", "-")
    lines = [f'.TH {title} 1 "" "Sluice {version}" "Sluice"', ".ad l", ".SH NAME", f"{roff(name.replace(' ', '-'))} \\- {roff(page.about)}",
             ".SH SYNOPSIS", ".B sluice", roff(page.usage)]
    if page.behind:
        lines += [".SH DESCRIPTION", roff(page.behind)]
    if page.commands:
        lines.append(".SH COMMANDS")
        for command, about in page.commands.items():
            lines += [".TP", f".BR sluice\\-{command} (1)", roff(about)]
    lines.append(".SH OPTIONS")
    for names, kind, said in page.options:
        lines += [".TP", ", ".join(f"\\fB{roff(one)}\\fR" for one in names) + (" " + roff(kind) if kind else ""), roff(said) or "\\&"]
    return "\n".join(lines) + "\n"


def names_of(page: Page) -> list[str]:
    return [name for names, _, _ in page.options for name in names]


def bash(pages: dict[str, Page]) -> str:
    cases = "\n".join(f'    {command}) words="{" ".join(names_of(page))}" ;;' for command, page in pages.items() if command)
    return f"""# bash completion of sluice
_sluice() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} words=
  if ((COMP_CWORD == 1)); then
    words="{' '.join(pages[''].commands)} {' '.join(names_of(pages['']))}"
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  if [[ $word == -* ]]; then mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word"); fi
}}
complete -o bashdefault -o default -F _sluice sluice
"""


def quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "'\\''").replace("[", "(").replace("]", ")").replace(":", " ")


def zsh(pages: dict[str, Page]) -> str:
    commands = "\n".join(f"    '{command}:{quoted(about)}'" for command, about in pages[""].commands.items())
    cases = []
    for command, page in pages.items():
        if not command:
            continue
        options = " \\\n        ".join(
            f"'{name}[{quoted(said)[:80]}]{':value:_files' if kind else ''}'" for names, kind, said in page.options for name in names)
        cases.append(f"    {command}) _arguments \\\n        {options} '*:file:_files' ;;")
    return "#compdef sluice\nlocal -a commands\ncommands=(\n" + commands + """
)
if ((CURRENT == 2)); then
  _describe command commands
else
  local command=$words[2]
  shift words; ((CURRENT--))
  case $command in
""" + "\n".join(cases) + "\n  esac\nfi\n"


def fish(pages: dict[str, Page]) -> str:
    lines = [f"complete -c sluice -n __fish_use_subcommand -a {command} -d '{quoted(about)}'" for command, about in pages[""].commands.items()]
    for command, page in pages.items():
        for names, kind, said in page.options:
            flags = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in names)
            where = f"-n '__fish_seen_subcommand_from {command}'" if command else "-n __fish_use_subcommand"
            lines.append(f"complete -c sluice {where} {flags}{' -r' if kind else ''} -d '{quoted(said)[:80]}'")
    return "\n".join(lines) + "\n"


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    program, folder = sys.argv[1:-1], Path(sys.argv[-1])
    version = subprocess.run([*program, "--version"], check=True, capture_output=True, text=True).stdout.split()[0]
    pages = {"": Page(help_of(program))}
    for command in pages[""].commands:
        pages[command] = Page(help_of(program, command))
    (folder / "man").mkdir(parents=True, exist_ok=True)
    (folder / "completions").mkdir(parents=True, exist_ok=True)
    for command, page in pages.items():
        name = f"sluice {command}".strip()
        text = man(name, page, version).encode()
        (folder / "man" / f"{name.replace(' ', '-')}.1.gz").write_bytes(gzip.compress(text, 9, mtime=0))
    (folder / "completions" / "sluice.bash").write_text(bash(pages))
    (folder / "completions" / "_sluice").write_text(zsh(pages))
    (folder / "completions" / "sluice.fish").write_text(fish(pages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
