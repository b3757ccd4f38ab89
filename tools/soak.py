#!/usr/bin/env python3
"""A long run: many streams at once, a third of which leave at a random moment, against a sluice serve of its own.

usage: soak.py [--binary PATH] [--seconds 600] [--streams 64] [--seed 1]

Exit code 1 unless every stream that did not leave ended with a reason, the memory of the second half stayed
flat (5% and 8 MB above what the first half reached), nothing runs at the end, and the server stopped with 0.
"""

import argparse
import asyncio
import collections
import random
import time
import urllib.request

from serving import Server, ask


async def stream_on(address, end, draw, reasons):
    while time.monotonic() < end:
        words = draw.choice([4, 40, 400, 1200])
        body = {"messages": [{"role": "user", "content": "a fox and a crow " * (words // 4 + 1)}],
                "max_tokens": draw.randint(1, 80), "temperature": draw.choice([0, 1]), "seed": draw.randint(0, 5)}
        leave = draw.expovariate(1) if draw.random() < 1 / 3 else None
        stream = await ask(address, body, leave)
        reasons[stream.reason] += 1


async def watch(server, seconds, memory, reasons):
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        await asyncio.sleep(min(seconds / 20, 30))
        memory.append(server.memory_bytes())
        print(f"{passed:6.0f} s  {memory[-1] / 1e6:7.1f} MB  {dict(reasons)}", flush=True)


async def run(server, options):
    reasons, memory = collections.Counter(), []
    end = time.monotonic() + options.seconds
    clients = [stream_on(server.address, end, random.Random(options.seed * 1000 + i), reasons)
               for i in range(options.streams)]
    await asyncio.gather(watch(server, options.seconds, memory, reasons), *clients)
    return reasons, memory


def metric(server, name):
    text = urllib.request.urlopen(server.address + "/metrics").read().decode()
    return float(next(line for line in text.splitlines() if line.startswith(f"sluice_{name} ")).split()[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/sluice")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    problems = []
    with Server(options.binary, ["--parallel", str(options.streams)]) as server:
        print("".join(server.log), end="", flush=True)
        reasons, memory = asyncio.run(run(server, options))
        for _ in range(100):  # cancelled requests end after the step that runs
            running = metric(server, "requests_running") + metric(server, "requests_waiting")
            if running == 0:
                break
            time.sleep(0.1)
        if running:
            problems.append(f"{running:.0f} requests still run")
        if used := metric(server, "cache_pages_used"):
            problems.append(f"{used:.0f} pages of the cache are still in use")
    print("".join(server.log[-2:]), end="")
    bad = {reason: n for reason, n in reasons.items() if reason not in ("stop", "length", "left")}
    if bad:
        problems.append(f"ended otherwise: {bad}")
    half = len(memory) // 2
    if half and max(memory[half:]) > max(memory[:half]) * 1.05 + 8e6:
        problems.append(f"memory grew from {max(memory[:half])} to {max(memory[half:])} bytes")
    if server.exit_code != 0:
        problems.append(f"sluice serve ended with {server.exit_code}")
    print(f"{sum(reasons.values())} streams in {options.seconds:.0f} s: {dict(reasons)}")
    if problems:
        raise SystemExit("soak: " + "; ".join(problems))
    print("soak: every stream ended with a reason, memory is flat")


if __name__ == "__main__":
    main()
