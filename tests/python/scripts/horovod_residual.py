# SPDX-License-Identifier: Apache-2.0
"""A small residual network with accumulated batches, warm-up and checkpoints. Makes the calls of Horovod's example for ImageNet, in their
order. Rank 0 prints the losses."""
import argparse
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
import trireme.horovod.torch as hvd
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                                    nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))

    def forward(self, images):
        return F.relu(images + self.layers(images))


class Metric:
    def __init__(self, name):
        self.name, self.sum, self.count = name, torch.tensor(0.0), torch.tensor(0.0)

    def update(self, value):
        self.sum += hvd.allreduce(value.detach().cpu(), name=self.name)
        self.count += 1

    @property
    def average(self):
        return self.sum / self.count


def make_data(count, seed):
    shapes = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (count,), generator=generator)
    return TensorDataset(shapes[labels] + 0.5 * torch.randn(count, 3, 8, 8, generator=generator), labels)


def adjust_learning_rate(epoch, step, steps):
    progress = epoch + (step + 1) / steps
    factor = (progress * (hvd.size() - 1) / WARM_UP + 1) / hvd.size() if progress < WARM_UP else 1.0
    for group in optimizer.param_groups:
        group["lr"] = RATE * hvd.size() * PASSES * factor


RATE, PASSES, BATCH, WARM_UP = 0.02, 2, 8, 1
parser = argparse.ArgumentParser()
parser.add_argument("--folder", required=True)
parser.add_argument("--epochs", type=int, required=True)
arguments = parser.parse_args()
checkpoint = os.path.join(arguments.folder, "checkpoint-{epoch}.pth.tar")

hvd.init()
torch.manual_seed(42)
resume_from = 0
for epoch in range(arguments.epochs, 0, -1):
    if os.path.exists(checkpoint.format(epoch=epoch)):
        resume_from = epoch
        break
resume_from = hvd.broadcast(torch.tensor(resume_from), root_rank=0, name="resume_from_epoch").item()
if hvd.rank() == 0:
    print("begins with epoch", resume_from)
torch.set_num_threads(1)
data = make_data(200, 1)  # the last batch of an epoch has fewer passes
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(data, batch_size=BATCH * PASSES, sampler=sampler)
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Block(8), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=RATE * PASSES * hvd.size(), momentum=0.9, weight_decay=5e-5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.none,
                                     backward_passes_per_step=PASSES, op=hvd.Average, gradient_predivide_factor=1.0)
if resume_from > 0 and hvd.rank() == 0:
    saved = torch.load(checkpoint.format(epoch=resume_from))
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for epoch in range(resume_from, arguments.epochs):
    model.train()
    sampler.set_epoch(epoch)
    train_loss = Metric("train_loss")
    for step, (images, labels) in enumerate(loader):
        adjust_learning_rate(epoch, step, len(loader))
        optimizer.zero_grad()
        for start in range(0, len(images), BATCH):
            loss = F.cross_entropy(model(images[start:start + BATCH]), labels[start:start + BATCH])
            train_loss.update(loss)
            loss.div_(math.ceil(len(images) / BATCH))
            loss.backward()
        optimizer.step()
    if hvd.rank() == 0:
        print("loss", train_loss.average.item(), flush=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint.format(epoch=epoch + 1))
