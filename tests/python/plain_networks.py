# SPDX-License-Identifier: Apache-2.0
"""Networks in plain PyTorch, as users write them. GPT and ResNet have the operators of those of `trireme predict --model`."""
from __future__ import annotations

from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import nn

SIZES = ["--set", "vocabulary=256", "--set", "sequence=64", "--set", "hidden=64", "--set", "layers=4", "--set", "heads=4"]
"""The sizes of GPT() as options of `trireme predict --model gpt`."""


def on_meta(make: Callable[[], nn.Module]) -> Any:
    """Returns a module without memory."""
    with torch.device("meta"):
        return make()


def tokens(rows: int) -> torch.Tensor:
    """Returns an input of GPT() without memory."""
    return torch.zeros(rows, 64, dtype=torch.int64, device="meta")


class ProductAndSum(nn.Linear):
    """A linear layer by the operators of torch::nn::Linear in C++: a product, to which the bias is added in place."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        outputs = features.matmul(self.weight.t())
        if self.bias is not None:
            outputs += self.bias
        return outputs


class Attention(nn.Module):
    """Causal self-attention with one layer for queries, keys and values."""

    def __init__(self, hidden: int, heads: int, linear: type[nn.Linear]) -> None:
        super().__init__()
        self.heads = heads
        self.input = linear(hidden, 3 * hidden)
        self.output = linear(hidden, hidden)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        parts = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.input(features).chunk(3, -1)]
        return self.output(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and an MLP, each after a layer norm and beside a residual connection."""

    def __init__(self, hidden: int, heads: int, linear: type[nn.Linear]) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads, linear)
        self.norm2 = nn.LayerNorm(hidden)
        self.mlp_input = linear(hidden, 4 * hidden)
        self.mlp_output = linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(0.0)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        attended = features + self.dropout(self.attention(self.norm1(features)))
        return attended + self.dropout(self.mlp_output(F.gelu(self.mlp_input(self.norm2(attended)))))


class GPT(nn.Module):
    """A decoder with learned positions."""

    def __init__(self, vocabulary: int = 256, sequence: int = 64, hidden: int = 64, layers: int = 4, heads: int = 4,
                 tied: bool = False, linear: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, hidden)
        self.position_embedding = nn.Embedding(sequence, hidden)
        self.dropout = nn.Dropout(0.0)
        self.blocks = nn.Sequential(*(Block(hidden, heads, linear) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden)
        self.head = linear(hidden, vocabulary, bias=False)
        if tied:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.size(1), device=tokens.device)
        features = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        return self.head(self.norm(self.blocks(features)))

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self(tokens).flatten(0, 1), tokens.flatten())


class Residual(nn.Module):
    """Two convolutions beside a connection that has one only if the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = F.relu(self.bn1(self.conv1(images)), inplace=True)
        features = self.bn2(self.conv2(features))
        features += self.downsample(images) if hasattr(self, "downsample") else images
        return F.relu(features, inplace=True)


class ResNet18(nn.Module):
    """A ResNet-18 for images of 3 channels."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        for number, (inputs, width) in enumerate(zip(widths, widths[1:]), 1):
            self.add_module(f"layer{number}", nn.Sequential(Residual(inputs, width, 1 if number == 1 else 2), Residual(width, width, 1)))
        self.fc = nn.Linear(512, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = F.max_pool2d(F.relu(self.bn1(self.conv1(images)), inplace=True), 3, 2, 1)
        for number in range(1, 5):
            features = self.get_submodule(f"layer{number}")(features)
        return self.fc(F.adaptive_avg_pool2d(features, 1).flatten(1))

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self(images), labels)


class Square(torch.autograd.Function):
    """A function with a backward that is written in Python."""

    @staticmethod
    def forward(context: object, features: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(features)  # type: ignore[attr-defined]
        return features * features

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
        (features,) = context.saved_tensors  # type: ignore[attr-defined]
        return 2 * features * gradient
