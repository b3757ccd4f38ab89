#!/usr/bin/env python3
"""Compares `sluice bench -o json` with the best known figures of this kind of machine, and keeps better ones.

usage: bench_compare.py [--save] RECORDS_FOLDER <BENCH.json

A kind of machine is a device with its tier and threads ("device", without the version of the kernels, which are
what is to be compared); its figures lie in RECORDS_FOLDER/KIND.json, by the model's type and size, the test, and the
rows of a step where a prompt takes several steps. What several benches wrote may follow one another. A test that is more than 5 % slower than its record, beyond twice its own deviation, is a loss: it is pointed
at, and the exit code is 3. With --save better figures (and new tests) are written to the folder.
"""

import json
import re
import sys
from pathlib import Path

LOSS = 0.05


def kind_of(record: dict) -> str:
    device = record["device"].rsplit(", kernels ", 1)[0].lower().replace("(r)", "").replace("(tm)", "")
    return re.sub(r"[^a-z0-9]+", "-", device).strip("-")


def key_of(record: dict) -> str:
    key = f"{record['model_type']} {record['model_size'] / 1e9:.2f} GB, {record['test']}"
    rows = min(record["n_batch"], record["n_ubatch"])
    return key + (f" by {rows}" if rows < record["n_prompt"] else "")


def records_of(text: str) -> list:
    """The records of one JSON array after another."""
    decoder, records, at = json.JSONDecoder(), [], 0
    while text := text[at:].lstrip():
        array, at = decoder.raw_decode(text)
        records += array
    return records


def compare(records: list, folder: Path, save: bool) -> int:
    losses = 0
    for kind in sorted({kind_of(r) for r in records}):
        path = folder / f"{kind}.json"
        best = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for record in (r for r in records if kind_of(r) == kind):
            key, speed, deviation = key_of(record), record["avg_ts"], record["stddev_ts"]
            known = best.get(key)
            if known is None:
                verdict = "no record yet"
            else:
                change = speed / known["avg_ts"] - 1
                lost = change < -LOSS and known["avg_ts"] - speed > 2 * deviation
                losses += lost
                verdict = f"{100 * change:+.1f} % of the record {known['avg_ts']:.2f}" + (" LOSS" if lost else "")
            print(f"{key:<52} {speed:>10.2f} ± {deviation:<8.2f} tokens/s  {verdict}")
            if known is None or speed > known["avg_ts"]:
                fields = ("avg_ts", "stddev_ts", "share_of_limit", "peak_bytes_per_second", "build_commit", "test_time")
                best[key] = {field: record[field] for field in fields}
        if save:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(best, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return 3 if losses else 0


def main() -> int:
    arguments = sys.argv[1:]
    save = "--save" in arguments
    arguments = [a for a in arguments if a != "--save"]
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        return compare(records_of(sys.stdin.read()), Path(arguments[0]), save)
    except (ValueError, KeyError, TypeError) as error:
        print(f"bench_compare: standard input or a record is not what sluice bench -o json writes: {error!r}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
