#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""layup-train with a file tier: the same weights, memory that stays bounded, nothing left behind
by a run that is killed, and an error that names the file when the disk fails."""

import ctypes
import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import tempfile
import time
import unittest

from cli_support import DEVICE, OK, ROOT, TOOLBOX, TRAIN, USAGE, CliTest, tiny_config

# Copies of large values, so that there is something to put into the file.
CONFIG = {"memory__policy": "vdnn_all", "train__batch": 64, "data__samples": 256,
          "train__checkpoint": {"every_steps": 1, "keep": 3}}
# Below what the file holds, above checkpoints and logs.
LIMIT = 128 * 1024


def forbid_io_uring():
    """For a child that is about to start: io_uring_setup fails as it does in many containers."""
    number = 425  # on all processors
    allow, refuse = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW; RET_ERRNO with EPERM
    steps = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, refuse), (0x06, 0, 0, allow))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps),
                                                      ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


class Spill(CliTest):
    def setUp(self):
        super().setUp()
        self.spill = self.folder_on_disk()
        self.log = self.dir / "log.jsonl"
        self.cache = {"LAYUP_CACHE_DIR": str(self.dir / "cache")}
        self.file = self.write_config(tiny_config(**CONFIG))
        self.spilling = ("--set", f"memory.spill=file:{self.spill}")

    def folder_on_disk(self):
        """Folders for temporary files may lie in memory."""
        file = self.write_config(tiny_config(), "probe.json")
        for base in (tempfile.gettempdir(), "/var/tmp", ROOT):
            done = self.run_program(TOOLBOX, "check", file, "--set", f"memory.spill=file:{base}")
            if "without liburing" in done.stderr:
                self.skipTest("this build has no file tier")
            if done.returncode == OK:
                folder = tempfile.TemporaryDirectory(dir=base)
                self.addCleanup(folder.cleanup)
                return pathlib.Path(folder.name)
        self.skipTest("no folder here can hold a file tier")

    def train_spilling(self, *arguments, **options):
        return self.train(self.file, *self.spilling, "--log", self.log, *arguments, env=self.cache,
                          **options)

    def start(self, *arguments):
        process = subprocess.Popen(
            [TRAIN, str(self.file), "--device", "reference", "--threads", "1", *self.spilling,
             "--epochs", "100000", "--out", str(self.dir / "run"), *arguments], cwd=ROOT,
            env={**os.environ, **self.cache}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        while not list((self.dir / "run").glob("checkpoint-*")):
            self.assertIsNone(process.poll(), "the run ended by itself")
            self.assertLess(time.monotonic(), deadline, "no checkpoint within a minute")
            time.sleep(0.02)
        return process

    def events(self):
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]

    def test_the_weights_are_those_of_a_run_without(self):
        straight = self.train_to(self.file, 5, "--policy", "none")
        self.log.unlink()
        self.expect(self.train_spilling("--steps", 5), OK, "file tier: ", str(self.spill))
        summary = self.summary(self.log)
        self.assertEqual(summary["weights_hash"], straight["weights_hash"])
        self.assertEqual(summary["planned_peak_bytes"], summary["measured_peak_bytes"])
        self.assertEqual(summary["allocations_after_start"], 0)
        plan = next(event for event in self.events() if event["event"] == "plan")
        self.assertGreater(plan["file_bytes"], 0)
        self.assertEqual(plan["host_bytes"], 0)
        self.assertEqual(list(self.spill.iterdir()), [])

    def test_the_plan_says_what_is_in_the_file(self):
        def plan(*arguments):
            done = self.run_program(TOOLBOX, "plan", self.file, "--device", "reference", "--format",
                                    "json", *arguments, env=self.cache)
            self.expect(done, OK)
            return json.loads(done.stdout)

        without = plan()
        self.assertEqual(without["file_bytes"], 0)
        # A plan needs no folder.
        nowhere = ("--set", "memory.spill=file:/nowhere/at/all")
        all_of_it = plan(*nowhere)
        self.assertEqual(all_of_it["host_bytes"], 0)
        self.assertGreaterEqual(all_of_it["file_bytes"], without["host_bytes"])
        some = plan(*nowhere, "--host-budget", 150000)
        self.assertGreater(some["host_bytes"], 0)
        self.assertLessEqual(some["host_bytes"], 150000)
        self.assertEqual(some["host_bytes"] + some["file_bytes"], all_of_it["file_bytes"])
        for row in plan(*nowhere, "--compare"):
            self.assertEqual(row["host_bytes"], 0)
        machine = plan(*nowhere, "--machine", ROOT / "profiles" / "k40m.json")
        self.assertGreater(machine["file_bytes"], 0)

    def test_memory_stays_within_the_plan(self):
        config = {
            "model": {"builder": "resnet", "style": "cifar", "depth": 20},
            "data": {"format": "synthetic", "shape": [3, 32, 32], "classes": 10, "samples": 128,
                     "test_samples": 64},
            "solver": {"type": "sgd", "lr": 0.05, "momentum": 0.9},
            "train": {"batch": 128},
            "memory": {"policy": "vdnn_all", "spill": f"file:{self.spill}"},
        }
        self.file = self.write_config(config, "resnet.json")
        self.expect(self.train_spilling("--steps", 2, timeout=250), OK)
        plan = next(event for event in self.events() if event["event"] == "plan")
        summary = self.summary(self.log)
        grown = summary["process_peak_rss_bytes"] - summary["process_base_rss_bytes"]
        allowed = summary["planned_peak_bytes"] * 1.05 + (16 << 20)
        self.assertLessEqual(grown, allowed)
        # What is in the file would not have fitted beside that.
        self.assertGreater(summary["planned_peak_bytes"] + plan["file_bytes"], allowed)

    def test_a_kill_leaves_nothing_behind(self):
        process = self.start()
        links = [os.readlink(link) for link in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()]
        inside = [link for link in links if link.startswith(str(self.spill))]
        self.assertEqual(len(inside), 1, links)
        self.assertIn("(deleted)", inside[0])
        process.kill()
        process.wait(timeout=20)
        self.assertEqual(list(self.spill.iterdir()), [])

    def test_a_failing_write_stops_the_run_and_keeps_the_last_checkpoint(self):
        process = self.start()
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, DEVICE, said)
        self.assertIn(str(self.spill), said)
        self.assertIn("errno", said)
        newest = max((self.dir / "run").glob("checkpoint-*.safetensors"))
        steps = int(newest.stem.split("-")[1])
        more = self.dir / "more.jsonl"
        self.expect(self.train(self.file, "--epochs", 100000, "--resume", self.dir / "run",
                               "--steps", steps + 2, "--log", more), OK)
        straight = self.train_to(self.file, steps + 2, "--epochs", 100000, "--policy", "none")
        self.assertEqual(self.summary(more)["weights_hash"], straight["weights_hash"])

    def test_space_that_is_not_there_is_missed_before_step_0(self):
        # With costs measured before, since measuring needs a file as well.
        self.expect(self.train_spilling("--steps", 1), OK)
        shutil.rmtree(self.dir / "run", ignore_errors=True)
        done = self.train_spilling(
            "--out", self.dir / "run", preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_FSIZE, (LIMIT, LIMIT)))
        self.expect(done, DEVICE, "the file tier needs", str(self.spill), "errno 27")
        self.assertEqual(list((self.dir / "run").glob("checkpoint-*")), [])

    def test_without_io_uring_it_is_said_and_works(self):
        straight = self.train_to(self.file, 3, "--policy", "none")
        self.log.unlink()
        done = self.train_spilling("--steps", 3, preexec_fn=forbid_io_uring)
        self.expect(done, OK, "pread and pwrite", "refuses io_uring", "errno 1")
        warnings = [event["message"] for event in self.events() if event["event"] == "warning"]
        self.assertEqual(len(warnings), 1)
        self.assertIn("pread and pwrite", warnings[0])
        self.assertEqual(self.summary(self.log)["weights_hash"], straight["weights_hash"])

    def test_folders_that_will_not_do_are_refused(self):
        for folder, words in (("/nowhere/at/all", ("not a folder",)),
                              ("/dev/shm", ("tmpfs", "on a disk"))):
            if folder == "/dev/shm" and not os.access(folder, os.W_OK):
                continue
            done = self.train(self.file, "--set", f"memory.spill=file:{folder}", env=self.cache)
            self.expect(done, USAGE, folder, *words)
            check = self.run_program(TOOLBOX, "check", self.file, "--set",
                                     f"memory.spill=file:{folder}")
            self.expect(check, USAGE, folder, *words)


if __name__ == "__main__":
    unittest.main()
