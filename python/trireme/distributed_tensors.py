# SPDX-License-Identifier: Apache-2.0
"""Distributed tensors from Python: parameters of a module that a plan shards over an axis such as `tensor`, and what is computed of them.

They are torch.Tensors of the global shape, which hold this rank's part. Operators on them are those of torch, and run on all ranks of the
mesh together. All names are available from the package itself.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._tensor_str
from torch.utils import _pytree

from trireme import _planning

__all__ = ["full", "has_layout", "run_replicated", "to_local"]


def has_layout(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is distributed. Not collective."""
    return _planning.has_layout(tensor)


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the whole of a distributed tensor on every rank, and a plain tensor as it is.

    Collective over the mesh, and blocking. Autograd follows: all ranks must then compute the same with the result.
    """
    return _planning.full(tensor) if _planning.has_layout(tensor) else tensor


def to_local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a distributed tensor, which shares its memory, and a plain tensor as it is.

    Not collective, except that the sum of a partial result is made first. Autograd follows.
    """
    return _planning.to_local(tensor) if _planning.has_layout(tensor) else tensor


def run_replicated(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """Calls a function with each input as a whole, plain tensor on every rank, and returns its results as distributed tensors.

    For functions that read the memory of tensors, and for operators without a rule. Parameters that the function uses stay plain: a plan
    names them by a layout such as `"encoder.* -> plain"`. Without a distributed input it just calls the function. Collective and
    blocking. Autograd follows.

        output = trireme.run_replicated(self.encoder, features)
    """
    beside = next((each for each in inputs if _planning.has_layout(each)), None)
    result = function(*(_planning.whole_input(each) for each in inputs))
    if beside is None:
        return result
    return _pytree.tree_map_only(torch.Tensor, lambda each: _planning.replicate_beside(beside, each), result)


def show_layouts() -> None:
    """Lets `print` and `repr` show dtype, shape and layout of a distributed tensor. Its values need all ranks, and `print` may be called
    on one."""
    original = torch._tensor_str._str
    if getattr(original, "_shows_layouts", False):
        return

    @functools.wraps(original)
    def shown(tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> str:
        if not isinstance(tensor, torch.Tensor) or not _planning.has_layout(tensor):
            return original(tensor, *arguments, **keywords)
        # The name of a node of autograd needs no values either.
        traits = f", grad_fn=<{tensor.grad_fn.name()}>" if tensor.grad_fn is not None else ", requires_grad=True" if tensor.requires_grad else ""
        return f"tensor({tensor.dtype} {_planning.describe_layout(tensor).partition(' ')[2]}{traits})"

    shown._shows_layouts = True  # type: ignore[attr-defined]
    torch._tensor_str._str = shown  # type: ignore[assignment]
