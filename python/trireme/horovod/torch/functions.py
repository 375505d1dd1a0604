# SPDX-License-Identifier: Apache-2.0
"""Sends parameters, optimizer state and objects from one rank to all, or from all to all."""
from __future__ import annotations

import ctypes
import pickle
from typing import Any, Iterable, Mapping

import torch

from trireme.errors import UsageError
from trireme.horovod.torch.process_sets import ProcessSet, global_process_set
from trireme.horovod.torch.requests import kind_of
from trireme.horovod.torch.starting import start_allgather, start_broadcast, wait_for

try:
    import cloudpickle as _pickler  # for functions and classes of scripts, where it is installed
except ImportError:
    _pickler = pickle

_SMALL = 64  # elements of a tensor that is sent with the rest of an optimizer's state


def _to_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _to_bytes(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Returns the object of one rank on all ranks. Collective and blocking.

    Args:
        obj: what `pickle` (`cloudpickle`, if it is installed) can write; only the root's matters.
        root_rank: counted among all ranks.
    """
    is_root = process_set.included() and process_set.ranks[process_set.rank() or 0] == root_rank
    data = _to_tensor(_pickler.dumps(obj) if is_root else b"")
    size = torch.tensor([data.numel()])
    wait_for(start_broadcast([size], root_rank, name and f"{name}.size", process_set, in_place=True, is_grouped=False, is_async=False))
    if not is_root:
        data = torch.empty(int(size), dtype=torch.uint8)
    wait_for(start_broadcast([data], root_rank, name and f"{name}.data", process_set, in_place=True, is_grouped=False, is_async=False))
    return obj if is_root else pickle.loads(_to_bytes(data))


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all ranks, in rank order. Collective and blocking. Objects of ranks that have joined are left out."""
    data = _to_tensor(_pickler.dumps(obj))
    sizes, everything = wait_for(start_allgather([torch.tensor([data.numel()]), data], name, process_set, is_grouped=True, is_async=False))
    return [pickle.loads(_to_bytes(part)) for part in everything.split(sizes.tolist())]


def check_same(call: str, items: list[tuple[str, str]], mistake: str | None, process_set: ProcessSet) -> None:
    """Raises the same UsageError on every rank if a rank has made a mistake, or the items, names with descriptions, differ between ranks.

    Collective and blocking.
    """
    everything = allgather_object((items, mistake), None, process_set)
    ranks = process_set.ranks
    for rank, (_, found) in zip(ranks, everything):
        if found:
            raise UsageError(f"{call} on rank {rank}: {found}")
    first = everything[0][0]
    for rank, (other, _) in zip(ranks, everything):
        if other == first:
            continue
        for one, two in zip(first, other):
            if one != two:
                raise UsageError(f"{call} differs between ranks: rank {ranks[0]} has {' '.join(one)}, rank {rank} has {' '.join(two)}\n"
                                 "  hint: make the same call, with the same model, on every rank")
        raise UsageError(f"{call} differs between ranks: rank {ranks[0]} has {len(first)} tensors, rank {rank} has {len(other)}\n"
                         "  hint: make the same call, with the same model, on every rank")


def _mistake_of_root(root_rank: int, process_set: ProcessSet) -> str | None:
    if root_rank in process_set.ranks:
        return None
    return f"root_rank is {root_rank}, expected one of the ranks {process_set.ranks}\n  hint: give a rank of the process set"


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrites tensors by those of one rank. Collective and blocking.

    Args:
        params: `model.state_dict()`, `model.named_parameters()`, or tensors.
        root_rank: counted among all ranks.

    Raises:
        UsageError: on all ranks, naming the first tensor whose name, shape or dtype differs between ranks.
    """
    call = "broadcast_parameters"
    process_set._open(call)
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise UsageError(f"{call} was given {type(params).__name__}\n  hint: give model.state_dict() or model.named_parameters()")
    named = sorted(params.items()) if isinstance(params, Mapping) else [
        item if isinstance(item, tuple) else (str(place), item) for place, item in enumerate(params)]
    others = [name for name, value in named if not isinstance(value, torch.Tensor)]
    mistake = _mistake_of_root(root_rank, process_set)
    if others:
        mistake = f"'{others[0]}' is no tensor\n  hint: send other objects by broadcast_object"
    described = [(name, str(kind_of(value))) for name, value in named if name not in others]
    check_same(call, [("root rank", str(root_rank)), *described], mistake, process_set)
    if named:
        wait_for(start_broadcast([value for _, value in named], root_rank, None, process_set, in_place=True, is_grouped=True,
                                 is_async=False))


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None,
                              process_set: ProcessSet = global_process_set) -> None:
    """Copies the state of the optimizer of one rank, and the options of its parameter groups such as the learning rate.

    Ranks without state get it; where the root has none, the others lose theirs. No step is made, and parameters are not changed. Collective
    and blocking.

    Args:
        optimizer: any optimizer but LBFGS, distributed or not.
        root_rank: counted among all ranks.
        model: not used; Horovod needs it for sparse parameters.

    Raises:
        UsageError: on all ranks, for LBFGS, and if the kinds or the parameters of the optimizers differ between ranks.
    """
    call = "broadcast_optimizer_state"
    process_set._open(call)
    mistake = _mistake_of_root(root_rank, process_set)
    if isinstance(optimizer, torch.optim.LBFGS):
        mistake = "the state of LBFGS cannot be sent\n  hint: send optimizer.state_dict() by broadcast_object"
    parameters = [(f"{group}.{place}", parameter) for group, options in enumerate(optimizer.param_groups)
                  for place, parameter in enumerate(options["params"])]
    check_same(call, [("optimizer", type(optimizer).__name__), ("root rank", str(root_rank)),
                      *((f"parameter {name}", str(kind_of(parameter))) for name, parameter in parameters)], mistake, process_set)
    tensors: list[torch.Tensor] = []

    def describe(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.numel() > _SMALL and not value.is_sparse:
            tensors.append(value)
            return _Sent(kind_of(value))
        return value.cpu() if isinstance(value, torch.Tensor) else value

    own_options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    own_states = [{key: describe(value) for key, value in optimizer.state[parameter].items()} if parameter in optimizer.state else None
                  for _, parameter in parameters]
    options, states = broadcast_object((own_options, own_states), root_rank, None, process_set)
    if process_set.ranks[process_set.rank() or 0] != root_rank:
        tensors.clear()
        for group, chosen in zip(optimizer.param_groups, options):
            group.update(chosen)
        for (_, parameter), state in zip(parameters, states):
            optimizer.state.pop(parameter, None)
            if state is not None:
                optimizer.state[parameter] = {key: value.receive(parameter, tensors) if isinstance(value, _Sent) else value
                                              for key, value in state.items()}
    if tensors:
        wait_for(start_broadcast(tensors, root_rank, None, process_set, in_place=True, is_grouped=True,
                                 is_async=False))


class _Sent:
    """Stands for a tensor that is sent by itself."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def receive(self, parameter: torch.Tensor, tensors: list[torch.Tensor]) -> torch.Tensor:
        like = parameter if tuple(parameter.shape) == self.kind.shape else torch.empty(self.kind.shape)
        tensors.append(torch.empty_like(like, dtype=self.kind.dtype, device=parameter.device, requires_grad=False))
        return tensors[-1]
