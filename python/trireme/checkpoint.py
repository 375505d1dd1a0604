# SPDX-License-Identifier: Apache-2.0
"""Reads and writes checkpoints of Trireme as dicts of tensors, in one process.

    state = trireme.checkpoint.load("runs/demo-3_938")
    model.load_state_dict(state)
"""
from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping

import torch

from trireme import _torch_version
from trireme.errors import UsageError

_torch_version.check()

from trireme import _planning  # noqa: E402  (after the check of the version)

__all__ = ["State", "load", "save"]


class State(dict[str, torch.Tensor]):
    """The tensors of a checkpoint by name, as `load_state_dict` takes them."""

    epoch: int = 0
    """The number of the epoch."""
    step: int = 0
    """The number of the step."""


def load(path: str | os.PathLike[str], section: str = "model") -> State:
    """Returns the tensors of a checkpoint in CPU memory. All bytes are verified by their checksums.

    Args:
        path: the folder of a checkpoint, which any number of ranks may have written, or a safetensors file.
        section: `model`, or `optimizer` where one was saved.

    Raises:
        CheckpointError: with the file, if it is missing or damaged, or has no such section.
    """
    tensors, epoch, step = _planning.load_checkpoint(os.fspath(path), section)
    state = State(tensors)
    state.epoch, state.step = epoch, step
    return state


def save(state: Mapping[str, torch.Tensor], path: str | os.PathLike[str], *, prefix: str = "checkpoint", epoch: int = 0, step: int = 0,
         keep: int = 0) -> pathlib.Path:
    """Saves tensors as a checkpoint and returns its path. Blocks until it is on disk.

    If the process is killed at any moment, earlier checkpoints remain and no incomplete one appears.

    Args:
        state: the tensors by name, such as `model.state_dict()`. They become the section `model`.
        path: the folder in which the checkpoint `<prefix>-<epoch>_<step>` is made, or a file that ends with `.safetensors`.
        prefix: the beginning of its name.
        epoch: the number of the epoch.
        step: the number of the step.
        keep: the number of checkpoints with this prefix to keep, the most recent ones; 0 keeps all.

    Raises:
        CheckpointError: if a file operation fails.
        UsageError: for values that are not tensors, and for tensors that cannot be saved, such as sparse ones.
    """
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"the value of '{name}' is a {type(value).__name__}, expected a tensor\n"
                             "  hint: save it elsewhere, and give the tensors alone")
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            kind = "quantized" if value.is_quantized else "on meta" if value.is_meta else "sparse"
            raise UsageError(f"the tensor '{name}' is {kind}, expected a dense one with values\n  hint: convert it, or leave it out")
    tensors = {name: value.detach() for name, value in state.items()}
    return pathlib.Path(_planning.save_checkpoint(tensors, os.fspath(path), prefix, epoch, step, keep))
