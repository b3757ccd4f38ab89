#!/usr/bin/env python3
"""Reads ctest's JUnit report; prints `skipped: NAME: WHY` for each skipped test and, last, the count.

A test skips itself with GTEST_SKIP() << "why", or, where it is no GoogleTest, by printing the line
`skipped: why` and exiting with the code that its SKIP_RETURN_CODE names.
A second report is of those that failed, each run alone: one that passes there is named as flaky, which is a fault
of the test or of the program still.
Exits with 1 if a test failed, alone, too, or none ran.
"""

import re
import sys
import xml.etree.ElementTree as xml


def reason(output: str) -> str:
    """The message of GTEST_SKIP(), which follows a line `FILE:LINE: Skipped`, or that of `skipped: `."""
    found = re.search(r"^skipped: (.+)$", output, re.MULTILINE)
    if found:
        return found[1].strip()
    found = re.search(r"^\S.*:\d+: Skipped\n(.*?)(?:\n\s*\n|\n\[|\Z)", output, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found and found[1].strip() else "it does not say why"


def cases_of(report: str) -> list:
    try:
        return list(xml.parse(report).getroot().iter("testcase"))
    except (OSError, xml.ParseError) as error:
        print(f"no report of the tests: {error}", file=sys.stderr)
        return []


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print("usage: test_summary.py REPORT [REPORT-OF-THOSE-THAT-FAILED]", file=sys.stderr)
        return 2
    alone = {case.get("name") for report in sys.argv[2:] for case in cases_of(report) if case.get("status") == "run"}
    passed, failed, flaky, skipped = 0, [], [], 0
    for case in cases_of(sys.argv[1]):
        name, status = case.get("name"), case.get("status")
        mark = case.find("skipped")
        message = mark.get("message", "") if mark is not None else ""
        if status == "run":
            passed += 1
        elif status == "disabled":
            skipped += 1
            print(f"skipped: {name}: disabled in its source")
        elif status == "notrun" and message.startswith("SKIP_"):
            skipped += 1
            print(f"skipped: {name}: {reason(case.findtext('system-out') or '')}")
        elif name in alone:
            flaky.append(name)
        else:  # failed, or could not be started at all
            failed.append(name)
    for name in flaky:
        print(f"flaky: {name}: failed beside others, passed alone")
    for name in failed:
        print(f"failed: {name}")
    counts = f"{passed} passed, " + (f"{len(flaky)} flaky, " if flaky else "") + f"{len(failed)} failed, {skipped} skipped"
    print(counts, flush=True)
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
