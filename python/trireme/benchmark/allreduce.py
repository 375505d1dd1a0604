# SPDX-License-Identifier: Apache-2.0
"""Times dist.all_reduce as the benchmark of the library in C++ times its calls (bench/multi/comm_loop.h).

Some batches of: write all buffers anew, barrier, one call for each buffer. Small tensors have many buffers, and a large one is alone. A
batch takes from the moment when the last rank begins its calls until the last rank is done. The sums of the last batch are verified.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

from trireme.benchmark.steps import connect

SIZES = [4 * 4**power for power in range(14)]  # bytes: up to 256 MiB
BYTES_OF_BUFFERS, MOST_BUFFERS, MOST_BATCHES = 256 * 2**10, 64, 300
PERIOD = 64  # elements after which the values repeat


class Buffers:
    """The tensors of one size. Their values are whole numbers, so that sums are exact, and differ from batch to batch."""

    def __init__(self, size: int) -> None:
        count = max(1, size // 4)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.pattern = torch.arange(float(PERIOD)).repeat(-(-count // PERIOD))[:count]
        self.tensors = [torch.zeros(count) for _ in range(min(max(BYTES_OF_BUFFERS // size, 1), MOST_BUFFERS))]

    @staticmethod
    def _shift(rank: int, batch: int, place: int) -> int:
        return (29 * rank + 13 * batch + 7 * place) % PERIOD

    def fill(self, batch: int) -> None:
        for place, tensor in enumerate(self.tensors):
            torch.add(self.pattern, self._shift(self.rank, batch, place), out=tensor)

    def verify(self, batch: int) -> None:
        for place, tensor in enumerate(self.tensors):
            shifts = sum(self._shift(rank, batch, place) for rank in range(self.ranks))
            if not torch.equal(tensor, self.pattern * self.ranks + shifts):
                sys.exit(f"rank {self.rank}: the sum of {tensor.numel()} elements is wrong")


def run_batch(buffers: Buffers, batch: int) -> tuple[float, float]:
    """Returns when this rank began and ended its calls. All processes of a host share this clock."""
    buffers.fill(batch)
    dist.barrier()
    began = time.monotonic()
    for tensor in buffers.tensors:
        dist.all_reduce(tensor)
    return began, time.monotonic()


def over_ranks(values: list[float]) -> list[float]:
    """Returns the largest values of all ranks."""
    largest = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.tolist()


def time_of(size: int, seconds: float) -> float:
    """Returns the seconds of one call: the median of the batches."""
    buffers = Buffers(size)
    batch, taken = 0, 0.0
    while batch < 2 and taken < seconds:  # warms up; all ranks do the same
        began = time.monotonic()
        run_batch(buffers, batch)
        taken = over_ranks([time.monotonic() - began])[0]
        batch += 1
    batches = min(max(int(seconds / taken), 1), MOST_BATCHES)
    began, ended = zip(*(run_batch(buffers, batch + number) for number in range(batches)))
    buffers.verify(batch + batches - 1)
    began, ended = over_ranks(list(began)), over_ranks(list(ended))
    return statistics.median((last - first) / len(buffers.tensors) for first, last in zip(began, ended))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--collectives", choices=("trireme", "gloo"), default="trireme")
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=SIZES, help="bytes")
    parser.add_argument("--limit", type=int, default=SIZES[-1], help="leaves out larger sizes (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.05, help="for each size (default: %(default)s)")
    arguments = parser.parse_args()
    connect(arguments.collectives)
    seconds = {size: time_of(size, arguments.seconds) for size in arguments.sizes if size <= arguments.limit}
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": seconds}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
