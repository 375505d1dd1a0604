# SPDX-License-Identifier: Apache-2.0
"""Times a training step with weights that are distributed tensors: tensor parallelism, in which all ranks have the same batch."""
from __future__ import annotations

import sys

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import parallelize_module

from trireme.benchmark.networks import Training
from trireme.benchmark.steps import run


def wrap(training: Training, group: dist.ProcessGroup) -> nn.Module:
    if not training.plan:
        sys.exit("tensor parallelism has no plan for this network\n  hint: give --network mlp, wide-mlp or gpt")
    # Each rank has all values and takes its part of them.
    return parallelize_module(training.network, DeviceMesh.from_group(group, "cpu"), training.plan, src_data_rank=None)


if __name__ == "__main__":
    run(wrap, shares_batch=True)
