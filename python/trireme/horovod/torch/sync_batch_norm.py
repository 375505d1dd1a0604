# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks."""
from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import Function, once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from trireme.errors import UsageError
from trireme.horovod.torch import world
from trireme.horovod.torch.process_sets import global_process_set
from trireme.horovod.torch.requests import Op
from trireme.horovod.torch.starting import start_allgather, start_allreduce, wait_for


class SyncBatchNorm(_BatchNorm):
    """Normalizes [N, C, ...] by mean and variance of the inputs of all ranks, while training. Collective and blocking, in backward too.

    The arguments are those of torch.nn.BatchNorm2d. N may differ between ranks. The gradients of weight and bias are those of this rank's
    inputs, which DistributedOptimizer averages. Horovod's takes tensors on GPUs only; this one takes any.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise UsageError(f"SyncBatchNorm was given {list(input.shape)}, expected [N, C, ...]")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        uses_batch = self.training or not self.track_running_stats
        if not uses_batch or world.size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        momentum = self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:  # the mean of all batches
                momentum = 1 / float(self.num_batches_tracked)
        statistics = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        return _Normalize.apply(input, self.weight, self.bias, *statistics, momentum or 0.0, self.eps)


def _shaped(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns [C] as [1, C, 1, ...]."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


class _Normalize(Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, running_mean: torch.Tensor | None,
                running_var: torch.Tensor | None, momentum: float, eps: float) -> torch.Tensor:
        dims = [dim for dim in range(input.dim()) if dim != 1]
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        count = wide.numel() // wide.shape[1]
        own_mean = wide.mean(dims) if count else wide.new_zeros(wide.shape[1])
        squares = (wide - _shaped(own_mean, wide)).square().sum(dims)  # about the mean of this rank
        counts = wide.new_full((1, wide.shape[1]), count)
        parts = wait_for(start_allgather([torch.stack([counts[0], own_mean, squares])[None]], None, global_process_set, is_grouped=False,
                                         is_async=False))  # [ranks, 3, C]
        total = parts[:, 0].sum(0)
        mean = (parts[:, 0] * parts[:, 1]).sum(0) / total
        # Chan, Golub and LeVeque's formula for joined samples: no difference of large squares.
        variance_sum = (parts[:, 2] + parts[:, 0] * (parts[:, 1] - mean).square()).sum(0)
        inverse = torch.rsqrt(variance_sum / total + eps)
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance_sum / (total - 1)).to(running_var.dtype), momentum)
        normalized = (wide - _shaped(mean, wide)) * _shaped(inverse, wide)
        ctx.save_for_backward(normalized, inverse, weight, total)
        ctx.has_bias = bias is not None
        if weight is not None:
            normalized = normalized * _shaped(weight, wide)
        if bias is not None:
            normalized = normalized + _shaped(bias, wide)
        return normalized.to(input.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        normalized, inverse, weight, total = ctx.saved_tensors
        dims = [dim for dim in range(gradient.dim()) if dim != 1]
        wide = gradient.to(normalized.dtype)
        sums = torch.stack([wide.sum(dims), (wide * normalized).sum(dims)])  # of this rank: gradients of bias and weight
        all_sums = wait_for(start_allreduce([sums], None, Op.Sum, 1.0, 1.0, global_process_set, in_place=False, is_grouped=False,
                                            is_async=False))
        means = all_sums / total
        result = (wide - _shaped(means[0], wide) - normalized * _shaped(means[1], wide)) * _shaped(inverse, wide)
        if weight is not None:
            result = result * _shaped(weight, wide)
        return (result.to(gradient.dtype), sums[1].to(weight.dtype) if weight is not None else None,
                sums[0].to(gradient.dtype) if ctx.has_bias else None, None, None, None, None)
