#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""layup-train and layup refuse what is wrong before anything is trained, and say where."""

import json
import os
import pathlib
import subprocess
import unittest

from cli_support import (DATA, DEVICE, NO_FIT, OK, ROOT, TOOLBOX, TRAIN, USAGE, CliTest,
                         tiny_config, write_idx)


def paths_of_keys(node, path=()):
    """Every (path, key) of an object, nested ones and those in lists included."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield path, key
            yield from paths_of_keys(value, path + (key,))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from paths_of_keys(value, path + (i,))


def misspelt(config, path, key):
    """A copy in which one key has its last letter doubled."""
    copy = json.loads(json.dumps(config))
    node = copy
    for part in path:
        node = node[part]
    items = [(name + name[-1] if name == key else name, value) for name, value in node.items()]
    node.clear()
    node.update(items)
    return copy


class Config(CliTest):
    def test_every_misspelt_key_is_found_and_corrected(self):
        config = tiny_config()
        for path, key in paths_of_keys(config):
            with self.subTest(key="/".join(map(str, path + (key,)))):
                # One check suffices for the keys that all layers share.
                if path[:2] == ("model", "layers") and key in ("name", "type") and path[2] > 0:
                    continue
                file = self.write_config(misspelt(config, path, key))
                done = self.run_program(TOOLBOX, "check", file)
                wrong = key + key[-1]
                line = next(i for i, text in enumerate(file.read_text().splitlines(), 1)
                            if f'"{wrong}":' in text)
                self.expect(done, USAGE, f'"{wrong}"', f'did you mean "{key}"?',
                            f"{file}:{line}:")

    def test_all_errors_are_reported_in_one_go(self):
        config = tiny_config(train__batch=2.5, solver__momentum=-1, memory__policy="nonne")
        done = self.run_program(TOOLBOX, "check", self.write_config(config))
        self.expect(done, USAGE, "2.5", "/solver/momentum", 'did you mean "none"?')

    def test_unknown_words_are_never_replaced(self):
        changes = {
            "solver__type": "sdg", "solver__schedule": {"type": "cosinne"},
            "memory__policy": "laypu", "data__format": "sintetic",
            "data__augment": [{"type": "flipp"}],
        }
        for path, value in changes.items():
            with self.subTest(path=path):
                file = self.write_config(tiny_config(**{path: value}))
                word = value if isinstance(value, str) else json.dumps(value).split('"')[-2]
                self.expect(self.run_program(TOOLBOX, "check", file), USAGE, word)

    def test_unknown_layer_type(self):
        config = tiny_config()
        config["model"]["layers"][0]["type"] = "conv3d"
        self.expect(self.run_program(TOOLBOX, "check", self.write_config(config)), USAGE,
                    "conv3d", 'did you mean "conv2d"?; known: ', "/model/layers/0/type")

    def test_bad_numbers(self):
        for text in ("1e400", "4294967297000000000000", "-1", "0", "3.7", "true", '"8"', "NaN"):
            with self.subTest(text=text):
                whole = json.dumps(tiny_config(), indent=1)
                file = self.write_config(whole.replace('"batch": 8', f'"batch": {text}'))
                self.expect(self.run_program(TOOLBOX, "check", file), USAGE, f"{file}:")

    def test_duplicate_keys_and_syntax(self):
        whole = json.dumps(tiny_config(), indent=1)
        duplicate = whole.replace('"batch": 8', '"batch": 8, "batch": 16')
        for text in (duplicate, whole[:-2], "", "[]", whole + "x"):
            file = self.write_config(text)
            self.expect(self.run_program(TOOLBOX, "check", file), USAGE, str(file))

    def test_shapes_that_do_not_fit_show_both_chains(self):
        config = tiny_config()
        config["model"]["layers"].insert(4, {"name": "sum", "type": "add",
                                             "inputs": ["pool1", "relu1"]})
        done = self.run_program(TOOLBOX, "check", self.write_config(config))
        self.expect(done, USAGE, "sum", "pool1", "relu1", "6, 6", "12, 12",
                    "(at /model/layers/4)")

    def test_a_cycle_is_named(self):
        config = tiny_config()
        config["model"]["layers"][0]["inputs"] = ["relu1"]
        self.expect(self.run_program(TOOLBOX, "check", self.write_config(config)), USAGE, "conv1",
                    "relu1")

    def test_bad_overrides_and_options(self):
        file = self.write_config(tiny_config())
        for arguments in (["--set", "train.bach=4"], ["--set", "train"], ["--policy", "nonne"],
                          ["--budget", "12XB"], ["--budget", "-1"], ["--batch", "0"],
                          ["--steps", "-3"], ["--threads", "0"], ["--device", "gpu"],
                          ["--no-such-option"], ["--resume", str(self.dir / "nowhere")]):
            with self.subTest(arguments=arguments):
                self.expect(self.train(file, *arguments), USAGE)
        self.expect(self.train(file, "--set", "train.batch=many"), USAGE, f"{file}: expected",
                    "(from --set train.batch=many)")
        self.expect(self.run_program(TRAIN, self.dir / "absent.json"), USAGE, "absent.json")
        self.expect(self.run_program(TRAIN, self.dir), USAGE, "it is a folder")
        self.expect(self.run_program(TRAIN), USAGE)

    def test_an_override_counts(self):
        file = self.write_config(tiny_config())
        log = self.dir / "log.jsonl"
        self.expect(self.train(file, "--set", "train.batch=10", "--steps", 1, "--log", log), OK)
        self.assertEqual(self.summary(log)["batch"], 10)

    def test_a_budget_that_cannot_work_is_refused_with_one_that_can(self):
        file = self.write_config(tiny_config())
        done = self.run_program(TOOLBOX, "plan", file, "--device", "reference",
                                "--threads", 1, "--budget", 1000, "--format", "json")
        self.assertEqual(done.returncode, NO_FIT, done.stderr)
        plan = json.loads(done.stdout)
        self.assertFalse(plan["feasible"])
        minimum = plan["minimum_budget_bytes"]
        self.expect(self.train(file, "--budget", minimum - 1), NO_FIT, str(minimum))
        self.expect(self.train(file, "--budget", minimum, "--steps", 2), OK)


class Out(CliTest):
    """--out is tried before any data is read: the data set here does not exist."""

    def setUp(self):
        super().setUp()
        self.file = self.write_config(tiny_config(data={"format": "idx", "path": "/nowhere"}))

    def test_missing_parent(self):
        out = self.dir / "absent" / "run"
        self.expect(self.train(self.file, "--out", out), USAGE, str(out))

    def test_a_file(self):
        out = self.dir / "file"
        out.write_text("", encoding="utf-8")
        self.expect(self.train(self.file, "--out", out), USAGE, str(out))

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_read_only(self):
        out = self.dir / "read_only"
        out.mkdir(mode=0o555)
        self.expect(self.train(self.file, "--out", out), USAGE, str(out))

    def test_not_even_root_may_write(self):
        self.expect(self.train(self.file, "--out", "/proc/layup-run"), USAGE, "/proc/layup-run")

    def test_the_data_is_read_otherwise(self):
        self.expect(self.train(self.file, "--out", self.dir / "run"), DATA, "/nowhere")


class Data(CliTest):
    def config_of(self, labels):
        data = self.dir / "data"
        data.mkdir()
        for part in ("train", "t10k"):
            write_idx(data / f"{part}-images-idx3-ubyte", [len(labels), 12, 12],
                      bytes(144 * len(labels)))
            write_idx(data / f"{part}-labels-idx1-ubyte", [len(labels)], labels)
        return self.write_config(tiny_config(data={"format": "idx", "path": str(data)}))

    def test_a_label_out_of_range_names_the_sample(self):
        for bad in (5, 255):
            with self.subTest(label=bad):
                if (self.dir / "data").exists():
                    for path in (self.dir / "data").iterdir():
                        path.unlink()
                    (self.dir / "data").rmdir()
                file = self.config_of([0, 1, 2, 3, 4, 0, 1, bad])
                self.expect(self.train(file, "--steps", 1), DATA, "sample 7", f"label {bad}", "5",
                            str(self.dir / "data"))

    def test_a_truncated_file_names_itself(self):
        file = self.config_of([0, 1, 2, 3, 4, 0, 1, 2])
        path = self.dir / "data" / "train-images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[:-1])
        self.expect(self.train(file, "--steps", 1), DATA, str(path))

    def test_drop_last_never_leaves_an_epoch_without_steps(self):
        file = self.write_config(tiny_config(data__samples=5, data__drop_last=True))
        self.expect(self.train(file), USAGE, "5", "8")
        file = self.write_config(tiny_config(data__samples=5, train__epochs=1))
        log = self.dir / "log.jsonl"
        self.expect(self.train(file, "--log", log), OK)
        self.assertEqual(self.summary(log)["steps"], 1)


class Locale(CliTest):
    """A comma as the decimal point, in the environment of the program."""

    def test_numbers_are_read_and_written_as_ever(self):
        folder = self.dir / "locales"
        folder.mkdir()
        made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8",
                               str(folder / "de_DE.UTF-8")], capture_output=True, text=True,
                              check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        german = {"LOCPATH": str(folder), "LC_ALL": "de_DE.UTF-8"}
        file = self.write_config(tiny_config())
        texts = [self.run_program(TOOLBOX, "summary", file, env=env).stdout
                 for env in (german, {"LC_ALL": "C"})]
        self.assertEqual(*texts)
        hashes = []
        for name, env in (("de", german), ("c", {"LC_ALL": "C"})):
            log = self.dir / f"{name}.jsonl"
            done = self.train(file, "--steps", 4, "--set", "solver.lr=0.5", "--log", log, env=env)
            self.expect(done, OK)
            hashes.append((self.summary(log)["weights_hash"], self.summary(log)["loss"]))
        self.assertEqual(*hashes)


class Toolbox(CliTest):
    def test_ready_made_configs_are_right(self):
        sample = pathlib.Path(ROOT / "models/configs/resnet20_fashion_sample.json")
        self.expect(self.run_program(TOOLBOX, "check", sample), OK)

    def test_plan_prints_the_promised_figures(self):
        names = ("policy device batch budget_bytes feasible minimum_budget_bytes "
                 "planned_peak_bytes arena_bytes max_live_bytes parameter_bytes gradient_bytes "
                 "solver_state_bytes activation_bytes workspace_bytes host_bytes file_bytes "
                 "num_layers num_keep num_offload num_recompute compute_ms recompute_ms "
                 "transfer_ms stall_ms step_ms lower_bound_ms planning_ms").split()
        file = self.write_config(tiny_config())
        done = self.run_program(TOOLBOX, "plan", file, "--format", "json")
        self.expect(done, OK)
        plan = json.loads(done.stdout)
        self.assertEqual([name for name in names if name not in plan], [])
        done = self.run_program(TOOLBOX, "plan", file, "--compare", "--format", "json")
        self.expect(done, OK)
        policies = [row["policy"] for row in json.loads(done.stdout)]
        self.assertIn("none", policies)
        self.assertIn("caffe", policies)

    def test_a_plan_for_a_profile_is_that_of_any_build(self):
        file = self.write_config(tiny_config())
        for device in ([], ["--device", "cpu"], ["--device", "reference"]):
            done = self.run_program(TOOLBOX, "plan", file, "--format", "json", *device,
                                    "--policy", "superneurons/liveness",
                                    "--machine", ROOT / "profiles" / "k40m.json")
            plan = json.loads(done.stdout)
            self.assertEqual((plan["device"], plan["policy"]), ("reference", "superneurons/liveness"))
            self.assertEqual(plan["num_replays"], 0)

    def test_summary_as_json(self):
        done = self.run_program(TOOLBOX, "summary", self.write_config(tiny_config()), "--format",
                                "json")
        self.expect(done, OK)
        summary = json.loads(done.stdout)
        self.assertEqual(summary["num_parameters"],
                         sum(layer["num_parameters"] for layer in summary["layers"]))
        self.assertEqual(summary["num_layers"], len(summary["layers"]))

    def test_time_tells_every_operation(self):
        done = self.run_program(TOOLBOX, "time", self.write_config(tiny_config()), "--steps", "2",
                                "--format", "json")
        self.expect(done, OK)
        timing = json.loads(done.stdout)
        self.assertEqual(len(timing["step_ms"]), 2)
        self.assertEqual(timing["planned_peak_bytes"], timing["measured_peak_bytes"])
        self.assertEqual(timing["allocations_after_start"], 0)
        self.assertGreater(timing["start_ms"], 0)
        self.assertGreater(timing["fault_in_ms"], 0)
        passes = {operation["pass"] for operation in timing["operations"]}
        self.assertLessEqual({"forward", "backward_params"}, passes)
        work = sum(operation["ms"] for operation in timing["operations"])
        self.assertGreater(work, 0)
        table = self.run_program(TOOLBOX, "time", self.write_config(tiny_config()), "--steps", "1")
        self.expect(table, OK)
        for operation in timing["operations"]:
            self.assertIn(operation["name"], table.stdout)

    def test_unknown_verbs(self):
        self.expect(self.run_program(TOOLBOX, "plam", "x.json"), USAGE, 'did you mean "plan"')
        self.expect(self.run_program(TOOLBOX, "--version"), OK, "layup ")
        self.expect(self.run_program(TOOLBOX), USAGE)

    def test_devices(self):
        done = self.run_program(TOOLBOX, "devices")
        self.expect(done, OK, "reference")
        default = [line for line in done.stdout.splitlines() if line.endswith(", the default")]
        has_cpu = "cpu: not in this build" not in done.stdout
        self.assertEqual([line.split(":")[0] for line in default],
                         ["cpu" if has_cpu else "reference"])


class Precision(CliTest):
    def setUp(self):
        super().setUp()
        self.devices = self.run_program(TOOLBOX, "devices").stdout
        self.file = self.write_config(tiny_config(train__precision="bf16"))

    def test_refused_on_the_reference_device(self):
        self.expect(self.run_program(TOOLBOX, "plan", self.file, "--device", "reference"), USAGE,
                    "use --device cpu", "(at /train/precision)")

    def test_refused_by_a_processor_without_it(self):
        if "oneDNN 2" not in self.devices:
            self.skipTest("this build has no cpu device")
        done = self.run_program(TOOLBOX, "plan", self.file, "--device", "cpu",
                                env={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"})
        self.expect(done, DEVICE, "AVX512_BF16", '"float32"', "(at /train/precision)")

    def test_float32_goes_on_in_bf16(self):
        if ", bf16" not in self.devices:
            self.skipTest("this build or this processor has no bf16")
        out = self.dir / "run"
        common = [TRAIN, self.file, "--device", "cpu", "--threads", 1]
        self.expect(self.run_program(*common, "--set", "train.precision=float32", "--steps", 2,
                                     "--out", out), OK)
        self.expect(self.run_program(*common, "--resume", out, "--steps", 4), OK,
                    "configured otherwise", "precision")


if __name__ == "__main__":
    unittest.main()
