# SPDX-License-Identifier: Apache-2.0
"""Trains the network of examples/char_gpt in PyTorch under DistributedDataParallel with Gloo: same text, sizes, batches and schedule.

Started by torchrun; gpt.py gives the options. Weights and order of samples come from PyTorch's generators. Rank 0 prints a line of
JSON: the mean loss of each step over the ranks, and the loss of the validation.
"""
import argparse
import math
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from torch_ranks import end, summed, take_step

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
from data_parallel import GPT  # noqa: E402


def sequences(tokens, length):
    count = (len(tokens) - 1) // length
    return tokens[:count * length].view(count, length), tokens[1:count * length + 1].view(count, length)


def read_text(files, length):
    """Returns the number of characters in use, and inputs with targets to train on and to validate with: the last tenth."""
    text = "".join(pathlib.Path(file).read_text(encoding="utf-8") for file in files)
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([numbers[character] for character in text])
    split = len(tokens) * 9 // 10
    return len(numbers), sequences(tokens[:split], length), sequences(tokens[split:], length)


def loss_of(model, inputs, targets):
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def rate(step, steps, warm_up):
    """The rate of a step from 0 on, as a share of the highest: rises to it, then falls along half a cosine."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * min(step - warm_up, steps) / steps))


def validate(model, inputs, targets, batch):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = 0.0
    with torch.no_grad():
        for begin in range(rank * batch, len(inputs), ranks * batch):
            rows = slice(begin, begin + batch)
            total += loss_of(model, inputs[rows], targets[rows]).item() * len(inputs[rows])
    return summed(total) / len(inputs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", nargs="+", required=True)
    for name in ("sequence", "hidden", "layers", "heads", "batch", "epochs", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    vocabulary, (inputs, targets), validation = read_text(options.text, options.sequence)
    torch.manual_seed(options.seed)
    network = GPT(vocabulary, options.sequence, options.hidden, options.layers, options.heads)
    model = DistributedDataParallel(network, gradient_as_bucket_view=True, static_graph=True)
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate, fused=True)
    in_epoch = len(inputs) // options.batch
    steps = options.epochs * in_epoch
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps, steps // 20 + 1))
    own = options.batch // ranks
    losses = []
    for epoch in range(options.epochs):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1000 * options.seed + epoch))
        for step in range(in_epoch):
            rows = order[step * options.batch + rank * own:][:own]
            losses.append(take_step(loss_of(model, inputs[rows], targets[rows]), model, optimizer, scheduler))
    end(losses, validate(network, *validation, own))


if __name__ == "__main__":
    main()
