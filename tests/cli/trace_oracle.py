#!/usr/bin/env python3
"""Reads a trace as viewers of the Chrome trace event format do, and fails on what they would refuse or drop.

usage: trace_oracle.py TRACE.json; prints what it holds as JSON.
"""

import json
import sys
from collections import Counter, defaultdict

ROUNDING_US = 0.0011  # times are printed in nanoseconds


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        trace = json.load(file)
    assert trace.get("displayTimeUnit") in ("ms", "ns")
    tracks, names, slices = defaultdict(list), {}, Counter()
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str) and event["name"], event
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int), event
        if event["ph"] == "M":
            assert event["name"] == "thread_name", event
            names[event["tid"]] = event["args"]["name"]
            continue
        assert event["ph"] == "X" and isinstance(event["cat"], str), event
        assert isinstance(event["ts"], (int, float)) and isinstance(event["dur"], (int, float)), event
        assert event["ts"] >= 0 and event["dur"] >= 0, event
        tracks[event["tid"]].append((event["ts"], -event["dur"], event["name"]))
        slices[event["name"]] += 1
    assert set(tracks) == set(names), "every track has a name"
    for tid, events in tracks.items():
        open_until = []  # slices of a track nest, or viewers drop them
        for begin, negative, name in sorted(events):
            while open_until and open_until[-1] <= begin + ROUNDING_US:
                open_until.pop()
            assert not open_until or begin - negative <= open_until[-1] + ROUNDING_US, (names[tid], name, begin)
            open_until.append(begin - negative)
    steps = [(ts, ts - negative) for ts, negative, _ in sorted(tracks[0])]
    for tid in set(tracks) - {0}:
        for ts, negative, name in tracks[tid]:
            inside = any(a - ROUNDING_US <= ts and ts - negative <= b + ROUNDING_US for a, b in steps)
            assert inside, f"{name} at {ts} lies in no step"
    print(json.dumps({"steps": len(steps), "tracks": [names[t] for t in sorted(names)], "slices": slices}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
