# SPDX-License-Identifier: Apache-2.0
"""Times training steps of ResNet-18 under DistributedDataParallel with Gloo: bench/multi/step.cpp in Python.

The network is the one of models/resnet.cpp. DDP gets both options that make it faster: gradients as views of the
buckets, and a static graph.
"""
import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class BasicBlock(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, inputs):
        outputs = self.bn1(self.conv1(inputs)).relu_()
        outputs = self.bn2(self.conv2(outputs))
        outputs += inputs if self.downsample is None else self.downsample(inputs)
        return outputs.relu_()


def resnet18(classes, channels):
    """ResNet-18 with the first layers for small images."""
    layers = [nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    inputs = 64
    for stage in range(4):
        for block in range(2):
            width = 64 << stage
            layers.append(BasicBlock(inputs, width, 2 if stage and not block else 1))
            inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--plain-buckets", action="store_true", help="without the two options that make DDP faster")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    fast = not options.plain_buckets
    model = DistributedDataParallel(resnet18(10, 1), gradient_as_bucket_view=fast, static_graph=fast)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(options.batch, 1, 28, 28)
    labels = torch.randint(10, (options.batch,))

    seconds = []
    for step in range(options.warm_up + options.steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if step >= options.warm_up:
            seconds.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        samples = options.batch * dist.get_world_size()
        print(json.dumps({"step_time": statistics.median(seconds), "samples": samples}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
