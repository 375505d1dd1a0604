# SPDX-License-Identifier: Apache-2.0
"""Times a training step of Horovod's DistributedOptimizer, or, without the flag, of DDP with `import trireme.torch`."""
from __future__ import annotations

import json

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import trireme.horovod.torch as hvd
import trireme.torch  # noqa: F401
from trireme.benchmark.ddp import make, parse, time_steps


def main() -> None:
    arguments = parse()
    torch.manual_seed(0)
    network, batch = make(arguments.network)
    if arguments.import_trireme:
        hvd.init()
        rank, barrier = hvd.rank(), hvd.barrier
        hvd.broadcast_parameters(network.state_dict(), root_rank=0)
        model, optimizer = network, hvd.DistributedOptimizer(torch.optim.Adam(network.parameters(), lr=1e-4), network.named_parameters())
    else:
        dist.init_process_group("gloo")
        rank, barrier = dist.get_rank(), dist.barrier
        model = DDP(network)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    torch.manual_seed(1 + rank)
    result = time_steps(model, optimizer, lambda: batch(arguments.batch), arguments.steps, barrier)
    if rank == 0:
        print(json.dumps(result))
    hvd.shutdown() if arguments.import_trireme else dist.destroy_process_group()


if __name__ == "__main__":
    main()
