# SPDX-License-Identifier: Apache-2.0
"""Times a training step of FSDP2: each layer is gathered before it is used, and freed after forward."""
from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from trireme.benchmark.networks import Training
from trireme.benchmark.steps import run


def wrap(training: Training, group: dist.ProcessGroup) -> nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in training.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    return fully_shard(training.network, mesh=mesh)  # what is left


if __name__ == "__main__":
    run(wrap)
