# SPDX-License-Identifier: Apache-2.0
"""Carries out calls that all ranks of a process set have made, one after the other, on the backend of the set.

Blocks the thread that calls it, without the GIL. Every function is called by all ranks in the same order.
"""
from __future__ import annotations

import ctypes
from typing import Any, Sequence

import torch
from torch.distributed import ReduceOp

from trireme import _native
from trireme.errors import UsageError
from trireme.horovod.torch.adasum import adasum_
from trireme.horovod.torch.requests import Call, Handle, Op

# torch.distributed marks these classes as its own, but they are the only way to make calls that block.
from torch._C._distributed_c10d import AllgatherOptions, AllreduceCoalescedOptions, AllreduceOptions, AllToAllOptions
from torch._C._distributed_c10d import BroadcastOptions, ReduceScatterOptions

FUSION_BYTES = 64 * 2**20
"""The most bytes of small tensors that are sent as one where messages have a long latency."""
_FUSED_TENSOR_BYTES = 2**20  # larger tensors gain nothing

_REDUCTIONS = {Op.Average: ReduceOp.AVG, Op.Sum: ReduceOp.SUM, Op.Min: ReduceOp.MIN, Op.Max: ReduceOp.MAX, Op.Product: ReduceOp.PRODUCT}


def _blocking(options: Any, **fields: Any) -> Any:
    options.asyncOp = False
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def _wait(work: Any) -> None:
    """Waits for a call that blocks, unless its backend has no work for one that is done."""
    if work is not None:
        work.wait()


_GATHER = _blocking(AllgatherOptions())
_ALL_TO_ALL = _blocking(AllToAllOptions())
_REDUCE = {op: _blocking(AllreduceOptions(), reduceOp=reduction) for op, reduction in _REDUCTIONS.items()}
_REDUCE_TOGETHER = {op: _blocking(AllreduceCoalescedOptions(), reduceOp=reduction) for op, reduction in _REDUCTIONS.items()}
_REDUCE_SCATTER = {op: _blocking(ReduceScatterOptions(), reduceOp=reduction) for op, reduction in _REDUCTIONS.items()}


class Executor:
    """The operations over one backend. Not thread-safe."""

    def __init__(self, backend: Any, rank: int, size: int) -> None:
        self.backend, self.rank, self.size = backend, rank, size
        self._fuses = _native.engine_of(backend) != "shm"  # in shared memory, a message costs less than a copy

    def all_gather_into(self, output: torch.Tensor, own: torch.Tensor) -> None:
        """Writes the contiguous CPU tensor of each rank, of the same number of elements, to the output."""
        _wait(self.backend._allgather_base(output, own, _GATHER))

    def all_gather(self, own: torch.Tensor) -> torch.Tensor:
        """Returns [size, …]: the contiguous CPU tensor of each rank, of the same shape."""
        output = own.new_empty((self.size, *own.shape))
        self.all_gather_into(output, own)
        return output

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Returns the bytes of every rank."""
        lengths = self.all_gather(torch.tensor([len(data)])).flatten().tolist()
        padded = torch.frombuffer(bytearray(data.ljust(max(1, *lengths), b"\0")), dtype=torch.uint8)
        return [ctypes.string_at(row.data_ptr(), length) for row, length in zip(self.all_gather(padded), lengths)]

    def run(self, handles: Sequence[Handle], rows: Sequence[list[int]]) -> None:
        """Carries out calls in order, and stores the results in the handles.

        Args:
            handles: the calls.
            rows: for each call, the rows of the first tensor of every rank.
        """
        first = 0
        while first < len(handles):
            end = first + 1
            if _can_be_together(handles[first]):
                while end < len(handles) and _can_be_together(handles[end]) and _is_alike(handles[first].call, handles[end].call):
                    end += 1
            try:
                with torch.no_grad():
                    if handles[first].call.kind == "allreduce":
                        self._all_reduce(handles[first:end])
                    else:
                        self._run_one(handles[first], rows[first])
                for handle in handles[first:end]:
                    _deliver(handle)
            except UsageError as error:  # raised before anything was sent, and on all ranks because they make the same call
                for handle in handles[first:end]:
                    handle.error = UsageError(f"{handle}: {error}")
            first = end

    def _run_one(self, handle: Handle, rows: list[int]) -> None:
        tensors = [_on_host(handle, tensor) for tensor in handle.tensors]
        kind = handle.call.kind
        if kind == "allgather":
            all_rows = [rows] if len(tensors) == 1 else self._rows_of(tensors)
            handle.results = [self._gather_rows(tensor, each) for tensor, each in zip(tensors, all_rows)]
        elif kind == "broadcast":
            options = _blocking(BroadcastOptions(), rootRank=handle.call.root)
            for tensor in tensors:
                _wait(self.backend.broadcast([tensor], options))
            handle.results = tensors
        elif kind == "alltoall":
            handle.results = self._all_to_all(tensors[0], handle.splits or [])
        elif kind == "reducescatter":
            handle.results = [self._reduce_scatter(handle.call, tensor) for tensor in tensors]

    def _all_reduce(self, handles: Sequence[Handle]) -> None:
        call = handles[0].call
        for handle in handles:
            handle.results = [_on_host(handle, tensor) for tensor in handle.tensors]
        tensors = [tensor for handle in handles for tensor in handle.results]
        if call.prescale != 1.0:
            torch._foreach_mul_(tensors, call.prescale)
        if call.op is Op.Adasum:
            for tensor in tensors:
                adasum_(tensor, self.backend, self.rank, self.size)
        elif tensors[0].is_sparse:
            for tensor in tensors:
                # Done when it returns. It adds; the average of what has different indices is a scaled sum.
                self.backend.allreduce([tensor]).wait()
                if call.op is Op.Average:
                    tensor.div_(self.size)
        else:
            self._all_reduce_dense(tensors, call.reduction)
        if call.postscale != 1.0:
            torch._foreach_mul_(tensors, call.postscale)

    def _all_reduce_dense(self, tensors: list[torch.Tensor], op: Op) -> None:
        if len(tensors) == 1:
            _wait(self.backend.allreduce(tensors, _REDUCE[op]))
            return
        if self._fuses:
            small = [tensor for tensor in tensors if tensor.nbytes <= _FUSED_TENSOR_BYTES]
            tensors = [tensor for tensor in tensors if tensor.nbytes > _FUSED_TENSOR_BYTES]
            while small:
                total, count = 0, 0
                while count < len(small) and total + small[count].nbytes <= FUSION_BYTES:
                    total, count = total + small[count].nbytes, count + 1
                fused, small = small[:count], small[count:]
                buffer = torch.cat([tensor.view(-1) for tensor in fused])
                _wait(self.backend.allreduce([buffer], _REDUCE[op]))
                torch._foreach_copy_([tensor.view(-1) for tensor in fused], list(buffer.split([tensor.numel() for tensor in fused])))
        if tensors:
            _wait(self.backend.allreduce_coalesced(tensors, _REDUCE_TOGETHER[op]))

    def _rows_of(self, tensors: list[torch.Tensor]) -> list[list[int]]:
        """Returns, for each tensor, its rows on every rank."""
        return self.all_gather(torch.tensor([tensor.shape[0] for tensor in tensors])).t().tolist()

    def _gather_rows(self, tensor: torch.Tensor, rows: list[int]) -> torch.Tensor:
        output = tensor.new_empty((sum(rows), *tensor.shape[1:]))
        if len(set(rows)) == 1:
            self.all_gather_into(output, tensor)
        elif self._fuses:  # engines between hosts take pieces of one length only
            padded = tensor.new_zeros((max(rows), *tensor.shape[1:]))
            padded[:tensor.shape[0]] = tensor
            everything = self.all_gather(padded)
            torch.cat([everything[rank, :count] for rank, count in enumerate(rows)], out=output)
        else:
            _wait(self.backend.allgather([list(output.split(rows))], [tensor], _GATHER))
        return output

    def _all_to_all(self, tensor: torch.Tensor, splits: list[int]) -> list[torch.Tensor]:
        """Returns what was received, and the rows that came from each rank."""
        sent, received = torch.tensor(splits), torch.empty(self.size, dtype=torch.int64)
        _wait(self.backend.alltoall_base(received, sent, [], [], _ALL_TO_ALL))
        counts = received.tolist()
        output = tensor.new_empty((sum(counts), *tensor.shape[1:]))
        _wait(self.backend.alltoall_base(output, tensor, counts, splits, _ALL_TO_ALL))
        return [output, received]

    def _reduce_scatter(self, call: Call, tensor: torch.Tensor) -> torch.Tensor:
        """Returns this rank's rows of the result. The first ranks have one more where rows cannot be divided evenly."""
        scaled = tensor * call.prescale if call.prescale != 1.0 else tensor
        rows, more = divmod(tensor.shape[0], self.size)
        counts = [rows + (rank < more) for rank in range(self.size)]
        longest = max(counts)
        if more:
            parts = scaled.new_zeros((self.size, longest, *tensor.shape[1:]))
            for part, piece in zip(parts, scaled.split(counts)):
                part[:piece.shape[0]] = piece
            scaled = parts.flatten(0, 1)
        output = tensor.new_empty((longest, *tensor.shape[1:]))
        _wait(self.backend._reduce_scatter_base(output, scaled, _REDUCE_SCATTER[call.reduction]))
        output = output[:counts[self.rank]]
        return output * call.postscale if call.postscale != 1.0 else output


def zeros_for(call: Call, name: str) -> Handle:
    """Returns what a rank contributes to a call after it has joined. Raises UsageError if there is nothing neutral."""
    if call.kind == "allreduce" and call.op not in (Op.Average, Op.Sum, Op.Adasum):
        raise UsageError(f"{call} '{name}' after a rank has joined: zeros change its result\n"
                         "  hint: use Sum or Average until all have joined")
    if call.kind not in ("allreduce", "allgather", "barrier"):
        raise UsageError(f"{call} '{name}' after a rank has joined\n"
                         "  hint: only allreduce, allgather and barrier can be used until all ranks have joined")
    return Handle(name, call, [tensor.zeros() for tensor in call.tensors])


def _can_be_together(handle: Handle) -> bool:
    call = handle.call
    return call.kind == "allreduce" and call.op is not Op.Adasum and not call.tensors[0].sparse_dims


def _is_alike(one: Call, other: Call) -> bool:
    dtypes = {tensor.dtype for call in (one, other) for tensor in call.tensors}
    return (one.op, one.prescale, one.postscale) == (other.op, other.prescale, other.postscale) and len(dtypes) == 1


def _on_host(handle: Handle, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor in the memory of the host, through which tensors of accelerators go."""
    if tensor.device.type == "cpu":
        return tensor
    if handle.on_device is not None:
        handle.on_device.synchronize()
        handle.on_device = None
    return tensor.cpu()


def _deliver(handle: Handle) -> None:
    """Copies results to where the caller expects them."""
    device = handle.tensors[0].device if handle.tensors else None
    if handle.targets is not None:
        with torch.no_grad():
            for target, result in zip(handle.targets, handle.results):
                target.copy_(result)
        handle.results = handle.targets
    elif device is not None and device.type != "cpu":
        handle.results[0] = handle.results[0].to(device)
        if handle.call.kind != "alltoall":  # whose splits stay on the host
            handle.results[1:] = [result.to(device) for result in handle.results[1:]]
