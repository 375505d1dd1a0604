# SPDX-License-Identifier: Apache-2.0
"""Times a training step of DDP, with both of its options that make it faster."""
from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trireme.benchmark.networks import Training
from trireme.benchmark.steps import run


def wrap(training: Training, group: dist.ProcessGroup) -> nn.Module:
    return DDP(training.network, process_group=group, gradient_as_bucket_view=True, static_graph=True)


if __name__ == "__main__":
    run(wrap)
