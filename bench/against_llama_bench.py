#!/usr/bin/env python3
"""Runs sluice and llama.cpp's llama-bench in turns on the same file and prints how fast sluice is beside it.

usage: against_llama_bench.py --llama-bench PATH -m FILE [-o JSON] [--sluice PATH] [-p N,..] [-n N,..] [-d N,..] [-t N]
           [--backend cpu|cuda] [--turns N] [--llama-flags "FLAGS"]... [--sluice-flags "FLAGS"]... [--title TEXT] [--note TEXT]

Nothing is built. Each program is measured at its best: of the flags on offer (--llama-flags and --sluice-flags may be
given again; by default llama-bench's flash attention off and on, and steps of 2,048 rows) a first round takes for each
test those that are fastest. Then N turns (5), the first program first in every other turn. A figure is the median
over turns; a ratio is that of a turn, and its median is printed with the least and the greatest. JSON keeps everything:
both programs' records as they wrote them (but for folders), the flags that were chosen and refused, both versions, the
machine, and what --note says of the hour.
tools/figures.py makes the README's picture and table of such files.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LLAMA_FLAGS = ["-fa 0", "-fa 1", "-fa 1 -b 2048 -ub 2048"]
SLUICE_FLAGS = ["", "--ub 2048"]


class Failure(Exception):
    pass


def say(text: str) -> None:
    print(f"against_llama_bench: {text}", file=sys.stderr, flush=True)


def numbers(text: str) -> list:
    return [int(part) for part in text.split(",") if part != ""]


class Program:
    """One of the two: how a test is asked of it, and what it answered."""

    def __init__(self, name: str, command: list, common: list, offers: list):
        self.name, self.command, self.common, self.offers = name, command, common, offers
        self.chosen, self.tried, self.records = {}, [], []

    def measure(self, test: tuple, flags: str, repetitions: int) -> dict:
        prompt, generated, depth = test
        command = [*self.command, *self.common, "-p", str(prompt), "-n", str(generated), "-d", str(depth),
                   "-r", str(repetitions), "-o", "json", *shlex.split(flags)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"{shlex.join(command)}: exit code {done.returncode}: {done.stderr.strip()[-600:]}")
        try:
            records = [record for record in json.loads(done.stdout)
                       if (record["n_prompt"], record["n_gen"]) == (prompt, generated)]
            if len(records) != 1 or not records[0]["avg_ts"] > 0:
                raise ValueError("expected one record with avg_ts")
        except (ValueError, KeyError, TypeError) as error:
            raise Failure(f"{shlex.join(command)}: no records of llama-bench's form: {error}") from error
        return records[0]

    def choose(self, test: tuple) -> None:
        """The flags that are fastest at a test; what a program refuses (no such flag, too little memory) is left."""
        speeds, problems = {}, []
        for flags in self.offers:
            try:
                speeds[flags] = self.measure(test, flags, 1)["avg_ts"]
                self.tried.append({"test": name_of(test), "flags": flags, "avg_ts": speeds[flags]})
            except Failure as failure:
                problems.append(str(failure))
                self.tried.append({"test": name_of(test), "flags": flags, "refused": str(failure)})
        if not speeds:
            raise Failure(problems[0])
        self.chosen[test] = max(speeds, key=speeds.get)

    def turn(self, test: tuple, number: int) -> float:
        say(f"turn {number}, {name_of(test)}, {self.name} {self.chosen[test]}")
        record = self.measure(test, self.chosen[test], 2)
        self.records.append({"turn": number, "test": name_of(test), "record": record})
        return record["avg_ts"]


def name_of(test: tuple) -> str:
    prompt, generated, depth = test
    return (f"pp{prompt}" if prompt else f"tg{generated}") + (f" @ d{depth}" if depth else "")


def compare(options, sluice: Program, llama: Program) -> list:
    tests = [(p, 0, d) for d in options.depths for p in options.prompts] + [(0, n, d) for d in options.depths for n in options.generated]
    for test in tests:
        for program in (sluice, llama):
            program.choose(test)
    speeds = {test: [] for test in tests}
    for turn in range(options.turns):
        for test in tests:
            order = (sluice, llama) if turn % 2 == 0 else (llama, sluice)
            found = {program.name: program.turn(test, turn + 1) for program in order}
            speeds[test].append((found[sluice.name], found[llama.name]))
    rows = []
    for test, pairs in speeds.items():
        ratios = [ours / theirs for ours, theirs in pairs]
        rows.append({"test": name_of(test), "turns": len(pairs), "sluice": statistics.median(ours for ours, _ in pairs),
                     "llama.cpp": statistics.median(theirs for _, theirs in pairs), "ratio": statistics.median(ratios),
                     "least": min(ratios), "most": max(ratios), "sluice_flags": sluice.chosen[test], "llama_flags": llama.chosen[test]})
    return rows


def without_folders(value, options):
    """Files by their names alone: where they lie on a machine is nobody's business."""
    if isinstance(value, dict):
        return {key: without_folders(one, options) for key, one in value.items()}
    if isinstance(value, list):
        return [without_folders(one, options) for one in value]
    if isinstance(value, str):
        for path in (options.model, options.sluice, options.llama_bench):
            for form in (os.path.abspath(path), path):
                value = value.replace(form, Path(path).name)
    return value


def document(options, rows: list, sluice: Program, llama: Program) -> dict:
    with open(options.model, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    ours, theirs = sluice.records[0]["record"], llama.records[0]["record"]
    return without_folders({
        "title": options.title or Path(options.model).name, "date": datetime.date.today().isoformat(),
        "note": options.note,
        "model": {"file": Path(options.model).name, "bytes": os.path.getsize(options.model), "sha256": digest},
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cpu": theirs.get("cpu_info", ""), "gpu": theirs.get("gpu_info", ""),
                    "device": ours.get("device", ""), "threads": ours.get("n_threads"), "load_average": os.getloadavg()},
        "sluice": {"build_commit": ours.get("build_commit"), "command": [*sluice.command, *sluice.common]},
        "llama.cpp": {"build_commit": theirs.get("build_commit"), "build_number": theirs.get("build_number"),
                      "program": options.llama_name or Path(options.llama_bench).name, "command": [*llama.command, *llama.common]},
        "table": rows, "tried": {"sluice": sluice.tried, "llama.cpp": llama.tried},
        "records": {"sluice": sluice.records, "llama.cpp": llama.records}}, options)


def parse(arguments: list):
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "), allow_abbrev=False)
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--llama-name", default="", help="what the records call that program (default: its file's name)")
    parser.add_argument("--sluice", default=str(ROOT / "build/release/bin/sluice"))
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-o", "--output", default="")
    parser.add_argument("--title", default="")
    parser.add_argument("--note", default="")
    parser.add_argument("-p", dest="prompts", type=numbers, default=[512])
    parser.add_argument("-n", dest="generated", type=numbers, default=[128])
    parser.add_argument("-d", dest="depths", type=numbers, default=[0])
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--llama-flags", action="append")
    parser.add_argument("--sluice-flags", action="append")
    options = parser.parse_args(arguments)
    options.prompts, options.generated = [p for p in options.prompts if p > 0], [n for n in options.generated if n > 0]
    if not options.prompts + options.generated or options.turns < 1:
        parser.error("nothing to measure: -p or -n, and --turns, want numbers above 0")
    if not os.path.isfile(options.model):
        parser.error(f"-m {options.model}: no such file")
    return options


def main(arguments: list) -> int:
    options = parse(arguments)
    threads = ["-t", str(options.threads)]
    sluice = Program("sluice", [options.sluice, "bench"], ["-m", options.model, "--backend", options.backend, *threads],
                     options.sluice_flags or SLUICE_FLAGS)
    llama = Program("llama.cpp", [options.llama_bench], ["-m", options.model, *threads, *([] if options.backend == "cuda" else ["-ngl", "0"])],
                    options.llama_flags or LLAMA_FLAGS)
    try:
        rows = compare(options, sluice, llama)
    except (Failure, OSError) as failure:
        say(str(failure))
        return 1
    print(f"{'test':<16} {'sluice t/s':>11} {'llama.cpp':>11} {'ratio':>7}  least to most")
    for row in rows:
        print(f"{row['test']:<16} {row['sluice']:>11.2f} {row['llama.cpp']:>11.2f} {row['ratio']:>7.2f}"
              f"  {row['least']:.2f} to {row['most']:.2f}", flush=True)
    if options.output:
        Path(options.output).write_text(json.dumps(document(options, rows, sluice, llama), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
