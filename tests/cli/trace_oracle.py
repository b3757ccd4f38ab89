#!/usr/bin/env python3
"""Reads a trace as viewers of the Chrome trace event format do, and fails on what they would refuse or drop.

usage: trace_oracle.py TRACE.json; prints what it holds as JSON.
"""

import json
import sys
from collections import Counter, defaultdict


def nanoseconds(us: float) -> int:
    """As Perfetto's importer has them: what is left behind the decimal point is cut off."""
    return int(us * 1000.0)


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
        tracks[event["tid"]].append((nanoseconds(event["ts"]), nanoseconds(event["dur"]), event["name"]))
        slices[event["name"]] += 1
    assert set(tracks) == set(names), "every track has a name"
    for tid, events in tracks.items():
        open_until = []  # slices of a track nest to the nanosecond, or Perfetto drops them
        for begin, duration, name in sorted(events, key=lambda event: event[0]):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or begin + duration <= open_until[-1], (names[tid], name, begin)
            open_until.append(begin + duration)
    steps = [(begin, begin + duration) for begin, duration, _ in tracks[0]]
    for tid in set(tracks) - {0}:
        for begin, duration, name in tracks[tid]:
            inside = any(a <= begin and begin + duration <= b for a, b in steps)
            assert inside, f"{name} at {begin} ns lies in no step"
    print(json.dumps({"steps": len(steps), "tracks": [names[t] for t in sorted(names)], "slices": slices}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
