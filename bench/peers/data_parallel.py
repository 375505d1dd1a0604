# SPDX-License-Identifier: Apache-2.0
"""Times training steps under DistributedDataParallel or fully_shard with Gloo: bench/multi/data_parallel.cpp in Python.

Models, batches and Adam (one parameter after the other, as LibTorch's) are the same. DDP gets both options that make it
faster, and fully_shard the units that its documentation recommends: one a layer, parameters freed after forward.
"""
import argparse
import json
import os
import re
import statistics
import time

import torch
import torch.distributed as dist
from ddp_step import BasicBlock, resnet18
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


class PeakMemory:
    """bench/multi/peak_memory.h says what counts."""

    def __init__(self):
        self.baseline = self.read("status", "RssAnon") + self.read("smaps_rollup", "Pss_Shmem")
        self.begin_stretch()

    def end_stretch(self):
        elsewhere = (self.read("status", "RssFile") + self.read("status", "RssShmem") -
                     self.read("smaps_rollup", "Pss_Shmem"))
        peak = self.read("status", "VmHWM") - elsewhere - self.baseline
        self.begin_stretch()
        return max(peak, 0) << 10

    @staticmethod
    def read(file, name):
        with open(f"/proc/self/{file}") as lines:
            return int(re.search(rf"^{name}:\s+(\d+) kB", lines.read(), re.MULTILINE).group(1))

    @staticmethod
    def begin_stretch():
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")


def mlp(*widths):
    layers = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden)
        self.attention_input = nn.Linear(hidden, 3 * hidden)
        self.attention_output = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.mlp_input = nn.Linear(hidden, 4 * hidden)
        self.mlp_output = nn.Linear(4 * hidden, hidden)

    def forward(self, features):
        queries, keys, values = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                                 for part in self.attention_input(self.norm1(features)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        features = features + self.attention_output(mixed.transpose(1, 2).flatten(2))
        return features + self.mlp_output(nn.functional.gelu(self.mlp_input(self.norm2(features))))


class GPT(nn.Module):
    """models/gpt.cpp without dropout, with a head of its own."""

    def __init__(self, vocabulary, sequence, hidden, layers, heads):
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, hidden)
        self.position_embedding = nn.Embedding(sequence, hidden)
        self.blocks = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, 0, 0.02)
                if getattr(module, "bias", None) is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, tokens):
        positions = torch.arange(tokens.size(1))
        features = self.token_embedding(tokens) + self.position_embedding(positions)
        return self.head(self.norm(self.blocks(features)))


# Each returns a model, its layers, and the inputs and labels that it trains on again and again.
def mlp_training(*widths, batch):
    model = mlp(*widths)
    return model, list(model)[::2], torch.randn(batch, widths[0]), torch.randint(widths[-1], (batch,))


def resnet18_training(batch):
    model = resnet18(10, 1)
    layers = [module for module in model if isinstance(module, BasicBlock)]
    return model, layers, torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))


def gpt_training(batch):
    model = GPT(vocabulary=8192, sequence=128, hidden=256, layers=4, heads=4)
    tokens = torch.randint(8192, (batch, 129))
    return model, list(model.blocks), tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()


TRAININGS = {
    "mlp": lambda: mlp_training(784, 2048, 2048, 2048, 10, batch=64),
    "resnet18": lambda: resnet18_training(32),
    "gpt": lambda: gpt_training(4),
    "large": lambda: mlp_training(2048, *[4096] * 6, 2048, batch=16),
}


def wrapped(model, mode, layers):
    if mode == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
    if mode == "fsdp2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        fully_shard(model, mesh=mesh)  # what is left
    return model


def median_time(steps, step):
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-4, foreach=False)


def part_optimizer_step(model):
    """What the optimizer does on one rank in a sharded step: it has one part of each parameter, as with fully_shard."""
    def own(tensor):
        chunks = tensor.chunk(dist.get_world_size())
        return chunks[dist.get_rank()] if dist.get_rank() < len(chunks) else None

    parts = [(parameter, own(parameter.detach())) for parameter in model.parameters()]
    parts = [(parameter, part) for parameter, part in parts if part is not None]
    optimizer = adam([part for _, part in parts])

    def step():
        for parameter, part in parts:
            part.grad = own(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(options):
    memory = PeakMemory()
    torch.manual_seed(dist.get_rank())
    model, layers, inputs, labels = TRAININGS[options.model]()
    model = wrapped(model, options.mode, layers)
    optimizer = adam(model.parameters())
    loss = None

    def step():
        nonlocal loss
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), labels)
        loss.backward()
        optimizer.step()

    for _ in range(options.warm_up):
        step()
    starting_memory = memory.end_stretch()
    step_time = median_time(options.steps, step)
    step_memory = memory.end_stretch()
    record = {"samples": len(inputs) * dist.get_world_size(), "step_time": step_time, "step_memory": step_memory,
              "peak_memory": max(starting_memory, step_memory), "loss": loss.item()}
    if options.mode == "plain":
        # The same step where the optimizer has a part of the elements only.
        part_step = part_optimizer_step(model)
        whole_time = median_time(options.steps, optimizer.step)
        part_step()  # makes its state
        record["part_step_time"] = step_time - whole_time + median_time(options.steps, part_step)
    return record


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=list(TRAININGS), default="mlp")
    parser.add_argument("--mode", choices=("ddp", "fsdp2", "plain"), default="ddp")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    record = measure(options)
    of_all = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, record)
    for name in ("peak_memory", "step_memory"):
        record[name] = max(other[name] for other in of_all)
    if dist.get_rank() == 0:
        print(json.dumps(record), flush=True)
    dist.barrier()
    # Now and then Gloo's threads abort the process while Python ends; all is measured by then.
    os._exit(0)


if __name__ == "__main__":
    main()
