# SPDX-License-Identifier: Apache-2.0
"""The gradients of collectives, as Horovod defines them.

| Operation | Gradient of the input |
| --- | --- |
| allreduce | the same reduction of the ranks' gradients (Average, Sum, Adasum), with the same factors |
| allgather | this rank's rows of the average of the ranks' gradients |
| broadcast | on the root, the average of the ranks' gradients; zeros elsewhere |
| alltoall | the gradient's rows, sent back |
| reducescatter | the ranks' gradients, concatenated; for a sum, times the number of ranks |

Where each rank's loss is its share of a mean over ranks, these are the gradients of that mean times the number of ranks.
"""
from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import Function, once_differentiable

from trireme.errors import UsageError
from trireme.horovod.torch.process_sets import ProcessSet
from trireme.horovod.torch.requests import Op
from trireme.horovod.torch.starting import start_allgather, start_allreduce, start_alltoall, start_broadcast, start_reducescatter, wait_for

Tensor = torch.Tensor


def _reduced(tensors: list[Tensor], op: Op, process_set: ProcessSet, prescale: float = 1.0, postscale: float = 1.0,
             name: str | None = None) -> list[Tensor]:
    return wait_for(start_allreduce(tensors, name, op, prescale, postscale, process_set, in_place=False, is_grouped=True, is_async=False))


def _gathered(tensors: list[Tensor], process_set: ProcessSet, name: str | None = None) -> list[Tensor]:
    return wait_for(start_allgather(tensors, name, process_set, is_grouped=True, is_async=False))


class GroupedAllreduce(Function):
    """Reduces several tensors."""

    @staticmethod
    def forward(ctx: Any, name: str | None, op: Op, prescale: float, postscale: float, process_set: ProcessSet,
                *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.arguments = op, process_set, prescale, postscale
        return tuple(_reduced(list(tensors), op, process_set, prescale, postscale, name))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        op = ctx.arguments[0]
        if op not in (Op.Average, Op.Sum, Op.Adasum):
            raise UsageError(f"allreduce ({op.value}) has no gradient\n  hint: take hvd.Sum or hvd.Average, or detach the tensor")
        return None, None, None, None, None, *_reduced(list(gradients), *ctx.arguments)


class Allreduce:
    """Reduces one tensor."""

    @staticmethod
    def apply(tensor: Tensor, name: str | None, op: Op, prescale: float, postscale: float, process_set: ProcessSet) -> Tensor:
        return GroupedAllreduce.apply(name, op, prescale, postscale, process_set, tensor)[0]


class GroupedAllgather(Function):
    """Concatenates several tensors of all ranks."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.process_set, ctx.shapes = process_set, [tensor.shape for tensor in tensors]
        return tuple(_gathered(list(tensors), process_set, name))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        rows = torch.tensor([[shape[0] if shape else 1 for shape in ctx.shapes]])  # [1, tensors]
        all_rows = _gathered([rows], ctx.process_set)[0]
        rank = ctx.process_set.rank()
        starts = all_rows[:rank].sum(0).tolist()
        averages = _reduced(list(gradients), Op.Average, ctx.process_set)
        return None, None, *(average.narrow(0, start, count).reshape(shape)
                             for average, start, count, shape in zip(averages, starts, rows[0].tolist(), ctx.shapes))


class Allgather:
    """Concatenates one tensor of all ranks."""

    @staticmethod
    def apply(tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        return GroupedAllgather.apply(name, process_set, tensor)[0]


class Broadcast(Function):
    """Returns the tensor of one rank."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.process_set, ctx.root_rank = process_set, root_rank
        return wait_for(start_broadcast([tensor], root_rank, name, process_set, in_place=False, is_grouped=False, is_async=False))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        average = _reduced([gradient], Op.Average, ctx.process_set)[0]
        is_root = ctx.process_set.ranks[ctx.process_set.rank()] == ctx.root_rank
        return average if is_root else torch.zeros_like(average), None, None, None


class Alltoall(Function):
    """Exchanges rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        output, received = wait_for(start_alltoall(tensor, splits, name, process_set, is_async=False))
        ctx.process_set, ctx.received = process_set, received
        if splits is None:
            return output
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
        output, _received = wait_for(start_alltoall(gradient, ctx.received, None, ctx.process_set, is_async=False))
        return output, None, None, None


class GroupedReducescatter(Function):
    """Returns this rank's rows of the reductions of several tensors."""

    @staticmethod
    def forward(ctx: Any, name: str | None, op: Op, process_set: ProcessSet, prescale: float, postscale: float,
                *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.process_set = process_set
        results = wait_for(start_reducescatter(tensors, name, op, prescale, postscale, process_set, is_grouped=True, is_async=False))
        ctx.factor = prescale * postscale * (len(process_set.ranks) if op is Op.Sum else 1)
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        scaled = [gradient * ctx.factor if ctx.factor != 1 else gradient for gradient in gradients]
        return None, None, None, None, None, *_gathered(scaled, ctx.process_set)


class Reducescatter:
    """Returns this rank's rows of the reduction of one tensor."""

    @staticmethod
    def apply(tensor: Tensor, name: str | None, op: Op, process_set: ProcessSet, prescale: float, postscale: float) -> Tensor:
        return GroupedReducescatter.apply(name, op, process_set, prescale, postscale, tensor)[0]
