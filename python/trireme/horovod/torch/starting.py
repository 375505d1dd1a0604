# SPDX-License-Identifier: Apache-2.0
"""Starts collective calls: checks the arguments of this rank, and hands the call over to be matched with those of the others."""
from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any, Callable, Sequence

import torch

from trireme.errors import UsageError
from trireme.horovod.torch.process_sets import ProcessSet
from trireme.horovod.torch.requests import Call, Handle, Op, kind_of

Results = list[torch.Tensor]


def op_of(op: Op | None, average: bool | None) -> Op:
    """Returns the reduction; Average if none is given. `average` is Horovod's older argument for it."""
    if average is None:
        op = Op.Average if op is None else op
        if not isinstance(op, Op):
            raise UsageError(f"op is {op!r}\n  hint: give one of hvd.Average, Sum, Adasum, Min, Max and Product")
        return op
    if op is not None:
        raise UsageError(f"both op={op} and average={average} were given\n  hint: give op alone")
    warnings.warn("the argument average is deprecated, use op", DeprecationWarning, stacklevel=4)
    return Op.Average if average else Op.Sum


class _Mistake(Exception):
    """A wrong argument of this rank. All ranks raise an error about it, because the others wait for this one."""


def _announced(start: Callable[..., Handle]) -> Callable[..., Handle]:
    """Lets all ranks know of mistakes in the arguments of this one."""

    @functools.wraps(start)
    def start_or_announce(*arguments: Any, **keywords: Any) -> Handle:
        try:
            return start(*arguments, **keywords)
        except _Mistake as mistake:
            given = inspect.signature(start).bind(*arguments, **keywords).arguments
            process_set = given["process_set"]
            negotiator = process_set._open(start.__name__)
            handle = Handle(negotiator.name_for(given["name"]), Call(start.__name__.removeprefix("start_"), mistake=str(mistake)))
            handle.process_set = process_set
            return negotiator.submit(handle, given["is_async"])

    return start_or_announce


def _check_reduction(tensors: Sequence[torch.Tensor], op: Op, prescale: float, postscale: float, process_set: ProcessSet) -> None:
    for tensor in tensors:
        is_number = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        if op is Op.Average and not is_number:
            raise _Mistake(f"the average of {kind_of(tensor)}\n"
                           "  hint: take hvd.Sum and divide as you like, or a floating dtype")
        if (prescale, postscale) != (1.0, 1.0) and not is_number:
            raise _Mistake(f"a prescale or postscale factor for {kind_of(tensor)}\n  hint: scale floating dtypes only")
        if op is Op.Adasum and (not tensor.dtype.is_floating_point or tensor.is_sparse):
            raise _Mistake(f"Adasum of {kind_of(tensor)}\n  hint: Adasum is defined for dense tensors of floating dtypes")
        if tensor.is_sparse and op not in (Op.Average, Op.Sum):
            raise _Mistake(f"{op.value} of {kind_of(tensor)}\n  hint: only sums and averages of sparse tensors are there")
    size = process_set.size() or 1
    if op is Op.Adasum and size & (size - 1):
        raise _Mistake(f"Adasum over {size} ranks\n  hint: Adasum combines ranks in pairs: take 2, 4, 8, ... of them")


def _check_tensors(tensors: Sequence[torch.Tensor], needs_rows: bool) -> None:
    if not tensors:
        raise _Mistake("no tensors were given\n  hint: give at least one")
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise _Mistake(f"{type(tensor).__name__} was given\n  hint: give a tensor")
        if needs_rows and (tensor.dim() == 0 or tensor.is_sparse):
            raise _Mistake(f"{kind_of(tensor)} was given\n  hint: give a dense tensor with at least one dimension")


def _submit(handle: Handle, process_set: ProcessSet, is_async: bool) -> Handle:
    handle.process_set = process_set
    device = handle.tensors[0].device
    if device.type != "cpu":
        handle.on_device = torch.Event(device)
        handle.on_device.record()
    return process_set._open(handle.call.kind).submit(handle, is_async)


def _unpack_of(is_grouped: bool, originals: Sequence[torch.Tensor] | None = None) -> Any:
    """Returns what makes the result of a call from its tensors. A call in place returns the tensors that it was given."""
    if originals is not None:
        return (lambda _: list(originals)) if is_grouped else (lambda _: originals[0])
    return list if is_grouped else (lambda results: results[0])


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.coalesce() if tensor.is_sparse else tensor.contiguous()


def _own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous copy of a tensor, which the operation may write to."""
    tensor = tensor.detach()
    return tensor.coalesce().clone() if tensor.is_sparse else tensor.clone(memory_format=torch.contiguous_format)


def _writable(tensors: Sequence[torch.Tensor], in_place: bool) -> tuple[Results, Results | None]:
    """Returns what the operation writes to, and where its results are to be copied."""
    if not in_place:
        return [_own_copy(tensor) for tensor in tensors], None
    works = [_contiguous(tensor) for tensor in tensors]
    # A sparse tensor that shares its elements would not see them replaced.
    is_direct = all(not tensor.is_sparse and tensor.device.type == "cpu" and work.data_ptr() == tensor.data_ptr()
                    for work, tensor in zip(works, tensors))
    return works, None if is_direct else list(tensors)


@_announced
def start_allreduce(tensors: Sequence[torch.Tensor], name: str | None, op: Op, prescale: float, postscale: float, process_set: ProcessSet,
                    in_place: bool, is_grouped: bool, is_async: bool) -> Handle:
    kind = "allreduce"
    negotiator = process_set._open(kind)
    _check_tensors(tensors, needs_rows=False)
    _check_reduction(tensors, op, prescale, postscale, process_set)
    works, targets = _writable(tensors, in_place)
    call = Call(kind, tuple(kind_of(tensor) for tensor in works), op, float(prescale), float(postscale))
    handle = Handle(negotiator.name_for(name), call, works, targets, unpack=_unpack_of(is_grouped, tensors if in_place else None))
    return _submit(handle, process_set, is_async)


@_announced
def start_allgather(tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet, is_grouped: bool, is_async: bool) -> Handle:
    kind = "allgather"
    negotiator = process_set._open(kind)
    _check_tensors(tensors, needs_rows=False)
    works = [_contiguous(tensor.reshape(1) if tensor.dim() == 0 else tensor) for tensor in tensors]
    _check_tensors(works, needs_rows=True)
    call = Call(kind, tuple(kind_of(tensor, any_rows=True) for tensor in works))
    return _submit(Handle(negotiator.name_for(name), call, works, unpack=_unpack_of(is_grouped)), process_set, is_async)


@_announced
def start_broadcast(tensors: Sequence[torch.Tensor], root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool,
                    is_grouped: bool, is_async: bool) -> Handle:
    kind = "broadcast"
    negotiator = process_set._open(kind)
    _check_tensors(tensors, needs_rows=False)
    if root_rank not in process_set.ranks:
        raise _Mistake(f"root_rank is {root_rank}, expected one of the ranks {process_set.ranks}\n"
                       "  hint: with process sets too, root_rank counts among all ranks")
    works, targets = _writable(tensors, in_place)
    call = Call(kind, tuple(kind_of(work) for work in works), root=process_set.ranks.index(root_rank))
    handle = Handle(negotiator.name_for(name), call, works, targets, unpack=_unpack_of(is_grouped, tensors if in_place else None))
    return _submit(handle, process_set, is_async)


@_announced
def start_alltoall(tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet, is_async: bool) -> Handle:
    kind = "alltoall"
    negotiator = process_set._open(kind)
    _check_tensors([tensor], needs_rows=True)
    rows, size = tensor.shape[0], len(process_set.ranks)
    if splits is None:
        if rows % size:
            raise _Mistake(f"{rows} rows cannot be cut into {size} equal parts\n"
                           "  hint: give splits: how many rows go to each rank")
        parts = [rows // size] * size
    else:
        parts = torch.as_tensor(splits).flatten().tolist()
        if len(parts) != size or any(part < 0 for part in parts) or sum(parts) != rows:
            raise _Mistake(f"splits are {parts} for {rows} rows and {size} ranks\n"
                           "  hint: give one number for each rank, 0 or more, which sum to the rows")
    like = splits if isinstance(splits, torch.Tensor) else torch.empty(0, dtype=torch.int32)
    work = _contiguous(tensor)
    handle = Handle(negotiator.name_for(name), Call(kind, (kind_of(work, any_rows=True),)), [work], splits=parts,
                    unpack=lambda results: (results[0], results[1].to(like)))
    return _submit(handle, process_set, is_async)


@_announced
def start_reducescatter(tensors: Sequence[torch.Tensor], name: str | None, op: Op, prescale: float, postscale: float,
                        process_set: ProcessSet, is_grouped: bool, is_async: bool) -> Handle:
    kind = "reducescatter"
    negotiator = process_set._open(kind)
    _check_tensors(tensors, needs_rows=True)
    if op not in (Op.Average, Op.Sum):
        raise _Mistake(f"op is {op}\n  hint: give hvd.Average or hvd.Sum")
    _check_reduction(tensors, op, prescale, postscale, process_set)
    works = [_contiguous(tensor) for tensor in tensors]
    call = Call(kind, tuple(kind_of(tensor) for tensor in works), op, float(prescale), float(postscale))
    return _submit(Handle(negotiator.name_for(name), call, works, unpack=_unpack_of(is_grouped)), process_set, is_async)


def wait_for(handle: Handle) -> Any:
    """Blocks until a call is complete, and returns its result. Raises its error."""
    if not handle.is_done:
        handle.process_set._open("synchronize()").wait(handle)
    if handle.error is not None:
        raise handle.error.with_traceback(None)
    return handle.unpack(handle.results)
