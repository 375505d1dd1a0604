# SPDX-License-Identifier: Apache-2.0
"""Times training steps of torch.distributed.pipelining with Gloo: bench/multi/pipeline/step.cpp in Python.

Models, weights, batches, cuts and SGD are the same. A rank makes its own stages alone, stages know the shapes of what
they take and give, so that nothing is tried out for them, and outputs are not collected.

The ranks are forked after the imports, which take longer than all steps together.
"""
import argparse
import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing
from data_parallel import Block, PeakMemory, median_time
from torch import nn
from torch.distributed import pipelining

LEARNING_RATE = 0.01


def numbers(seed):
    """Random numbers of that seed, the same in both programs."""
    return torch.Generator().manual_seed(seed)


def fill(layers, sizes_before=0):
    """The weights of bench/multi/pipeline/weights.h, in which every parameter has its place among all."""
    seed = 1 + sizes_before
    with torch.no_grad():
        for layer in layers:
            for name, parameter in layer.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.02, generator=numbers(seed))
                else:
                    parameter.fill_(1 if name.endswith("weight") else 0)
                seed += 1


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or inputs != 4 * width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False),
                                            nn.BatchNorm2d(4 * width))

    def forward(self, inputs):
        outputs = self.bn1(self.conv1(inputs)).relu_()
        outputs = self.bn2(self.conv2(outputs)).relu_()
        outputs = self.bn3(self.conv3(outputs))
        outputs += inputs if self.downsample is None else self.downsample(inputs)
        return outputs.relu_()


class Embeddings(nn.Module):
    def __init__(self, vocabulary, sequence, hidden):
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, hidden)
        self.position_embedding = nn.Embedding(sequence, hidden)

    def forward(self, tokens):
        return self.token_embedding(tokens) + self.position_embedding(torch.arange(tokens.size(1)))


class GPT:
    """models/gpt.cpp, in 8 layers, as what follows on each other."""

    CUTS = {1: [], 2: [6], 4: [4, 7, 9]}  # the layers that begin stages, from the second on, by the number of stages

    @staticmethod
    def layers():
        return [Embeddings(8192, 128, 256), *(Block(256, 4) for _ in range(8)), nn.LayerNorm(256),
                nn.Linear(256, 8192, bias=False)]

    @staticmethod
    def batch():
        tokens = torch.randint(8192, (16, 129), generator=numbers(0))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    @staticmethod
    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


class ResNet50:
    """models/resnet.cpp, as what follows on each other."""

    CUTS = {1: [], 2: [13], 4: [8, 13, 17]}

    @staticmethod
    def layers():
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                  nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for number, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                layers.append(Bottleneck(inputs, 64 << number, 2 if number and not block else 1))
                inputs = 256 << number
        return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]

    @staticmethod
    def batch():
        return torch.randn(16, 3, 112, 112, generator=numbers(0)), torch.randint(1000, (16,), generator=numbers(1))

    loss = staticmethod(nn.functional.cross_entropy)


MODELS = {"gpt": GPT, "resnet50": ResNet50}
SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zb-h1": pipelining.ScheduleInterleavedZeroBubble,  # with one stage a rank
    "zb-v": pipelining.ScheduleZBVZeroBubble,
}


def own_stages(schedule, num_stages):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if schedule == "zb-v":
        return [rank, num_stages - 1 - rank]
    return list(range(rank, num_stages, ranks))


def make_stages(model, own, num_stages, micro_batch):
    """The stages `own`, with weights."""
    with torch.device("meta"):
        layers = model.layers()
    bounds = [0, *model.CUTS[num_stages], len(layers)]
    values = torch.empty_like(micro_batch, device="meta")
    stages = []
    for stage, (begin, end) in enumerate(zip(bounds, bounds[1:])):
        piece = nn.Sequential(*layers[begin:end])
        with torch.device("meta"):
            inputs, values = values, piece(values).detach().requires_grad_()
        if stage not in own:
            continue
        piece.to_empty(device="cpu")
        fill(piece, sum(len(list(layer.parameters())) for layer in layers[:begin]))
        for module in piece.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
        stages.append(pipelining.PipelineStage(piece, stage, num_stages, torch.device("cpu"), input_args=inputs,
                                               output_args=values))
    return stages


def measure(options):
    memory = PeakMemory()
    model = MODELS[options.model]
    inputs, targets = model.batch()
    num_stages = options.stages or dist.get_world_size()
    stages = make_stages(model, own_stages(options.schedule, num_stages), num_stages,
                         inputs[:len(inputs) // options.micro_batches])
    kind = SCHEDULES[options.schedule]
    is_single = options.schedule in ("gpipe", "1f1b")
    schedule = kind(stages[0] if is_single else stages, options.micro_batches, loss_fn=model.loss)
    parameters = [parameter for stage in stages for parameter in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE, foreach=False)
    has_inputs, has_loss = stages[0].is_first, stages[-1].is_last

    def step():
        optimizer.zero_grad()
        losses = [] if has_loss else None
        schedule.step(*([inputs] if has_inputs else []), target=targets if has_loss else None, losses=losses,
                      return_outputs=False)
        optimizer.step()
        return torch.stack([loss.detach() for loss in losses]).mean().item() if has_loss else None

    record = {"losses": []}
    for _ in range(options.warm_up):
        loss = step()
        if has_loss:
            record["losses"].append(loss)
    starting_memory = memory.end_stretch()
    record["step_time"] = median_time(options.steps, step)
    record["step_memory"] = memory.end_stretch()
    record["peak_memory"] = max(starting_memory, record["step_memory"])
    return record


def run_rank(rank, options, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=options.ranks)
    record = measure(options)
    of_all = [None] * options.ranks
    dist.all_gather_object(of_all, record)
    for name in ("peak_memory", "step_memory"):
        record[name] = max(other[name] for other in of_all)
    record["losses"] = next(other["losses"] for other in of_all if other["losses"])
    if rank == 0:
        print(json.dumps(record), flush=True)
    dist.barrier()
    # Now and then Gloo's threads abort the process while Python ends; all is measured by then.
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--model", choices=list(MODELS), default="gpt")
    parser.add_argument("--schedule", choices=list(SCHEDULES), default="1f1b")
    parser.add_argument("--stages", type=int, default=0)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(run_rank, (options, folder), options.ranks, start_method="fork")


if __name__ == "__main__":
    main()
