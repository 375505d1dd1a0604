# SPDX-License-Identifier: Apache-2.0
"""The dtype in which tensors are sent."""
from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """The interface of a compression: two functions without state. Scripts may pass their own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor to send, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Returns the received tensor in the form that `compress` was given."""
        raise NotImplementedError


class _Uncompressed(Compressor):
    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor


def _cast_to(sent: torch.dtype) -> type[Compressor]:
    class Cast(Compressor):
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
            return (tensor.to(sent) if tensor.dtype.is_floating_point else tensor), tensor.dtype

        @staticmethod
        def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
            return tensor.to(context)

    return Cast


class Compression:
    """The compressions that there are."""

    none: type[Compressor] = _Uncompressed
    """Sends tensors as they are."""
    fp16: type[Compressor] = _cast_to(torch.float16)
    """Sends floating-point tensors as float16. Sums are added in float32."""
    bf16: type[Compressor] = _cast_to(torch.bfloat16)
    """Sends floating-point tensors as bfloat16, which Horovod has not. Sums are added in float32."""
