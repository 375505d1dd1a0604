# SPDX-License-Identifier: Apache-2.0
"""The exceptions of Trireme. Each message says what went wrong and, after "hint:", what to do."""
from __future__ import annotations


class Error(RuntimeError):
    """The base class of all exceptions of Trireme."""


class UsageError(Error, ValueError):
    """The call or the program is wrong: fix the arguments or the order of calls."""


class ConfigError(Error):
    """The environment is wrong: a variable, the installed torch, or ranks that do not agree."""


class DataError(Error):
    """A file or text is missing, damaged, or not what it should be."""


class CheckpointError(Error):
    """A checkpoint could not be written or read, or has no such part."""


class CommError(Error):
    """Communication with other ranks failed. The process group cannot be used any more."""

    rank: int | None = None
    """This rank, within its group."""
    peer: int | None = None
    """The rank that caused the failure, within the group."""
    operation: str = ""
    """The operation that failed, such as `all-reduce`."""
    sequence_number: int = 0
    """The number of the operation in its group, equal on all ranks."""
    elapsed: float = 0.0
    """The seconds from the start of the operation to the failure."""
