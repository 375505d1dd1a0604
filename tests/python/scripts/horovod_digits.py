# SPDX-License-Identifier: Apache-2.0
"""Learns to tell made-up digits apart. Makes the calls of Horovod's example for MNIST, in their order. Rank 0 prints the losses."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import trireme.horovod.torch as hvd
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3, stride=2)
        self.dropout = nn.Dropout2d(0.1)
        self.output = nn.Linear(8 * 6 * 6, 10)

    def forward(self, images):
        return F.log_softmax(self.output(torch.flatten(self.dropout(F.relu(self.convolution(images))), 1)), dim=1)


def make_data(count, seed):
    shapes = torch.randn(10, 1, 14, 14, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    return TensorDataset(shapes[labels] + torch.randn(count, 1, 14, 14, generator=generator), labels)


def mean_over_ranks(value, name):
    return hvd.allreduce(torch.as_tensor(value), name=name).item()


parser = argparse.ArgumentParser()
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--use-adasum", action="store_true")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
arguments = parser.parse_args()

hvd.init()
torch.manual_seed(42)
torch.set_num_threads(1)
data, test_data = make_data(512, 1), make_data(100, 2)
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(data, batch_size=32, sampler=sampler)
test_sampler = DistributedSampler(test_data, num_replicas=hvd.size(), rank=hvd.rank())
test_loader = DataLoader(test_data, batch_size=50, sampler=test_sampler)
model = Net()
factor = 1 if arguments.use_adasum else hvd.size()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * factor, momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                     compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
                                     op=hvd.Adasum if arguments.use_adasum else hvd.Average,
                                     gradient_predivide_factor=arguments.gradient_predivide_factor)
for epoch in range(3):
    model.train()
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        F.nll_loss(model(images), labels).backward()
        optimizer.step()
    model.eval()
    loss, right = 0.0, torch.tensor(0.0)
    with torch.no_grad():
        for images, labels in test_loader:
            output = model(images)
            loss += F.nll_loss(output, labels, reduction="sum").item()
            right += output.argmax(1).eq(labels).float().sum()
    loss = mean_over_ranks(loss / len(test_sampler), "avg_loss")
    right = mean_over_ranks(right / len(test_sampler), "avg_accuracy")
    if hvd.rank() == 0:
        print(f"epoch {epoch}, {100 * right:.1f} % right")
        print("loss", loss, flush=True)
