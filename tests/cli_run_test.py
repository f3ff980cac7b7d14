#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""layup-train while it runs: divergence, signals, checkpoints, resuming, what it prints."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import time
import unittest

from cli_support import (DATA, DIVERGED, INTERRUPTED, OK, ROOT, TERMINATED, TOOLBOX, TRAIN, USAGE,
                         CliTest, read_safetensors, tiny_config, write_safetensors)


def checkpoints(folder):
    """The newest first."""
    return sorted(folder.glob("checkpoint-*.safetensors"), reverse=True)


# Runs for minutes unless it is stopped.
def long_config(**changes):
    return tiny_config(train__epochs=100000, data__samples=2000, **changes)


class Diverged(CliTest):
    def test_stops_before_a_bad_update_is_saved(self):
        file = self.write_config(tiny_config(solver__lr=1e30, solver__schedule={"type": "constant"},
                                             train__checkpoint={"every_steps": 1, "keep": 3}))
        out = self.dir / "run"
        done = self.train(file, "--out", out)
        self.expect(done, DIVERGED)
        self.assertRegex(done.stderr, "conv1|bn1|relu1|pool1|drop1|fc|loss")
        for path in checkpoints(out):
            _, tensors = read_safetensors(path)
            for name, (dtype, _, content) in tensors.items():
                if dtype == "F32":
                    # All exponent bits set: infinite or not a number.
                    words = memoryview(content).cast("I")
                    self.assertFalse(any(w & 0x7F800000 == 0x7F800000 for w in words), name)

    def test_the_loss_is_checked_before_step_0_updates(self):
        config = tiny_config()
        config["model"]["layers"][5]["init"] = {"type": "constant", "value": 1e38}
        out = self.dir / "run"
        done = self.train(self.write_config(config), "--out", out)
        self.expect(done, DIVERGED, "fc")
        self.assertEqual(checkpoints(out), [])


class Signals(CliTest):
    def start(self, *arguments):
        self.log = self.dir / "log.jsonl"
        file = self.write_config(long_config())
        process = subprocess.Popen(
            [TRAIN, str(file), "--device", "reference", "--threads", "1", "--log", str(self.log),
             "--out", str(self.dir / "run"), *arguments], cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def wait_for_steps(self, process):
        """Until the first epoch has been logged or saved."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if checkpoints(self.dir / "run"):
                return
            self.assertIsNone(process.poll(), "the run ended by itself")
            time.sleep(0.02)
        self.fail("no checkpoint within 30 seconds")

    def stop_and_resume(self, which, code):
        process = self.start()
        self.wait_for_steps(process)
        process.send_signal(which)
        self.assertEqual(process.wait(timeout=20), code)
        metadata, _ = read_safetensors(checkpoints(self.dir / "run")[0])
        self.assertTrue(metadata)
        stopped = self.summary(self.log)["steps"]
        file = self.dir / "config.json"
        log = self.dir / "more.jsonl"
        done = self.train(file, "--resume", self.dir / "run", "--steps", stopped + 3, "--log", log)
        self.expect(done, OK)
        resumed = self.summary(log)
        straight = self.train_to(file, stopped + 3)
        self.assertEqual(resumed["weights_hash"], straight["weights_hash"])

    def test_int_saves(self):
        self.stop_and_resume(signal.SIGINT, INTERRUPTED)

    def test_term_saves(self):
        self.stop_and_resume(signal.SIGTERM, TERMINATED)

    def test_a_second_int_quits_at_once(self):
        process = self.start()
        self.wait_for_steps(process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        process.wait(timeout=20)
        self.assertLess(time.monotonic() - begin, 1)
        self.assertIn(process.returncode, (INTERRUPTED, -signal.SIGINT))

    def test_a_kill_leaves_a_checkpoint_to_go_on_from(self):
        process = self.start("--set", "train.checkpoint.every_steps=1")
        self.wait_for_steps(process)
        time.sleep(0.2)
        process.kill()
        process.wait(timeout=20)
        done_steps = int(re.search(r"\d+", checkpoints(self.dir / "run")[0].name).group())
        file = self.dir / "config.json"
        log = self.dir / "more.jsonl"
        done = self.train(file, "--resume", self.dir / "run", "--steps", done_steps + 3, "--log",
                          log)
        self.expect(done, OK)
        straight = self.train_to(file, done_steps + 3)
        self.assertEqual(self.summary(log)["weights_hash"], straight["weights_hash"])


class Resume(CliTest):
    def setUp(self):
        super().setUp()
        self.file = self.write_config(tiny_config())
        self.out = self.dir / "run"

    def test_7_and_13_steps_are_20(self):
        schedules = ({"type": "constant"}, {"type": "cosine", "warmup_steps": 3},
                     {"type": "multistep", "milestones": [5, 12], "gamma": 0.5})
        for schedule in schedules:
            with self.subTest(schedule=schedule["type"]):
                shutil.rmtree(self.out, ignore_errors=True)
                file = self.write_config(tiny_config(solver__schedule=schedule))
                straight = self.train_to(file, 20)
                self.train_to(file, 7, "--out", self.out)
                resumed = self.train_to(file, 20, "--resume", self.out)
                self.assertEqual(resumed["steps"], 20)
                for key in ("weights_hash", "loss", "test_accuracy"):
                    self.assertEqual(resumed[key], straight[key], key)

    def test_a_run_is_the_same_twice_and_with_more_loader_threads(self):
        first = self.train_to(self.file, 9)["weights_hash"]
        self.assertEqual(self.train_to(self.file, 9)["weights_hash"], first)
        more = self.train_to(self.file, 9, "--set", "data.loader_threads=3")
        self.assertEqual(more["weights_hash"], first)
        other = self.train_to(self.file, 9, "--seed", 8)["weights_hash"]
        self.assertNotEqual(other, first)

    def test_a_finished_run_says_so_and_stays_as_it_is(self):
        self.train_to(self.file, 20, "--out", self.out)
        before = self.files_of(self.out)
        done = self.train(self.file, "--resume", self.out, "--steps", 20)
        self.expect(done, OK, "already")
        self.assertEqual(self.files_of(self.out), before)

    def test_a_cosine_is_told_of_another_length(self):
        self.train_to(self.file, 3, "--out", self.out)
        done = self.train(self.file, "--resume", self.out, "--epochs", 4)
        self.expect(done, OK, "configured otherwise", "train.epochs")
        fixed = tiny_config(solver__schedule={"type": "constant"})
        out = self.dir / "fixed"
        file = self.write_config(fixed, "fixed.json")
        self.expect(self.train(file, "--out", out, "--steps", 3), OK, "step 3: test accuracy")
        done = self.train(file, "--resume", out, "--epochs", 4)
        self.expect(done, OK, "epoch 4 done: test accuracy")
        self.assertNotIn("train.epochs", done.stdout + done.stderr)

    def test_out_that_holds_a_run_is_refused(self):
        self.train_to(self.file, 3, "--out", self.out)
        before = self.files_of(self.out)
        self.expect(self.train(self.file, "--out", self.out), USAGE, str(self.out), "--resume")
        self.assertEqual(self.files_of(self.out), before)

    def test_an_empty_folder_is_no_run(self):
        self.out.mkdir()
        self.train_to(self.file, 3, "--out", self.out)
        self.assertEqual(len(checkpoints(self.out)), 1)

    def test_each_mismatch_has_its_message(self):
        self.train_to(self.file, 7, "--out", self.out)
        newest = checkpoints(self.out)[0]
        _, tensors = read_safetensors(newest)
        weights_only = self.dir / "weights_only"
        weights_only.mkdir()
        write_safetensors(weights_only / newest.name,
                          {name: t for name, t in tensors.items() if not name.startswith("solver/")})
        done = self.train(self.file, "--resume", weights_only)
        self.expect(done, DATA, newest.name)
        messages = {done.stderr.replace(str(weights_only), "DIR")}

        other = tiny_config()
        other["model"]["layers"][0]["out_channels"] = 6
        done = self.train(self.write_config(other, "other.json"), "--resume", self.out)
        self.assertIn(done.returncode, (USAGE, DATA))
        self.assertIn("conv1", done.stderr)
        messages.add(done.stderr.replace(str(self.out), "DIR"))

        plain = self.write_config(tiny_config(solver__momentum=0), "plain.json")
        done = self.train(plain, "--resume", self.out)
        self.assertIn(done.returncode, (USAGE, DATA))
        self.assertIn("momentum", done.stderr)
        messages.add(done.stderr.replace(str(self.out), "DIR"))
        self.assertEqual(len(messages), 3)

    def test_a_damaged_checkpoint_is_passed_over(self):
        file = self.write_config(tiny_config(train__checkpoint={"every_steps": 3, "keep": 3}))
        self.train_to(file, 7, "--out", self.out)
        newest = checkpoints(self.out)[0]
        newest.write_bytes(newest.read_bytes()[:-5])
        done = self.train(file, "--resume", self.out, "--steps", 20, "--log",
                          self.dir / "more.jsonl")
        self.expect(done, OK, newest.name)
        resumed = self.summary(self.dir / "more.jsonl")
        self.assertEqual(resumed["weights_hash"], self.train_to(file, 20)["weights_hash"])

    def test_only_so_many_are_kept(self):
        file = self.write_config(tiny_config(train__checkpoint={"every_steps": 1, "keep": 2}))
        self.train_to(file, 7, "--out", self.out)
        self.assertEqual(len(checkpoints(self.out)), 2)

    def test_evaluation_repeats_the_accuracy(self):
        trained = self.train_to(self.file, 20, "--out", self.out)
        done = self.run_program(TOOLBOX, "eval", self.file, "--resume", self.out)
        self.expect(done, OK)
        percent = f"{100 * trained['test_accuracy']:.2f}"
        self.assertIn(percent, done.stdout)


class Output(CliTest):
    def test_piped_output_is_plain_and_short(self):
        file = self.write_config(tiny_config())
        done = self.train(file)
        self.expect(done, OK)
        said = done.stdout + done.stderr
        self.assertNotIn("\r", said)
        self.assertNotIn("\x1b", said)
        # A plan, a line per epoch, a summary: not a line per step (there are 21).
        self.assertLess(len(said.splitlines()), 60)

    def test_a_terminal_gets_a_bar_that_fits(self):
        file = self.write_config(tiny_config(data__samples=400))
        ours, theirs = pty.openpty()
        env = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
        process = subprocess.Popen([TRAIN, str(file), "--device", "reference"], cwd=ROOT, env=env,
                                   stdout=theirs, stderr=theirs)
        os.close(theirs)
        said = b""
        try:
            while chunk := os.read(ours, 4096):
                said += chunk
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        self.assertEqual(process.wait(timeout=60), OK)
        # A terminal ends lines with \r\n; what stands before any other \r is drawn over.
        lines = said.decode().replace("\r\n", "\n").split("\n")
        redrawn = [part for line in lines for part in line.split("\r")[:-1]]
        self.assertTrue(redrawn, "there was no bar")
        bare = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", part) for part in redrawn]
        self.assertLessEqual(max(map(len, bare)), 80)

    def test_the_log_is_json_and_ends_with_the_promised_summary(self):
        names = ("event policy device threads batch steps epochs step_ms_median images_per_s "
                 "planned_peak_bytes measured_peak_bytes process_base_rss_bytes "
                 "process_peak_rss_bytes allocations_after_start weights_hash loss "
                 "test_accuracy").split()
        log = self.dir / "log.jsonl"
        self.expect(self.train(self.write_config(tiny_config()), "--log", log), OK)
        for line in log.read_text(encoding="utf-8").splitlines():
            self.assertIn("event", json.loads(line))
        summary = self.summary(log)
        self.assertEqual([name for name in names if name not in summary], [])
        self.assertEqual(summary["planned_peak_bytes"], summary["measured_peak_bytes"])
        self.assertEqual(summary["allocations_after_start"], 0)

    def test_a_trace_of_a_step(self):
        trace = self.dir / "trace.json"
        # Large enough that copying saves memory.
        file = self.write_config(tiny_config(memory__policy="vdnn_all", train__batch=64,
                                             data__samples=256))
        self.expect(self.train(file, "--steps", 4, "--trace", trace, "--emulate-link", "1GB/s,500us",
                               "--log", self.dir / "log.jsonl",
                               env={"LAYUP_CACHE_DIR": str(self.dir)}), OK, str(trace))
        self.assertEqual(self.summary(self.dir / "log.jsonl")["allocations_after_start"], 0)
        written = json.loads(trace.read_text(encoding="utf-8"))
        self.assertEqual(written["displayTimeUnit"], "ms")
        events = written["traceEvents"]
        processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual(processes, {"measured", "predicted"})
        tracks = {}
        for event in events:
            if event["ph"] == "X":
                tracks.setdefault((event["pid"], event["tid"]), []).append(event)
        self.assertEqual(len(tracks), 6)
        for slices in tracks.values():
            for before, after in zip(slices, slices[1:]):
                self.assertLessEqual(before["ts"] + before["dur"], after["ts"])
        phases = [event["ph"] for event in events]
        self.assertGreater(phases.count("s"), 0)
        self.assertEqual(phases.count("s"), phases.count("f"))

    def test_a_trace_that_cannot_be_written_is_refused(self):
        out = self.dir / "run"
        done = self.train(self.write_config(tiny_config()), "--out", out, "--trace",
                          self.dir / "nowhere" / "trace.json")
        self.expect(done, USAGE, "nowhere")
        self.assertEqual(checkpoints(out), [])

    def test_plan_only_trains_nothing(self):
        out = self.dir / "run"
        done = self.train(self.write_config(tiny_config()), "--plan-only", "--out", out)
        self.expect(done, OK)
        self.assertFalse(out.exists() and checkpoints(out))


if __name__ == "__main__":
    unittest.main()
