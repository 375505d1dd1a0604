# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: an ordinary optimizer whose gradients are reduced over all ranks."""
from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable, Iterable, Iterator, Sequence

import torch

from trireme.errors import UsageError
from trireme.horovod.torch import world
from trireme.horovod.torch.compression import Compression, Compressor
from trireme.horovod.torch.gradient_reducer import GradientReducer, Named, Options, agree
from trireme.horovod.torch.process_sets import ProcessSet, global_process_set
from trireme.horovod.torch.requests import Op
from trireme.horovod.torch.starting import start_allreduce, wait_for

_SHOWN = 8  # names in a message


def DistributedOptimizer(optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
                         compression: type[Compressor] = Compression.none, backward_passes_per_step: int = 1, op: Op = Op.Average,
                         gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                         groups: int | Sequence[Sequence[torch.Tensor]] | None = None, sparse_as_dense: bool = False,
                         process_set: ProcessSet = global_process_set) -> Any:
    """Returns an optimizer of the same class, with the same parameter groups and state, that reduces gradients before it steps.

    The reduction of a gradient starts during backward. `step()` completes all of them and steps. The values of parameters are not changed:
    call `broadcast_parameters`. Collective over the process set, and blocking.

    Beside those of the optimizer, the result has the methods

    - `synchronize()`: completes the gradients of this step, for example to clip them. `step()` does not repeat it.
    - `skip_synchronize()`: a context in which `step()` only steps.
    - `set_backward_passes_per_step(passes)`.

    Args:
        optimizer: the optimizer, which shares its state with the result.
        named_parameters: names and parameters of all models that the optimizer steps; by default, parameters are named by their place.
        compression: the dtype in which gradients are sent.
        backward_passes_per_step: the calls of backward whose gradients are added before they are reduced. The script divides the loss.
        op: Average, Sum or Adasum. With Adasum, each rank steps, and what its step has added to the parameters is combined (adasum.py).
        gradient_predivide_factor: divides gradients before the sum; after it, they are divided by size / this. Average only.
        num_groups: Horovod's older form of `groups`.
        groups: a number of groups, or lists of parameters, whose gradients are reduced in one operation each. By default, every parameter
            is a group.
        sparse_as_dense: sends sparse gradients as dense ones.
        process_set: the ranks that take part. On other ranks, nothing is reduced.

    Raises:
        UsageError: on every rank, if a name occurs twice, the optimizer has parameters without a name, an argument is wrong, or any of it
            differs between ranks. Later, if backward is called more often than said, if `zero_grad` is called between backward and `step`,
            and at the first step, if parameters are not the same on all ranks.
    """
    if isinstance(optimizer, (_Distributed, _AdasumDistributed)):
        raise UsageError("DistributedOptimizer was given one of its results\n  hint: wrap the ordinary optimizer, once")
    world.check_initialized("DistributedOptimizer")
    if num_groups:
        warnings.warn("the argument num_groups is deprecated, use groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    named = list(named_parameters) if named_parameters is not None else None
    options = Options(compression, op, float(gradient_predivide_factor), bool(sparse_as_dense))
    mistake = (_mistake_of_options(options, backward_passes_per_step, groups, process_set) or _mistake_of_names(optimizer, named)
               or _mistake_of_groups(groups))
    if not process_set.included():
        if mistake:
            raise UsageError(f"DistributedOptimizer: {mistake}")
        return _of_class(_Distributed, optimizer)
    taken = _taken(optimizer, named)
    number = process_set._open("DistributedOptimizer").count_optimizer()
    shown = f"{type(optimizer).__name__} of {options} over {backward_passes_per_step} backward passes, {_text_of(groups)}"
    order = agree(shown, [name for name, _ in taken], mistake, process_set)
    by_name = dict(taken)
    taken = [(name, by_name[name]) for name in order]
    if op is Op.Adasum and process_set.size() != 1:
        result = _of_class(_AdasumDistributed, optimizer)
        result._adasum = _Adasum(taken, compression, process_set, f"Adasum {number}" if number > 1 else "Adasum")
        return result
    result = _of_class(_Distributed, optimizer)
    if process_set.size() != 1:
        reduced = {id(parameter) for _, parameter in taken}
        others = [item for item in named or [] if id(item[1]) not in reduced]
        result._reducer = GradientReducer(taken, others, groups, backward_passes_per_step, options, process_set,
                                          "gradient of" if number == 1 else f"gradient {number} of")
    return result


class _Distributed(torch.optim.Optimizer):
    """What is put before the class of an optimizer."""

    _reducer: GradientReducer | None = None  # None where nothing is reduced: alone, or outside of the process set
    _original: torch.optim.Optimizer
    _skips_synchronize = False

    def synchronize(self) -> None:
        """Completes the gradients of this step. Collective and blocking."""
        if self._reducer is not None:
            self._reducer.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Makes `step()` only step, for loops that have called `synchronize()` themselves."""
        self._skips_synchronize = True
        try:
            yield
        finally:
            self._skips_synchronize = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes whose gradients are added. Call it between steps."""
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Completes the gradients, unless `synchronize()` has, and steps. With a closure, completes what each call of it computes."""
        if closure is not None:
            own = closure

            def closure() -> Any:
                loss = own()
                self._complete()
                return loss
        else:
            self._complete()
        result = super().step(closure)
        self._original._opt_called = True  # type: ignore[attr-defined]  # for schedulers of learning rates that were made for it
        if self._reducer is not None:
            self._reducer.was_synchronized = False
        return result

    def _complete(self) -> None:
        if self._reducer is not None and not self._skips_synchronize and not self._reducer.was_synchronized:
            self._reducer.synchronize()

    def zero_grad(self, *args: Any, **keywords: Any) -> None:
        """Clears gradients. Raises UsageError between backward and `step()` or `synchronize()`: other ranks still use them."""
        if self._reducer is not None and self._reducer.is_under_way():
            raise UsageError("zero_grad() after backward() and before step() or synchronize()\n"
                             "  hint: call it between step() and the next backward()")
        super().zero_grad(*args, **keywords)

    def load_state_dict(self, *args: Any, **keywords: Any) -> None:
        """Loads a state, and begins a new step."""
        if self._reducer is not None:
            self._reducer.reset()
            self._reducer.was_synchronized = False
        super().load_state_dict(*args, **keywords)


class _Adasum:
    """Combines what the steps of the ranks have added to the parameters."""

    def __init__(self, named: Named, compression: type[Compressor], process_set: ProcessSet, prefix: str) -> None:
        self.named, self.compression, self.process_set, self.prefix = named, compression, process_set, prefix

    @torch.no_grad()
    def combine(self, before: list[torch.Tensor]) -> None:
        """Replaces each parameter by its value before the step plus the combination of the ranks' changes. Collective and blocking."""
        started = []
        for (name, parameter), old in zip(self.named, before):
            sent, context = self.compression.compress(parameter.detach() - old)
            started.append((start_allreduce([sent], f"{self.prefix} {name}", Op.Adasum, 1.0, 1.0, self.process_set, in_place=True,
                                            is_grouped=False, is_async=True), context))
        for (_, parameter), old, (handle, context) in zip(self.named, before, started):
            parameter.copy_(old + self.compression.decompress(wait_for(handle), context))


class _AdasumDistributed(torch.optim.Optimizer):
    """What is put before the class of an optimizer whose steps are combined by Adasum."""

    _adasum: _Adasum
    _original: torch.optim.Optimizer

    def synchronize(self) -> None:
        """Does nothing: changes are combined in `step()`."""

    def skip_synchronize(self) -> Any:
        """Raises UsageError."""
        raise UsageError("skip_synchronize() with Adasum, which combines changes after the step\n  hint: call step() alone")

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Does nothing: gradients of any number of backward passes are added before `step()`."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps, and combines what the steps of all ranks have changed. Collective and blocking."""
        before = [parameter.detach().clone() for _, parameter in self._adasum.named]
        result = super().step(closure)
        self._original._opt_called = True  # type: ignore[attr-defined]
        self._adasum.combine(before)
        return result


def _of_class(front: type, optimizer: torch.optim.Optimizer) -> Any:
    """Returns an optimizer that shares parameter groups and state, of a class that is both `front` and the optimizer's."""
    kind: Any = type(optimizer.__class__.__name__, (front, optimizer.__class__), {})
    result = kind.__new__(kind)
    # A scheduler of learning rates puts a `step` of its own into the object that it was made for.
    result.__dict__.update({name: value for name, value in optimizer.__dict__.items() if name != "step"})
    result._original = optimizer
    return result


def _taken(optimizer: torch.optim.Optimizer, named: Named | None) -> Named:
    """Returns the parameters that need gradients and that the optimizer steps, each once, with their names."""
    stepped = {id(parameter): f"{group}.{place}" for group, options in enumerate(optimizer.param_groups)
               for place, parameter in enumerate(options["params"])}
    if named is None:
        named = [(stepped[id(parameter)], parameter) for options in optimizer.param_groups for parameter in options["params"]]
    taken: dict[int, tuple[str, torch.Tensor]] = {}
    for item in named:
        if isinstance(item, tuple) and id(item[1]) in stepped and item[1].requires_grad:
            taken.setdefault(id(item[1]), item)
    return list(taken.values())


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _mistake_of_names(optimizer: torch.optim.Optimizer, named: Named | None) -> str | None:
    if named is None:
        return None
    if any(not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[1], torch.Tensor) for item in named):
        return "named_parameters has other items than tuples of a name and a parameter\n  hint: give model.named_parameters()"
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        return (f"these names are there twice: {_some(twice)}\n  hint: give the names of each model a prefix of its own: "
                "[(f'encoder.{name}', p) for name, p in encoder.named_parameters()]")
    known = {id(parameter) for _, parameter in named}
    stepped = [(f"{group}.{place} {list(parameter.shape)}", parameter) for group, options in enumerate(optimizer.param_groups)
               for place, parameter in enumerate(options["params"])]
    unnamed = [text for text, parameter in stepped if id(parameter) not in known]
    if unnamed:
        return (f"the optimizer has parameters that are not among the named ones (group.place and sizes): {_some(unnamed)}\n"
                "  hint: name the parameters of every model that the optimizer steps")
    not_stepped = [name for name, parameter in named if parameter.requires_grad and all(parameter is not other for _, other in stepped)]
    if not_stepped:  # allowed in Horovod: a script may have one optimizer for each part of a model
        warnings.warn(f"DistributedOptimizer: the optimizer does not have these named parameters, whose gradients are not reduced: "
                      f"{_some(not_stepped)}", stacklevel=3)
    return None


def _mistake_of_options(options: Options, passes: int, groups: Any, process_set: ProcessSet) -> str | None:
    if options.op not in (Op.Average, Op.Sum, Op.Adasum):
        return f"op is {options.op}\n  hint: give hvd.Average, hvd.Sum or hvd.Adasum"
    if not isinstance(passes, int) or passes < 1:
        return f"backward_passes_per_step is {passes}\n  hint: give 1 or more"
    if options.gradient_predivide_factor <= 0 or (options.gradient_predivide_factor != 1 and options.op is not Op.Average):
        return (f"gradient_predivide_factor is {options.gradient_predivide_factor} with {options.op.value}\n"
                "  hint: give more than 0, with Average only")
    size = process_set.size() or 1
    if options.op is Op.Adasum and size & (size - 1):
        return f"Adasum over {size} ranks\n  hint: Adasum combines ranks in pairs: take 2, 4, 8, ... of them"
    if options.op is Op.Adasum and groups is not None:
        return "groups were given with Adasum\n  hint: leave them out; Adasum combines each parameter by itself"
    return None


def _mistake_of_groups(groups: Any) -> str | None:
    if groups is None or (isinstance(groups, int) and groups > 0):
        return None
    if not isinstance(groups, (list, tuple)) or any(not isinstance(group, (list, tuple)) for group in groups):
        return f"groups is {groups!r}\n  hint: give a number above 0, or a list of lists of parameters"
    members = [parameter for group in groups for parameter in group]
    if any(not isinstance(parameter, torch.Tensor) for parameter in members):
        return "groups has members that are no tensors\n  hint: give parameters"
    if len({id(parameter) for parameter in members}) < len(members):
        return "a parameter is twice in groups\n  hint: put each into one group at most"
    return None


def _text_of(groups: Any) -> str:
    if groups is None:
        return "no groups"
    return f"{groups} groups" if isinstance(groups, int) else f"groups of {[len(group) for group in groups]}"
