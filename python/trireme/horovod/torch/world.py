# SPDX-License-Identifier: Apache-2.0
"""The ranks: connecting them, and their numbers."""
from __future__ import annotations

import atexit
import datetime
import os
import socket
from dataclasses import dataclass
from typing import Any, Sequence

import torch
import torch.distributed as dist

import trireme.torch
from trireme import _native
from trireme.errors import UsageError
from trireme.horovod import launcher
from trireme.horovod.torch.negotiation import Negotiator


@dataclass
class _World:
    rank: int
    size: int
    store: dist.Store
    timeout: datetime.timedelta
    process: int
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    is_homogeneous: bool = True
    groups: int = 0  # how many were connected


_world: _World | None = None
_store: dist.Store | None = None  # outlives a world: after shutdown(), init() meets the ranks over it again
_rounds = 0  # how often the ranks have met over it


def check_initialized(call: str) -> _World:
    """Raises UsageError before init(), or after shutdown()."""
    if _world is None:
        raise UsageError(f"{call} before init(), or after shutdown()\n  hint: call hvd.init() first in the program")
    if _world.process != os.getpid():
        raise UsageError(f"{call} in process {os.getpid()}, which was forked off rank {_world.rank}, process {_world.process}\n"
                         "  hint: communicate in the rank itself")
    return _world


def connect(ranks: list[int], name: str) -> Negotiator:
    """Connects some ranks, of which this is one. Collective over them; blocking."""
    world = check_initialized("init()")
    world.groups += 1
    is_world = len(ranks) == world.size
    store = dist.PrefixStore(f"{_rounds}/{name}", world.store)
    own = ranks.index(world.rank)
    backend = _native.connect(store, own, len(ranks), world.timeout, name, [] if is_world and name == "world" else ranks)
    return Negotiator(backend, own, len(ranks), world.timeout, name)


def init(comm: Sequence[int] | None = None, process_sets: Sequence[Any] | str | None = None) -> None:
    """Connects the ranks that the launcher has started. Without a launcher, the process is a world of one. Collective; blocking.

    A second call does nothing; after `shutdown`, a call connects the ranks again. If torch.distributed has a process group already, its
    ranks are used, otherwise those of `trireme run`, torchrun, mpirun, horovodrun or srun. `shutdown` is called at the exit of Python.

    Args:
        comm: None, or a list of all ranks.
        process_sets: process sets to add; "dynamic" and None mean none.

    Raises:
        UsageError: if `comm` is a communicator of MPI or a list of some ranks, or if a process set occurs twice.
        ConfigError: if the launcher's variables contradict each other or say too little.
        CommError: if ranks are missing at the deadline.
    """
    global _world, _store, _rounds
    from trireme.horovod.torch import process_sets as sets

    if _world is not None and _world.process == os.getpid():
        return
    identity = launcher.read_identity()
    timeout = trireme.torch.timeout_of_run(dist.default_pg_timeout)
    if dist.is_initialized():
        if _store is None:
            _store = dist.PrefixStore("trireme.horovod", dist.distributed_c10d._get_default_store())
        identity = launcher.Identity(dist.get_rank(), dist.get_world_size(), -1, -1, "torch.distributed")
    elif _store is None or _world is not None:
        _store = launcher.make_store(identity, timeout)
    if comm is not None and not _is_everyone(comm, identity.size):
        raise UsageError(f"init was given comm={comm!r}, expected None or all of the {identity.size} ranks\n"
                         "  hint: for some of the ranks, use process sets; communicators of MPI are not supported")
    trireme.torch.watch_signals()
    _rounds += 1
    _world = _World(identity.rank, identity.size, _store, timeout, os.getpid())
    try:
        sets.open_global()
        _find_neighbours(_world, identity, sets.global_process_set)
        atexit.register(shutdown)
        if process_sets is not None and not isinstance(process_sets, str):
            for process_set in process_sets:
                sets.add_process_set(process_set)
    except BaseException:
        shutdown()
        raise


def _is_everyone(comm: Any, size: int) -> bool:
    try:
        return sorted(comm) in ([], list(range(size)))
    except TypeError:
        return False


def _find_neighbours(world: _World, identity: launcher.Identity, everyone: Any) -> None:
    """Finds which ranks share this host, and which ranks of other hosts have the same place there."""
    machine = int.from_bytes(socket.gethostname().encode()[-7:], "little")
    executor = everyone._open("init()")._executor
    hosts = executor.all_gather(torch.tensor([machine])).flatten().tolist()
    if identity.local_rank >= 0:  # as the launcher counts, because devices are chosen by it
        world.local_rank, world.local_size = identity.local_rank, identity.local_size
    else:
        world.local_rank, world.local_size = hosts[:world.rank].count(machine), hosts.count(machine)
    places = executor.all_gather(torch.tensor([world.local_rank, world.local_size])).tolist()
    same = [rank for rank, (local_rank, _) in enumerate(places) if local_rank == world.local_rank]
    world.cross_rank, world.cross_size = same.index(world.rank), len(same)
    world.is_homogeneous = len({local_size for _, local_size in places}) == 1


def shutdown() -> None:
    """Disconnects this rank. Calls that are under way fail. Does nothing before `init`."""
    global _world
    from trireme.horovod.torch import process_sets as sets
    from trireme.horovod.torch import timeline

    atexit.unregister(shutdown)
    if _world is not None and _world.process == os.getpid():
        timeline.close()
        sets.close_all()
    _world = None


def is_initialized() -> bool:
    """Returns whether the ranks are connected: true from `init` to `shutdown`."""
    return _world is not None


def rank() -> int:
    """Returns the rank of this process, from 0. Raises UsageError before `init`, like the functions below."""
    return check_initialized("rank()").rank


def size() -> int:
    """Returns the number of ranks."""
    return check_initialized("size()").size


def local_rank() -> int:
    """Returns the rank among those of this host."""
    return check_initialized("local_rank()").local_rank


def local_size() -> int:
    """Returns the number of ranks on this host."""
    return check_initialized("local_size()").local_size


def cross_rank() -> int:
    """Returns the rank among those with this local rank, of which each host has at most one."""
    return check_initialized("cross_rank()").cross_rank


def cross_size() -> int:
    """Returns the number of ranks with this local rank."""
    return check_initialized("cross_size()").cross_size


def is_homogeneous() -> bool:
    """Returns whether every host has the same number of ranks."""
    return check_initialized("is_homogeneous()").is_homogeneous


def mpi_threads_supported() -> bool:
    """Returns False: MPI is not used."""
    check_initialized("mpi_threads_supported()")
    return False


def mpi_built() -> bool:
    """Returns False: MPI is not used, also under mpirun."""
    return False


mpi_enabled = mpi_built


def gloo_built() -> bool:
    """Returns True: Gloo connects hosts. Inside a host, memory is shared."""
    return True


gloo_enabled = gloo_built


def nccl_built() -> int:
    """Returns 0: tensors of accelerators go through the memory of the host."""
    return 0


def cuda_built() -> bool:
    """Returns False: tensors of accelerators go through the memory of the host."""
    return False


def rocm_built() -> bool:
    """Returns False, as `cuda_built` does."""
    return False


def ddl_built() -> bool:
    """Returns False: IBM's DDL is not used."""
    return False


def ccl_built() -> bool:
    """Returns False: Intel's oneCCL is not used."""
    return False
