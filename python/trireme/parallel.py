# SPDX-License-Identifier: Apache-2.0
"""Trains a module in parallel as a plan says, in a loop that calls `backward()` itself.

    parallel = trireme.parallelize(model, trireme.Plan(zero_level=2), optimizer=optimizer)

The gradients of the module's own tensors are exchanged by the library in C++, while backward runs. Nothing is wrapped: the module, its
forward and the optimizer stay the same objects. All names are available from the package itself.
"""
from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from trireme import _planning
from trireme._planning import CommHook, GradientBucket, PowerSgd, TopK
from trireme.distributed_tensors import show_layouts
from trireme.errors import Error, UsageError
from trireme.module_hooks import ModuleHooks
from trireme.planning import Candidate, Plan, SearchResult, tensors_of
from trireme.sharded_optimizer import ShardedOptimizer, check_elementwise

__all__ = ["CommHook", "GradientBucket", "Parallelized", "PowerSgd", "TopK", "parallelize"]

AnyPlan = Plan | SearchResult | Candidate | str | os.PathLike[str] | None

# The groups of the library by those of torch.distributed. Modules that train over the same ranks share one.
_groups: weakref.WeakKeyDictionary[dist.ProcessGroup, Any] = weakref.WeakKeyDictionary()
# Which module a hook was registered for.
_hook_owners: weakref.WeakKeyDictionary[CommHook, Callable[[], Parallelized | None]] = weakref.WeakKeyDictionary()
# What modules were made into. It lives as long as the module, also if the script does not keep it.
_parallelized: weakref.WeakKeyDictionary[torch.nn.Module, Parallelized] = weakref.WeakKeyDictionary()


def parallelize(module: torch.nn.Module, plan: AnyPlan = None, group: dist.ProcessGroup | None = None,
                optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None) -> Parallelized:
    """Prepares a module for parallel training: data parallelism, ZeRO levels 1 to 3, or tensor parallelism.

        model = Network()
        optimizer = torch.optim.AdamW(model.parameters())
        parallel = trireme.parallelize(model, trireme.Plan(zero_level=1), optimizer=optimizer)
        for inputs, targets in batches(*parallel.data_part):  # other rows on each rank
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()  # gradients are averaged over the ranks
            parallel.clip_grad_norm_(1.0)
            optimizer.step()

    Collective and blocking. All ranks start with the parameters and buffers of rank 0. It lasts until `close()`, or as long as the
    module. See docs/guide/python.md.

    Args:
        module: any module whose parameters are plain tensors with memory.
        plan: a plan, the result of `find_plan`, the path of a TOML file, or the text of one. None: the plan of `trireme run --plan`,
            and without one data parallelism over all ranks.
        group: the ranks that train, with any backend: collectives of the library have connections of their own. None: the default
            process group. Its timeout is the deadline of all calls.
        optimizer: the optimizers that step the module's parameters. Needed if the plan has a ZeRO level above 0, here or by `shard()`.

    Raises:
        UsageError: on all ranks, if one of them gives what cannot be trained: a plan that needs other calls, with all reasons, a module
            that differs from that of rank 0 or is parallelized already, or an optimizer that cannot be sharded.
        CommError: if a rank does not call it before the deadline.
    """
    ranks = _given_group(group)
    comm = _connected(ranks)
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer or ())

    def prepare() -> tuple[Plan, Any]:
        chosen = _plan_of(plan)
        return _with_sparse_gradients(chosen, module), _tensors_of(module, chosen)

    show_layouts()
    chosen, tensors = _agreed(comm, "take the module and the plan", prepare)
    made = Parallelized(module, _planning.ModuleInParallel(tensors, chosen, comm), ranks, comm)
    _parallelized[module] = made
    try:
        _agreed(comm, "take the optimizers", lambda: made._check_all_are_stepped(optimizers))
        for each in optimizers:
            made.shard(each)
    except BaseException:
        made._drop()
        raise
    return made


class Parallelized:
    """A module that `parallelize` has prepared."""

    def __init__(self, module: torch.nn.Module, native: Any, group: dist.ProcessGroup, comm: Any) -> None:
        self._native = native
        self._module = weakref.ref(module)
        self._group = group
        self._comm = comm
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, ShardedOptimizer] = weakref.WeakKeyDictionary()
        self._hooks = ModuleHooks(module, native)

    @property
    def plan(self) -> Plan:
        """The plan that is carried out."""
        return self._native.plan

    @property
    def data_part(self) -> tuple[int, int]:
        """Which part of the data this rank reads, and of how many. Ranks that work on one part together get the same one."""
        return _planning.data_part(self._native.plan, self._comm)

    @property
    def seconds_of_exchange(self) -> float:
        """Seconds that the last step spent on exchanging gradients and waiting for them."""
        return self._native.seconds_of_exchange

    def shard(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes an optimizer step this rank's part of each sharded parameter, with the state of that part only.

        Its groups keep their options, and state that it has already is cut. `optimizer.state_dict()` still gives the whole state, and
        is collective from now on; `load_state_dict()` takes a whole one. Does nothing without a ZeRO level above 0. Collective and
        blocking.

        Raises:
            UsageError: for an optimizer that is sharded already, has none of the sharded parameters, or is not known to treat every
                element by itself.
        """
        _agreed(self._comm, "take the optimizer", lambda: self._check_optimizer(optimizer))
        if self._native.sharded_parameters() or self._is_distributed():
            self._optimizers[optimizer] = ShardedOptimizer(optimizer, self._native, self._group)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A scope in which `backward()` only accumulates on this rank. The next one after it exchanges all of it.

        Gradients are not divided by the number of passes: scale the loss. All ranks must do so alike.
        """
        self._native.begin_no_sync()
        try:
            yield
        finally:
            self._native.end_no_sync()

    def clip_grad_norm_(self, max_norm: float, optimizer: torch.optim.Optimizer | None = None) -> torch.Tensor:
        """Clips all gradients together to a norm, at any ZeRO level, and returns the norm before, in float64.

        Call it between `backward()` and `optimizer.step()`, on all ranks. The bits of the norm do not depend on the ZeRO level. Gradients
        with a norm that is not finite stay as they are.

        Args:
            max_norm: the norm of all gradients is at most this afterwards.
            optimizer: only gradients of this one; None for all of the module.

        Raises:
            UsageError: unless max_norm is above 0.
        """
        return self._native.clip(self._stepped(optimizer), float(max_norm))

    def grad_norm(self, optimizer: torch.optim.Optimizer | None = None) -> float:
        """Returns the Euclidean norm of all gradients, at any ZeRO level. Collective as `clip_grad_norm_`."""
        return self._native.clip(self._stepped(optimizer), None).item()

    def gather_parameters(self) -> None:
        """Makes all parameters whole, for code that reads their memory without operators. Collective and blocking.

        Those of ZeRO level 3 are whole until the next step.
        """
        self._native.gather_parameters()

    def join(self, step: Callable[[], object]) -> None:
        """Takes part in the steps of ranks that have more batches. Every rank calls it after its loop.

        Collective and blocking: returns when all ranks have called it.

        Args:
            step: steps the optimizer and zeroes its gradients, as the loop does; called after each step of the others.

        Raises:
            UsageError: for plans that need this rank inside forward: ZeRO level 3, sync_batch_norm.
        """
        self._native.join_steps(lambda: (step(), None)[1])

    def register_comm_hook(self, hook: CommHook | Callable[[GradientBucket], Callable[[], object] | None] | None) -> None:
        """Makes a hook sum the buckets of gradients over ranks, in place of all-reduce.

            parallel.register_comm_hook(trireme.PowerSgd(rank=2))

        Collective: all ranks register the same hook, between steps. A hook takes the place of `Plan(wire=…)` too.

        Args:
            hook: a `trireme.PowerSgd` or `trireme.TopK`, one object for each module, or a function. The function is called with each bucket
                while backward runs, in the same order on all ranks. It starts the exchange over the group that was given to `parallelize`,
                and returns a function that waits until `bucket.memory` holds the sum over ranks, or None if it holds it already. Trireme
                divides by the number of ranks afterwards. State that a hook keeps between steps must be stored by the names of parameters,
                because buckets change after the first step. A function that refers to the module keeps it until `close()`. None restores
                what the plan says.

        Raises:
            UsageError: on all ranks, if the plan has a ZeRO level above 0, whose gradients are summed in slices, if the hook is none of these
                or belongs to another module, if ranks give hooks of different kinds, or for a function with a plan in which ranks share a
                part of the data, because gradients are then summed over some of the ranks only.
        """
        native = _agreed(self._comm, "take the comm hook", lambda: self._native_hook(hook))
        _planning.check_same(self._comm, "comm hook", type(native).__name__)
        self._native.register_comm_hook(native)
        if native is not None:
            _hook_owners[native] = weakref.ref(self)

    def _native_hook(self, hook: Any) -> CommHook | None:
        if hook is None:
            return None
        if self._native.sharded_parameters():
            raise UsageError("the plan shards gradients, and a comm hook sums whole buckets\n"
                             "  hint: use a plan with zero_level 0, or Plan(wire=\"bf16\")")
        if isinstance(hook, CommHook):
            owner = _hook_owners.get(hook, lambda: None)()
            if owner is not None and owner is not self:
                raise UsageError(f"the comm hook, a {type(hook).__name__}, belongs to another module, and keeps state of its parameters\n"
                                 "  hint: make one for each module")
            return hook
        if isinstance(hook, type) or not callable(hook):
            what = f"the class {hook.__name__}" if isinstance(hook, type) else f"a {type(hook).__name__}"
            raise UsageError(f"the comm hook is {what}, expected a trireme.PowerSgd, a trireme.TopK, a function or None\n"
                             "  hint: such as parallel.register_comm_hook(trireme.PowerSgd(rank=2))")
        if self.data_part[1] != self._comm.size:
            raise UsageError(f"the comm hook is a function, which sums over all {self._comm.size} ranks, but the plan has {self.data_part[1]} "
                             "parts of the data, and sums gradients over the ranks with different parts\n"
                             "  hint: use trireme.PowerSgd or trireme.TopK, or a plan with the axis data alone")
        return _planning.PythonCommHook(hook)

    def abandon_step(self) -> None:
        """Drops a step that an exception has interrupted, so that the next `backward()` begins a new one.

        With several ranks, the others have gone on without this one, and its next `backward()` raises an error. Not collective.
        """
        self._native.abandon_step()

    def abort(self, reason: str) -> None:
        """Ends the exchange for good, because this rank cannot go on: calls of other ranks, pending or later, fail with `reason`.

        Over engines other than shared memory they notice it only when this process ends. Not collective.
        """
        self._native.abort(reason)

    def close(self) -> None:
        """Makes the module an ordinary one, with whole parameters, and its optimizers ordinary ones. Collective and blocking.

        Distributed parameters stay distributed.
        """
        for sharded in list(self._optimizers.values()):
            sharded.undo()
        self._optimizers.clear()
        self._native.gather_parameters()
        self._forget()
        self._native.close()

    def _drop(self) -> None:
        """Removes everything without the other ranks."""
        self._forget()
        self._optimizers.clear()
        self._native.drop()

    def _forget(self) -> None:
        self._hooks.remove()
        module = self._module()
        if module is not None and _parallelized.get(module) is self:
            del _parallelized[module]

    def _is_distributed(self) -> bool:
        module = self._module()
        return module is not None and any(_planning.has_layout(each) for each in module.parameters())

    def _stepped(self, optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
        if optimizer is not None:
            return [each for group in optimizer.param_groups for each in group["params"]]
        module = self._module()
        parts = {part.parameter: part.stepped for part in self._native.sharded_parameters()}
        parameters = [] if module is None else list(module.parameters())
        return [each for parameter in parameters for each in parts.get(parameter, [parameter]) if each.numel() > 0]

    def _check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(f"the optimizer is a {type(optimizer).__name__}, expected a torch.optim.Optimizer\n"
                             "  hint: give the optimizer itself")
        if optimizer in self._optimizers:
            raise UsageError("this optimizer is sharded already\n  hint: call shard() once for each optimizer, or give it to parallelize")
        if self._native.sharded_parameters():
            check_elementwise(optimizer)

    def _check_all_are_stepped(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """Raises UsageError if optimizers were given, but a sharded parameter is in none of them: it would never change."""
        for each in optimizers:
            self._check_optimizer(each)
        stepped = {each for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]}
        module = self._module()
        if not optimizers or module is None:
            return
        sharded = {part.parameter for part in self._native.sharded_parameters()}
        missing = [name for name, parameter in module.named_parameters() if parameter in sharded and parameter not in stepped]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UsageError(f"no optimizer steps the parameter {missing[0]}{more}, which the plan shards: it would never change\n"
                             "  hint: give all optimizers of the module, or freeze it by requires_grad_(False) before parallelize")


def _given_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    group = group or (dist.group.WORLD if dist.is_available() and dist.is_initialized() else None)
    if group is None:
        raise UsageError("there is no process group\n  hint: call torch.distributed.init_process_group first, on every rank")
    if not isinstance(group, dist.ProcessGroup):
        raise UsageError(f"the group is a {type(group).__name__}, expected a process group of which this rank is a member\n"
                         "  hint: give what torch.distributed.new_group returns to its members")
    return group


def _connected(group: dist.ProcessGroup) -> Any:
    """Connects the ranks of a process group by a group of the library, or returns the one that they have."""
    if threading.current_thread() is threading.main_thread():
        _planning.watch_signals_of_this_thread()
    if group not in _groups:
        is_world = group is dist.group.WORLD
        store = dist.PrefixStore("trireme/parallelize", dist.distributed_c10d._get_process_group_store(group))
        _groups[group] = _planning.connect(store, group.rank(), group.size(), _timeout_of(group),
                                           "world" if is_world else f"group {group.group_name}",
                                           [] if is_world else dist.get_process_group_ranks(group))
    return _groups[group]


def _timeout_of(group: dist.ProcessGroup) -> Any:
    for device in ("cpu", "cuda"):
        with contextlib.suppress(RuntimeError):  # the group has no backend for such tensors
            return _planning.timeout_of(group._get_backend(torch.device(device)))
    return dist.default_pg_timeout


def _agreed(comm: Any, doing: str, work: Callable[[], Any]) -> Any:
    """Calls `work`, and raises an exception on all ranks if one of them fails, so that none waits for it."""
    try:
        result = work()
    except Exception as error:
        with contextlib.suppress(UsageError):
            _planning.agree(comm, doing, str(error) or type(error).__name__)
        raise
    _planning.agree(comm, doing, "")
    return result


def _plan_of(plan: AnyPlan) -> Plan:
    if plan is None:
        return _planning.requested_plan(Plan())
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, (SearchResult, Candidate)):
        return plan.plan
    if isinstance(plan, os.PathLike) or isinstance(plan, str) and "\n" not in plan and (plan.endswith(".toml") or os.path.exists(plan)):
        return Plan.load(os.fspath(plan))
    if isinstance(plan, str) and "=" in plan:
        return Plan.from_toml(plan)
    shown = f"'{plan}'" if isinstance(plan, str) else f"a {type(plan).__name__}"
    raise UsageError(f"the plan is {shown}, expected a trireme.Plan, what find_plan returns, or the path or text of a TOML file\n"
                     "  hint: such as trireme.Plan(zero_level=1), \"plan.toml\" or \"zero_level = 1\"")


def _with_sparse_gradients(plan: Plan, module: torch.nn.Module) -> Plan:
    """Returns the plan with the weights of embeddings that give sparse gradients."""
    if not isinstance(module, torch.nn.Module):
        return plan
    found = [f"{name}.weight" if name else "weight" for name, each in module.named_modules()
             if isinstance(each, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and each.sparse]
    more = [name for name in found if name not in plan.sparse_gradients]
    return plan.replace(sparse_gradients=[*plan.sparse_gradients, *more]) if more else plan


def _tensors_of(module: torch.nn.Module, plan: Plan) -> Any:
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        raise UsageError("the module is wrapped by DistributedDataParallel, which exchanges gradients itself\n"
                         "  hint: give the module within it, or leave out one of the two")
    if isinstance(module, torch.nn.Module) and module in _parallelized:
        raise UsageError("the module is parallelized already\n  hint: call close() of what parallelize returned before")
    tensors = tensors_of(module, batch_norms=plan.sync_batch_norm)
    for kind, all_of_kind in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, tensor in all_of_kind:
            if tensor.is_meta:
                raise UsageError(f"the {kind} {name} is on meta, without memory\n"
                                 "  hint: give it memory and values before: module.to_empty(device=\"cpu\") and its initialization")
            if tensor.device.type != "cpu":
                raise UsageError(f"the {kind} {name} is on {tensor.device}, expected the CPU: from Python, parallelize has no connection "
                                 "between accelerators\n  hint: use DistributedDataParallel or fully_shard over NCCL, or train from C++")
    return tensors


@atexit.register
def _drop_all() -> None:
    """Ends all without waiting, while torch is still there."""
    for each in list(_parallelized.values()):
        with contextlib.suppress(Error):
            each._drop()
    _groups.clear()
