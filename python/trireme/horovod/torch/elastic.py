# SPDX-License-Identifier: Apache-2.0
"""Horovod's elastic training, which Trireme has not: every name raises UsageError when it is used, and says what to do instead."""
from __future__ import annotations

from typing import Any, NoReturn

from trireme.errors import UsageError


def _refuse(name: str, instead: str) -> NoReturn:
    raise UsageError(f"hvd.elastic.{name}: the number of ranks cannot change while a program runs\n  hint: {instead}")


_RESTART = "save checkpoints on rank 0, load them and call broadcast_parameters at the start, and start the program again if a rank fails"


def run(function: Any) -> NoReturn:
    """Raises UsageError."""
    _refuse("run", f"call the training function itself; {_RESTART}")


class State:
    """Raises UsageError when it is made."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        _refuse(type(self).__name__, _RESTART)


class ObjectState(State):
    """Raises UsageError when it is made."""


class TorchState(State):
    """Raises UsageError when it is made."""


class ElasticSampler:
    """Raises UsageError when it is made."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        _refuse("ElasticSampler", "use torch.utils.data.DistributedSampler(dataset, hvd.size(), hvd.rank())")
