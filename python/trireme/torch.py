# SPDX-License-Identifier: Apache-2.0
"""Registers Trireme's collectives as the backend "trireme" of torch.distributed.

    import trireme.torch

A process group that asks for Gloo, or for no backend, gets Trireme's collectives for CPU tensors from then on. With
TRIREME_REPLACE=0 only groups of the backend "trireme" do. Tensors on CUDA devices are left to PyTorch's NCCL.
"""
from __future__ import annotations

import datetime
import functools
import os
import threading
import warnings
import weakref
from typing import Any, Callable

import torch
import torch.distributed as dist

from trireme import _torch_version
from trireme.errors import CommError, ConfigError, Error, UsageError

__all__ = ["CommError", "ConfigError", "Error", "UsageError", "engine", "is_replacing_gloo"]

_torch_version.check()
if not dist.is_available():
    raise ImportError("this torch has no torch.distributed\n  hint: install a torch that is built with it")

import torch.distributed.distributed_c10d as _c10d  # noqa: E402  (after the check of the version)

from trireme import _native, explanations  # noqa: E402

_BACKEND = "trireme"
_splits: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()  # how often each group was split


class _Requested(threading.local):
    """The backend that the script has asked for, while a process group is made."""
    backend = _BACKEND


_requested = _Requested()


def is_replacing_gloo() -> bool:
    """Returns whether groups that ask for Gloo get Trireme (TRIREME_REPLACE is not 0)."""
    value = os.environ.get("TRIREME_REPLACE", "1")
    if value not in ("0", "1"):
        raise ConfigError(f"TRIREME_REPLACE is '{value}', expected 0 or 1\n  hint: correct it, or leave it out")
    return value == "1"


def engine(group: dist.ProcessGroup | None = None) -> str | None:
    """Returns the engine that carries CPU tensors of a group, such as `shm`; None if it is not one of Trireme.

    Args:
        group: the process group; None for the default one.
    """
    group = group or dist.group.WORLD
    if group is None:
        raise UsageError("there is no process group\n  hint: call init_process_group first")
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # it carries no CPU tensors
        return None
    return _native.engine_of(getattr(backend, "wrapped_pg", backend))


def timeout_of_run(chosen: datetime.timedelta) -> datetime.timedelta:
    """Returns the timeout that a script has chosen, or that of TRIREME_TIMEOUT where it is set and the script has left PyTorch's."""
    own_timeout = os.environ.get("TRIREME_TIMEOUT")
    if not own_timeout or chosen != dist.default_pg_timeout:
        return chosen
    try:
        return datetime.timedelta(seconds=int(own_timeout))
    except ValueError:
        raise ConfigError(f"TRIREME_TIMEOUT is '{own_timeout}', expected seconds\n  hint: correct it") from None


def watch_signals() -> None:
    """Lets Ctrl-C end waits of the main thread. Does nothing on other threads."""
    if threading.current_thread() is threading.main_thread():
        _native.watch_signals_of_this_thread()


def _warn_of_plan() -> None:
    """Warns where `trireme run --plan` has started the script: of scripts, only trireme.parallelize takes that plan."""
    if os.environ.get("TRIREME_PLAN"):
        warnings.warn("TRIREME_PLAN has no effect on scripts that do not call trireme.parallelize without a plan of their own; start "
                      "others without trireme run --plan", stacklevel=2)


def _create(options: Any, _: Any) -> Any:
    """Makes the backend of a process group, for torch.distributed."""
    ranks = [int(rank) for rank in options.global_ranks_in_group]
    name = f"group {options.group_id}" if ranks else "world"
    if not ranks:
        _warn_of_plan()
    watch_signals()
    return _native.connect(options.store, options.group_rank, options.group_size, timeout_of_run(options.timeout), name, ranks,
                           _requested.backend)


def _replaced(backend: str, has_cuda: bool) -> str:
    """Returns the backends of a group, by type of device, in which Trireme carries CPU tensors."""
    backend = str(backend).lower()
    if backend == _BACKEND:
        return f"cpu:{_BACKEND},cuda:nccl" if has_cuda else _BACKEND
    if not is_replacing_gloo():
        return backend
    if backend == "gloo":
        return f"cpu:{_BACKEND},cuda:gloo" if has_cuda else _BACKEND
    if backend == "undefined":  # torch chooses by the accelerator, and Gloo if there is none
        return backend if torch._C._get_accelerator().type != "cpu" else _BACKEND
    return ",".join(f"cpu:{_BACKEND}" if part.strip() == "cpu:gloo" else part for part in backend.split(","))


def _wrap(name: str) -> Callable[[Callable[..., Any]], None]:
    """Replaces a function of torch.distributed by one that gets the original as its first argument."""
    original = getattr(_c10d, name)

    def replace(function: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def replacement(*args: Any, **keywords: Any) -> Any:
            return function(original, *args, **keywords)

        setattr(_c10d, name, replacement)
        if getattr(dist, name, None) is original:
            setattr(dist, name, replacement)

    return replace


def _is_ours(group: dist.ProcessGroup | None) -> bool:
    return group is not dist.GroupMember.NON_GROUP_MEMBER and engine(group) is not None


def _install() -> None:
    devices = ["cpu"]
    dist.Backend.register_backend(_BACKEND, _create, extended_api=True, devices=devices)
    explanations.install()

    @_wrap("init_process_group")
    def _(original: Callable[..., Any], *args: Any, **keywords: Any) -> None:
        try:
            original(*args, **keywords)
        except dist.DistNetworkError as error:
            explanations.raise_explained(error)

    @_wrap("_new_process_group_helper")
    def _(original: Callable[..., Any], group_size: int, group_rank: int, global_ranks_in_group: list[int], backend: str, *args: Any,
          **keywords: Any) -> Any:
        chosen = _replaced(backend, torch.cuda.is_available())
        if _BACKEND not in chosen:
            return original(group_size, group_rank, global_ranks_in_group, backend, *args, **keywords)
        _requested.backend = _BACKEND if _BACKEND in str(backend).lower() else "gloo"
        try:
            group, store = original(group_size, group_rank, global_ranks_in_group, dist.Backend(chosen), *args, **keywords)
        finally:
            _requested.backend = _BACKEND
        if isinstance(group, dist.ProcessGroup):
            if ":" in chosen and "nccl" not in chosen:  # torch sets none for a list with a registered backend
                group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
            # Scripts go on to ask for the name that they have given.
            _c10d._world.pg_map[group] = (backend, _c10d._world.pg_map[group][1])
        return group, store

    @_wrap("monitored_barrier")
    def _(original: Callable[..., Any], group: Any = dist.group.WORLD, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        if group is dist.GroupMember.NON_GROUP_MEMBER or not _is_ours(group):
            return original(group, timeout, wait_all_ranks)
        if isinstance(timeout, (int, float)):
            timeout = datetime.timedelta(seconds=timeout)
        own = group or dist.group.WORLD
        return own.monitored_barrier(dist.default_pg_timeout if timeout is None else timeout, wait_all_ranks=wait_all_ranks)

    @_wrap("_set_pg_timeout")
    def _(original: Callable[..., Any], timeout: datetime.timedelta, group: dist.ProcessGroup | None = None) -> None:
        if not _is_ours(group):
            return original(timeout, group)
        own = group or dist.group.WORLD
        return own._get_backend(torch.device("cpu")).set_timeout(timeout)

    @_wrap("split_group")
    def _(original: Callable[..., Any], parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, pg_options: Any = None,
          group_desc: str | None = None, backend: Any = None) -> Any:
        parent = parent_pg or dist.group.WORLD
        if parent is None or parent.bound_device_id is not None or not _is_ours(parent):
            return original(parent_pg, split_ranks, timeout, pg_options, group_desc, backend)
        return _split_group(parent, split_ranks, timeout, group_desc)


def _split_group(parent: dist.ProcessGroup, split_ranks: list[list[int]] | None, timeout: datetime.timedelta | None,
                 group_desc: str | None) -> dist.ProcessGroup | None:
    """Splits a group of CPU tensors, which torch.distributed refuses because it is bound to no accelerator."""
    if not split_ranks or not all(split_ranks):
        raise UsageError(f"split_group was given the ranks {split_ranks}\n  hint: give at least one rank for each part")
    listed = [rank for part in split_ranks for rank in part]
    if len(set(listed)) != len(listed) or not set(listed) <= set(range(parent.size())):
        raise UsageError(f"split_group was given the ranks {split_ranks} of {parent.size()}\n"
                         f"  hint: name ranks 0 to {parent.size() - 1} of the parent group, each at most once")
    part = next((sorted(part) for part in split_ranks if parent.rank() in part), sorted(split_ranks[0]))
    world = _c10d._world
    world_ranks = {in_group: in_world for in_world, in_group in world.pg_group_ranks[parent].items()}
    # torch's own names count the groups of this rank, which differ between ranks.
    number = _splits[parent] = _splits.get(parent, 0) + 1
    name = f"{parent.group_name}:split:{number}:{'_'.join(map(str, part))}"
    group = parent.split_group(part, timeout=timeout or dist.default_pg_timeout, group_name=name, group_desc=group_desc)
    if group is None:
        return None
    _c10d._register_pg_in_world(group, backend_name=world.pg_map[parent][0], store=group.get_group_store(), group_name=name,
                                backend_config=world.pg_backend_config[parent],
                                rank_mapping={world_ranks[rank]: place for place, rank in enumerate(part)})
    return group


_install()
if dist.is_initialized() and engine() is None:
    warnings.warn("trireme.torch was imported after init_process_group: the groups that exist keep their backend. "
                  "Import it before init_process_group", stacklevel=2)
