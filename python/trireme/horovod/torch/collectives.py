# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives.

All are collective over the ranks of a process set: each of them makes the call, under the same name. Calls match by name, in any order;
calls without a name match in the order in which they are made. A name may be used again when the call with it is complete.

- Functions whose name contains `_async` start the operation and return a handle for `synchronize` and `poll`. The tensors must not be
  changed before. The others block.
- Functions whose name has an underscore at the end write to the tensors that they are given.
- allreduce, allgather, broadcast, alltoall, reducescatter and their grouped forms can be differentiated where they return new tensors and
  block. Their gradients are Horovod's (gradients.py).

All raise UsageError before `init`. They raise it on all ranks if a rank gives wrong arguments, or if calls differ between ranks. They raise
CommError if another rank fails, or does not come before the deadline.
"""
from __future__ import annotations

from typing import Any, Sequence

import torch

from trireme.horovod.torch import gradients
from trireme.horovod.torch.compression import Compression, Compressor
from trireme.horovod.torch.process_sets import ProcessSet, global_process_set
from trireme.horovod.torch.requests import Call, Handle, Op
from trireme.horovod.torch.starting import (op_of, start_allgather, start_allreduce, start_alltoall, start_broadcast, start_reducescatter,
                                            wait_for)

Tensors = Sequence[torch.Tensor]


def allreduce_async(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: Op | None = None,
                    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts `allreduce`."""
    return start_allreduce([tensor], name, op_of(op, average), prescale_factor, postscale_factor, process_set,
                           in_place=False, is_grouped=False, is_async=True)


def allreduce(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, compression: type[Compressor] = Compression.none,
              op: Op | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Returns the reduction of a tensor over all ranks.

    Args:
        tensor: any shape, equal on all ranks. Sparse tensors can be added and averaged.
        average: Horovod's older form of `op`: True for Average, False for Sum.
        name: the name of the call.
        compression: the dtype in which it is sent.
        op: Average (the sum divided once, floating dtypes; the default), Sum, Adasum (floating dtypes), Min, Max or Product.
        prescale_factor: what the tensor is multiplied by before the reduction; floating dtypes.
        postscale_factor: what the result is multiplied by.
        process_set: the ranks that take part.
    """
    sent, context = compression.compress(tensor)
    reduced = gradients.Allreduce.apply(sent, name, op_of(op, average), prescale_factor, postscale_factor, process_set)
    return compression.decompress(reduced, context)


def allreduce_async_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: Op | None = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts `allreduce_`."""
    return start_allreduce([tensor], name, op_of(op, average), prescale_factor, postscale_factor, process_set,
                           in_place=True, is_grouped=False, is_async=True)


def allreduce_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: Op | None = None,
               prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Reduces a tensor over all ranks in place, as `allreduce` does, and returns it."""
    return wait_for(start_allreduce([tensor], name, op_of(op, average), prescale_factor, postscale_factor, process_set,
                                    in_place=True, is_grouped=False, is_async=False))


def grouped_allreduce_async(tensors: Tensors, average: bool | None = None, name: str | None = None, op: Op | None = None,
                            prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> Handle:
    """Starts `grouped_allreduce`."""
    return start_allreduce(tensors, name, op_of(op, average), prescale_factor, postscale_factor, process_set,
                           in_place=False, is_grouped=True, is_async=True)


def grouped_allreduce(tensors: Tensors, average: bool | None = None, name: str | None = None,
                      compression: type[Compressor] = Compression.none, op: Op | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Returns the reductions of several tensors, as one operation. The arguments are those of `allreduce`."""
    sent, contexts = zip(*(compression.compress(tensor) for tensor in tensors)) if tensors else ((), ())
    reduced = gradients.GroupedAllreduce.apply(name, op_of(op, average), prescale_factor, postscale_factor, process_set, *sent)
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts)]


def grouped_allreduce_async_(tensors: Tensors, average: bool | None = None, name: str | None = None, op: Op | None = None,
                             prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> Handle:
    """Starts `grouped_allreduce_`."""
    return start_allreduce(tensors, name, op_of(op, average), prescale_factor, postscale_factor, process_set,
                           in_place=True, is_grouped=True, is_async=True)


def grouped_allreduce_(tensors: Tensors, average: bool | None = None, name: str | None = None, op: Op | None = None,
                       prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Reduces several tensors in place, as one operation, and returns them."""
    return wait_for(start_allreduce(tensors, name, op_of(op, average), prescale_factor, postscale_factor, process_set,
                                    in_place=True, is_grouped=True, is_async=False))


def sparse_allreduce_async(tensor: torch.Tensor, name: str | None, op: Op, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts the sum or average of sparse tensors, whose result `synchronize` returns. Indices may differ between ranks."""
    return allreduce_async(tensor, name=name, op=op, process_set=process_set)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts `allgather`."""
    return start_allgather([tensor], name, process_set, is_grouped=False, is_async=True)


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Returns the tensors [n, …] of all ranks, concatenated in rank order. n may differ between ranks. A scalar is one row."""
    return gradients.Allgather.apply(tensor, name, process_set)


def grouped_allgather_async(tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts `grouped_allgather`."""
    return start_allgather(tensors, name, process_set, is_grouped=True, is_async=True)


def grouped_allgather(tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Returns what `allgather` returns, for each of several tensors, as one operation."""
    return list(gradients.GroupedAllgather.apply(name, process_set, *tensors))


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts `broadcast`."""
    return start_broadcast([tensor], root_rank, name, process_set, in_place=False, is_grouped=False, is_async=True)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Returns the tensor of one rank. Shape and dtype are equal on all ranks.

    Args:
        root_rank: the rank whose tensor is returned, counted among all ranks, also if a process set is given.
    """
    return gradients.Broadcast.apply(tensor, root_rank, name, process_set)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts `broadcast_`."""
    return start_broadcast([tensor], root_rank, name, process_set, in_place=True, is_grouped=False, is_async=True)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Overwrites the tensor by that of one rank, and returns it."""
    return wait_for(start_broadcast([tensor], root_rank, name, process_set, in_place=True, is_grouped=False, is_async=False))


def alltoall_async(tensor: torch.Tensor, splits: Any = None, name: str | None = None,
                   process_set: ProcessSet = global_process_set) -> Handle:
    """Starts `alltoall`. `synchronize` returns the tensor and the received splits, also without `splits`."""
    return start_alltoall(tensor, splits, name, process_set, is_async=True)


def alltoall(tensor: torch.Tensor, splits: Any = None, name: str | None = None,
             process_set: ProcessSet = global_process_set) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends the first splits[0] rows of `tensor` [n, …] to rank 0, the next splits[1] to rank 1, and so on.

    Args:
        splits: integers in a tensor or a list, which sum to n; None for equal parts.

    Returns:
        the rows that this rank has received, in rank order; with `splits`, also a tensor of the number of rows from each rank.
    """
    return gradients.Alltoall.apply(tensor, splits, name, process_set)


def reducescatter_async(tensor: torch.Tensor, name: str | None = None, op: Op = Op.Average, process_set: ProcessSet = global_process_set,
                        prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> Handle:
    """Starts `reducescatter`."""
    return start_reducescatter([tensor], name, op, prescale_factor, postscale_factor, process_set, is_grouped=False,
                               is_async=True)


def reducescatter(tensor: torch.Tensor, name: str | None = None, compression: type[Compressor] = Compression.none, op: Op = Op.Average,
                  process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """Returns this rank's rows of the average or sum of the tensors [n, …] of all ranks.

    The rows are divided in rank order. If n is not divisible by the number of ranks, the first ranks get one row more.
    """
    sent, context = compression.compress(tensor)
    reduced = gradients.Reducescatter.apply(sent, name, op, process_set, prescale_factor, postscale_factor)
    return compression.decompress(reduced, context)


def grouped_reducescatter_async(tensors: Tensors, name: str | None = None, op: Op = Op.Average,
                                process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> Handle:
    """Starts `grouped_reducescatter`."""
    return start_reducescatter(tensors, name, op, prescale_factor, postscale_factor, process_set, is_grouped=True,
                               is_async=True)


def grouped_reducescatter(tensors: Tensors, name: str | None = None, compression: type[Compressor] = Compression.none, op: Op = Op.Average,
                          process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> list[torch.Tensor]:
    """Returns what `reducescatter` returns, for each of several tensors, as one operation."""
    sent, contexts = zip(*(compression.compress(tensor) for tensor in tensors)) if tensors else ((), ())
    reduced = gradients.GroupedReducescatter.apply(name, op, process_set, prescale_factor, postscale_factor, *sent)
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts)]


def poll(handle: Handle) -> bool:
    """Returns whether an operation is complete, so that `synchronize` does not block. Does not block itself."""
    return handle.is_done or handle.process_set._open("poll()").poll(handle)


def synchronize(handle: Handle) -> Any:
    """Blocks until an operation is complete.

    Returns:
        its result: a tensor; a list for grouped operations; for alltoall, a tensor and the received splits.
    """
    return wait_for(handle)


def join(device: int = -1) -> int:
    """Says that this rank has no more data. Blocks until all ranks have joined.

    Until then, this rank contributes zeros to each allreduce (Average, Sum, Adasum) and no rows to each allgather of the others; averages
    are divided by the number of all ranks. Other calls of the others raise UsageError. Works on the set of all ranks.

    Args:
        device: Horovod's argument for the device of the zeros, which are made on the host here.

    Returns:
        the last rank that joined.
    """
    return global_process_set._open("join()").join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until every rank of the process set has called it."""
    negotiator = process_set._open("barrier()")
    negotiator.wait(negotiator.submit(Handle(negotiator.name_for(None), Call("barrier")), is_async=False))
