# SPDX-License-Identifier: Apache-2.0
"""The pipelines of bench/multi/data.cpp with PyTorch's DataLoader and torchvision's transforms in torch operations.

`--form samples` is the usual way: transforms of single images, then default_collate. `--form batches` is written by
hand: random crops and flips of single images, everything else on whole batches (`__getitems__`). Whatever torchvision does on
tensors is done here in the same way: v2 resizes uint8 without a detour through float32, and normalises in place.
"""
import argparse
import gzip
import json
import os
import pathlib
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
DEVIATION = torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)


def load_cifar10(folder):
    records = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073)
                              for file in sorted(pathlib.Path(folder).glob("data_batch_*.bin"))])
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(records[:, 0].astype(np.int64))


def load_fashion_mnist(folder):
    images, labels = (np.frombuffer(gzip.decompress((pathlib.Path(folder) / name).read_bytes()), np.uint8)
                      for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"))
    return torch.from_numpy(images[16:].reshape(-1, 1, 28, 28).copy()), torch.from_numpy(labels[8:].astype(np.int64))


def random_crop_and_flip(image):
    padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
    top, left = torch.randint(0, 9, (2,)).tolist()
    piece = padded[:, top:top + 32, left:left + 32]
    return piece.flip(-1) if torch.rand(1) < 0.5 else piece


def resize(images):
    return torch.nn.functional.interpolate(images, size=(224, 224), mode="bilinear", align_corners=False)


def rescale_and_normalize(images):
    return images.to(torch.float32).div_(255).sub_(MEAN).div_(DEVIATION)


def normalize_fashion_mnist(images):
    return images.to(torch.float32).sub_(72.94).div_(90.02)


class Samples(Dataset):
    def __init__(self, images, labels, pipeline, is_random):
        self.images, self.labels = images, labels
        self.is_cifar10, self.is_random = pipeline == "cifar10", is_random

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if not self.is_cifar10:
            return normalize_fashion_mnist(image), self.labels[index]
        if self.is_random:
            image = random_crop_and_flip(image)
        return rescale_and_normalize(resize(image.unsqueeze(0)).squeeze(0)), self.labels[index]


class Batches(Samples):
    """Gives whole batches; there is nothing left to collate."""

    def __getitems__(self, indices):
        index = torch.tensor(indices)
        if not self.is_cifar10:
            return normalize_fashion_mnist(self.images[index]), self.labels[index]
        if self.is_random:
            images = torch.stack([random_crop_and_flip(self.images[row]) for row in indices])
        else:
            images = self.images[index]
        return rescale_and_normalize(resize(images)), self.labels[index]


def core_seconds(pids):
    """Of these processes, all their threads included."""
    ticks = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def throughput(loader, seconds):
    batches = iter(loader)
    pids = [os.getpid(), *(worker.pid for worker in batches._workers)]  # persistent: the same for all epochs

    def take(duration):
        nonlocal batches
        began, used, samples = time.perf_counter(), core_seconds(pids), 0
        while time.perf_counter() - began < duration:
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                continue
            samples += len(batch[1])
        return {"samples": samples, "seconds": time.perf_counter() - began, "core_seconds": core_seconds(pids) - used}

    take(seconds / 4)
    return take(seconds)


def sums(loader):
    first = [batch for batch, _ in zip(loader, range(10))]
    return {"sums": [images.sum(dtype=torch.float64).item() for images, _ in first],
            "labels": [labels.sum().item() for _, labels in first]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pipeline", choices=("cifar10", "fashion_mnist"), default="cifar10")
    parser.add_argument("--data", required=True)
    parser.add_argument("--form", choices=("samples", "batches"), default="samples")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()

    torch.set_num_threads(1)
    load = load_cifar10 if options.pipeline == "cifar10" else load_fashion_mnist
    samples = Batches if options.form == "batches" else Samples
    loader = DataLoader(samples(*load(options.data), options.pipeline, not options.check),
                        batch_size=32 if options.pipeline == "cifar10" else 64, shuffle=not options.check, drop_last=True,
                        num_workers=options.workers, persistent_workers=True, prefetch_factor=4 // options.workers,
                        collate_fn=(lambda batch: batch) if options.form == "batches" else None)
    record = sums(loader) if options.check else throughput(loader, options.seconds)
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
