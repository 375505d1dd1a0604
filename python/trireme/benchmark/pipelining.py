# SPDX-License-Identifier: Apache-2.0
"""Times a training step of torch.distributed.pipelining: 1F1B over as many stages as there are ranks, which are parts of a sequence."""
from __future__ import annotations

import json

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from trireme.benchmark.networks import Training
from trireme.benchmark.steps import adam, connect, make, parser, time_calls


def stage_of(training: Training, rank: int, size: int) -> nn.Module:
    """Returns a part of the layers, in which about every rank has equally many parameters."""
    layers = list(training.network.children())
    ends = torch.tensor([sum(each.numel() for each in layer.parameters()) for layer in layers]).cumsum(0) / training.parameters
    return nn.Sequential(*(layer for layer, end in zip(layers, ends.tolist()) if rank == min(int(size * (end - 1e-9)), size - 1)))


def main() -> None:
    options = parser()
    options.add_argument("--micro-batches", type=int, default=4, help="default: %(default)s")
    arguments = options.parse_args()
    connect(arguments.collectives)
    rank, size = dist.get_rank(), dist.get_world_size()
    training = make(arguments)
    part = stage_of(training, rank, size)
    optimizer = adam(part)
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, arguments.micro_batches, loss_fn=F.cross_entropy)
    torch.manual_seed(1)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> float:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        is_last = rank == size - 1
        schedule.step(*([inputs] if rank == 0 else []), target=targets if is_last else None, losses=losses if is_last else None)
        optimizer.step()
        return sum(loss.item() for loss in losses)

    result = time_calls(arguments, training, step, dist.barrier)
    everyone: list[dict[str, object]] = [{}] * size
    dist.all_gather_object(everyone, result)
    if rank == 0:
        print(json.dumps(result | {"losses": everyone[-1]["losses"], "parameters": training.parameters}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
