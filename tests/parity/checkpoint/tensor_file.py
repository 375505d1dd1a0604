# SPDX-License-Identifier: Apache-2.0
"""Saves and loads dicts of torch tensors by the compiled core of the safetensors package.

`safetensors.torch` does the same, but needs another package beside it.
"""

import safetensors
import torch


def save(tensors, path, metadata=None):
    described = {
        name: {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "data": bits(tensor).numpy().tobytes(),
        }
        for name, tensor in tensors.items()
    }
    safetensors.serialize_file(described, path, metadata)


def load(path):
    """Returns the tensors and the metadata."""
    with safetensors.safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def bits(tensor):
    """The tensor's bytes, in which NaNs and negative zeros count."""
    if tensor.numel() == 0:
        return torch.empty(0, dtype=torch.uint8)
    return tensor.detach().contiguous().flatten().view(torch.uint8)
