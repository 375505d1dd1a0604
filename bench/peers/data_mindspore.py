# SPDX-License-Identifier: Apache-2.0
"""The pipelines of bench/multi/data.cpp with MindSpore's dataset, all of it in its own C++ operations."""
import argparse
import json
import time

import mindspore.dataset as ds
from mindspore.dataset import vision


def cifar10(options):
    images = ds.Cifar10Dataset(options.data, usage="train", shuffle=not options.check)
    operations = [vision.Resize((224, 224)), vision.Rescale(1 / 255, 0),
                  vision.Normalize([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]), vision.HWC2CHW()]
    if not options.check:
        operations = [vision.RandomCrop((32, 32), (4, 4, 4, 4)), vision.RandomHorizontalFlip(), *operations]
    return images.map(operations, "image").batch(32, drop_remainder=True)


def fashion_mnist(options):
    images = ds.FashionMnistDataset(options.data, usage="train", shuffle=not options.check)
    return images.map([vision.Normalize([72.94], [90.02]), vision.HWC2CHW()], "image").batch(64, drop_remainder=True)


def throughput(images, seconds):
    batches = images.create_tuple_iterator(num_epochs=-1, output_numpy=True)
    current = iter(batches)

    def take(duration):
        nonlocal current
        began, used, samples = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began < duration:
            batch = next(current, None)
            if batch is None:
                current = iter(batches)
                continue
            samples += len(batch[1])
        return {"samples": samples, "seconds": time.perf_counter() - began, "core_seconds": time.process_time() - used}

    take(seconds / 4)
    return take(seconds)


def sums(images):
    batches = images.create_tuple_iterator(num_epochs=1, output_numpy=True)
    first = [batch for batch, _ in zip(batches, range(10))]
    return {"sums": [float(batch.sum(dtype="float64")) for batch, _ in first],
            "labels": [int(labels.sum()) for _, labels in first]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pipeline", choices=("cifar10", "fashion_mnist"), default="cifar10")
    parser.add_argument("--data", required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()

    ds.config.set_num_parallel_workers(options.workers)
    ds.config.set_enable_autotune(False)
    images = cifar10(options) if options.pipeline == "cifar10" else fashion_mnist(options)
    print(json.dumps(sums(images) if options.check else throughput(images, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
