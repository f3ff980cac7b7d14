#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom. The table below is the architecture: data flows one way, and memory and
scheduler ask a layer for properties (engine/graph/layer.h), never for its type.

usage: check_includes.py [ROOT]        check the sources below ROOT (default: this repository)
       check_includes.py --self-test   check that the checker finds what it must find
"""

import pathlib
import re
import sys
import tempfile

# A folder may include itself and these.
MAY_INCLUDE = {
    "engine": set(),
    "layers": {"engine"},
    "memory": {"engine"},
    "scheduler": {"engine", "memory"},
    "comm": {"engine"},
    "models": {"engine"},
    "data": {"engine"},
    "apps": {"engine", "layers", "memory", "scheduler", "comm", "models", "data"},
    "bench": {"engine", "layers", "memory", "scheduler", "comm", "models", "data", "apps"},
    "tests": {"engine", "layers", "memory", "scheduler", "comm", "models", "data", "apps"},
    # An example sees what a user sees: the installed public header.
    "examples": set(),
}

# Narrower rules: (files that match, includes that match, reason).
FORBIDDEN = [
    (r"memory/", r"engine/device/", "planning runs without the device it plans for"),
    (r"(?!apps/|tests/)", r"CLI/", "the command line lives in apps/"),
    (r"(?!tests/)", r"doctest/", "tests live in tests/"),
    (r"(?!layers/|engine/|tests/|bench/)", r"(Eigen|unsupported)/", "kernels live in layers/"),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
BACK_END = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*\b\w*(CUDA|ONEDNN|DNNL|MPI|NCCL)\w*")
SOURCES = {".h", ".cpp", ".cu", ".cuh"}
GENERATED = {"layers/layer_list.inc", "models/builder_list.inc", "data/format_list.inc"}


def check_line(root, name, line):
    """-> message or None; `name` is the path of the file, relative to root."""
    if BACK_END.search(line):
        return "no #if for back ends: the build links the back end or a stub that throws"
    match = INCLUDE.match(line)
    if not match:
        return None
    quoted = match.group(1) == '"'
    target = match.group(2)
    for files, includes, reason in FORBIDDEN:
        if re.match(files, name) and re.match(includes, target):
            return f"must not include {target}: {reason}"
    if not quoted:
        return None
    folder = name.split("/")[0]
    top = target.split("/")[0]
    if top != folder and top not in MAY_INCLUDE[folder]:
        allowed = ", ".join(sorted(MAY_INCLUDE[folder])) or "nothing else of ours"
        return f"{folder} must not include {target}; it may include {allowed}"
    generated = target in GENERATED or target.endswith("_list.inc")
    if not generated and not (root / target).is_file():
        return f"includes {target}, which does not exist (paths are relative to the root)"
    return None


def check(root):
    """-> ["file:line: message"]"""
    errors = []
    for folder in MAY_INCLUDE:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SOURCES:
                continue
            name = path.relative_to(root).as_posix()
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                message = check_line(root, name, line)
                if message:
                    errors.append(f"{name}:{number}: {message}")
    return errors


# (file, text, part of the message expected or None)
EXAMPLES = [
    ("engine/shape.h", "#include <vector>\n", None),
    ("layers/conv2d.cpp", '#include "engine/shape.h"\n#include <Eigen/Core>\n', None),
    ("scheduler/lower.cpp", '#include "memory/plan.h"\n', None),
    ("memory/plan.h", '#include "engine/shape.h"\n', None),
    ("apps/main.cpp", '#include <CLI/CLI.hpp>\n#include "memory/plan.h"\n', None),
    ("memory/bad_layer.cpp", '#include "layers/registry.h"\n', "memory must not include layers/"),
    ("engine/bad_up.cpp", '\n  #  include "memory/plan.h"\n', "engine must not include memory/"),
    ("scheduler/bad.cpp", '#include "layers/registry.h"\n', "scheduler must not include layers/"),
    ("memory/bad_device.cpp", '#include "engine/device/device.h"\n', "without the device"),
    ("models/bad_cli.cpp", "#include <CLI/CLI.hpp>\n", "apps/"),
    ("memory/bad_eigen.cpp", "#include <Eigen/Core>\n", "kernels live in layers/"),
    ("engine/bad_path.cpp", '#include "engine/nowhere.h"\n', "does not exist"),
    ("engine/bad_relative.cpp", '#include "shape.h"\n', "engine must not include shape.h"),
    ("engine/bad_switch.cpp", "#ifdef LAYUP_CUDA\n", "no #if for back ends"),
    ("examples/bad.cpp", '#include "engine/shape.h"\n', "examples must not include engine/"),
]


def self_test():
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text, _ in EXAMPLES:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        errors = check(root)
        for name, _, expected in EXAMPLES:
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
