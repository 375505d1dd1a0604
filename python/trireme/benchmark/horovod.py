# SPDX-License-Identifier: Apache-2.0
"""Times a training step of Horovod's DistributedOptimizer."""
from __future__ import annotations

import json

import torch

import trireme.horovod.torch as hvd
from trireme.benchmark.steps import adam, make, parser, time_steps


def main() -> None:
    arguments = parser().parse_args()
    hvd.init()
    training = make(arguments)
    network = training.network
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(adam(network), network.named_parameters())
    torch.manual_seed(1 + hvd.rank())
    result = time_steps(arguments, training, (network, optimizer), hvd.barrier)
    if hvd.rank() == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
