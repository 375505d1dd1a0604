# SPDX-License-Identifier: Apache-2.0
"""An ordinary DDP script, as in PyTorch's tutorials: a toy model, a checkpoint that rank 0 saves and all load, data by a
DistributedSampler. Imports trireme.torch if TEST_IMPORTS is 1. Rank 0 prints the losses and the engine."""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if os.environ["TEST_IMPORTS"] == "1":
    import trireme.torch


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 10), torch.randn(96, 5))
    model = DDP(ToyModel())
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    path = [os.path.join(tempfile.mkdtemp(), "model.checkpoint") if rank == 0 else None]
    dist.broadcast_object_list(path)
    if rank == 0:
        torch.save(model.state_dict(), path[0])
    dist.barrier()
    model.load_state_dict(torch.load(path[0], map_location="cpu", weights_only=True))

    sampler = DistributedSampler(data, shuffle=True, seed=3)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, batch_size=16, sampler=sampler, num_workers=1):
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
    dist.barrier()
    if rank == 0:
        os.remove(path[0])
        os.rmdir(os.path.dirname(path[0]))
        engine = trireme.torch.engine() if os.environ["TEST_IMPORTS"] == "1" else "gloo"
        print("losses", *losses)
        print("engine", engine, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
