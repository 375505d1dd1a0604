# SPDX-License-Identifier: Apache-2.0
"""Times the steps of a training that take a tenth of a millisecond or less: bench/multi/small.cpp in Python, under
DistributedDataParallel with Gloo. Batches are made before, so that no loader of PyTorch is timed.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

POINTS, BATCH, REPEATS = 160, 16, 20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=0, help="hidden layers of 16 units")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    widths = [2] + [16] * options.layers
    hidden = [[nn.Linear(before, after), nn.Tanh()] for before, after in zip(widths, widths[1:])]
    module = nn.Sequential(*sum(hidden, []), nn.Linear(widths[-1], 1))
    model = DistributedDataParallel(module, gradient_as_bucket_view=True, static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.6)
    x, y = 2 * torch.rand(POINTS, 1) - 1, 2 * torch.rand(POINTS, 1) - 1
    features, target = torch.cat([x**2, y**3], 1), 2 * x**2 + 3 * y**3 + 5 + 0.03 * torch.randn(POINTS, 1)
    batches = list(zip(features.split(BATCH), target.split(BATCH))) * REPEATS

    def epoch():
        for inputs, expected in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), expected).backward()
            optimizer.step()

    epoch()
    began = time.perf_counter()
    for _ in range(options.epochs):
        epoch()
    seconds = (time.perf_counter() - began) / options.epochs
    if dist.get_rank() == 0:
        print(json.dumps({"epoch_time": seconds, "step_time": seconds / len(batches)}), flush=True)
    dist.barrier()
    # Destroying the group, or leaving it to the interpreter, sometimes ends in std::terminate (PyTorch 2.13).
    os._exit(0)


if __name__ == "__main__":
    main()
