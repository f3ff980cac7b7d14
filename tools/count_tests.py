#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up the outcomes of several meson builds and of other steps.

usage: count_tests.py STEPS BUILD_FOLDER...

STEPS has lines "ok NAME", "failed NAME" or "skipped NAME". Of each build folder the log of its last
`meson test` is read; a folder without one, or with an empty one, counts as one failure: tests that
did not run must never look like tests that passed. Steps that went well are not counted.
"""

import json
import pathlib
import sys

PASSED = {"OK", "EXPECTEDFAIL"}
SKIPPED = {"SKIP"}


def read_log(folder):
    """-> [(test name, meson's result)]"""
    log = pathlib.Path(folder) / "meson-logs" / "testlog.json"
    if not log.exists():
        return []
    lines = log.read_text(encoding="utf-8").splitlines()
    return [(entry["name"], entry["result"]) for entry in map(json.loads, lines)]


def count(steps_text, folders):
    """-> (passed, failed names, skipped names)"""
    passed = 0
    failed = []
    skipped = []
    for folder in folders:
        results = read_log(folder)
        if not results:
            failed.append(f"{folder}: no test ran")
        for name, result in results:
            if result in PASSED:
                passed += 1
            elif result in SKIPPED:
                skipped.append(f"{folder}: {name}")
            else:
                failed.append(f"{folder}: {name} ({result})")
    for line in steps_text.splitlines():
        outcome, _, name = line.partition(" ")
        if outcome == "failed":
            failed.append(name)
        elif outcome == "skipped":
            skipped.append(name)
    return passed, failed, skipped


def main(arguments):
    steps = pathlib.Path(arguments[0]).read_text(encoding="utf-8")
    passed, failed, skipped = count(steps, arguments[1:])
    for title, names in (("failed", failed), ("skipped", skipped)):
        if names:
            print(f"\n{title}:")
            for name in names:
                print(f"  {name}")
    print()
    tail = f", {len(skipped)} skipped" if skipped else ""
    print(f"{passed} passed, {len(failed)} failed{tail}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
