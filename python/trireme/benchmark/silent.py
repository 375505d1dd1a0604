# SPDX-License-Identifier: Apache-2.0
"""A process group that exchanges nothing, to find the part of a step that is communication.

A step over this group does everything else: the ranks compute at the same time, buckets are filled, parameters are gathered into new
memory. Where a collective has an output of its own, this rank's input is copied there, so that the values are ordinary numbers. The time
of these copies is counted, because it is a part of the communication.
"""
from __future__ import annotations

import time
from typing import Any, Sequence

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future

BACKEND = "silent"
_seconds = 0.0


def seconds_of_copies() -> float:
    """Returns the time that all copies of this process have taken so far."""
    return _seconds


def _done(value: Any = None) -> Any:
    future: Future[Any] = Future()
    future.set_result(value)
    return _create_work_from_future(future)


def _copy(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    global _seconds
    started = time.perf_counter()
    for output, own in zip(outputs, inputs, strict=True):
        output.detach().copy_(own)
    _seconds += time.perf_counter() - started


class SilentGroup(dist.ProcessGroup):
    """The collectives that DDP, FSDP2 and DTensor call."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size

    @property
    def group_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    def getBackendName(self) -> str:
        return BACKEND

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return _done(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return _done(tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return _done(tensors)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        for parts, own in zip(outputs, inputs, strict=True):
            _copy(parts, [own] * self._size)
        return _done(outputs)

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Any:
        _copy(output.chunk(self._size), [own] * self._size)
        return _done(output)

    def all_gather_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        for output, own in zip(outputs, inputs, strict=True):
            _copy(output.chunk(self._size), [own] * self._size)
        return _done(outputs)

    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None) -> Any:
        _copy([output], [whole.chunk(self._size)[self._rank]])
        return _done(output)

    def reduce_scatter_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        _copy(outputs, [whole.chunk(self._size)[self._rank] for whole in inputs])
        return _done(outputs)


dist.Backend.register_backend(BACKEND, lambda store, rank, size, timeout: SilentGroup(rank, size), devices=["cpu"])


def make_group() -> dist.ProcessGroup:
    """Returns a silent group of all ranks. Collective."""
    return dist.new_group(backend=BACKEND)
