#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ResNet-20 on Fashion-MNIST in PyTorch, with the recipe of models/configs/resnet20_fashion.json.

Pad-crop 2 and flip, SGD 0.1 with momentum 0.9 and weight decay 1e-4, batch 128, cosine per step, pixels
scaled to [0, 1]. Prints a line of JSON per epoch.
"""
import argparse
import gzip
import json
import math
import pathlib
import time

import numpy
import torch
from torch import nn

from torch_networks import cifar_resnet

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()


def read_idx(name):
    data = gzip.decompress((pathlib.Path(args.data) / name).read_bytes())
    sizes = [int.from_bytes(data[4 + 4 * i:8 + 4 * i], "big") for i in range(data[3])]
    return torch.from_numpy(
        numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * data[3]).reshape(sizes).copy())


def load(split):
    images = read_idx(f"{split}-images-idx3-ubyte.gz").float().div(255).unsqueeze(1)
    return images, read_idx(f"{split}-labels-idx1-ubyte.gz").long()


def augment(images):
    padding, count = 2, images.shape[0]
    padded = nn.functional.pad(images, [padding] * 4)
    offsets = torch.randint(0, 2 * padding + 1, (count, 2))
    flips = torch.rand(count) < 0.5
    size = images.shape[-1]
    result = torch.empty_like(images)
    for i, (top, left) in enumerate(offsets.tolist()):
        crop = padded[i, :, top:top + size, left:left + size]
        result[i] = crop.flip(-1) if flips[i] else crop
    return result


@torch.no_grad()
def accuracy(network, images, labels):
    network.eval()
    correct = sum((network(x).argmax(1) == y).sum().item()
                  for x, y in zip(images.split(500), labels.split(500)))
    network.train()
    return correct / len(labels)


torch.manual_seed(args.seed)
train_images, train_labels = load("train")
test_images, test_labels = load("t10k")
network = cifar_resnet(20, image_channels=1).to(memory_format=torch.channels_last)
solver = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
loss_of = nn.CrossEntropyLoss()
BATCH = 128
steps = args.epochs * math.ceil(len(train_labels) / BATCH)
step = 0
for epoch in range(1, args.epochs + 1):
    start = time.perf_counter()
    for indices in torch.randperm(len(train_labels)).split(BATCH):
        for group in solver.param_groups:
            group["lr"] = 0.05 * (1 + math.cos(math.pi * step / steps))
        images = augment(train_images[indices]).contiguous(memory_format=torch.channels_last)
        solver.zero_grad(set_to_none=True)
        loss = loss_of(network(images), train_labels[indices])
        loss.backward()
        solver.step()
        step += 1
    print(json.dumps({"epoch": epoch, "seconds": round(time.perf_counter() - start, 1),
                      "loss": loss.item(),
                      "test_accuracy": accuracy(network, test_images, test_labels)}), flush=True)
