#!/usr/bin/env python3
"""Honest clients beside hostile ones (siege_attacks.py), against a sluice serve of its own with a key for each.

usage: siege.py [--binary PATH] [--minutes 30 | --seconds S] [--phase 60] [--json FILE]

Phases without and with attackers take turns, so that what else the machine does falls on both. Printed are times to
the first token and between tokens, with and without, processor seconds of the server and of the attackers, the most
memory of each phase and what the server had some seconds behind it, and how attacks were answered. Exit code 1 if an
honest answer was another one than without company, or none, if memory went beyond the server's account, the constraints
that it keeps and those being compiled, if over six attacked phases and more it grew from the first half of them to the
second (a fourth; what is left behind them counts as well), or if the server did not go on to its end.
"""

import argparse
import asyncio
import collections
import json
import random
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from serving import Server, ask, percentile

# --max-memory; what the server keeps for the next request; what its two workers may take while each compiles a schema
MAX_MEMORY, KEPT_CONSTRAINTS, COMPILING = 256 << 20, 256 << 20, 2 * (256 << 20)
SETTLING = 3  # seconds in which what attackers left behind ends
HONEST, HOSTILE = ["alice", "bob"], ["mallory", "trudy"]
PROMPTS = [f"Tell me of {who} who {did}." for who in ("a fox", "the miller's daughter", "two old kings", "a crow")
           for did in ("lost a ring", "went over the hills", "could not sleep")]


def body(prompt, cached):
    """Of an honest request: its answer is the same whatever runs beside it, and whether its prompt is known."""
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 48, "temperature": 0, "ignore_eos": True,
            "cache_prompt": cached}


class Figures:
    """Of the phases of one kind."""

    def __init__(self):
        self.firsts, self.gaps, self.tokens, self.seconds = [], [], 0, 0.0

    def add(self, stream, begin, end):
        """What of an answer lies within a phase; what lies in two is of neither."""
        times = [at for at in stream.times if begin <= at < end]
        self.tokens += len(times)
        self.gaps += [later - at for at, later in zip(times, times[1:])]
        if stream.began >= begin and times and times[0] == stream.times[0]:
            self.firsts.append(stream.first)

    def row(self, name):
        milliseconds = [1e3 * percentile(values, share) for values in (self.firsts, self.gaps) for share in (0.5, 0.99)]
        return [name, len(self.firsts), self.tokens / max(self.seconds, 1e-9), *milliseconds]


class Siege:
    def __init__(self, server, options):
        self.server, self.options = server, options
        self.phases, self.streams = [], []
        self.expected, self.wrong, self.failed, self.memory = {}, [], collections.Counter(), []
        self.attacks, self.ended, self.base = collections.Counter(), False, 0

    async def learn(self):
        for prompt in PROMPTS:
            stream = await ask(self.server.address, body(prompt, False), key=HONEST[0])
            if stream.reason != "length":
                raise SystemExit(f"siege: without company, {prompt!r} ended so: {stream.reason}")
            self.expected[prompt] = stream.text
        self.base = self.server.memory_bytes()

    async def write(self, index):
        draw = random.Random(index)
        while not self.ended:
            prompt = draw.choice(PROMPTS)
            stream = await ask(self.server.address, body(prompt, draw.random() < 0.5), key=HONEST[index % len(HONEST)])
            if stream.reason != "length":
                self.failed[str(stream.reason)[:120]] += 1
            elif stream.text != self.expected[prompt]:
                self.wrong.append((prompt, stream.text))
            self.streams.append(stream)
            await asyncio.sleep(draw.random() * 0.1)

    async def phase(self, attacked, seconds, last):
        attacker = None
        if attacked:
            script = str(Path(__file__).with_name("siege_attacks.py"))
            attacker = await asyncio.create_subprocess_exec(
                sys.executable, script, self.server.address, ",".join(HOSTILE), stdout=subprocess.PIPE)
            await attacker.stdout.readline()
        begin, most, used = time.monotonic(), 0, self.server.processor_seconds()
        end = begin + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.5))
            most = max(most, self.server.memory_bytes())
        self.phases.append((attacked, begin, end))
        used = self.server.processor_seconds() - used
        attackers_used = 0
        if attacker:
            attacker.terminate()
            told, _ = await attacker.communicate()
            attackers_used, answers = json.loads(told)
            for kind, answer, count in answers:
                self.attacks[kind, answer] += count
            await asyncio.sleep(SETTLING)
        left = self.server.memory_bytes()
        self.memory.append((attacked, most, left))
        self.ended = last
        print(f"{'attacked' if attacked else 'quiet':8} {most / 1e6:7.1f} MB at most, {left / 1e6:7.1f} behind it; "
              f"processor seconds {used:.1f} and {attackers_used:.1f}; "
              f"{sum(self.failed.values())} failed, {len(self.wrong)} wrong", flush=True)

    async def run(self):
        await self.learn()
        pairs = max(1, round(self.options.seconds / (2 * self.options.phase)))
        phases = [attacked for pair in range(pairs) for attacked in (pair % 2 == 1, pair % 2 == 0)]

        async def all_phases():
            for index, attacked in enumerate(phases):
                await self.phase(attacked, self.options.phase, index + 1 == len(phases))

        await asyncio.gather(all_phases(), *(self.write(i) for i in range(4)))

    def problems(self):
        found = []
        if self.wrong:
            found.append(f"{len(self.wrong)} wrong texts, the first one: {self.wrong[0]}")
        if self.failed:
            found.append(f"honest requests that failed: {dict(self.failed)}")
        peaks = [most for attacked, most, _ in self.memory if attacked]
        rests = [left for attacked, _, left in self.memory if attacked]
        half = (len(peaks) + 1) // 2
        if max(peaks) > self.base + MAX_MEMORY + KEPT_CONSTRAINTS + COMPILING:
            found.append(f"memory went from {self.base / 1e6:.0f} to {max(peaks) / 1e6:.0f} MB")
        for what, sizes in (("memory", peaks), ("memory behind attacks", rests)):
            if len(sizes) >= 6 and max(sizes[half:]) > max(sizes[:half]) * 1.25:
                found.append(f"{what} grew from {max(sizes[:half]) / 1e6:.0f} to {max(sizes[half:]) / 1e6:.0f} MB")
        return found

    def table(self):
        figures = {False: Figures(), True: Figures()}
        for attacked, begin, end in self.phases:
            figures[attacked].seconds += end - begin
            for stream in self.streams:
                figures[attacked].add(stream, begin, end)
        rows = [figures[False].row("quiet"), figures[True].row("attacked")]
        rows.append(["ratio", "", *(b / a if a else float("nan") for a, b in zip(rows[0][2:], rows[1][2:]))])
        return rows


def describe(siege):
    print(f"\n{'':10} {'answers':>8} {'tokens/s':>9}  first token p50, p99 ms   between tokens p50, p99 ms")
    for name, answers, rate, *times in siege.table():
        print(f"{name:10} {answers:>8} {rate:9.2f}  {times[0]:10.2f} {times[1]:10.2f}   "
              f"{times[2]:12.2f} {times[3]:10.2f}")
    kinds = collections.defaultdict(dict)
    for (kind, answer), count in siege.attacks.items():
        kinds[kind][answer] = count
    for kind, answers in sorted(kinds.items()):
        print(f"  {kind}: " + ", ".join(f"{answer} {count}" for answer, count in sorted(answers.items())))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/sluice")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seconds", type=float, help="in place of --minutes")
    parser.add_argument("--phase", type=float, default=60, help="seconds of each phase")
    parser.add_argument("--json", help="file that gets the figures")
    options = parser.parse_args()
    options.seconds = options.seconds or 60 * options.minutes
    flags = ["-c", "2048", "--max-memory", str(MAX_MEMORY), "--log", "off", "--api-key", ",".join(HONEST + HOSTILE)]
    with Server(options.binary, flags) as server:
        print("".join(server.log), end="", flush=True)
        siege = Siege(server, options)
        asyncio.run(siege.run())
        problems = siege.problems()
        if server.process.poll() is not None:
            problems.append(f"the server ended with {server.process.returncode}")
        elif urllib.request.urlopen(server.address + "/health").status != 200:
            problems.append("the server is not well")
    if server.exit_code != 0:
        problems.append(f"sluice serve ended with {server.exit_code}")
    describe(siege)
    if options.json:
        record = {"table": siege.table(), "memory": siege.memory,
                  "attacks": [[*kind, count] for kind, count in siege.attacks.items()]}
        Path(options.json).write_text(json.dumps(record, indent=1), encoding="utf-8")
    if problems:
        raise SystemExit("siege: " + "; ".join(problems))
    print("siege: every honest answer was right, memory keeps to its limits")


if __name__ == "__main__":
    main()
