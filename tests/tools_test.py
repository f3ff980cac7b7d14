#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The scripts of tools/ that other things lean on: counting tests, installing packages."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


class CountTests(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)

    def add_build(self, name, results):
        log = self.root / name / "meson-logs" / "testlog.json"
        log.parent.mkdir(parents=True)
        lines = [json.dumps({"name": f"t{i}", "result": r}) for i, r in enumerate(results)]
        log.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def count(self, steps, *builds):
        (self.root / "steps").write_text(steps, encoding="utf-8")
        command = [sys.executable, str(ROOT / "tools/count_tests.py"), "steps", *builds]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()[-1]

    def test_adds_up_builds(self):
        self.add_build("a", ["OK", "OK", "EXPECTEDFAIL"])
        self.add_build("b", ["OK"])
        self.assertEqual(self.count("ok build\n", "a", "b"), (0, "4 passed, 0 failed"))

    def test_every_kind_of_failure_counts(self):
        self.add_build("a", ["OK", "FAIL", "TIMEOUT", "ERROR", "UNEXPECTEDPASS", "INTERRUPT"])
        self.assertEqual(self.count("failed format\n", "a"), (1, "1 passed, 6 failed"))

    def test_a_build_without_tests_is_a_failure(self):
        self.add_build("empty", [])
        self.assertEqual(self.count("", "empty", "absent"), (1, "0 passed, 2 failed"))

    def test_skipped_ones_are_named_and_no_failure(self):
        self.add_build("a", ["OK", "SKIP"])
        self.assertEqual(self.count("skipped tidy\n", "a"), (0, "1 passed, 0 failed, 2 skipped"))


class InstallDeps(unittest.TestCase):
    """With stand-ins for dpkg-query, id, sudo and apt-get first in PATH."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        for name in ("bash", "env", "grep", "cat"):
            (self.root / name).symlink_to(shutil.which(name))
        self.add("apt-get", 'echo "apt-get $*" >>"$CALLS"')

    def add(self, name, body):
        path = self.root / name
        path.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def run_script(self, *arguments):
        calls = self.root / "calls"
        environment = {"PATH": str(self.root), "CALLS": str(calls)}
        done = subprocess.run([str(self.root / "bash"), str(ROOT / "tools/install_deps.sh"),
                               *arguments], env=environment, capture_output=True, text=True,
                              check=False)
        return done, calls.read_text(encoding="utf-8") if calls.exists() else ""

    def test_does_nothing_when_all_is_there(self):
        self.add("dpkg-query", 'echo -n "install ok installed"')
        done, calls = self.run_script()
        self.assertEqual((done.returncode, calls), (0, ""))

    def test_installs_only_what_is_missing(self):
        self.add("dpkg-query", '[ "${!#}" != zlib1g-dev ] && echo -n "install ok installed"')
        self.add("id", "echo 0")
        done, calls = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(calls, "apt-get install --yes --no-install-recommends zlib1g-dev\n")

    def test_a_removed_package_is_missing(self):
        self.add("dpkg-query", 'echo -n "deinstall ok config-files"')
        done, _ = self.run_script("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("zlib1g-dev", done.stdout)

    def test_says_what_to_do_without_root_and_sudo(self):
        self.add("dpkg-query", "exit 1")
        self.add("id", "echo 1000")
        done, calls = self.run_script()
        self.assertEqual((done.returncode, calls), (1, ""))
        self.assertIn("as root, run:", done.stderr)
        self.assertIn("apt-get install", done.stderr)

    def test_uses_sudo_when_not_root(self):
        self.add("dpkg-query", '[ "${!#}" != meson ] && echo -n "install ok installed"')
        self.add("id", "echo 1000")
        self.add("sudo", 'echo "sudo" >>"$CALLS"; exec "$@"')
        done, calls = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(calls.splitlines()[0], "sudo")
        self.assertIn("meson", calls.splitlines()[1])

    def test_renews_the_lists_when_installing_fails(self):
        self.add("dpkg-query", '[ "${!#}" != meson ] && echo -n "install ok installed"')
        self.add("id", "echo 0")
        self.add("apt-get", 'echo "apt-get $*" >>"$CALLS"\n'
                            '[ "$1" = update ] || grep -q update "$CALLS"')
        done, calls = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.split()[1] for line in calls.splitlines()],
                         ["install", "update", "install"])


if __name__ == "__main__":
    unittest.main()
