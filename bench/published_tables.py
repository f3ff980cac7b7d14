#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/published-tables.md: what published memory systems measured, beside the plans of our
policies of the same names. Nothing is run but `layup plan --machine`.

usage: bench/published_tables.py [BUILD_DIR]      (default: build)
"""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"
MIB = 2**20
K40M = 11580 * MIB
WORKERS = 8

# name: (model, image shape, classes)
IMAGENET = ([3, 224, 224], 1000)
ALEXNET = ({"builder": "alexnet", "style": "caffe"}, [3, 227, 227], 1000)
VGG16 = ({"builder": "vgg", "depth": 16}, *IMAGENET)
GOOGLENET = ({"builder": "googlenet", "auxiliary": True}, *IMAGENET)
INCEPTION = ({"builder": "inception_v4"}, [3, 299, 299], 1000)
WRN_28_10 = ({"builder": "wide_resnet", "style": "cifar", "depth": 28}, [3, 32, 32], 10)
RESNET_56 = ({"builder": "resnet", "style": "cifar", "depth": 56}, [3, 32, 32], 10)
LENET = ({"builder": "lenet"}, [1, 28, 28], 10)
DENSENET_121 = ({"builder": "densenet", "depth": 121}, *IMAGENET)


def resnet(depth):
    return ({"builder": "resnet", "depth": depth}, *IMAGENET)


def bottlenecks(*blocks):
    return ({"builder": "resnet", "blocks": list(blocks)}, *IMAGENET)


def vgg_with(extra):
    """VGG-16 with more convolutions in each of its five groups."""
    layers = []
    number = 0
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count + extra):
            number += 1
            layers.append({"name": f"conv{number}", "type": "conv2d", "out_channels": channels,
                           "kernel": 3, "padding": 1})
            layers.append({"name": f"relu{number}", "type": "relu"})
        layers.append({"name": f"pool{number}", "type": "max_pool2d", "kernel": 2, "stride": 2})
    for name in ("fc6", "fc7"):
        layers += [{"name": name, "type": "linear", "out_features": 4096},
                   {"name": name + "_relu", "type": "relu"},
                   {"name": name + "_drop", "type": "dropout", "p": 0.5}]
    layers += [{"name": "fc8", "type": "linear", "out_features": 1000},
               {"name": "loss", "type": "softmax_cross_entropy"}]
    return ({"name": "vgg", "input": {"shape": [3, 224, 224]}, "layers": layers}, *IMAGENET)


def plan(network, batch, policy, budget=None, machine="k40m", momentum=0.9, inside=True):
    """-> the object of `layup plan --format json`; a list of them for policy None (--compare)"""
    model, shape, classes = network
    config = {
        "model": model,
        "data": {"format": "synthetic", "shape": shape, "classes": classes, "samples": 1_000_000},
        "solver": {"type": "sgd", "lr": 0.1, "momentum": momentum},
        "train": {"batch": batch},
        "memory": {"updates_inside_backward": inside},
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        command = [BUILD / "apps" / "layup", "plan", file.name, "--format", "json",
                   "--machine", ROOT / "profiles" / (machine + ".json")]
        command += ["--compare"] if policy is None else ["--policy", policy]
        if budget is not None:
            command += ["--budget", str(budget)]
        result = subprocess.run(command, capture_output=True, text=True)
        if not result.stdout:
            raise SystemExit(f"{policy} at batch {batch} of {model}: {result.stderr}")
        return json.loads(result.stdout)


def largest(fits_bytes, first, second, limit=K40M):
    """The largest number for which fits_bytes(number) <= limit, of a function that is close to a line:
    where the line meets the limit, until that is sure or five tries are over."""
    known = {first: fits_bytes(first), second: fits_bytes(second)}
    for _ in range(5):
        good = max((n for n in known if known[n] <= limit), default=None)
        bad = min((n for n in known if known[n] > limit), default=None)
        if good is not None and bad is not None and bad - good <= 1:
            break
        low, high = sorted(known, key=lambda n: abs(known[n] - limit))[:2]
        slope = (known[high] - known[low]) / (high - low)
        guess = max(1, int(low + (limit - known[low]) / slope))
        if guess in known:
            guess = guess + 1 if known[guess] <= limit else guess - 1
        if guess < 1 or guess in known:
            break
        known[guess] = fits_bytes(guess)
    return max((n for n in known if known[n] <= limit), default=None)


def mib(value):
    return f"{value / MIB:,.0f}"


def against(ours, theirs):
    return f"{100 * (ours / theirs - 1):+.1f} %"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def layrub_memory():
    rows = []
    for name, network, caffe, theirs in (
            ("ResNet-34", resnet(34), 4430, 1257), ("ResNet-50", resnet(50), 11425, 1805),
            ("ResNet-302", bottlenecks(3, 16, 78, 3), None, 3448),
            ("ResNet-695", bottlenecks(3, 35, 190, 3), None, 5968),
            ("ResNet-1001", bottlenecks(3, 57, 270, 3), None, 7901),
            ("ResNet-1172", bottlenecks(3, 64, 320, 3), None, 9022),
            ("ResNet-1304", bottlenecks(3, 71, 357, 3), None, 9872),
            ("ResNet-1517", bottlenecks(3, 83, 416, 3), None, 11239)):
        own_caffe = plan(network, 32, "caffe")["planned_peak_bytes"] if caffe else 0
        own = plan(network, 32, "layrub")["planned_peak_bytes"]
        layup = plan(network, 32, "layup")["planned_peak_bytes"]
        rows.append((name, f"{caffe:,}" if caffe else "out of memory", mib(own_caffe) if caffe else "",
                     against(own_caffe / MIB, caffe) if caffe else "", f"{theirs:,}", mib(own),
                     against(own / MIB, theirs), mib(layup)))
    return table(("batch 32", "Caffe, theirs", "`caffe`", "", "Layrub, theirs", "`layrub`", "",
                  "`layup`, smallest"), rows)


def layrub_times():
    rows = []
    for name, network, batch, theirs in (
            ("AlexNet", ALEXNET, 128, 21.85), ("VGG-16", VGG16, 64, 20.63),
            ("GoogLeNet", GOOGLENET, 32, 27.41), ("ResNet-34", resnet(34), 32, 25.52),
            ("ResNet-50", resnet(50), 32, 56.76), ("WRN-28-10", WRN_28_10, 128, 18.42)):
        layrub = plan(network, batch, "layrub")
        layup = plan(network, batch, "layup", layrub["planned_peak_bytes"])
        rows.append((name, batch, f"{theirs:.1f} %") + tuple(
            f"{max(0, 100 * (p['step_ms'] / p['compute_ms'] - 1)):.1f} %" for p in (layrub, layup)))
    return table(("network", "batch", "theirs, over Caffe", "`layrub`, over its work",
                  "`layup` in the same memory"), rows)


def largest_batches():
    rows = []
    for name, network, caffe, policy, theirs in (
            ("AlexNet", ALEXNET, 128, "layrub", 2100), ("VGG-16", VGG16, 64, "layrub", 240),
            ("ResNet-34", resnet(34), 32, "layrub", 416), ("ResNet-50", resnet(50), 32, "layrub", 272),
            ("ResNet-56, CIFAR", RESNET_56, 256, "layrub", 5000),
            ("WRN-28-10, CIFAR", WRN_28_10, 128, "layrub", 1376),
            ("AlexNet", ALEXNET, 768, "superneurons", 1792),
            ("VGG-16", VGG16, 48, "superneurons", 224),
            ("Inception-v4", INCEPTION, 16, "superneurons", 240),
            ("ResNet-50", resnet(50), 24, "superneurons", 384),
            ("ResNet-101", resnet(101), 16, "superneurons", 256),
            ("ResNet-152", resnet(152), 16, "superneurons", 176)):
        found = [largest(lambda batch, p=p: plan(network, batch, p)["planned_peak_bytes"], a, b)
                 for p, a, b in (("caffe", 16, 32), (policy, theirs // 2, theirs),
                                 ("layup", theirs, 2 * theirs))]
        rows.append((name, caffe, found[0], f"`{policy}`", theirs, found[1], found[2]))
    return table(("network", "Caffe, theirs", "`caffe`", "policy", "theirs", "ours", "`layup`"), rows)


def superneurons_ladder():
    theirs = {"baseline": 2189.4, "liveness": 1489.4, "offload": 1132.2, "speed_centric": 993.0,
              "cost_aware": 886.4}
    words = {"baseline": "every tensor by itself", "liveness": "liveness",
             "offload": "+ convolutions' outputs offloaded",
             "speed_centric": "+ recompute, speed-centric", "cost_aware": "+ recompute, cost-aware"}
    rows = []
    for variant, published in theirs.items():
        own = plan(ALEXNET, 200, "superneurons/" + variant)["activation_bytes"] / MIB
        rows.append((words[variant], f"`superneurons/{variant}`", f"{published:,.1f}", f"{own:,.1f}",
                     against(own, published)))
    return table(("AlexNet, batch 200", "plan", "theirs", "ours", ""), rows)


def superneurons_forwards():
    rows = []
    for name, network, batch, counts in (("AlexNet", ALEXNET, 200, (14, 23, 17)),
                                         ("ResNet-50", resnet(50), 32, (84, 118, 85)),
                                         ("ResNet-101", resnet(101), 32, (169, 237, 170))):
        row = [name]
        for variant, theirs in zip(("speed_centric", "memory_centric", "cost_aware"), counts):
            own = plan(network, batch, "superneurons/" + variant)
            row += [theirs, own["num_replays"], f"{own['activation_bytes'] / MIB:,.0f}"]
        rows.append(row)
    return table(("network", "speed-centric", "ours", "MiB", "memory-centric", "ours", "MiB",
                  "cost-aware", "ours", "MiB"), rows)


def depths():
    def network(n):
        return bottlenecks(6, 32, n, 6)

    def planned(policy, inside, batch=16):
        return lambda n: plan(network(n), batch, policy, inside=inside)["planned_peak_bytes"]

    def with_pool(n):
        own = plan(network(n), 16, "superneurons", inside=False)
        persistent = sum(own[k + "_bytes"] for k in ("parameter", "gradient", "solver_state"))
        return max(own["planned_peak_bytes"], persistent + 3072 * MIB)

    def depth(n):
        return "-" if n is None else f"{3 * (44 + n) + 2:,}"

    caffe = plan(network(4), 16, "caffe")["planned_peak_bytes"]
    return table(("batch 16, 11,580 MiB", "theirs", "ours"), [
        ("Caffe (ReLU in place) / `caffe` (not in place)", 148, f"{mib(caffe)} MiB at depth 146"),
        ("SuperNeurons with its pool of 3 GiB, updates after backward", "1,920",
         depth(largest(with_pool, 500, 700))),
        ("`superneurons`", "", depth(largest(planned("superneurons", True), 1200, 1300))),
        ("`layup`, updates after backward", "2,504",
         depth(largest(planned("layup", False), 800, 900))),
        ("`layup`", "", depth(largest(planned("layup", True), 1200, 1300))),
    ])


def vdnn_tables():
    def titan(network, batch, policy, inside=True):
        return plan(network, batch, policy, machine="titan_x_maxwell", momentum=0, inside=inside)

    def gib(bytes_):
        return f"{bytes_ / 2**30:.2f}"

    host = titan(VGG16, 256, "vdnn_all")["host_bytes"]
    rows = [("VGG-16, batch 256: offloaded by all", "16", gib(host), against(host / 2**30, 16))]
    for name, network, batch, policy, theirs in (
            ("VGG-16, batch 256: baseline", VGG16, 256, "vdnn_dyn/baseline", 28),
            ("VGG-16, batch 128: baseline", VGG16, 128, "vdnn_dyn/baseline", 12.3),
            ("VGG-16, batch 128: all", VGG16, 128, "vdnn_all", 4.8),
            ("416 convolutions, batch 32: baseline", vgg_with(80), 32, "vdnn_dyn/baseline", 67.1),
            ("416 convolutions, batch 32: all", vgg_with(80), 32, "vdnn_all", 4.2)):
        own = titan(network, batch, policy)["planned_peak_bytes"]
        rows.append((name, theirs, gib(own), against(own / 2**30, theirs)))
    after = titan(vgg_with(80), 32, "vdnn_all", inside=False)
    own = after["planned_peak_bytes"]
    rows.append(("the same, updates after backward", 4.2, gib(own), against(own / 2**30, 4.2)))
    print("416 convolutions:", gib(after["parameter_bytes"]), gib(after["gradient_bytes"]),
          "GiB of parameters and gradients", file=sys.stderr)
    dyn = plan(VGG16, 128, "vdnn_dyn", 12 * 2**30, "titan_x_maxwell", 0)
    all_ = titan(VGG16, 128, "vdnn_all")
    speeds = table(("VGG-16, batch 128: speed over the baseline's", "theirs", "ours"), [
        ("dyn, 12 GiB", "97 %", f"{100 * dyn['compute_ms'] / dyn['step_ms']:.0f} %"),
        ("all, slow algorithms", "42 % on average", f"{100 * all_['compute_ms'] / all_['step_ms']:.0f} %"),
    ])
    return table(("Titan X", "theirs, GB", "ours, GiB", ""), rows) + "\n\n" + speeds


def side_by_side():
    rows = []
    worst = []
    for name, network, batch in (
            ("LeNet", LENET, 64), ("AlexNet", ALEXNET, 200), ("VGG-16", VGG16, 32),
            ("GoogLeNet", GOOGLENET, 32), ("Inception-v4", INCEPTION, 32),
            ("ResNet-34", resnet(34), 32), ("ResNet-50", resnet(50), 32),
            ("ResNet-152", resnet(152), 32), ("DenseNet-121", DENSENET_121, 32),
            ("ResNet-56, CIFAR", RESNET_56, 256), ("WRN-28-10, CIFAR", WRN_28_10, 128)):
        done = {}
        seen = {"layup", "auto"}
        for other in plan(network, batch, None):
            bytes_ = other["planned_peak_bytes"]
            if other["policy"] in seen:  # `auto` is one of the others
                continue
            seen.add(other["policy"])
            if bytes_ not in done:
                done[bytes_] = plan(network, batch, "layup", bytes_)
            own = done[bytes_]
            is_slower = not own["feasible"] or own["step_ms"] > other["step_ms"] * (1 + 1e-6)
            ratio = own["step_ms"] / other["step_ms"]
            if is_slower:
                worst.append(f"{name} against `{other['policy']}` ({100 * (ratio - 1):+.1f} %)")
            rows.append((f"{name}, {batch}", f"`{other['policy']}`", mib(bytes_),
                         f"{other['step_ms']:,.1f}", f"{own['step_ms']:,.1f}",
                         f"{ratio:.3f}" + (" **slower**" if is_slower else "")))
    verdict = ("`layup` is slower in: " + "; ".join(worst) + "." if worst else
               "`layup` is never slower.")
    return table(("network, batch", "policy", "its memory, MiB", "its step, ms",
                  "`layup` in that memory, ms", "ratio"), rows) + "\n\n" + verdict


def main():
    parts = {"layrub_memory": layrub_memory, "layrub_times": layrub_times,
             "largest_batches": largest_batches, "ladder": superneurons_ladder,
             "forwards": superneurons_forwards, "depths": depths, "vdnn": vdnn_tables,
             "side_by_side": side_by_side}
    text = (ROOT / "bench" / "published_tables.md.in").read_text()
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        results = {name: pool.submit(make) for name, make in parts.items()}
        for name, result in results.items():
            text = text.replace("{{" + name + "}}", result.result())
            print("made", name, file=sys.stderr, flush=True)
    (ROOT / "docs" / "published-tables.md").write_text(text)


if __name__ == "__main__":
    main()
