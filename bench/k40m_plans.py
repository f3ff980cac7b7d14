#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans of published networks on the K40M profile, as a Markdown table. Nothing is run.

usage: bench/k40m_plans.py [BUILD_DIR]      (default: build)

For each network at batch 32: what `caffe` and `none` need; the smallest plan of `layup`; and, at a
quarter of what `caffe` needs, the predicted step over the work without recompute; the worst packing and
the longest planning of these plans. Then the depth that fits into a K40M (11,580 MiB, batch 16) in the
series (6, 32, n, 6) of bottlenecks.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"
K40M_MIB = 11580
NETWORKS = {
    "AlexNet": {"builder": "alexnet", "style": "caffe"},
    "VGG-16": {"builder": "vgg", "depth": 16},
    "ResNet-34": {"builder": "resnet", "depth": 34},
    "ResNet-50": {"builder": "resnet", "depth": 50},
    "ResNet-101": {"builder": "resnet", "depth": 101},
    "ResNet-152": {"builder": "resnet", "depth": 152},
    "WRN-50-2": {"builder": "wide_resnet", "depth": 50},
    "GoogLeNet": {"builder": "googlenet"},
    "GoogLeNet with auxiliary": {"builder": "googlenet", "auxiliary": True},
    "Inception-v4": {"builder": "inception_v4"},
    "DenseNet-121": {"builder": "densenet", "depth": 121},
    "DenseNet-201": {"builder": "densenet", "depth": 201},
}
IMAGES = {"AlexNet": 227, "Inception-v4": 299}  # the others: 224


def plan(model, batch, policy, budget=None, image=224):
    """-> the object of `layup plan --format json`"""
    config = {
        "model": model,
        "data": {"format": "synthetic", "shape": [3, image, image], "classes": 1000, "samples": 1024},
        "solver": {"type": "sgd", "lr": 0.1, "momentum": 0.9},
        "train": {"batch": batch},
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        command = [BUILD / "apps" / "layup", "plan", file.name, "--policy", policy, "--format", "json",
                   "--machine", ROOT / "profiles" / "k40m.json"]
        if budget is not None:
            command += ["--budget", str(budget)]
        return json.loads(subprocess.run(command, capture_output=True, text=True).stdout)


def mib(bytes_):
    return f"{bytes_ / 2**20:,.0f}"


def main():
    print("| network | caffe, MiB | none, MiB | layup smallest, MiB | less than caffe | step over work "
          "| at a quarter, MiB | step over work | arena over live | planning, ms |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    ratios = []
    for name, model in NETWORKS.items():
        image = IMAGES.get(name, 224)
        baseline = plan(model, 32, "caffe", image=image)
        caffe = baseline["planned_peak_bytes"]
        none = plan(model, 32, "none", image=image)
        least = plan(model, 32, "layup", image=image)
        quarter = plan(model, 32, "layup", caffe // 4, image)
        ratio = quarter["step_ms"] / quarter["compute_ms"]
        if quarter["feasible"]:
            ratios.append(ratio)
        plans = [baseline, none, least, quarter]
        print(f"| {name} | {mib(caffe)} | {mib(none['planned_peak_bytes'])} | {mib(least['planned_peak_bytes'])} "
              f"| {100 * (1 - least['planned_peak_bytes'] / caffe):.1f} % "
              f"| {least['step_ms'] / least['compute_ms']:.3f} "
              f"| {mib(quarter['planned_peak_bytes'])}{'' if quarter['feasible'] else ' (does not fit)'} "
              f"| {ratio:.3f} | {max(p['arena_bytes'] / p['max_live_bytes'] for p in plans):.4f} "
              f"| {max(p['planning_ms'] for p in plans):.0f} |")
    print(f"\nAverage step over work at a quarter of caffe's memory: {sum(ratios) / len(ratios):.3f}")

    low, high = 790, 2000  # n that fits, n that does not
    first = plan({"builder": "resnet", "blocks": [6, 32, low, 6]}, 16, "layup", K40M_MIB << 20)
    print(f"\nDepth {3 * (44 + low) + 2} at batch 16 in {K40M_MIB:,} MiB: feasible {first['feasible']}, "
          f"step over work {first['step_ms'] / first['compute_ms']:.3f}, planned in "
          f"{first['planning_ms']:.0f} ms, host {mib(first['host_bytes'])} MiB")
    while high - low > 1:
        middle = (low + high) // 2
        model = {"builder": "resnet", "blocks": [6, 32, middle, 6]}
        if plan(model, 16, "layup", K40M_MIB << 20)["feasible"]:
            low = middle
        else:
            high = middle
    print(f"Greatest depth that fits: {3 * (44 + low) + 2}")


if __name__ == "__main__":
    main()
