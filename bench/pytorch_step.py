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


class CifarBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, a projection where the shape changes."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.shortcut is None else self.shortcut(x)))


def cifar_resnet(depth):
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    channels = 16
    for width in (16, 32, 64):
        for i in range((depth - 2) // 6):
            layers.append(CifarBlock(channels, width, 2 if i == 0 and width > 16 else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(800, 500), nn.ReLU(inplace=True), nn.Linear(500, 10),
    )


def build(name):
    """The network, the shape of an image, the number of classes."""
    if name.startswith("cifar_resnet"):
        return cifar_resnet(int(name[len("cifar_resnet"):])), (3, 32, 32), 10
    if name == "lenet":
        return lenet(), (1, 28, 28), 10
    import torchvision

    return getattr(torchvision.models, name)(), (3, 224, 224), 1000


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
