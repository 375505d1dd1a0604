# SPDX-License-Identifier: Apache-2.0
"""trireme.parallelize: training by plans, compared bit by bit with one process of plain PyTorch and with DDP."""
from __future__ import annotations

import contextlib
import copy
import os
import pathlib
import re
import tempfile
import unittest
from typing import Any, Callable
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

import trireme
from ranks import HOST, cases_of, main, run_ranks

STEPS = 3
LEVELS = (0, 1, 2, 3)
Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: list[Make] = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.9, centered=True),
    lambda parameters: torch.optim.Adagrad(parameters, lr=0.01),
    lambda parameters: torch.optim.Adadelta(parameters),
    lambda parameters: torch.optim.Adamax(parameters),
    lambda parameters: torch.optim.NAdam(parameters),
    lambda parameters: torch.optim.RAdam(parameters),
    lambda parameters: torch.optim.ASGD(parameters),
    lambda parameters: torch.optim.Rprop(parameters),
]


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def make_network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(20, 37), nn.Tanh(), nn.LayerNorm(37), nn.Linear(37, 41), nn.ReLU(), nn.Linear(41, 5))


def make_convolutions() -> nn.Module:
    torch.manual_seed(3)
    network = nn.Sequential(nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.Flatten(), nn.Linear(96, 5))
    return network.to(memory_format=torch.channels_last)


def batch(rank: int, step: int, shape: tuple[int, ...] = (20,)) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, *shape, generator=generator), torch.randint(0, 5, (16,), generator=generator)


def loss_of(model: nn.Module, rank: int, step: int, shape: tuple[int, ...] = (20,)) -> torch.Tensor:
    inputs, targets = batch(rank, step, shape)
    return F.cross_entropy(model(inputs), targets)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, first: int = 0, shape: tuple[int, ...] = (20,),
          before_step: Callable[[], object] = lambda: None) -> list[float]:
    losses = []
    for step in range(first, first + STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step, shape)
        loss.backward()
        before_step()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_alone(model: nn.Module, optimizer: torch.optim.Optimizer, size: int, first: int = 0) -> None:
    """Trains in one process on the batches of all ranks: their gradients are summed in the order of ranks, and divided once."""
    for step in range(first, first + STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            loss_of(model, rank, step).backward()
        for parameter in model.parameters():
            parameter.grad /= size
        optimizer.step()


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert list(one) == list(other), f"{list(one)} and {list(other)}"
    for name in one:
        assert torch.equal(one[name], other[name]), f"{name}: {(one[name] - other[name]).abs().max()}"


def assert_same_state(one: torch.optim.Optimizer | dict[str, Any], other: torch.optim.Optimizer | dict[str, Any]) -> None:
    states = [each if isinstance(each, dict) else each.state_dict() for each in (one, other)]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    assert states[0]["state"].keys() == states[1]["state"].keys()
    for number, entries in states[0]["state"].items():
        expected = states[1]["state"][number]
        assert entries.keys() == expected.keys()
        for key, value in entries.items():
            assert value.shape == expected[key].shape if isinstance(value, torch.Tensor) else value == expected[key], key
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, expected[key]), f"{key} of {number}"


def every_level_and_optimizer_trains_as_one_process(rank: int, size: int) -> None:
    for make in OPTIMIZERS:
        expected = make_network()
        expected_optimizer = make(expected.parameters())
        train_alone(expected, expected_optimizer, size)
        for level in LEVELS:
            model = make_network()
            optimizer = make(model.parameters())
            parallel = trireme.parallelize(model, trireme.Plan(zero_level=level, bucket_bytes=4096), optimizer=optimizer)
            train(model, optimizer, rank)
            assert_same(model.state_dict(), expected.state_dict())
            assert_same_state(optimizer, expected_optimizer)
            parallel.close()


def it_trains_as_ddp(rank: int, size: int) -> None:
    model = DDP(make_convolutions(), bucket_cap_mb=0.005)
    losses = train(model, adam(model.parameters()), rank, shape=(1, 8, 8))
    for level in LEVELS:
        own = make_convolutions()
        optimizer = adam(own.parameters())
        parallel = trireme.parallelize(own, trireme.Plan(zero_level=level), optimizer=optimizer)
        assert train(own, optimizer, rank, shape=(1, 8, 8)) == losses
        assert 0 < parallel.seconds_of_exchange < 60
        parallel.gather_parameters()
        assert_same(dict(own.named_parameters()), dict(model.module.named_parameters()))
        if rank == 0:
            assert_same(dict(own.named_buffers()), dict(model.module.named_buffers()))
        parallel.close()


def ranks_hold_their_part_of_the_optimizer_state_only(rank: int, size: int) -> None:
    model = make_network()
    optimizer = adam(model.parameters())
    whole = sum(parameter.numel() for parameter in model.parameters())
    trireme.parallelize(model, trireme.Plan(zero_level=1), optimizer=optimizer)
    train(model, optimizer, rank)
    held = sum(state["exp_avg"].numel() for state in optimizer.state.values())
    assert held <= whole / size + 16 * 8, f"{held} of {whole}"


def parameters_start_as_those_of_rank_0(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    model = nn.Linear(4, 3)
    trireme.parallelize(model)
    torch.manual_seed(0)
    assert_same(model.state_dict(), nn.Linear(4, 3).state_dict())


def gradients_accumulate(rank: int, size: int) -> None:
    expected = make_network()
    for each in range(size):
        for step in range(2):
            loss_of(expected, each, step).backward()
    for level in LEVELS:
        for plan in (trireme.Plan(zero_level=level), trireme.Plan(zero_level=level, micro_batches=2)):
            model = make_network()
            optimizer = torch.optim.SGD(model.parameters(), lr=1)
            parallel = trireme.parallelize(model, plan, optimizer=optimizer)
            with parallel.no_sync() if plan.micro_batches == 1 else contextlib.nullcontext():
                loss_of(model, rank, 0).backward()
            loss_of(model, rank, 1).backward()
            optimizer.step()
            parallel.close()
            # Micro-batches are divided by their number, and passes within no_sync are not.
            for parameter, other, first in zip(model.parameters(), expected.parameters(), make_network().parameters(), strict=True):
                torch.testing.assert_close(first - parameter, other.grad / (size * plan.micro_batches))


def gradients_are_clipped_by_the_norm_of_all(rank: int, size: int) -> None:
    states, norms = [], []
    for level in LEVELS:
        model = make_network()
        optimizer = adam(model.parameters())
        parallel = trireme.parallelize(model, trireme.Plan(zero_level=level), optimizer=optimizer)
        seen: list[float] = []
        train(model, optimizer, rank, before_step=lambda: seen.append(parallel.clip_grad_norm_(0.5).item()))
        norms.append(seen)
        states.append(model.state_dict())
        if level == 0:
            norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()]).item()
            assert abs(parallel.grad_norm() - norm) < 1e-6 and norm < 0.51
        else:
            assert parallel.grad_norm(optimizer) == parallel.grad_norm()
        parallel.close()
    assert all(each == norms[0] for each in norms), norms
    for state in states:
        assert_same(state, states[0])


def states_move_between_levels_and_plain_pytorch(rank: int, size: int) -> None:
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder)
    path = os.path.join(folder[0], "state.pt")
    expected = make_network()
    expected_optimizer = adam(expected.parameters())
    train_alone(expected, expected_optimizer, size)
    for level, next_level in ((0, 3), (1, 0), (2, 1), (3, 2)):
        model = make_network()
        optimizer = adam(model.parameters())
        parallel = trireme.parallelize(model, trireme.Plan(zero_level=level), optimizer=optimizer)
        train(model, optimizer, rank)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}  # collective
        if rank == 0:
            torch.save(state, path)
        dist.barrier()
        parallel.close()

        plain = make_network()  # one process goes on
        plain_optimizer = adam(plain.parameters())
        plain.load_state_dict(torch.load(path)["model"])
        plain_optimizer.load_state_dict(torch.load(path)["optimizer"])
        assert_same_state(plain_optimizer, expected_optimizer)
        train_alone(plain, plain_optimizer, size, first=STEPS)

        other = make_network()  # and so does another level
        other_optimizer = torch.optim.Adam(other.parameters(), lr=123.0)
        trireme.parallelize(other, trireme.Plan(zero_level=next_level), optimizer=other_optimizer)
        other.load_state_dict(torch.load(path)["model"])
        other_optimizer.load_state_dict(torch.load(path)["optimizer"])
        train(other, other_optimizer, rank, first=STEPS)
        assert_same(other.state_dict(), plain.state_dict())
        assert_same_state(other_optimizer, plain_optimizer)


def optimizers_that_have_stepped_are_sharded_and_given_back(rank: int, size: int) -> None:
    expected = make_network()
    expected_optimizer = adam(expected.parameters())
    train_alone(expected, expected_optimizer, size)
    train_alone(expected, expected_optimizer, size, first=STEPS)
    model = make_network()
    optimizer = adam(model.parameters())
    train_alone(model, optimizer, size)
    for level in (2, 3):
        parallel = trireme.parallelize(model, trireme.Plan(zero_level=level))
        parallel.shard(optimizer)
        parallel.close()
        assert optimizer.param_groups[0]["params"][0] is model[0].weight
    parallel = trireme.parallelize(model, trireme.Plan(zero_level=3), optimizer=optimizer)
    train(model, optimizer, rank, first=STEPS)
    parallel.close()
    assert_same(model.state_dict(), expected.state_dict())
    assert_same_state(optimizer, expected_optimizer)
    train_alone(model, optimizer, size, first=2 * STEPS)  # an ordinary module of one process
    assert model[0].weight.grad is not None


def groups_and_schedulers_keep_working(rank: int, size: int) -> None:
    def make(model: Any) -> tuple[torch.optim.Optimizer, Any]:
        optimizer = torch.optim.AdamW([{"params": [model[0].weight, model[0].bias], "lr": 0.1}, {"params": model[2:].parameters()}], lr=0.01)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    expected = make_network()
    optimizer, scheduler = make(expected)
    for _ in range(2):
        train_alone(expected, optimizer, size)
        scheduler.step()
    for level in LEVELS:
        model = make_network()
        own, own_scheduler = make(model)
        trireme.parallelize(model, trireme.Plan(zero_level=level), optimizer=own)
        for _ in range(2):
            train(model, own, rank)
            own_scheduler.step()
        assert_same(model.state_dict(), expected.state_dict())
        assert_same_state(own, optimizer)


def several_optimizers_share_a_module(rank: int, size: int) -> None:
    def make(model: Any) -> list[torch.optim.Optimizer]:
        return [adam([*model[0].parameters(), *model[2].parameters()]), torch.optim.SGD([*model[3:].parameters()], lr=0.1)]

    expected = make_network()
    for step in range(STEPS):
        optimizers = make(expected) if step == 0 else optimizers
        expected.zero_grad()
        for each in range(size):
            loss_of(expected, each, step).backward()
        for parameter in expected.parameters():
            parameter.grad /= size
        for optimizer in optimizers:
            optimizer.step()
    model = make_network()
    own = make(model)
    parallel = trireme.parallelize(model, trireme.Plan(zero_level=2), optimizer=own)
    for step in range(STEPS):
        for optimizer in own:
            optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        norm = parallel.grad_norm()
        assert norm > max(parallel.grad_norm(optimizer) for optimizer in own)
        for optimizer in own:
            optimizer.step()
    assert_same(model.state_dict(), expected.state_dict())


class Branches(nn.Module):
    """Has a layer that only some ranks use, one that none uses, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.all, self.some, self.none, self.frozen = (nn.Linear(20, 20) for _ in range(4))
        self.head = nn.Linear(20, 5)
        self.frozen.requires_grad_(False)

    def forward(self, inputs: torch.Tensor, uses: bool) -> torch.Tensor:
        features = self.frozen(self.all(inputs))
        return self.head(self.some(features) if uses else features)


def parameters_may_be_unused(rank: int, size: int) -> None:
    expected = Branches()
    optimizer = adam(expected.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for each in range(size):
            inputs, targets = batch(each, step)
            F.cross_entropy(expected(inputs, uses=each == 0), targets).backward()
        for parameter in expected.parameters():
            if parameter.grad is not None:
                parameter.grad /= size
        optimizer.step()
    for level in (0, 1, 2):
        model = Branches()
        own = adam(model.parameters())
        trireme.parallelize(model, trireme.Plan(zero_level=level), optimizer=own)
        for step in range(STEPS):
            own.zero_grad()
            inputs, targets = batch(rank, step)
            F.cross_entropy(model(inputs, uses=rank == 0), targets).backward()
            own.step()
        assert_same(model.state_dict(), expected.state_dict())
        assert_same_state(own, optimizer)


def sparse_gradients_are_summed(rank: int, size: int) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(30, 4, sparse=True), nn.Linear(4, 2))
    expected = copy.deepcopy(model)
    parallel = trireme.parallelize(model, trireme.Plan(zero_level=0))
    assert parallel.plan.sparse_gradients == ["0.weight"]
    tokens = torch.tensor([[each, 5, 5 + each] for each in range(size)])
    model(tokens[rank]).square().sum().backward()
    for each in range(size):
        expected(tokens[each]).square().sum().backward()
    assert torch.equal(model[0].weight.grad.to_dense(), expected[0].weight.grad.to_dense() / size)


def batch_norm_is_synchronized(rank: int, size: int) -> None:
    def make() -> nn.Module:
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)).double()

    model, expected = make(), make()
    optimizer, expected_optimizer = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, expected))
    trireme.parallelize(model, trireme.Plan(sync_batch_norm=True))
    for step in range(STEPS):
        batches = [batch(each, step) for each in range(size)]
        for each, the_optimizer, rows in ((model, optimizer, [batches[rank]]), (expected, expected_optimizer, batches)):
            the_optimizer.zero_grad()
            inputs, targets = (torch.cat([part[place] for part in rows]) for place in (0, 1))
            F.cross_entropy(each(inputs.double()), targets).backward()
            the_optimizer.step()
    for one, other in zip(model.state_dict().values(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def buffers_follow_rank_0(rank: int, size: int) -> None:
    model = nn.BatchNorm1d(20)
    trireme.parallelize(model)
    model(batch(rank, 0)[0]).sum().backward()
    expected = nn.BatchNorm1d(20)
    expected(batch(0, 0)[0])
    assert_same(dict(model.named_buffers()), dict(expected.named_buffers()))


def gradients_travel_in_half_precision(rank: int, size: int) -> None:
    expected = make_network()
    train_alone(expected, torch.optim.SGD(expected.parameters(), lr=0.1), size)
    for wire in ("fp16", "bf16"):
        model = make_network()
        trireme.parallelize(model, trireme.Plan(wire=wire))
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), rank)
        differences = [(one - other).abs().max().item() for one, other in zip(model.parameters(), expected.parameters())]
        assert 0 < max(differences) < 0.01, differences


class Sequences(nn.Module):
    """Layers whose operators take lists of parameters, or are fused in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.recurrent = nn.Embedding(50, 16), nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoderLayer(24, 4, 48, 0.0, batch_first=True), nn.Linear(24, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.recurrent(self.embedding(tokens))[0]).mean(1))


def other_features_of_pytorch_keep_the_bits(rank: int, size: int) -> None:
    def run(plan: trireme.Plan, autocast: bool = False, compiled: bool = False, **options: Any) -> tuple[list[float], dict[str, Any], Any]:
        model = Sequences()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
        parallel = trireme.parallelize(model, plan, optimizer=optimizer)
        called = torch.compile(model, backend="aot_eager") if compiled else model
        losses = []
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(10 * step + rank)
            optimizer.zero_grad(set_to_none=step != 1)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(called(torch.randint(0, 50, (4, 7), generator=generator)), torch.arange(4))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            losses.append(model.eval()(torch.arange(14).view(2, 7)).sum().item())
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}, optimizer.state_dict()
        parallel.close()
        return losses, *state

    for options in ({}, {"fused": True}, {"foreach": True}, {"autocast": True}, {"compiled": True}):
        expected = run(trireme.Plan(), **options)
        for plan in (trireme.Plan(zero_level=2), trireme.Plan(zero_level=3), trireme.Plan(zero_level=1, offload_optimizer=True)):
            losses, state, optimizer_state = run(plan, **options)
            assert losses == expected[0]
            assert_same(state, expected[1])
            assert_same_state(optimizer_state, expected[2])


def activations_are_recomputed_by_pytorch(rank: int, size: int) -> None:
    class Recomputing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = make_network()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = checkpoint(self.network[:3], inputs, use_reentrant=False)
            return self.network[3:](hidden)

    expected = make_network()
    train_alone(expected, adam(expected.parameters()), size)
    for level in LEVELS:
        model = Recomputing()
        optimizer = adam(model.parameters())
        trireme.parallelize(model, trireme.Plan(zero_level=level), optimizer=optimizer)
        train(model, optimizer, rank)
        assert_same(model.network.state_dict(), expected.state_dict())


def ranks_may_have_unequally_many_batches(rank: int, size: int) -> None:
    for level in (0, 2):
        model = make_network()
        optimizer = adam(model.parameters())
        parallel = trireme.parallelize(model, trireme.Plan(zero_level=level), optimizer=optimizer)

        def step() -> None:
            optimizer.step()
            optimizer.zero_grad()

        for number in range(1 + rank):
            loss_of(model, rank, number).backward()
            step()
        parallel.join(step)
        states = [None] * size
        dist.all_gather_object(states, model.state_dict())
        for state in states:
            assert_same(state, states[0])


def plans_have_many_forms(rank: int, size: int) -> None:
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "plan.toml")
    plan = trireme.Plan(zero_level=2, bucket_bytes=5000)
    plan.save(path)
    inputs = [torch.zeros(size, 20), torch.zeros(size, dtype=torch.int64)]
    network = make_network()
    found = trireme.find_plan(network, lambda inputs, targets: F.cross_entropy(network(inputs), targets), inputs, ranks=size, rows=4 * size,
                              constraints=["pipe=1", "tensor=1"])
    for form, expected in ((plan, plan), (path, plan), (pathlib.Path(path), plan), (plan.to_toml(), plan), ("wire = 'bf16'", trireme.Plan(wire="bf16")),
                           (None, trireme.Plan()), (found, found.plan), (found.best[0], found.best[0].plan)):
        model = make_network()
        parallel = trireme.parallelize(model, form, optimizer=adam(model.parameters()))
        assert parallel.plan == expected
        assert parallel.data_part == (rank, size)
        parallel.close()
    with mock.patch.dict(os.environ, TRIREME_PLAN=path):  # trireme run --plan
        model = make_network()
        assert trireme.parallelize(model, optimizer=adam(model.parameters())).plan == plan


def groups_may_be_parts_of_the_world(rank: int, size: int) -> None:
    groups = [dist.new_group([each]) for each in range(size)] if size == 2 else [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = next(each for each in groups if each is not dist.GroupMember.NON_GROUP_MEMBER)
    expected = make_network()
    optimizer = adam(expected.parameters())
    first = rank - group.rank()
    for step in range(STEPS):
        optimizer.zero_grad()
        for each in range(first, first + group.size()):
            loss_of(expected, each, step).backward()
        for parameter in expected.parameters():
            parameter.grad /= group.size()
        optimizer.step()
    model = make_network()
    own = adam(model.parameters())
    trireme.parallelize(model, trireme.Plan(zero_level=3), group, own)
    train(model, own, rank)
    assert_same(model.state_dict(), expected.state_dict())


def modules_can_be_copied(rank: int, size: int) -> None:
    model = make_network()
    optimizer = adam(model.parameters())
    parallel = trireme.parallelize(model, trireme.Plan(zero_level=3), optimizer=optimizer)
    train(model, optimizer, rank)
    average = copy.deepcopy(model)
    assert_same(average.state_dict(), model.state_dict())
    assert_same(dict(average.named_parameters()), make_copy_of(model))
    loss_of(average, rank, 0).backward()  # an ordinary module
    state = model[3].state_dict()  # of a part
    parallel.close()
    assert_same(state, model[3].state_dict())


def make_copy_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def shards_may_be_within_parts_of_the_ranks(rank: int, size: int) -> None:
    results = []
    for plan in (trireme.Plan(zero_level=2, shard_ranks=size // 2), trireme.Plan(zero_level=2)):
        model = make_network()
        optimizer = adam(model.parameters())
        trireme.parallelize(model, plan, optimizer=optimizer)
        train(model, optimizer, rank)
        results.append((model.state_dict(), optimizer.state_dict()))
    for one, other in zip(results[0][0].values(), results[1][0].values(), strict=True):
        torch.testing.assert_close(one, other)
    assert results[0][1]["state"].keys() == results[1][1]["state"].keys()


def run_guide(rank: int, size: int, port: int) -> str:
    """Runs the first example of docs/guide/python.md that calls parallelize, as torchrun would start it."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "guide" / "python.md").read_text("utf-8")
    code = next(block for block in re.findall("```python\n(.*?)```", page, re.DOTALL) if "trireme.parallelize(" in block)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR=HOST, MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(compile(code, "docs/guide/python.md", "exec"), {})
        if rank == 0:
            model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
            model.load_state_dict(torch.load("state.pt")["model"])
        os.chdir("/")
    return "done"


class Guide(unittest.TestCase):
    def test_the_example_runs(self) -> None:
        self.assertEqual(run_ranks(run_guide), ["done", "done"])


CASES = [every_level_and_optimizer_trains_as_one_process, it_trains_as_ddp, ranks_hold_their_part_of_the_optimizer_state_only,
         parameters_start_as_those_of_rank_0, gradients_accumulate, gradients_are_clipped_by_the_norm_of_all,
         states_move_between_levels_and_plain_pytorch, optimizers_that_have_stepped_are_sharded_and_given_back,
         groups_and_schedulers_keep_working, several_optimizers_share_a_module, parameters_may_be_unused, sparse_gradients_are_summed,
         batch_norm_is_synchronized, buffers_follow_rank_0, gradients_travel_in_half_precision, other_features_of_pytorch_keep_the_bits,
         activations_are_recomputed_by_pytorch, ranks_may_have_unequally_many_batches, plans_have_many_forms, groups_may_be_parts_of_the_world, modules_can_be_copied]
OverTwoRanks = cases_of(CASES)
OverFourRanks = cases_of([every_level_and_optimizer_trains_as_one_process, it_trains_as_ddp, states_move_between_levels_and_plain_pytorch,
                          parameters_may_be_unused, groups_may_be_parts_of_the_world, shards_may_be_within_parts_of_the_ranks], 4, label="slow")

if __name__ == "__main__":
    main()
