# SPDX-License-Identifier: Apache-2.0
"""Reduces the gradients of an optimizer over all ranks while backward runs.

A parameter's gradient is complete after `backward_passes_per_step` calls of backward. When those of a group of parameters are, their
reduction is started. It is matched by name with those of the other ranks, whatever the order in which gradients get ready there. Parameters
that took no part in backward are reduced when the step is synchronized, as zeros if they have no gradient.
"""
from __future__ import annotations

import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any, Iterable, Sequence

import torch

from trireme.errors import UsageError
from trireme.horovod.torch.compression import Compressor
from trireme.horovod.torch.functions import allgather_object
from trireme.horovod.torch.process_sets import ProcessSet
from trireme.horovod.torch.requests import Handle, Op, TensorKind, kind_of
from trireme.horovod.torch.starting import start_allreduce, wait_for

Parameter = torch.Tensor
Named = list[tuple[str, Parameter]]


@dataclass(frozen=True)
class Options:
    """How gradients are reduced. Equal on all ranks."""

    compression: type[Compressor]
    op: Op
    gradient_predivide_factor: float
    sparse_as_dense: bool

    def __str__(self) -> str:
        return (f"{self.op.value}, compression {self.compression.__name__}, gradient_predivide_factor {self.gradient_predivide_factor}, "
                f"sparse_as_dense {self.sparse_as_dense}")


@dataclass(eq=False)
class _Group:
    """Parameters whose gradients are reduced in one operation."""

    name: str
    parameters: list[Parameter]
    missing: int = 0
    """How many of them wait for backward."""
    handle: Handle | None = None
    contexts: list[Any] = field(default_factory=list)


class GradientReducer:
    """The gradients of one optimizer. Not thread-safe, but for the hooks, which autograd calls."""

    def __init__(self, named: Named, others: Named, groups: int | Sequence[Sequence[Parameter]] | None, passes: int, options: Options,
                 process_set: ProcessSet, prefix: str) -> None:
        """`others` are parameters whose gradients are not reduced. They are compared before the first step, as all are."""
        self.passes, self.options, self.process_set, self._prefix = passes, options, process_set, prefix
        self.was_synchronized = False
        self._named, self._others = named, others
        self._names = {id(parameter): name for name, parameter in named}
        self._remaining = {id(parameter): passes for _, parameter in named}
        self._sparse_kinds: dict[int, TensorKind] = {}  # of parameters that had sparse gradients
        self._groups = [_Group(self._names[id(members[0])], members, len(members))
                        for members in _divide([parameter for _, parameter in named], groups)]
        self._group_of = {id(parameter): group for group in self._groups for parameter in group.parameters}
        self._are_compared = False
        own = weakref.ref(self)  # parameters must not keep the optimizer alive

        def hook(parameter: Parameter) -> None:
            reducer = own()
            if reducer is not None:
                reducer._on_gradient(parameter)

        hooks = [parameter.register_post_accumulate_grad_hook(hook) for _, parameter in named]
        weakref.finalize(self, lambda: [each.remove() for each in hooks])

    def is_under_way(self) -> bool:
        """Returns whether backward has run since the last step or synchronization."""
        return any(count != self.passes for count in self._remaining.values())

    def set_passes(self, passes: int) -> None:
        """Sets the number of backward passes of a step, and begins a new one."""
        self.passes = passes
        self.reset()

    def reset(self) -> None:
        """Begins a new step."""
        for group in self._groups:
            group.handle, group.missing = None, len(group.parameters)
        self._remaining = {key: self.passes for key in self._remaining}

    def synchronize(self) -> None:
        """Completes the gradients of a step. Collective and blocking."""
        if not self._are_compared:
            self._compare_parameters()
        for group in self._groups:
            if group.handle is None:
                self._start(group)
        for group in self._groups:
            self._finish(group)
        self.reset()
        self.was_synchronized = True

    def _on_gradient(self, parameter: Parameter) -> None:
        key = id(parameter)
        if self._remaining[key] == 0:
            raise UsageError(f"the gradient of {self._names[key]} was computed more than {self.passes} times before step() or "
                             "synchronize()\n  hint: give DistributedOptimizer the number of backward() calls as backward_passes_per_step")
        self.was_synchronized = False
        self._remaining[key] -= 1
        if self._remaining[key] == 0:
            group = self._group_of[key]
            group.missing -= 1
            if group.missing == 0:
                self._start(group)

    def _start(self, group: _Group) -> None:
        options, sent, contexts = self.options, [], []
        for parameter in group.parameters:
            if parameter.grad is None:
                kind = self._sparse_kinds.get(id(parameter))
                parameter.grad = kind.zeros().to(parameter.device) if kind else torch.zeros_like(parameter, requires_grad=False)
            gradient = parameter.grad
            if gradient.is_sparse:
                self._sparse_kinds[id(parameter)] = kind_of(gradient)
                if len(group.parameters) > 1 and not options.sparse_as_dense:
                    raise UsageError(f"the gradient of {self._names[id(parameter)]}, which is in a group, is sparse\n"
                                     "  hint: leave it out of groups, or set sparse_as_dense")
                gradient = gradient.to_dense() if options.sparse_as_dense else gradient.coalesce()
            compressed, context = options.compression.compress(gradient)
            sent.append(compressed)
            contexts.append(context)
        group.contexts = contexts
        factor = options.gradient_predivide_factor
        group.handle = start_allreduce(sent, f"{self._prefix} {group.name}", options.op, 1 / factor, factor, self.process_set,
                                       in_place=True, is_grouped=True, is_async=True)

    @torch.no_grad()
    def _finish(self, group: _Group) -> None:
        assert group.handle is not None
        for parameter, reduced, context in zip(group.parameters, wait_for(group.handle), group.contexts):
            result = self.options.compression.decompress(reduced, context)
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse:
                parameter.grad = result if result.is_sparse else result.to_sparse()
            elif result.data_ptr() != gradient.data_ptr():
                gradient.copy_(result)

    @torch.no_grad()
    def _compare_parameters(self) -> None:
        """Raises UsageError, naming the first parameter that is not the same on all ranks. They would never become so.

        Parameters that are frozen, or that another optimizer steps, may differ on purpose: a warning names them.
        """
        self._are_compared = True
        digests = {name: _digest(parameter) for name, parameter in [*self._named, *self._others]}
        everything = allgather_object(digests, f"{self._prefix} parameters before the first step", self.process_set)
        self._others = []
        ranks = self.process_set.ranks if len(everything) == len(self.process_set.ranks) else []  # others have joined
        differing = {}
        for name, digest in everything[0].items():
            place = next((place for place, other in enumerate(everything) if other.get(name, digest) != digest), None)
            if place is not None:
                differing[name] = f"not the same on {f'ranks {ranks[0]} and {ranks[place]}' if ranks else 'all ranks'} before the first step"
        hint = "call hvd.broadcast_parameters for every model, after it was made or loaded"
        for name, _ in self._named:
            if name in differing:
                raise UsageError(f"parameter {name} is {differing[name]}\n  hint: {hint}")
        if differing:
            name, what = next(iter(differing.items()))
            warnings.warn(f"parameter {name}, whose gradient is not reduced, is {what}. If it should be the same, {hint}", stacklevel=4)


def _digest(tensor: torch.Tensor) -> int:
    """Returns a number that differs, almost always, if a bit of the values does."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    if not flat.numel():
        return 0
    bits = flat.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}[flat.element_size()])
    return int(bits.sum(dtype=torch.int64)) * 31 + int(bits[::2].sum(dtype=torch.int64))


def _divide(parameters: list[Parameter], groups: int | Sequence[Sequence[Parameter]] | None) -> Iterable[list[Parameter]]:
    """Returns the parameters that are reduced together."""
    if groups is None:
        return [[parameter] for parameter in parameters]
    if isinstance(groups, int):
        count = min(groups, len(parameters))
        sizes = [len(parameters) // count + (place < len(parameters) % count) for place in range(count)] if count else []
        ends = [sum(sizes[:place + 1]) for place in range(count)]
        return [parameters[end - size:end] for size, end in zip(sizes, ends)]
    known = {id(parameter) for parameter in parameters}
    chosen = [[parameter for parameter in group if id(parameter) in known] for group in groups]
    grouped = {id(parameter) for group in chosen for parameter in group}
    return [group for group in chosen if group] + [[parameter] for parameter in parameters if id(parameter) not in grouped]


def agree(description: str, names: list[str], mistake: str | None, process_set: ProcessSet) -> list[str]:
    """Returns the names in the order of the first rank. Collective and blocking.

    Raises:
        UsageError: the same on every rank, if a rank has made a mistake, or descriptions or names differ.
    """
    call = "DistributedOptimizer"
    everything = allgather_object((description, names, mistake), None, process_set)
    for rank, (_, _, found) in zip(process_set.ranks, everything):
        if found:
            raise UsageError(f"{call} on rank {rank}: {found}")
    first = everything[0]
    for rank, (other, other_names, _) in zip(process_set.ranks, everything):
        if other != first[0]:
            raise UsageError(f"{call} differs between ranks: rank {process_set.ranks[0]} has {first[0]}, rank {rank} has {other}\n"
                             "  hint: make the same call on every rank")
        difference = sorted(set(other_names) ^ set(first[1]))
        if difference:
            has = rank if difference[0] in other_names else process_set.ranks[0]
            raise UsageError(f"{call} differs between ranks {process_set.ranks[0]} and {rank}: only rank {has} has the parameter "
                             f"{difference[0]}\n"
                             "  hint: make the same model on every rank")
    return first[1]
