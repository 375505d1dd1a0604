# SPDX-License-Identifier: Apache-2.0
"""What a collective call asks for: a description that must be equal on all ranks, and the tensors of this rank."""
from __future__ import annotations

import enum
import functools
import hashlib
import time
from dataclasses import dataclass, field
from typing import Any, Callable

import torch

from trireme.errors import Error


UNNAMED = "call without a name "
"""Begins the names that calls get whose script has given none."""


class Op(enum.Enum):
    """The reductions, with Horovod's names."""

    Average = "Average"
    Sum = "Sum"
    Adasum = "Adasum"
    Min = "Min"
    Max = "Max"
    Product = "Product"


@dataclass(frozen=True)
class TensorKind:
    """The dtype and the shape of a tensor. A first dimension of -1 may differ between ranks."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    sparse_dims: int = 0
    """The number of dimensions with indices of a sparse tensor; 0 for dense ones."""

    def zeros(self) -> torch.Tensor:
        """Returns zeros of this kind in the memory of the host, with no rows where their number may differ."""
        shape = tuple(0 if size == -1 else size for size in self.shape)
        if not self.sparse_dims:
            return torch.zeros(shape, dtype=self.dtype)
        values = torch.zeros((0, *shape[self.sparse_dims:]), dtype=self.dtype)
        indices = torch.zeros((self.sparse_dims, 0), dtype=torch.int64)
        return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)

    def __str__(self) -> str:
        sizes = ", ".join("*" if size == -1 else str(size) for size in self.shape)
        return f"{f'sparse ({self.sparse_dims}) ' if self.sparse_dims else ''}{str(self.dtype).removeprefix('torch.')} [{sizes}]"


@dataclass(frozen=True)
class Call:
    """The part of a call that must be equal on all ranks."""

    kind: str
    """What is called, such as `allreduce`."""
    tensors: tuple[TensorKind, ...] = ()
    op: Op | None = None
    prescale: float = 1.0
    postscale: float = 1.0
    root: int | None = None
    """The rank in the process set that a broadcast comes from."""
    detail: str = ""
    """Anything else to be compared."""
    mistake: str = ""
    """What is wrong with the arguments of a rank; the call is refused on all of them."""

    @property
    def reduction(self) -> Op:
        """The reduction of a call that has one."""
        assert self.op is not None
        return self.op

    def __str__(self) -> str:
        shown = [str(tensor) for tensor in self.tensors[:4]]
        if len(self.tensors) > 4:
            shown.append(f"{len(self.tensors) - 4} more")
        words = [self.kind]
        if self.op is not None:
            words.append(f"({self.op.value})")
        if self.root is not None:
            words.append(f"from rank {self.root}")
        if shown:
            words.append(f"of {', '.join(shown)}")
        if (self.prescale, self.postscale) != (1.0, 1.0):
            words.append(f"scaled by {self.prescale} before and {self.postscale} after")
        return " ".join(words) + (f": {self.detail}" if self.detail else "")


def digest_of(text: str) -> int:
    """Returns 63 bits that stand for a text, equal in all processes."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


digest_of_name = functools.lru_cache(maxsize=65536)(digest_of)


@functools.lru_cache(maxsize=65536)
def digest_of_call(call: Call) -> int:
    """Returns 63 bits that stand for the call. All tensors count, also those that its text leaves out."""
    return digest_of(f"{call} {[str(tensor) for tensor in call.tensors]}")


def kind_of(tensor: torch.Tensor, any_rows: bool = False) -> TensorKind:
    """Returns dtype and shape; with `any_rows`, the first dimension may differ between ranks."""
    shape = tuple(tensor.shape)
    return TensorKind(tensor.dtype, (-1, *shape[1:]) if any_rows else shape, tensor.sparse_dim() if tensor.is_sparse else 0)


@dataclass(eq=False)
class Handle:
    """An operation that was started. Give it to `synchronize` or `poll`."""

    name: str
    call: Call
    tensors: list[torch.Tensor] = field(default_factory=list)
    """What this rank contributes. A reduction or broadcast leaves its result here."""
    targets: list[torch.Tensor] | None = None
    """Where results go if that is not `tensors`."""
    splits: list[int] | None = None
    """The rows for each rank, of an alltoall."""
    unpack: Callable[[list[torch.Tensor]], Any] = lambda results: results[0] if results else None
    """Makes from the results what `synchronize` returns."""
    results: list[torch.Tensor] = field(default_factory=list)
    error: Error | None = None
    is_done: bool = False
    on_device: torch.Event | None = None
    """Recorded where the tensors are on an accelerator: they are ready when it has passed."""
    process_set: Any = None
    """The ProcessSet whose ranks make this call."""
    submitted: float = field(default_factory=time.monotonic)

    @property
    def rows(self) -> int:
        return self.tensors[0].shape[0] if self.tensors and self.tensors[0].dim() > 0 else 0

    def __str__(self) -> str:
        return f"{self.call} '{self.name}'"
