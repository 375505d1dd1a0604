# SPDX-License-Identifier: Apache-2.0
"""Times dist.all_reduce: an ordinary script of torch.distributed, which imports trireme.torch only where it is told to."""
from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist

BATCHES = 11  # of calls; the result is the median of their means


def time_of(size: int, seconds: float) -> float:
    """Returns the seconds of one call. All ranks make the same number of calls."""
    tensor = torch.ones(max(1, size // 4))
    for _ in range(3):
        dist.all_reduce(tensor)
    dist.barrier()
    started = time.perf_counter()
    for _ in range(3):
        dist.all_reduce(tensor)
    calls = torch.tensor([max(1, int(seconds / BATCHES * 3 / (time.perf_counter() - started)))])
    dist.broadcast(calls, 0)
    times = []
    for _ in range(BATCHES):
        dist.barrier()
        started = time.perf_counter()
        for _ in range(int(calls)):
            dist.all_reduce(tensor)
        times.append((time.perf_counter() - started) / int(calls))
        tensor.fill_(1)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--import-trireme", action="store_true")
    parser.add_argument("--largest", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    if arguments.import_trireme:
        import trireme.torch  # noqa: F401
    dist.init_process_group("gloo")
    sizes = [4 * 4**power for power in range(20) if 4 * 4**power <= arguments.largest]
    seconds = {size: time_of(size, arguments.seconds) for size in sizes}
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": seconds}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
