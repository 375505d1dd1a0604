# SPDX-License-Identifier: Apache-2.0
"""Training by PyTorch's own parallel modules over Trireme, compared bit by bit with the same training over Gloo."""
from __future__ import annotations

import unittest
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP

from ranks import cases_of, main, make_gloo_group

STEPS = 3
_gloo: dict[int, dist.ProcessGroup] = {}


def gloo() -> dist.ProcessGroup:
    if not _gloo:
        _gloo[0] = make_gloo_group()
    return _gloo[0]


def make_network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, 20, generator=generator), torch.randint(0, 5, (16,), generator=generator)


def train(model: nn.Module, rank: int, parameters: Any = None) -> list[float]:
    """Returns the losses of a few steps of Adam."""
    optimizer = torch.optim.Adam(parameters or model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def state_of(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for tensor in model.state_dict().values()]


def as_gloo(run: Callable[[dist.ProcessGroup | None], tuple[Any, list[torch.Tensor]]]) -> None:
    """Trains over both groups, and compares losses and parameters bit by bit."""
    (losses, state), (expected_losses, expected_state) = run(None), run(gloo())
    assert losses == expected_losses, f"{losses} and {expected_losses}"
    assert all(torch.equal(one, other) for one, other in zip(state, expected_state, strict=True))


def ddp_trains_as_over_gloo(rank: int, size: int) -> None:
    for options in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.005}, {"static_graph": True},
                    {"find_unused_parameters": True}):
        def run(group: dist.ProcessGroup | None) -> tuple[Any, list[torch.Tensor]]:
            model = DDP(make_network(), process_group=group, **options)
            return train(model, rank), state_of(model)
        as_gloo(run)


def ddp_hooks_work_as_over_gloo(rank: int, size: int) -> None:
    def averaged_in_python(group, bucket):  # DDP refuses annotations that are strings
        work = dist.all_reduce(bucket.buffer().div_(group.size()), group=group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    hooks: list[Callable[[DDP, dist.ProcessGroup], None]] = [
        lambda model, group: model.register_comm_hook(group, default_hooks.allreduce_hook),
        lambda model, group: model.register_comm_hook(group, default_hooks.fp16_compress_hook),
        lambda model, group: model.register_comm_hook(group, averaged_in_python),
        lambda model, group: model.register_comm_hook(
            powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook),
        lambda model, group: model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)]
    for hook in hooks:
        def run(group: dist.ProcessGroup | None) -> tuple[Any, list[torch.Tensor]]:
            torch.manual_seed(3)
            model = DDP(make_network(), process_group=group)
            hook(model, group or dist.group.WORLD)
            return train(model, rank), state_of(model)
        as_gloo(run)


def ddp_takes_uneven_batches(rank: int, size: int) -> None:
    model = DDP(nn.Linear(20, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(2 + rank):
            optimizer.zero_grad()
            F.cross_entropy(model(batch(rank, step)[0]), batch(rank, step)[1]).backward()
            optimizer.step()
    weights = [torch.empty_like(model.module.weight) for _ in range(size)]
    dist.all_gather(weights, model.module.weight.detach())
    assert all(torch.equal(weights[0], each) for each in weights)


def ddp_accumulates_without_communication(rank: int, size: int) -> None:
    def run(group: dist.ProcessGroup | None) -> tuple[Any, list[torch.Tensor]]:
        torch.manual_seed(5)
        model = DDP(nn.Linear(20, 5), process_group=group)
        with model.no_sync():
            F.cross_entropy(model(batch(rank, 0)[0]), batch(rank, 0)[1]).backward()
        F.cross_entropy(model(batch(rank, 1)[0]), batch(rank, 1)[1]).backward()
        return None, [model.module.weight.grad]
    as_gloo(run)


def ddp_adds_sparse_gradients(rank: int, size: int) -> None:
    def run(group: dist.ProcessGroup | None) -> tuple[Any, list[torch.Tensor]]:
        torch.manual_seed(1)
        model = DDP(nn.Embedding(30, 4, sparse=True), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.tensor([rank, step, 5, 5 + rank])).square().sum().backward()
            optimizer.step()
        return None, state_of(model)
    as_gloo(run)


def sharded_optimizers_train_as_over_gloo(rank: int, size: int) -> None:
    def run(group: dist.ProcessGroup | None) -> tuple[Any, list[torch.Tensor]]:
        model = DDP(make_network(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, lr=0.01)
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch(rank, step)[0]), batch(rank, step)[1])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, state_of(model)
    as_gloo(run)


def mesh_of(group: dist.ProcessGroup | None) -> dist.DeviceMesh:
    return dist.DeviceMesh.from_group(group or dist.group.WORLD, "cpu")


def fsdp2_trains_as_over_gloo(rank: int, size: int) -> None:
    for keeps in (True, False):
        def run(group: dist.ProcessGroup | None) -> tuple[Any, list[torch.Tensor]]:
            model, mesh = make_network(), mesh_of(group)
            for layer in model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh, reshard_after_forward=keeps)
            fully_shard(model, mesh=mesh)
            return train(model, rank), state_of(model)
        as_gloo(run)


def distributed_tensors_compute_as_over_gloo(rank: int, size: int) -> None:
    def run(group: dist.ProcessGroup | None) -> tuple[Any, list[torch.Tensor]]:
        mesh = mesh_of(group)
        torch.manual_seed(0)
        a, b = torch.randn(12, 7), torch.randn(7, 10)
        rows = distribute_tensor(a, mesh, [Shard(0)])
        columns = distribute_tensor(b, mesh, [Shard(1)])
        product = rows.redistribute(mesh, [Replicate()]) @ columns
        return None, [product.full_tensor(), rows.redistribute(mesh, [Shard(1)]).to_local(),
                      (distribute_tensor(a, mesh, [Shard(1)]) @ distribute_tensor(b, mesh, [Shard(0)])).full_tensor()]
    as_gloo(run)


def tensor_parallel_layers_train_as_over_gloo(rank: int, size: int) -> None:
    def run(group: dist.ProcessGroup | None) -> tuple[Any, list[torch.Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 8 * size), nn.ReLU(), nn.Linear(8 * size, 5))
        model = parallelize_module(model, mesh_of(group), {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return train(model, 0), state_of(model)
    as_gloo(run)


def compiled_ddp_trains_as_over_gloo(rank: int, size: int) -> None:
    def run(group: dist.ProcessGroup | None) -> tuple[Any, list[torch.Tensor]]:
        torch._dynamo.reset()
        model = DDP(make_network(), process_group=group)
        return train(torch.compile(model, backend="aot_eager"), rank), state_of(model)
    as_gloo(run)


def pipelines_train(rank: int, size: int) -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(rank)
    layer = nn.Linear(6, 6)
    stage = PipelineStage(layer, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=F.mse_loss)
    if rank == 0:
        schedule.step(torch.ones(8, 6))
    elif rank == size - 1:
        losses: list[torch.Tensor] = []
        schedule.step(target=torch.zeros(8, 6), losses=losses)
        assert len(losses) == 4
    else:
        schedule.step()
    assert layer.weight.grad is not None and layer.weight.grad.abs().sum() > 0


def checkpoints_are_saved_and_loaded(rank: int, size: int) -> None:
    import shutil
    import tempfile

    import torch.distributed.checkpoint as dcp

    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder)
    model = make_network()
    fully_shard(model)
    saved = [tensor.clone() for tensor in state_of(model)]
    dcp.save(model.state_dict(), checkpoint_id=folder[0])
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    state = model.state_dict()
    dcp.load(state, checkpoint_id=folder[0])
    model.load_state_dict(state)
    assert all(torch.equal(one, other) for one, other in zip(saved, state_of(model), strict=True))
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])


def sharded_optimizers_take_uneven_batches(rank: int, size: int) -> None:
    model = DDP(nn.Linear(20, 5))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        for step in range(1 + rank):
            optimizer.zero_grad()
            F.cross_entropy(model(batch(rank, step)[0]), batch(rank, step)[1]).backward()
            optimizer.step()


CASES = [ddp_trains_as_over_gloo, ddp_hooks_work_as_over_gloo, ddp_takes_uneven_batches, ddp_accumulates_without_communication,
         ddp_adds_sparse_gradients, sharded_optimizers_train_as_over_gloo, fsdp2_trains_as_over_gloo,
         distributed_tensors_compute_as_over_gloo, tensor_parallel_layers_train_as_over_gloo, compiled_ddp_trains_as_over_gloo,
         pipelines_train, checkpoints_are_saved_and_loaded, sharded_optimizers_take_uneven_batches]
OverTwoRanks = cases_of(CASES, label="thorough")

if __name__ == "__main__":
    main()
