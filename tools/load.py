#!/usr/bin/env python3
"""Load on a server: requests a second, time to first token and between tokens, at some numbers of streams.

usage: load.py [--url URL | --binary PATH [-- FLAGS OF SLUICE SERVE]] [--streams 1,8,32,64] [--seconds 20]
               [--prompt-words 100] [--tokens 64]

Each stream asks, reads its answer to the end, and asks again, with a prompt of its own each time, until the
seconds are over; what is then unfinished is read to its end too. Prints a table in Markdown.
"""

import argparse
import asyncio
import itertools
import random
import time

from serving import Server, ask, percentile

WORDS = "the old king asked his three sons to find a golden bird that sang at night in the garden behind the mill".split()


def prompt(words, seed):
    draw = random.Random(seed)
    return "Tell me a tale. " + " ".join(draw.choice(WORDS) for _ in range(words))


async def measure(address, streams, options, seeds):
    end = time.monotonic() + options.seconds
    finished = []

    async def client():
        while time.monotonic() < end:
            body = {"messages": [{"role": "user", "content": prompt(options.prompt_words, next(seeds))}],
                    "max_tokens": options.tokens, "ignore_eos": True, "seed": 1}
            finished.append(await ask(address, body))

    began = time.monotonic()
    await asyncio.gather(*(client() for _ in range(streams)))
    took = time.monotonic() - began
    wrong = [one.reason for one in finished if one.reason != "length"]
    first = [one.first for one in finished if one.first is not None]
    gaps = [gap for one in finished for gap in one.gaps()]
    tokens = sum(one.usage["completion_tokens"] for one in finished if one.usage)
    prompts = sum(one.usage["prompt_tokens"] for one in finished if one.usage)
    ms = lambda values, share: f"{percentile(values, share) * 1e3:.1f}"
    print(f"| {streams} | {len(finished)} | {len(finished) / took:.2f} | {prompts / took:.0f} | {tokens / took:.0f} | "
          f"{ms(first, .5)} | {ms(first, .9)} | {ms(first, .99)} | {ms(gaps, .5)} | {ms(gaps, .9)} | {ms(gaps, .99)} | "
          f"{len(wrong)} |", flush=True)
    for reason in sorted(set(map(str, wrong))):
        print(f"  {reason}")


def run(address, options):
    seeds = itertools.count(options.seed)
    print("| streams | requests | requests/s | prompt tokens/s | tokens/s | first token p50 ms | p90 | p99 | between tokens p50 ms "
          "| p90 | p99 | failed |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for streams in map(int, options.streams.split(",")):
        asyncio.run(measure(address, streams, options, seeds))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--binary", default="build/release/bin/sluice")
    parser.add_argument("--streams", default="1,8,32,64")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--prompt-words", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9, help="of the prompts")
    parser.add_argument("flags", nargs="*", help="of sluice serve")
    options = parser.parse_args()
    if options.url:
        run(options.url, options)
        return
    with Server(options.binary, options.flags or ["--parallel", "64"]) as server:
        print("".join(server.log))
        run(server.address, options)


if __name__ == "__main__":
    main()
