# SPDX-License-Identifier: Apache-2.0
"""Adaptive summation of gradients: Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020 (arXiv:2006.02924).

Two gradients a and b are combined as

    (1 - a.b / (2 |a|^2)) a  +  (1 - a.b / (2 |b|^2)) b,

which is their sum if they are orthogonal, and their mean if they are equal. More are combined in a binary tree of neighbouring ranks:
0 with 1, 2 with 3, then these pairs, and so on. Every rank computes the same combinations from the same numbers, so that all get the
same bits.
"""
from __future__ import annotations

from typing import Any

import torch


def combine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Returns the adaptive sum of two gradients of one shape and floating dtype. Products are summed in float64."""
    product = torch.sum(a.double() * b.double())
    squares = [torch.sum(each.double().square()) for each in (a, b)]
    weights = [float(1 - product / (2 * square)) if square > 0 else 1.0 for square in squares]
    wide = torch.float32 if a.dtype in (torch.float16, torch.bfloat16) else a.dtype
    return (a.to(wide) * weights[0] + b.to(wide) * weights[1]).to(a.dtype)


def adasum_(tensor: torch.Tensor, backend: Any, rank: int, size: int) -> None:
    """Replaces the contiguous CPU tensor of each rank by the adaptive sum over all ranks. `size` is a power of two.

    Collective and blocking. Sends the tensor log2(size) times.

    Args:
        backend: of torch.distributed, whose type stubs leave out its operations.
    """
    distance = 1
    while distance < size:
        peer = rank ^ distance
        received = torch.empty_like(tensor)
        works = [backend.send([tensor], peer, distance), backend.recv([received], peer, distance)]
        for work in works:
            work.wait()
        tensor.copy_(combine(tensor, received) if rank < peer else combine(received, tensor))
        distance *= 2
