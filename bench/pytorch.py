#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps on the cpu device beside PyTorch's, one process after the other in turns.

For each network, every round runs one process of `layup time`, one of PyTorch tuned with contiguous
tensors, one tuned with channels-last, and one of PyTorch stock (as installed, contiguous). "Tuned":
AVX-512 kernels where the processor has them (ATEN_CPU_CAPABILITY), and a malloc that keeps freed memory
in the process. The faster of the two formats is what Layup is compared with. A figure is the median over
the processes of each process's median step. Prints a Markdown table. Run it on an idle machine.

PyTorch is Debian's (python3-torch, python3-torchvision); --install gets it.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = "/usr/bin/python3"  # the one that Debian's packages are for


def resnet(depth):
    return {"builder": "resnet", "depth": depth, "style": "imagenet", "classes": 1000}


def cifar(depth):
    return {"builder": "resnet", "depth": depth, "style": "cifar", "classes": 10}


IMAGENET = ([3, 224, 224], 1000)
# name: (torch's name, batch, model, image, classes)
NETWORKS = {
    "resnet18": ("resnet18", 8, resnet(18), *IMAGENET),
    "resnet50": ("resnet50", 8, resnet(50), *IMAGENET),
    "resnet101": ("resnet101", 8, resnet(101), *IMAGENET),
    "resnet152": ("resnet152", 8, resnet(152), *IMAGENET),
    "vgg16": ("vgg16", 8, {"builder": "vgg", "depth": 16, "classes": 1000}, *IMAGENET),
    "vgg19": ("vgg19", 8, {"builder": "vgg", "depth": 19, "classes": 1000}, *IMAGENET),
    "alexnet": ("alexnet", 32, {"builder": "alexnet", "classes": 1000}, *IMAGENET),
    "resnet20": ("cifar_resnet20", 128, cifar(20), [3, 32, 32], 10),
    "resnet110": ("cifar_resnet110", 128, cifar(110), [3, 32, 32], 10),
    "lenet": ("lenet", 64, {"builder": "lenet", "classes": 10}, [1, 28, 28], 10),
}


def tuned_environment():
    environment = {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 33),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
        "MALLOC_TOP_PAD_": str(1 << 28),
    }
    if "avx512f" in pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii"):
        environment["ATEN_CPU_CAPABILITY"] = "avx512"
    return environment


def run(command, environment=None):
    done = subprocess.run(command, env={**os.environ, **(environment or {})}, capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr}")
    return json.loads(done.stdout)


def install():
    prefix = [] if os.geteuid() == 0 else ["sudo"]
    subprocess.run([*prefix, "apt-get", "install", "--yes", "--no-install-recommends",
                    "python3-torch", "python3-torchvision"], check=True)


def config_of(name, batch, folder):
    _, default_batch, model, shape, classes = NETWORKS[name]
    config = {
        "model": model,
        "data": {"format": "synthetic", "shape": shape, "classes": classes,
                 "samples": batch or default_batch},
        "solver": {"type": "sgd", "lr": 1e-4, "momentum": 0.9},
        "train": {"batch": batch or default_batch, "epochs": 1},
    }
    path = pathlib.Path(folder) / f"{name}.json"
    path.write_text(json.dumps(config), encoding="ascii")
    return path


def measure(name, args, folder):
    torch_name, batch, *_ = NETWORKS[name]
    batch = args.batch or batch
    count = ["--steps", str(args.steps), "--threads", str(args.threads)]
    layup = [args.build + "/apps/layup", "time", str(config_of(name, args.batch, folder)),
             "--format", "json", "--device", args.device, *args.layup_options.split()]
    torch = [PYTHON, str(ROOT / "bench/pytorch_step.py"), torch_name, str(batch), *count]
    kinds = {"layup": lambda: run(layup + count)}
    if not args.layup_only:
        kinds["contiguous"] = lambda: run(torch, tuned_environment())
        kinds["channels-last"] = lambda: run([*torch, "--channels-last"], tuned_environment())
        if args.stock:
            kinds["stock"] = lambda: run(torch)
    results = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind, start in kinds.items():
            results[kind].append(start())
            latest = results[kind][-1]
            print(f"{name} {kind}: {latest['step_ms_median']:.2f} ms, "
                  f"{latest['process_peak_rss_bytes'] / 2**20:.0f} MiB", file=sys.stderr)
    return batch, {kind: (statistics.median(r["step_ms_median"] for r in runs),
                          statistics.median(r["process_peak_rss_bytes"] for r in runs) / 2**20)
                   for kind, runs in results.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), help=", ".join(NETWORKS))
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=0, help="instead of each network's own")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind")
    parser.add_argument("--steps", type=int, default=7, help="steps that count in a process")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--stock", action="store_true", help="also PyTorch as installed")
    parser.add_argument("--layup-only", action="store_true")
    parser.add_argument("--layup-options", default="", help="more options for `layup time`")
    parser.add_argument("--install", action="store_true", help="install PyTorch first")
    args = parser.parse_args()
    unknown = set(args.networks) - set(NETWORKS)
    if unknown:
        parser.error(f"unknown networks: {', '.join(sorted(unknown))}")
    if args.install:
        install()
    columns = ["network, batch", "Layup ms", "PyTorch tuned ms", "over tuned", "PyTorch stock ms",
               "over stock", "Layup MiB", "PyTorch MiB", "over"]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    with tempfile.TemporaryDirectory() as folder:
        for name in args.networks:
            batch, figures = measure(name, args, folder)
            ms, mib = figures["layup"]
            row = [f"{name}, {batch}", f"{ms:.1f}"] + ["-"] * 4 + [f"{mib:.0f}", "-", "-"]
            formats = [kind for kind in ("contiguous", "channels-last") if kind in figures]
            if formats:
                best = min(formats, key=lambda kind: figures[kind][0])
                tuned_ms, tuned_mib = figures[best]
                row[2:4] = [f"{tuned_ms:.1f} ({best})", f"{ms / tuned_ms:.3f}"]
                row[7:9] = [f"{tuned_mib:.0f}", f"{mib / tuned_mib:.3f}"]
            if "stock" in figures:
                row[4:6] = [f"{figures['stock'][0]:.1f}", f"{ms / figures['stock'][0]:.3f}"]
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
