# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch.optim that step this rank's parts of parameters, and have whole states for others to see.

The library says which flat tensors lie in this rank's part of a parameter (trireme/parallel/zero). They take the parameter's place in
the groups of the optimizer, and its state becomes that of these tensors.
"""
from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist

from trireme import _planning
from trireme.errors import UsageError

# They treat every element of a parameter by itself, so that a part of one is stepped as the whole would be.
ELEMENTWISE = ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
# Entries of a state that belong to a parameter as a whole, whatever its shape.
_NUMBERS = ("step", "eta", "mu", "mu_product")

State = dict[Any, Any]


def check_elementwise(optimizer: torch.optim.Optimizer) -> None:
    """Raises UsageError for an optimizer that is not known to treat every element by itself."""
    if any(type(optimizer) is getattr(torch.optim, name) for name in ELEMENTWISE):
        return
    raise UsageError(f"an optimizer of type {type(optimizer).__name__} cannot step parts of parameters: only {', '.join(ELEMENTWISE)} of "
                     "torch.optim are known to treat every element by itself\n  hint: use one of those, or a plan with zero_level 0")


class ShardedOptimizer:
    """What makes an optimizer step parts. Collective to construct."""

    def __init__(self, optimizer: torch.optim.Optimizer, native: Any, group: dist.ProcessGroup) -> None:
        self._native = native
        self._group = group
        self._optimizer = weakref.ref(optimizer)
        self._whole = [list(each["params"]) for each in optimizer.param_groups]
        self._parts = {part.parameter: part for part in native.sharded_parameters()}
        all_state = dict(optimizer.state)
        self._stepped = native.shard(self._whole) if self._parts else None
        self._groups = self._stepped.groups if self._stepped is not None else self._whole
        self._use(optimizer, self._groups, self._cut_state(all_state))
        self._kept: tuple[list[list[torch.Tensor]], State] | None = None
        self._hooks = [optimizer.register_state_dict_pre_hook(self._before_state_dict),
                       optimizer.register_state_dict_post_hook(self._after_state_dict),
                       optimizer.register_load_state_dict_pre_hook(self._before_load),
                       optimizer.register_load_state_dict_post_hook(self._after_load)]

    def undo(self) -> None:
        """Gives the optimizer the parameters and their whole state. Collective and blocking."""
        optimizer = self._optimizer()
        for hook in self._hooks:
            hook.remove()
        if optimizer is not None:
            self._use(optimizer, self._whole, self._all_state(optimizer))
        self._stepped = None

    def _use(self, optimizer: torch.optim.Optimizer, groups: list[list[torch.Tensor]], state: State) -> None:
        for group, tensors in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = list(tensors)
        optimizer.state = defaultdict(dict, state)

    def _cut_state(self, whole: State) -> State:
        """Returns the state of the tensors that this rank steps."""
        cut: State = {}
        for parameter, entries in whole.items():
            part = self._parts.get(parameter)
            if part is None:
                cut[parameter] = {key: _planning.distribute_like(parameter, value) if _is_per_element(key, value, parameter) else value
                                  for key, value in entries.items()}
                continue
            if part.elements == 0:
                continue
            sizes = [each.numel() for each in part.stepped]
            pieces = {key: self._native.cut(parameter, value).split(sizes)
                      for key, value in entries.items() if _is_per_element(key, value, parameter)}
            for number, stepped in enumerate(part.stepped):
                cut[stepped] = {key: pieces[key][number].clone() if key in pieces else _copy(value) for key, value in entries.items()}
        return cut

    def _all_state(self, optimizer: torch.optim.Optimizer) -> State:
        """Returns the state of whole parameters, from the parts of all ranks. Collective and blocking."""
        whole: State = {}
        own: list[dict[str, Any]] = []
        parameters = [each for group in self._whole for each in group]
        for parameter in parameters:
            own.append(self._describe(optimizer, parameter))
        everyone: list[Any] = [None] * self._group.size()
        dist.all_gather_object(everyone, own, group=self._group)
        for number, parameter in enumerate(parameters):
            described: dict[str, Any] = next((rank[number] for rank in everyone if rank[number]), {})
            if described:
                whole[parameter] = {key: self._whole_entry(optimizer, parameter, key, what) for key, what in described.items()}
        return whole

    def _describe(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, Any]:
        """Returns the entries of a parameter's state: dtypes of those with a value for each element, and the others as they are."""
        part = self._parts.get(parameter)
        first = parameter if part is None else part.stepped[0]
        entries = optimizer.state.get(first, {}) if part is None or part.elements > 0 else {}
        return {key: value.dtype if _is_per_element(key, value, first) else value for key, value in entries.items()}

    def _whole_entry(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor, key: Any, what: Any) -> Any:
        part = self._parts.get(parameter)
        if not isinstance(what, torch.dtype):
            return _copy(what)
        if part is None:
            return _planning.full(value) if _planning.has_layout(value := optimizer.state[parameter][key]) else value
        own = [optimizer.state[each][key].flatten() for each in part.stepped] if part.elements > 0 else None
        joined = self._native.join(parameter, torch.cat(own) if own is not None else None, what)
        return _planning.full(joined) if _planning.has_layout(joined) else joined

    def _before_state_dict(self, optimizer: torch.optim.Optimizer) -> None:
        self._kept = self._groups, dict(optimizer.state)
        self._use(optimizer, self._whole, self._all_state(optimizer))

    def _after_state_dict(self, optimizer: torch.optim.Optimizer, _: Any) -> None:
        assert self._kept is not None
        self._use(optimizer, *self._kept)
        self._kept = None

    def _before_load(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        sizes = [len(group["params"]) for group in state["param_groups"]]
        if sizes != [len(each) for each in self._whole]:
            raise UsageError(f"the state has parameter groups of {sizes} parameters, and the optimizer of {[len(each) for each in self._whole]}\n"
                             "  hint: give the state of an optimizer with the same groups")
        self._use(optimizer, self._whole, {})

    def _after_load(self, optimizer: torch.optim.Optimizer) -> None:
        self._use(optimizer, self._groups, self._cut_state(optimizer.state))


def _is_per_element(key: Any, value: Any, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and key not in _NUMBERS and value.shape == parameter.shape


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
