# SPDX-License-Identifier: Apache-2.0
"""Finds the rank of this process, and the store through which the ranks meet, from the variables of its launcher.

Follows trireme/launch/launcher_environment.cpp, which does the same for programs in C++, for these launchers: `trireme run`, torchrun,
horovodrun, Open MPI, MPICH and others with Hydra, MVAPICH, and Slurm's srun on one host. Without a launcher, the process is a world of
one.
"""
from __future__ import annotations

import datetime
import os
import re
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from trireme import explanations
from trireme.errors import ConfigError

# For each launcher: the variables of rank, size, local rank and local size. Those in torchrun's style come first, because a script may
# set them within a job of another launcher.
_NAMES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}
_STARTERS = ("mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "orterun", "prterun", "prted", "orted", "slurmstepd", "horovodrun")
_FIRST_RESERVED_STEP = 0xFFFFFFF0  # batch scripts and interactive shells of Slurm are steps too


@dataclass(frozen=True)
class Identity:
    """The place of this process among the ranks."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = ""
    """The launcher; empty for a process that was started alone."""


def _number(name: str, least: int = 0) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not re.fullmatch(r"\d{1,7}", text) or int(text) < least:
        raise ConfigError(f"environment variable {name} is '{text}', expected an integer of {least} or more\n"
                          "  hint: start the ranks by one launcher, which sets it, or unset it to run alone")
    return int(text)


def _pair(rank_name: str, size_name: str) -> tuple[int, int] | None:
    """Returns a rank and the number of ranks; None if neither variable is set."""
    rank, size = _number(rank_name), _number(size_name, 1)
    if rank is None and size is None:
        return None
    if rank is None or size is None or rank >= size:
        raise ConfigError(f"environment variables {rank_name} and {size_name} are '{os.environ.get(rank_name, '')}' and "
                          f"'{os.environ.get(size_name, '')}', expected both, the first being less\n"
                          "  hint: start the ranks by one launcher, which sets both, or unset both to run alone")
    return rank, size


def read_identity() -> Identity:
    """Returns the place of this process from the environment. Raises ConfigError if the variables contradict each other."""
    for launcher, (rank_name, size_name, local_rank_name, local_size_name) in _NAMES.items():
        found = _pair(rank_name, size_name)
        if found:
            local = _pair(local_rank_name, local_size_name)
            return Identity(*found, *(local or found), launcher)
    step = os.environ.get("SLURM_STEP_ID", "")
    if step.isdigit() and int(step) < _FIRST_RESERVED_STEP:
        size_name = "SLURM_STEP_NUM_TASKS" if os.environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
        found = _pair("SLURM_PROCID", size_name)
        if found:
            local_rank = _number("SLURM_LOCALID")
            tasks = _number("SLURM_NTASKS_PER_NODE", 1) or found[1]
            return Identity(*found, found[0] if local_rank is None else local_rank, min(tasks, found[1]), "srun")
    return Identity()


def _name_of_job() -> str | None:
    """Returns a name that the ranks of a job on this host share: that of the process above them which started them all."""
    process = os.getpid()
    while process > 1:
        try:
            fields = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return None
        name = fields[fields.index("(") + 1:fields.rindex(")")]
        rest = fields[fields.rindex(")") + 2:].split()
        if name in _STARTERS:
            return f"{process}-{rest[19]}"  # process ids are used again, but not with the same start time
        process = int(rest[1])
    return None


def _file_store(identity: Identity) -> dist.Store:
    """Returns a store in a file, for launchers that give ranks no address."""
    job = _name_of_job()
    if job is None or identity.local_size != identity.size:
        raise ConfigError(f"rank {identity.rank} of {identity.size}, started by {identity.launcher}, has no address where the ranks meet\n"
                          "  hint: set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there on all ranks (mpirun -x "
                          "MASTER_ADDR=host0 -x MASTER_PORT=29500), or use trireme run, which sets both")
    path = os.path.join(tempfile.gettempdir(), f"trireme-horovod-{os.getuid()}-{job}")
    # The name can be guessed: another user must not be able to make the file first.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    status = os.fstat(descriptor)
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigError(f"the file {path}, where the ranks are to meet, is not this user's alone\n"
                          "  hint: set TMPDIR to a folder that only you may write to, or MASTER_ADDR and MASTER_PORT")
    return dist.FileStore(path, identity.size)


def make_store(identity: Identity, timeout: datetime.timedelta) -> dist.Store:
    """Returns the store of the run. Blocks for up to `timeout` until the server can be reached."""
    if identity.size == 1:
        return dist.HashStore()
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not host or not port:
        return _file_store(identity)
    launcher_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    # multi_tenant: torch.distributed of the same script may serve its store on this port too.
    try:
        store = dist.TCPStore(host, int(port), None, is_master=identity.rank == 0 and not launcher_serves, timeout=timeout,
                              wait_for_workers=False, multi_tenant=True)
    except dist.DistNetworkError as error:
        explanations.raise_explained(error)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"trireme.horovod/{attempt}", store)
