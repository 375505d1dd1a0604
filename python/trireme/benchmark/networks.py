# SPDX-License-Identifier: Apache-2.0
"""The networks that the benchmark trains: multilayer perceptrons, a GPT, and a ResNet-18 for small images.

Attention has one product for queries, one for keys and one for values, so that tensor parallelism can divide each by heads.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel


@dataclass
class Training:
    """A network, and how it is trained."""

    network: nn.Module
    batch: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    """Returns the inputs and targets of so many samples."""
    samples: int
    """Samples of a rank, if no other number is chosen."""
    layers: list[nn.Module] = field(default_factory=list)
    """The parts that FSDP gathers and frees one by one. Parameters of other parts stay together."""
    plan: dict[str, Any] = field(default_factory=dict)
    """How tensor parallelism divides the weights of submodules."""

    @property
    def parameters(self) -> int:
        """The number of elements of all parameters."""
        return sum(each.numel() for each in self.network.parameters())


class Block(nn.Module):
    """A transformer layer with causal attention and the norm before each half."""

    HEAD = 64  # elements of a head

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.keys, self.values, self.output = (nn.Linear(width, width) for _ in range(4))
        self.mlp_input, self.mlp_output = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        inputs = self.norm1(features)
        heads = [product(inputs).unflatten(-1, (-1, self.HEAD)).transpose(1, 2) for product in (self.queries, self.keys, self.values)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        features = features + self.output(mixed)
        return features + self.mlp_output(F.gelu(self.mlp_input(self.norm2(features))))


class GPT(nn.Module):
    """A language model of 4 layers of 256."""

    VOCABULARY, LENGTH, WIDTH, LAYERS = 8192, 128, 256, 4

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(self.VOCABULARY, self.WIDTH)
        self.positions = nn.Parameter(torch.zeros(self.LENGTH, self.WIDTH))
        self.blocks = nn.Sequential(*(Block(self.WIDTH) for _ in range(self.LAYERS)))
        self.norm = nn.LayerNorm(self.WIDTH)
        self.head = nn.Linear(self.WIDTH, self.VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embedding(tokens) + self.positions))).flatten(0, 1)


class Residual(nn.Module):
    """Two convolutions beside a connection that has one only if the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                                  nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        same = stride == 1 and inputs == width
        self.beside = nn.Identity() if same else nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(images) + self.beside(images), inplace=True)


def _resnet18() -> Training:
    """The first layers are those for small images: no pooling, stride 1."""
    widths = (64, 64, 128, 256, 512)
    blocks: list[nn.Module] = []
    for stage, (inputs, width) in enumerate(zip(widths, widths[1:])):
        blocks += [Residual(inputs, width, 2 if stage else 1), Residual(width, width, 1)]
    network = nn.Sequential(nn.Conv2d(1, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), *blocks,
                            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return Training(network, lambda count: (torch.randn(count, 1, 28, 28), torch.randint(10, (count,))), 32, blocks)


def _gpt() -> Training:
    network = GPT()

    def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(GPT.VOCABULARY, (count, GPT.LENGTH + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    plan: dict[str, Any] = {"head": ColwiseParallel(output_layouts=Replicate())}
    for number in range(GPT.LAYERS):
        plan |= {f"blocks.{number}.{name}": ColwiseParallel() for name in ("queries", "keys", "values", "mlp_input")}
        plan |= {f"blocks.{number}.{name}": RowwiseParallel() for name in ("output", "mlp_output")}
    return Training(network, batch, 4, list(network.blocks), plan)


def _mlp(width: int, layers: int, samples: int) -> Training:
    """An even number of square layers, which tensor parallelism divides by columns and rows in turn, and one to 10 classes."""
    products = [nn.Linear(width, width) for _ in range(layers)]
    network = nn.Sequential(*(part for product in products for part in (product, nn.ReLU())), nn.Linear(width, 10))
    plan = {str(2 * number): RowwiseParallel() if number % 2 else ColwiseParallel() for number in range(layers)}
    return Training(network, lambda count: (torch.randn(count, width), torch.randint(10, (count,))), samples, list(products), plan)


NETWORKS: dict[str, Callable[[], Training]] = {
    "mlp": lambda: _mlp(1024, 4, 32),
    "wide-mlp": lambda: _mlp(4096, 6, 16),
    "gpt": _gpt,
    "resnet18": _resnet18,
}
