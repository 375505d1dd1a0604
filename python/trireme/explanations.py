# SPDX-License-Identifier: Apache-2.0
"""Says more about two errors of PyTorch: a port in use, and a model and its input on different devices.

The new exceptions are RuntimeErrors as before, and keep the message of PyTorch.
"""
from __future__ import annotations

import functools
import re
import socket
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from trireme import _native
from trireme.errors import ConfigError, UsageError


class PortInUseError(ConfigError, dist.DistNetworkError):
    """The port of the store belongs to another process."""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def raise_explained(error: dist.DistNetworkError) -> NoReturn:
    """Raises PortInUseError, which names the process that has the port, if that is the cause, and otherwise the error itself."""
    port = re.search(r"\bport: (\d+)", str(error))
    if port is None or "EADDRINUSE" not in str(error):
        raise error
    owner = _native.describe_port_owner(int(port[1]))
    raise PortInUseError(
        f"port {port[1]}, on which rank 0 was to serve the store, is in use{f' by {owner}' if owner else ''} "
        "(EADDRINUSE: address already in use)\n"
        f"  hint: end that process, or give all ranks another port, such as {_free_port()}, which is free: by MASTER_PORT, init_method or "
        "the launcher's option") from error


def _devices(values: Any) -> set[str]:
    return {str(value.device) for value in tree_leaves(values) if isinstance(value, torch.Tensor)}


def _explain_devices(model: DistributedDataParallel, inputs: Any, error: RuntimeError) -> None:
    """Raises UsageError if an error about devices comes from a model on one device and inputs on another."""
    own, given = _devices(list(model.module.parameters())), _devices(inputs)
    # With device_ids, DDP has moved the inputs.
    if "device" not in str(error) or model.device_ids or len(own) != 1 or given <= own:
        return
    device = own.pop()
    raise UsageError(f"the model is on {device}, and its input on {' and '.join(sorted(given))}: {error}\n"
                     f"  hint: call inputs.to('{device}') before the model, or move the model before DistributedDataParallel is made") from error


def install() -> None:
    """Explains errors in forward of DistributedDataParallel."""
    original = DistributedDataParallel.forward

    @functools.wraps(original)
    def forward(self: DistributedDataParallel, *inputs: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(self, *inputs, **keywords)
        try:
            return original(self, *inputs, **keywords)
        except RuntimeError as error:
            _explain_devices(self, (inputs, keywords), error)
            raise

    DistributedDataParallel.forward = forward
