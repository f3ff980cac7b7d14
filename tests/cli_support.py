# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line share. LAYUP_BIN_DIR names the folder of the programs (meson
sets it); each test gets a temporary folder and tiny networks on made-up data."""

import copy
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN_DIR = pathlib.Path(os.environ.get("LAYUP_BIN_DIR", ROOT / "build" / "apps"))
TRAIN = str(BIN_DIR / "layup-train")
TOOLBOX = str(BIN_DIR / "layup")

OK, USAGE, DATA, NO_FIT, DIVERGED, DEVICE = 0, 2, 3, 4, 5, 6
INTERRUPTED, TERMINATED = 130, 143

# Augmentation and dropout, so that a resumed run goes wrong if any of its random state is lost;
# 50 samples in batches of 8 leave a partial batch and put step 7 into the second epoch.
CONFIG = {
    "model": {
        "name": "tiny",
        "input": {"shape": [1, 12, 12]},
        "layers": [
            {"name": "conv1", "type": "conv2d", "out_channels": 4, "kernel": 3, "padding": 1},
            {"name": "bn1", "type": "batch_norm"},
            {"name": "relu1", "type": "relu"},
            {"name": "pool1", "type": "max_pool2d", "kernel": 2, "stride": 2},
            {"name": "drop1", "type": "dropout", "p": 0.25},
            {"name": "fc", "type": "linear", "out_features": 5},
            {"name": "loss", "type": "softmax_cross_entropy"},
        ],
    },
    "data": {
        "format": "synthetic", "shape": [1, 12, 12], "classes": 5, "samples": 50,
        "augment": [{"type": "pad_crop", "padding": 2}, {"type": "flip"}],
    },
    "solver": {
        "type": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4,
        "schedule": {"type": "cosine", "warmup_steps": 3},
    },
    "train": {"batch": 8, "epochs": 3, "seed": 7, "checkpoint": {"every_epochs": 1, "keep": 3}},
    "memory": {"policy": "none"},
}


def tiny_config(**changes):
    """A copy of CONFIG with "a.b" replaced by the values given as a__b."""
    config = copy.deepcopy(CONFIG)
    for path, value in changes.items():
        *folders, key = path.split("__")
        node = config
        for folder in folders:
            node = node[folder]
        node[key] = value
    return config


def write_idx(path, dimensions, data):
    """The IDX format: unsigned bytes, big-endian dimensions."""
    header = struct.pack(">HBB", 0, 8, len(dimensions))
    header += b"".join(struct.pack(">I", dimension) for dimension in dimensions)
    pathlib.Path(path).write_bytes(header + bytes(data))


def read_safetensors(path):
    """-> (metadata, {name: (dtype, shape, bytes)})"""
    content = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    metadata = header.pop("__metadata__", {})
    data = content[8 + length:]
    return metadata, {name: (entry["dtype"], entry["shape"],
                             data[entry["data_offsets"][0]:entry["data_offsets"][1]])
                      for name, entry in header.items()}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


class CliTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def write_config(self, config, name="config.json"):
        path = self.dir / name
        path.write_text(config if isinstance(config, str) else json.dumps(config, indent=1),
                        encoding="utf-8")
        return path

    def run_program(self, *arguments, env=None, timeout=60, **options):
        return subprocess.run([str(argument) for argument in arguments], cwd=ROOT,
                              capture_output=True, text=True, timeout=timeout, check=False, **options,
                              env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})})

    def train(self, config, *arguments, **options):
        return self.run_program(TRAIN, config, "--device", "reference", "--threads", 1,
                                *arguments, **options)

    def expect(self, done, code, *words):
        """The exit code, and each of the words somewhere in what was said."""
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, code, said)
        for word in words:
            self.assertIn(word, said)
        if code not in (OK, INTERRUPTED, TERMINATED):
            self.assertNotEqual(done.stderr, "", "an error belongs on stderr")
            self.assertNotIn("terminate called", said)

    def summary(self, log):
        """The last line of a log."""
        lines = pathlib.Path(log).read_text(encoding="utf-8").splitlines()
        entry = json.loads(lines[-1])
        self.assertEqual(entry["event"], "summary")
        return entry

    def train_to(self, config, steps, *arguments):
        """Trains up to `steps`; -> summary"""
        log = self.dir / "log.jsonl"
        self.expect(self.train(config, "--steps", steps, "--log", log, *arguments), OK)
        return self.summary(log)

    def files_of(self, folder):
        """-> {name: (bytes, time of change)}"""
        return {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
                for path in pathlib.Path(folder).rglob("*") if path.is_file()}
