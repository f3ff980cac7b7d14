#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes data/samples/fashion-mnist from the whole of Fashion-MNIST.

    tools/make_samples.py [FOLDER_WITH_FASHION_MNIST] [OUTPUT_FOLDER]

Takes the first images of each class, the same number of each, in their old order. The same input
gives the same files (gzip without names and times; the bytes also depend on the zlib version).
"""
import gzip
import pathlib
import struct
import sys

CLASSES = 10
PER_CLASS = {"train": 1000, "t10k": 150}


def read_idx(path, num_dims):
    data = gzip.decompress(path.read_bytes())
    magic, *dims = struct.unpack_from(f">{1 + num_dims}I", data)
    if magic != 0x800 + num_dims:
        sys.exit(f"{path}: magic number {magic:#x}")
    return dims, data[4 + 4 * num_dims :]


def write_idx(path, dims, content):
    header = struct.pack(f">{1 + len(dims)}I", 0x800 + len(dims), *dims)
    with open(path, "wb") as raw:
        with gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
            out.write(header + content)
    print(f"{path}: {path.stat().st_size} bytes")


def make_split(source, target, split, per_class):
    (_, height, width), pixels = read_idx(source / f"{split}-images-idx3-ubyte.gz", 3)
    _, labels = read_idx(source / f"{split}-labels-idx1-ubyte.gz", 1)
    size = height * width
    taken = [0] * CLASSES
    chosen = []
    for i, label in enumerate(labels):
        if taken[label] < per_class:
            taken[label] += 1
            chosen.append(i)
    if taken != [per_class] * CLASSES:
        sys.exit(f"{source}: too few {split} images of a class: {taken}")
    images = b"".join(pixels[i * size : (i + 1) * size] for i in chosen)
    write_idx(target / f"{split}-images-idx3-ubyte.gz", (len(chosen), height, width), images)
    write_idx(target / f"{split}-labels-idx1-ubyte.gz", (len(chosen),),
              bytes(labels[i] for i in chosen))


def main():
    here = pathlib.Path(__file__).resolve().parent.parent
    args = sys.argv[1:]
    source = pathlib.Path(args[0] if args else "/usr/share/datasets/fashion-mnist")
    target = pathlib.Path(args[1]) if len(args) > 1 else here / "data/samples/fashion-mnist"
    target.mkdir(parents=True, exist_ok=True)
    for split, per_class in PER_CLASS.items():
        make_split(source, target, split, per_class)


if __name__ == "__main__":
    main()
