#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the rules of the house that a compiler does not: length of files, the licence line, no
paths of one machine, no left-over notes.

usage: check_house.py [ROOT]        check the files below ROOT (default: this repository)
       check_house.py --self-test   check that the checker finds what it must find
"""

import os
import pathlib
import re
import sys
import tempfile

MAX_LINES = 400
# A longer file needs a reason. {"path": "reason"}
ALLOWED_LENGTH = {}

CODE = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh"}
TEXT = CODE | {".md", ".json", ".build", ".txt", ".wrap", ".in"}
SKIPPED_FOLDERS = {".git", "runs", "shared", "__pycache__", "node_modules"}
GOLDEN = "tests/golden/"

SPDX = "SPDX-License-Identifier: Apache-2.0"
# Folders of somebody's machine. Written so that this file does not find itself.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:" + "|".join(["work", "root", "home"]) + r")/\w")
LEFT_OVER = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"]) + r")\b")


def files_below(root):
    for folder, folders, names in os.walk(root):
        here = pathlib.Path(folder).relative_to(root)
        top = here == pathlib.Path(".")
        folders[:] = sorted(
            name for name in folders
            if name not in SKIPPED_FOLDERS and not (top and name.startswith("build"))
            # Fetched sources of other projects; what we add to them lies in packagefiles.
            and not (here.as_posix() == "subprojects" and name != "packagefiles"))
        for name in sorted(names):
            yield here / name


def first_comment(lines):
    """The line where the licence stands: the first one, or the second after #!."""
    if lines and lines[0].startswith("#!"):
        return lines[1] if len(lines) > 1 else ""
    return lines[0] if lines else ""


def check_file(name, text):
    """-> messages"""
    path = pathlib.PurePosixPath(name)
    lines = text.splitlines()
    if path.suffix in CODE and SPDX not in first_comment(lines):
        yield f"{name}:1: the first line must say {SPDX}"
    if path.suffix in CODE and len(lines) > MAX_LINES and name not in ALLOWED_LENGTH:
        yield f"{name}: {len(lines)} lines, the budget is {MAX_LINES}: split it by ideas"
    if name.startswith(GOLDEN):
        return
    for number, line in enumerate(lines, 1):
        if MACHINE_PATH.search(line):
            yield f"{name}:{number}: a path of one machine: {line.strip()}"
        if path.suffix in CODE and LEFT_OVER.search(line):
            yield f"{name}:{number}: finish it or file an issue: {line.strip()}"


def check(root):
    errors = []
    for path in files_below(root):
        name = path.as_posix()
        if path.suffix in TEXT or name == ".ci/run":
            errors += check_file(name, (root / path).read_text(encoding="utf-8"))
    for name in ALLOWED_LENGTH:
        if not (root / name).is_file():
            errors.append(f"check_house.py: ALLOWED_LENGTH names {name}, which is gone")
    return errors


def examples():
    """(file, text, part of the message expected or None)"""
    licence = "// " + SPDX + "\n"
    home = "/ho" + "me/me/x"
    return [
        ("engine/good.h", licence + "#pragma once\n", None),
        ("tools/good.sh", "#!/bin/sh\n# " + SPDX + "\n", None),
        ("engine/full.cpp", licence + "\n" * (MAX_LINES - 1), None),
        ("docs/good.md", "see docs/homework/x and a/root/y\n", None),
        ("build-x/generated.cpp", "\n", None),
        ("engine/bad_licence.h", "#pragma once\n" + licence, "first line"),
        ("engine/bad_empty.cpp", "", "first line"),
        ("engine/bad_long.cpp", licence + "\n" * MAX_LINES, "the budget is"),
        ("docs/bad_path.md", f"run {home}\n", "path of one machine"),
        ("models/configs/bad.json", f'{{"path": "{home}"}}\n', "path of one machine"),
        ("engine/bad_note.cpp", licence + "// TO" + "DO later\n", "finish it"),
    ]


def self_test():
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text, _ in examples():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        errors = check(root)
        for name, _, expected in examples():
            found = [error for error in errors if error.startswith(name + ":")]
            if expected is None and found:
                failures.append(f"{name} is good but was refused: {found}")
            elif expected is not None and not any(expected in error for error in found):
                failures.append(f"{name} is bad ({expected}) but the checker said {found}")
    return failures


def main(arguments):
    if arguments == ["--self-test"]:
        errors = self_test()
    else:
        root = pathlib.Path(arguments[0] if arguments else __file__).resolve()
        errors = check(root if arguments else root.parent.parent)
    for error in errors:
        print(error)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
