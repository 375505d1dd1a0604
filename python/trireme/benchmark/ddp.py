# SPDX-License-Identifier: Apache-2.0
"""Times a training step of DDP: an ordinary script, which imports trireme.torch only where it is told to."""
from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WARM_UP = 3
Batch = Callable[[int], tuple[torch.Tensor, torch.Tensor]]


class GPT(nn.Module):
    """A language model of 6 layers of 256."""

    VOCABULARY, LENGTH, WIDTH = 4096, 64, 256

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(self.VOCABULARY, self.WIDTH)
        self.positions = nn.Parameter(torch.zeros(self.LENGTH, self.WIDTH))
        layer = nn.TransformerEncoderLayer(self.WIDTH, 4, 4 * self.WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(self.WIDTH, self.VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(self.LENGTH), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens) + self.positions, mask=self.mask, is_causal=True)).flatten(0, 1)


def make(network: str) -> tuple[nn.Module, Batch]:
    """Returns the network, and a function that returns a batch of so many samples."""
    if network == "gpt":
        return GPT(), lambda count: (torch.randint(GPT.VOCABULARY, (count, GPT.LENGTH)),
                                     torch.randint(GPT.VOCABULARY, (count * GPT.LENGTH,)))
    width, layers = (1024, 4) if network == "mlp" else (4096, 6)
    hidden = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10)), lambda count: (torch.randn(count, width), torch.randint(10, (count,)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--import-trireme", action="store_true")
    parser.add_argument("--network", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    return parser.parse_args()


def time_steps(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Callable[[], tuple[torch.Tensor, torch.Tensor]], steps: int,
               barrier: Callable[[], None]) -> dict[str, Any]:
    """Trains, and returns the median time of a step and the losses."""
    times, losses = [], []
    for step in range(WARM_UP + steps):
        inputs, targets = batch()
        barrier()
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if step >= WARM_UP:
            times.append(time.perf_counter() - started)
        losses.append(loss.item())
    return {"seconds": statistics.median(times), "losses": losses, "parameters": sum(each.numel() for each in model.parameters())}


def main() -> None:
    arguments = parse()
    if arguments.import_trireme:
        import trireme.torch  # noqa: F401
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network, batch = make(arguments.network)
    model = DDP(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    torch.manual_seed(1 + dist.get_rank())
    result = time_steps(model, optimizer, lambda: batch(arguments.batch), arguments.steps, dist.barrier)
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
