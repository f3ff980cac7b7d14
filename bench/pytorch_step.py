#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of one network in PyTorch, in this process; prints one line of JSON.

A step is forward, loss, backward and SGD with momentum on one fixed batch, as `layup time` does it.
"""
import argparse
import json
import os
import resource
import statistics
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("network", help="a model of torchvision, cifar_resnet<depth>, or lenet")
parser.add_argument("batch", type=int)
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--steps", type=int, default=7, help="steps that count, after two that do not")
parser.add_argument("--seconds", type=float, default=0, help="more steps until so much time is over")
args = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(args.threads)

import torch  # noqa: E402 (the number of threads is read when it is loaded)
from torch import nn  # noqa: E402

from torch_networks import build  # noqa: E402

torch.set_num_threads(args.threads)
torch.manual_seed(0)
network, shape, classes = build(args.network)
network.train()
images = torch.randn(args.batch, *shape)
labels = torch.randint(0, classes, (args.batch,))
if args.channels_last:
    network = network.to(memory_format=torch.channels_last)
    images = images.contiguous(memory_format=torch.channels_last)
solver = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
loss_of = nn.CrossEntropyLoss()


def step():
    start = time.perf_counter()
    solver.zero_grad(set_to_none=True)
    loss_of(network(images), labels).backward()
    solver.step()
    return (time.perf_counter() - start) * 1e3


for _ in range(2):
    step()
times = []
start = time.perf_counter()
while len(times) < args.steps or time.perf_counter() - start < args.seconds:
    times.append(step())
print(json.dumps({
    "network": args.network,
    "batch": args.batch,
    "step_ms_median": statistics.median(times),
    "step_ms": times,
    "num_parameters": sum(p.numel() for p in network.parameters()),
    "process_peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
