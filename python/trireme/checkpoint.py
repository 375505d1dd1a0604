# SPDX-License-Identifier: Apache-2.0
"""Reads and writes checkpoints of Trireme as dicts of tensors, in one process.

    state = trireme.checkpoint.load("runs/demo-3_938")
    model.load_state_dict(state)
"""
from __future__ import annotations

import contextlib
import os
import pathlib
import warnings
from collections.abc import Iterator, Mapping

import torch

from trireme import _torch_version
from trireme.errors import CheckpointError, UsageError

_torch_version.check()

from trireme import _planning  # noqa: E402  (after the check of the version)

__all__ = ["State", "from_torch_distributed", "load", "save", "to_torch_distributed"]


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
    return pathlib.Path(_planning.save_checkpoint(_dense(state), os.fspath(path), prefix, epoch, step, keep))


def from_torch_distributed(path: str | os.PathLike[str], prefix: str = "") -> State:
    """Returns the tensors of a checkpoint of torch.distributed.checkpoint in CPU memory, whole.

    Args:
        path: the folder of the checkpoint, which any number of ranks may have written, with FSDP2 or DTensor too.
        prefix: returns only tensors below this name, without it: `model` for what was saved as `{"model": model.state_dict()}`. Empty:
            all tensors. Values that are no tensors are left out.

    Raises:
        CheckpointError: if there is no such checkpoint, if it cannot be read, or if it has no tensor below `prefix`.
    """
    import torch.distributed.checkpoint as distributed
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    folder = pathlib.Path(path)
    if not (folder / ".metadata").is_file():
        raise CheckpointError(f"{folder} is no checkpoint of torch.distributed.checkpoint: it has no file .metadata\n"
                              "  hint: name the folder that was given to save() as checkpoint_id")
    start = f"{prefix}." if prefix else ""
    try:
        entries = distributed.FileSystemReader(folder).read_metadata().state_dict_metadata
        tensors = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in entries.items()
                   if isinstance(entry, TensorStorageMetadata) and name.startswith(start)}
        if tensors:
            with _in_one_process():
                distributed.load(tensors, checkpoint_id=folder, no_dist=True)
    except Exception as error:
        raise CheckpointError(f"{folder} cannot be read: {error}\n  hint: it may be damaged, or of another version of torch") from error
    if not tensors:
        known = sorted({name.partition(".")[0] for name in entries})
        raise CheckpointError(f"{folder} has no tensor below '{prefix}'; its names begin with {', '.join(known) or 'nothing'}\n"
                              "  hint: give one of these as prefix, or none")
    return State({name.removeprefix(start): tensor for name, tensor in tensors.items()})


def to_torch_distributed(state: Mapping[str, torch.Tensor], path: str | os.PathLike[str], prefix: str = "") -> pathlib.Path:
    """Saves tensors as a checkpoint of torch.distributed.checkpoint, and returns its folder. Blocks until it is written.

    Any number of ranks can load it, with FSDP2 and DTensor too.

    Args:
        state: the tensors by name, such as what `load` returns.
        path: the folder, which is made.
        prefix: `model` to write what `torch.distributed.checkpoint.load({"model": model.state_dict()}, …)` reads. Empty: names as
            they are.

    Raises:
        UsageError: if the folder has a checkpoint already, and for values that `save` refuses.
    """
    import torch.distributed.checkpoint as distributed

    folder = pathlib.Path(path)
    if (folder / ".metadata").exists():
        raise UsageError(f"{folder} has a checkpoint already\n  hint: name another folder, or remove it")
    start = f"{prefix}." if prefix else ""
    tensors = {start + name: tensor for name, tensor in _dense(state).items()}
    with _in_one_process():
        distributed.save(tensors, checkpoint_id=folder, no_dist=True)
    return folder


@contextlib.contextmanager
def _in_one_process() -> Iterator[None]:
    """Silences the warning of torch.distributed.checkpoint that there is no process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _dense(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the tensors without autograd. Raises UsageError for what a checkpoint cannot hold."""
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"the value of '{name}' is a {type(value).__name__}, expected a tensor\n"
                             "  hint: save it elsewhere, and give the tensors alone")
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            kind = "quantized" if value.is_quantized else "on meta" if value.is_meta else "sparse"
            raise UsageError(f"the tensor '{name}' is {kind}, expected a dense one with values\n  hint: convert it, or leave it out")
    return {name: value.detach() for name, value in state.items()}
