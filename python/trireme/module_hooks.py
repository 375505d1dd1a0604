# SPDX-License-Identifier: Apache-2.0
"""The hooks of a module that is parallelized: they notice changes of its parameters, and make `state_dict()` whole."""
from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from trireme import _planning
from trireme.errors import UsageError


class _Hook:
    """A function as a hook. A copy of the module, or one that was pickled, has hooks that do nothing."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments) if self._function is not None else None

    def __reduce__(self) -> Any:
        return _Hook, ()


class ModuleHooks:
    """Holds no reference to the module."""

    def __init__(self, module: torch.nn.Module, native: Any) -> None:
        self._native = native
        self._module = weakref.ref(module)
        self._known = {id(parameter) for parameter in module.parameters()}
        self._level_3 = {id(part.parameter) for part in native.sharded_parameters() if part.zero_level == 3}
        self._handles = [module.register_forward_pre_hook(_Hook(self._check))]
        for each in module.modules():
            if not each._parameters and not each._buffers:
                continue
            self._handles += [each.register_state_dict_pre_hook(_Hook(self._before_state)),
                              each.register_state_dict_post_hook(_Hook(self._after_state))]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _check(self, module: torch.nn.Module, _: Any) -> None:
        for name, parameter in module.named_parameters():
            if id(parameter) not in self._known:
                raise UsageError(f"the parameter {name} was added or replaced after parallelize\n"
                                 "  hint: change the module before, or call close() and parallelize again")
            if getattr(parameter, "_post_accumulate_grad_hooks", None) is not None:
                raise UsageError(f"the parameter {name} was given a hook by register_post_accumulate_grad_hook, which takes the place of "
                                 "the one that exchanges its gradient\n  hint: use register_hook, or read .grad after backward()")

    def _before_state(self, module: torch.nn.Module, prefix: str, keep_vars: bool) -> None:
        if not self._level_3:
            self._native.gather_parameters()

    def _after_state(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            key = prefix + name
            if tensor is None or key not in state or state[key] is tensor:
                continue
            if _planning.has_layout(tensor):
                state[key] = _planning.full(tensor.detach())
            elif id(tensor) in self._level_3:
                state[key] = tensor.detach().clone()
