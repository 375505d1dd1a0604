# SPDX-License-Identifier: Apache-2.0
"""The interface of horovod.torch, under its own names, on Trireme's collectives.

    import trireme.horovod.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1 * hvd.size()), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

The guide is docs/guide/horovod.md.
"""
from __future__ import annotations

from trireme.errors import Error as HorovodInternalError
from trireme.horovod.torch import elastic
from trireme.horovod.torch.collectives import (allgather, allgather_async, allreduce, allreduce_, allreduce_async, allreduce_async_,
                                               alltoall, alltoall_async, barrier, broadcast, broadcast_, broadcast_async,
                                               broadcast_async_, grouped_allgather, grouped_allgather_async, grouped_allreduce,
                                               grouped_allreduce_, grouped_allreduce_async, grouped_allreduce_async_,
                                               grouped_reducescatter, grouped_reducescatter_async, join, poll, reducescatter,
                                               reducescatter_async, sparse_allreduce_async, synchronize)
from trireme.horovod.torch.compression import Compression
from trireme.horovod.torch.functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from trireme.horovod.torch.optimizer import DistributedOptimizer
from trireme.horovod.torch.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from trireme.horovod.torch.requests import Op
from trireme.horovod.torch.sync_batch_norm import SyncBatchNorm
from trireme.horovod.torch.timeline import start_timeline, stop_timeline
from trireme.horovod.torch.world import (ccl_built, cross_rank, cross_size, cuda_built, ddl_built, gloo_built, gloo_enabled, init,
                                         is_homogeneous, is_initialized, local_rank, local_size, mpi_built, mpi_enabled,
                                         mpi_threads_supported, nccl_built, rank, rocm_built, shutdown, size)

Average = Op.Average
Sum = Op.Sum
Adasum = Op.Adasum
Min = Op.Min
Max = Op.Max
Product = Op.Product

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "HorovodInternalError", "Max", "Min", "ProcessSet", "Product", "Sum",
    "SyncBatchNorm", "add_process_set", "allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_", "allreduce_async",
    "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
    "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "ccl_built", "cross_rank", "cross_size", "cuda_built",
    "ddl_built", "elastic", "global_process_set", "gloo_built", "gloo_enabled", "grouped_allgather", "grouped_allgather_async",
    "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
    "grouped_reducescatter_async", "init", "is_homogeneous", "is_initialized", "join", "local_rank", "local_size", "mpi_built",
    "mpi_enabled", "mpi_threads_supported", "nccl_built", "poll", "rank", "reducescatter", "reducescatter_async", "remove_process_set",
    "rocm_built", "shutdown", "size", "sparse_allreduce_async", "start_timeline", "stop_timeline", "synchronize"]
