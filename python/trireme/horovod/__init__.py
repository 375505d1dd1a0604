# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface for scripts that were written for it: import trireme.horovod.torch as hvd. See docs/guide/horovod.md."""
from __future__ import annotations

from typing import Any, NoReturn

from trireme.errors import UsageError

__all__ = ["run"]


def run(*args: Any, **keywords: Any) -> NoReturn:
    """Raises UsageError: ranks are started by a launcher, not from within a program."""
    raise UsageError("horovod.run, which starts ranks from within a program, does not exist in Trireme\n"
                     "  hint: start the program by `trireme run -n 4 -- python train.py`, torchrun or mpirun")
