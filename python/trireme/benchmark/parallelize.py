# SPDX-License-Identifier: Apache-2.0
"""Times a training step of `trireme.parallelize`, over the default process group, whose backend it does not use."""
from __future__ import annotations

import argparse
import json

import torch
import torch.distributed as dist

import trireme
from trireme.benchmark.steps import adam, connect, make, parser, time_steps


def parse() -> argparse.Namespace:
    options = parser()
    options.add_argument("--zero-level", type=int, default=0, help="0 to 3: what is sharded (default: %(default)s)")
    return options.parse_args()


def main() -> None:
    arguments = parse()
    connect(arguments.collectives)
    training = make(arguments)
    optimizer = adam(training.network)
    parallel = trireme.parallelize(training.network, trireme.Plan(zero_level=arguments.zero_level), optimizer=optimizer)
    torch.manual_seed(1 + dist.get_rank())
    result = time_steps(arguments, training, (training.network, optimizer), dist.barrier)
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    parallel.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
