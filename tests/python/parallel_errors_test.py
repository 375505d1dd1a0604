# SPDX-License-Identifier: Apache-2.0
"""Mistakes with trireme.parallelize, each with its message, on every rank and before the deadline."""
from __future__ import annotations

import datetime
import os
import signal
import tempfile
import threading
import time
import unittest
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import trireme
from ranks import cases_of, init, main, run_ranks


def make_network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(3, 8)).square().sum()


def error_of(call: Callable[[], object], kind: type[Exception] = trireme.UsageError) -> str:
    """Returns the message of the exception that a call raises. One of an operator or of backward() is a plain RuntimeError."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("no error")


def expect(call: Callable[[], object], *parts: str, kind: type[Exception] = trireme.UsageError) -> None:
    message = error_of(call, kind)
    for part in parts:
        assert part in message, f"'{part}' is not in: {message}"


def modules_that_differ(rank: int, size: int) -> None:
    expect(lambda: trireme.parallelize(nn.Linear(3 + rank, 2)), "the module differs between ranks", "weight", "[2, 3]", "[2, 4]")
    expect(lambda: trireme.parallelize(nn.Linear(3, 2, bias=rank == 0)), "the module differs between ranks", "bias")


def plans_that_differ(rank: int, size: int) -> None:
    expect(lambda: trireme.parallelize(make_network(), trireme.Plan(zero_level=rank)), "ZeRO level", "rank 0", "rank 1")


def plans_for_other_ranks(rank: int, size: int) -> None:
    expect(lambda: trireme.parallelize(make_network(), trireme.Plan(mesh={"data": 3})), "mesh is data=3", f"the {size} ranks")


def plans_that_need_other_calls(rank: int, size: int) -> None:
    plan = trireme.Plan(mesh={"data": 1, "pipe": 2}, recompute=["0"], offload_activations=True, sync_batch_norm=True)
    expect(lambda: trireme.parallelize(make_network(), plan), "2 ranks along pipe", "torch.distributed.pipelining", "computed again",
           "torch.utils.checkpoint", "offloaded", "save_on_cpu")
    expect(lambda: trireme.parallelize(make_network(), trireme.Plan(mode="auto")), "mode is auto", "find_plan")


def plans_of_other_kinds(rank: int, size: int) -> None:
    expect(lambda: trireme.parallelize(make_network(), 5), "the plan is a int", "find_plan")
    expect(lambda: trireme.parallelize(make_network(), "zero"), "the plan is 'zero'", "TOML")
    expect(lambda: trireme.parallelize(make_network(), "zero_levl = 1"), "zero_levl", "zero_level", kind=trireme.ConfigError)
    expect(lambda: trireme.parallelize(make_network(), "/nonexistent/plan.toml"), "/nonexistent/plan.toml", kind=trireme.ConfigError)


def a_file_that_one_rank_lacks(rank: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.toml")
        if rank == 0:
            trireme.Plan().save(path)
            expect(lambda: trireme.parallelize(make_network(), path), "rank 1", "plan.toml")
        else:
            expect(lambda: trireme.parallelize(make_network(), path), "plan.toml", kind=trireme.ConfigError)
        dist.barrier()


def modules_that_are_parallel_already(rank: int, size: int) -> None:
    model = make_network()
    parallel = trireme.parallelize(model)
    expect(lambda: trireme.parallelize(model), "parallelized already", "close()")
    expect(lambda: trireme.parallelize(nn.Sequential(model)), "0.0.weight", "post-accumulate-gradient hook")
    parallel.close()
    expect(lambda: parallel.plan, "close() was called")
    expect(lambda: trireme.parallelize(nn.parallel.DistributedDataParallel(model)), "DistributedDataParallel")
    trireme.parallelize(model).close()


def modules_without_values(rank: int, size: int) -> None:
    expect(lambda: trireme.parallelize(nn.Linear(2, 2, device="meta")), "weight is on meta", "to_empty")
    expect(lambda: trireme.parallelize(nn.LazyLinear(2)), "weight has no shape yet")
    expect(lambda: trireme.parallelize(make_network().forward), "the module is a method")


def optimizers_that_miss_parameters(rank: int, size: int) -> None:
    model = make_network()
    plan = trireme.Plan(zero_level=2)
    expect(lambda: trireme.parallelize(model, plan, optimizer=torch.optim.SGD(model[0].parameters(), lr=1)),
           "no optimizer steps the parameter 2.weight and 1 more")
    trireme.parallelize(model, plan)  # the mistake has left the module as it was; no optimizer yet
    expect(lambda: loss_of(model).backward(), "0.weight", kind=RuntimeError)


def optimizers_that_cannot_be_sharded(rank: int, size: int) -> None:
    model = make_network()

    class Own(torch.optim.SGD):
        pass

    for optimizer in (torch.optim.LBFGS(model.parameters()), torch.optim.Adafactor(model.parameters()), Own(model.parameters(), lr=1)):
        expect(lambda: trireme.parallelize(model, trireme.Plan(zero_level=1), optimizer=optimizer),
               f"of type {type(optimizer).__name__} cannot step parts", "zero_level 0")
        trireme.parallelize(model, optimizer=optimizer).close()
    expect(lambda: trireme.parallelize(model, trireme.Plan(zero_level=1), optimizer=[model]), "the optimizer is a Sequential")
    own = adam(model)
    parallel = trireme.parallelize(model, trireme.Plan(zero_level=1), optimizer=own)
    expect(lambda: parallel.shard(own), "sharded already")
    other = nn.Linear(2, 2)
    expect(lambda: parallel.shard(adam(other)), "none of the parameters")
    state = adam(other).state_dict()
    expect(lambda: own.load_state_dict(state), "groups of [2] parameters", "[4]")
    one_rank_only = torch.optim.LBFGS(model.parameters()) if rank == 0 else adam(model)
    assert "LBFGS" in error_of(lambda: parallel.shard(one_rank_only))


def changes_after_parallelize(rank: int, size: int) -> None:
    def changed(change: Callable[[Any], object]) -> nn.Module:
        model = make_network()
        trireme.parallelize(model)
        change(model)
        return model

    def replace(model: Any) -> None:
        model[0].weight = nn.Parameter(torch.ones(8, 8))

    expect(lambda: loss_of(changed(replace)), "the parameter 0.weight was added or replaced")
    expect(lambda: loss_of(changed(lambda model: model.append(nn.Linear(2, 2)))), "the parameter 3.weight was added or replaced")
    expect(lambda: loss_of(changed(lambda model: model[0].weight.register_post_accumulate_grad_hook(lambda _: None))), "0.weight",
           "register_post_accumulate_grad_hook")
    frozen = changed(lambda model: model[0].requires_grad_(False))
    expect(lambda: loss_of(frozen).backward(), "0.weight", kind=RuntimeError)
    cast = changed(lambda model: model.double())
    expect(lambda: cast(torch.ones(3, 8).double()).sum().backward(), "0.weight", kind=RuntimeError)


def gradients_that_no_rank_has(rank: int, size: int) -> None:
    model = make_network()
    optimizer = adam(model)
    parallel = trireme.parallelize(model, trireme.Plan(zero_level=1), optimizer=optimizer)
    loss_of(model).backward()
    expect(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), "the plan cuts it", "parallel.clip_grad_norm_", kind=RuntimeError)
    expect(lambda: parallel.clip_grad_norm_(0.0), "a norm of 0", "above 0")


def loss_scales_of_one_rank(rank: int, size: int) -> None:
    for plan, refused in ((trireme.Plan(), False), (trireme.Plan(zero_level=1), True), (trireme.Plan(zero_level=3), True),
                          (trireme.Plan(mesh={"tensor": 2}, layouts={"0.*": "Shard(0) on tensor"}), True)):
        model = make_network()
        optimizer = adam(model)
        trireme.parallelize(model, plan, optimizer=optimizer)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(model)).backward()
        if refused:
            expect(lambda: scaler.step(optimizer), "_amp_foreach" if plan.mesh else "ranks would skip different steps", kind=RuntimeError)
        else:
            scaler.step(optimizer)
            scaler.update()


def recomputation_by_a_second_backward(rank: int, size: int) -> None:
    model = make_network()
    trireme.parallelize(model)
    output = checkpoint(model, torch.ones(3, 8, requires_grad=True), use_reentrant=True)
    expect(lambda: output.sum().backward(), "backward", kind=RuntimeError)


def groups_of_others(rank: int, size: int) -> None:
    group = dist.new_group([0])
    if rank == 1:
        expect(lambda: trireme.parallelize(make_network(), group=group), "of which this rank is a member")


def calls_of_one_rank_alone(rank: int, size: int) -> None:
    first, second, third = (dist.new_group(timeout=datetime.timedelta(seconds=1)) for _ in range(3))
    model, other = make_network(), make_network()
    trireme.parallelize(other, group=second).close()
    optimizer = adam(other)
    parallel = trireme.parallelize(other, trireme.Plan(zero_level=2), third, optimizer)
    loss_of(other).backward()
    optimizer.step()
    try:
        if rank == 0:
            started = time.monotonic()
            expect(lambda: trireme.parallelize(model, group=first), "missing: 1", "trireme.parallelize", kind=trireme.CommError)
            expect(lambda: trireme.parallelize(model, group=second), "rank 1", kind=trireme.CommError)
            expect(optimizer.state_dict, "rank 1", kind=RuntimeError)
            assert time.monotonic() - started < 20
    finally:
        dist.barrier()
        parallel._drop()


def ranks_that_cannot_go_on(rank: int, size: int) -> None:
    model = make_network()
    parallel = trireme.parallelize(model, group=dist.new_group())
    if rank == 1:
        parallel.abort("the disk is full")
    else:
        expect(lambda: loss_of(model).backward(), "the disk is full", kind=RuntimeError)
    parallel._drop()


def steps_that_are_interrupted(rank: int, size: int) -> None:
    group = [dist.new_group([each]) for each in range(size)][rank]
    model = make_network()
    parallel = trireme.parallelize(model, trireme.Plan(micro_batches=2), group)
    loss = loss_of(model)
    hook = model[0].weight.register_hook(lambda _: 1 / 0)
    expect(loss.backward, "division", kind=ZeroDivisionError)
    hook.remove()
    expect(lambda: loss_of(model).backward(), "another one", kind=RuntimeError)
    parallel.abandon_step()
    model.zero_grad()
    loss_of(model).backward()
    loss_of(model).backward()
    mean = model[0].weight.grad.clone()
    parallel.close()
    model.zero_grad()
    loss_of(model).backward()
    assert torch.equal(mean, model[0].weight.grad)


OverTwoRanks = cases_of([modules_that_differ, plans_that_differ, plans_for_other_ranks, plans_that_need_other_calls, plans_of_other_kinds,
                         a_file_that_one_rank_lacks, modules_that_are_parallel_already, modules_without_values,
                         optimizers_that_miss_parameters, optimizers_that_cannot_be_sharded, changes_after_parallelize,
                         gradients_that_no_rank_has, loss_scales_of_one_rank, recomputation_by_a_second_backward, groups_of_others,
                         calls_of_one_rank_alone,
                         ranks_that_cannot_go_on, steps_that_are_interrupted])


def die_in_training(rank: int, size: int, port: int) -> str:
    init(rank, size, port, backend="gloo")
    model = make_network()
    optimizer = adam(model)
    trireme.parallelize(model, trireme.Plan(zero_level=1), optimizer=optimizer)
    for step in range(3):
        if rank == 1 and step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            loss_of(model).backward()
            optimizer.step()
        except RuntimeError as error:
            return str(error)
    return "no error"


def be_interrupted(rank: int, size: int, port: int) -> str:
    init(rank, size, port, backend="gloo")
    if rank == 1:
        time.sleep(3)
        return "slept"
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        trireme.parallelize(make_network())
    except KeyboardInterrupt:
        return "interrupted"
    return "no error"


def exit_with_all_alive(rank: int, size: int, port: int) -> str:
    """Everything that is left is destroyed at exit, where ranks do not wait for each other."""
    init(rank, size, port, backend="gloo")
    model = make_network()
    optimizer = adam(model)
    trireme.parallelize(model, trireme.Plan(zero_level=3), optimizer=optimizer)
    loss_of(model).backward()
    optimizer.step()
    globals()["kept"] = model, optimizer
    if rank == 1:
        time.sleep(0.5)
    return "done"


class Ranks(unittest.TestCase):
    def test_a_rank_that_dies_is_named(self) -> None:
        message, code = run_ranks(die_in_training)
        self.assertEqual(code, -signal.SIGKILL)
        self.assertIn("rank 1", message)

    def test_ctrl_c_ends_a_wait(self) -> None:
        self.assertEqual(run_ranks(be_interrupted)[0], "interrupted")

    def test_processes_end_with_modules_alive(self) -> None:
        self.assertEqual(run_ranks(exit_with_all_alive), ["done", "done"])

    def test_a_process_group_is_needed(self) -> None:
        self.assertIn("init_process_group", error_of(lambda: trireme.parallelize(make_network())))


if __name__ == "__main__":
    main()
