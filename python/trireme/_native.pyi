# SPDX-License-Identifier: Apache-2.0
"""The extension module. Import trireme.torch instead."""
from datetime import timedelta

from torch.distributed import Store
from torch._C._distributed_c10d import Backend

version: str
torch_version: str

def connect(store: Store, rank: int, size: int, timeout: timedelta, name: str, world_ranks: list[int],
            profiling_prefix: str = ...) -> Backend: ...
def describe_port_owner(port: int) -> str: ...
def engine_of(backend: Backend) -> str | None: ...
def watch_signals_of_this_thread() -> None: ...
