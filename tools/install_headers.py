#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run by `meson install`: copies the library's headers, folders kept, to include/layup/.

A header includes others relative to the root ("engine/shape.h"), so the folders must stay; the
pkg-config file gives -I for include/layup.
"""

import os
import pathlib
import shutil
import sys

FOLDERS = ("engine", "layers", "memory", "scheduler", "comm", "models", "data")
SINGLE = ("layup.h", "apps/config.h", "apps/trainer.h")


def headers(root):
    """-> paths relative to the root"""
    found = [path.relative_to(root) for folder in FOLDERS for path in (root / folder).rglob("*.h")]
    found += [pathlib.Path(name) for name in SINGLE if (root / name).exists()]
    return sorted(found)


def main(include_dir):
    root = pathlib.Path(os.environ["MESON_SOURCE_ROOT"])
    target = pathlib.Path(os.environ["MESON_INSTALL_DESTDIR_PREFIX"]) / include_dir / "layup"
    for header in headers(root):
        (target / header).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / header, target / header)


if __name__ == "__main__":
    main(sys.argv[1])
