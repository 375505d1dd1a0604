# SPDX-License-Identifier: Apache-2.0
"""Comm hooks of trireme.parallelize: PowerSGD, top-k and functions of Python in place of the all-reduce of gradients."""
from __future__ import annotations

import datetime
import gc
import os
import unittest
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import trireme
from ranks import cases_of, init, main, run_ranks

STEPS = 4


def train(rank: int, *hooks: Any) -> tuple[list[torch.Tensor], trireme.Parallelized]:
    """Returns the parameters after a few steps with different batches on each rank. Of several hooks, the last one counts."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = trireme.parallelize(model)
    for hook in hooks:
        parallel.register_comm_hook(hook)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(8, 12, generator=generator)).square().sum().backward()
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()], parallel


def assert_equal(one: list[torch.Tensor], other: list[torch.Tensor], **bound: float) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, **(bound or {"rtol": 0, "atol": 0}))


def assert_same_on_all_ranks(parameters: list[torch.Tensor]) -> None:
    flat = torch.cat([each.flatten() for each in parameters])
    others = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(others, flat)
    assert all(torch.equal(flat, other) for other in others)


def error_of(call: Callable[[], object], kind: type[Exception] = trireme.UsageError) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("no error")


def a_function_that_sums_gives_the_bits_of_all_reduce(rank: int, size: int) -> None:
    seen: set[str] = set()

    def sum_later(bucket: trireme.GradientBucket) -> Callable[[], object]:
        assert sum(each.numel() for each in bucket.gradients) <= bucket.memory.numel()
        assert len(bucket.names) == len(bucket.gradients)
        seen.update(bucket.names)
        return dist.all_reduce(bucket.memory, async_op=True).wait

    plain, _ = train(rank)
    summed, _ = train(rank, sum_later)
    assert_equal(summed, plain)
    assert seen == {"0.weight", "0.bias", "2.weight", "2.bias"}, seen


def a_function_may_sum_at_once(rank: int, size: int) -> None:
    calls = []

    def sum_now(bucket: trireme.GradientBucket) -> None:
        calls.append(len(bucket.names))
        dist.all_reduce(bucket.memory)

    plain, _ = train(rank)
    summed, _ = train(rank, sum_now)
    assert_equal(summed, plain)
    assert sum(calls) == 4 * STEPS, calls


def a_function_changes_the_result(rank: int, size: int) -> None:
    """The hook decides about the sum: without an exchange, each rank keeps its own gradients, divided by the number of ranks."""
    alone, _ = train(rank, lambda bucket: None)
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 6))
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + rank)
        model.zero_grad()
        model(torch.randn(8, 12, generator=generator)).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * (parameter.grad / size)
    assert_equal(alone, list(model.parameters()), rtol=1e-6, atol=1e-7)


def power_sgd_of_full_rank_is_the_sum_within_rounding(rank: int, size: int) -> None:
    plain, _ = train(rank)
    full, _ = train(rank, trireme.PowerSgd(rank=24, start_iteration=0, min_compression_rate=1e-9))
    assert_equal(full, plain, rtol=1e-4, atol=1e-5)
    rough, _ = train(rank, trireme.PowerSgd(rank=1, start_iteration=0, min_compression_rate=1.1))
    assert not torch.allclose(rough[0], plain[0], rtol=1e-4, atol=1e-5)
    assert_same_on_all_ranks(rough)
    early, _ = train(rank, trireme.PowerSgd(rank=1, start_iteration=STEPS))
    assert_equal(early, plain)


def top_k_of_everything_is_the_sum(rank: int, size: int) -> None:
    plain, _ = train(rank)
    whole, _ = train(rank, trireme.TopK(fraction=1.0))
    assert_equal(whole, plain, rtol=1e-6, atol=1e-7)
    few, _ = train(rank, trireme.TopK(fraction=0.05))
    assert not torch.allclose(few[0], plain[0], rtol=1e-4, atol=1e-5)
    assert_same_on_all_ranks(few)


def none_restores_all_reduce(rank: int, size: int) -> None:
    plain, _ = train(rank)
    restored, _ = train(rank, trireme.TopK(fraction=0.05), None)
    assert_equal(restored, plain)


def hooks_are_released_with_the_module(rank: int, size: int) -> None:
    class Hook:
        def __call__(self, bucket: trireme.GradientBucket) -> None:
            dist.all_reduce(bucket.memory)

    hook = Hook()
    released = weakref.ref(hook)
    _, parallel = train(rank, hook)
    parallel.close()
    del hook, parallel
    gc.collect()
    assert released() is None


def what_is_no_hook_is_refused(rank: int, size: int) -> None:
    parallel = trireme.parallelize(nn.Linear(3, 2))
    message = error_of(lambda: parallel.register_comm_hook("powersgd"))
    assert "the comm hook is a str" in message and "trireme.PowerSgd(rank=2)" in message, message
    # The mistake of one rank is an error on all.
    message = error_of(lambda: parallel.register_comm_hook(5 if rank == 1 else trireme.TopK()))
    assert "the comm hook is a int" in message, message
    assert "the class PowerSgd" in error_of(lambda: parallel.register_comm_hook(trireme.PowerSgd))
    message = error_of(lambda: parallel.register_comm_hook(None if rank == 1 else trireme.TopK()))
    assert "comm hook" in message and "TopK" in message, message
    shared = trireme.TopK()
    parallel.register_comm_hook(shared)
    other = trireme.parallelize(nn.Linear(3, 2))
    assert "belongs to another module" in error_of(lambda: other.register_comm_hook(shared))
    assert "a function" in error_of(lambda: trireme.CommHook())
    message = error_of(lambda: trireme.PowerSgd(rank=0))
    assert "0" in message, message
    assert "1.5" in error_of(lambda: trireme.TopK(fraction=1.5))
    model = nn.Linear(3, 2)
    sharded = trireme.parallelize(model, trireme.Plan(zero_level=1), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert "zero_level 0" in error_of(lambda: sharded.register_comm_hook(trireme.PowerSgd()))


def a_refused_hook_changes_nothing(rank: int, size: int) -> None:
    model = nn.Linear(3, 2)
    parallel = trireme.parallelize(model)
    error_of(lambda: parallel.register_comm_hook(5 if rank == 1 else lambda bucket: None))
    model(torch.full((1, 3), float(rank))).sum().backward()
    assert torch.equal(model.weight.grad, torch.full((2, 3), 0.5)), model.weight.grad


def functions_are_refused_where_ranks_share_data(rank: int, size: int) -> None:
    plan = trireme.Plan(mesh={"data": 1, "tensor": 2}, layouts={"weight": "Shard(0) on tensor", "bias": "Shard(0) on tensor"})
    parallel = trireme.parallelize(nn.Linear(4, 2), plan)
    assert "1 parts of the data" in error_of(lambda: parallel.register_comm_hook(lambda bucket: dist.all_reduce(bucket.memory)))


def none_restores_the_precision_of_the_plan(rank: int, size: int) -> None:
    def gradient(*hooks: Any) -> torch.Tensor:
        torch.manual_seed(5)
        model = nn.Linear(3, 2)
        parallel = trireme.parallelize(model, trireme.Plan(wire="fp16"))
        for hook in hooks:
            parallel.register_comm_hook(hook)
        model(torch.full((1, 3), 0.1234567 * (rank + 1))).square().sum().backward()
        return model.weight.grad

    assert torch.equal(gradient(), gradient(trireme.TopK(), None))
    assert not torch.equal(gradient(), gradient(lambda bucket: dist.all_reduce(bucket.memory, async_op=True).wait))


def options_that_differ_are_refused(rank: int, size: int) -> None:
    message = error_of(lambda: train(rank, trireme.TopK(fraction=0.1 + rank / 10)), RuntimeError)
    assert "0.1" in message and "0.2" in message, message


OverTwoRanks = cases_of([a_function_that_sums_gives_the_bits_of_all_reduce, a_function_may_sum_at_once, a_function_changes_the_result,
                         power_sgd_of_full_rank_is_the_sum_within_rounding, top_k_of_everything_is_the_sum, none_restores_all_reduce,
                         hooks_are_released_with_the_module, what_is_no_hook_is_refused, a_refused_hook_changes_nothing,
                         functions_are_refused_where_ranks_share_data, none_restores_the_precision_of_the_plan, options_that_differ_are_refused])


def raise_on_rank_1(rank: int, size: int, port: int) -> str:
    init(rank, size, port, backend="gloo", timeout=datetime.timedelta(seconds=20))

    def hook(bucket: trireme.GradientBucket) -> Callable[[], object]:
        if rank == 1:
            raise ValueError("a mistake of the hook")
        return dist.all_reduce(bucket.memory, async_op=True).wait

    try:
        train(rank, hook)
    except RuntimeError as error:
        return str(error)
    return "no error"


def die_before_the_sum(rank: int, size: int, port: int) -> str:
    init(rank, size, port, backend="gloo", timeout=datetime.timedelta(seconds=20))
    try:
        train(rank, lambda bucket: os._exit(3) if rank == 1 else dist.all_reduce(bucket.memory, async_op=True).wait)
    except RuntimeError as error:
        return str(error)
    return "no error"


def return_a_number(rank: int, size: int, port: int) -> str:
    init(rank, size, port, backend="gloo", timeout=datetime.timedelta(seconds=20))
    try:
        train(rank, lambda bucket: 5)
    except RuntimeError as error:
        return str(error)
    return "no error"


class Mistakes(unittest.TestCase):
    def test_an_exception_of_a_hook_is_reported_on_its_rank_and_the_others_end(self) -> None:
        others, own = run_ranks(raise_on_rank_1)
        self.assertIn("ValueError: a mistake of the hook", own)
        self.assertNotEqual(others, "no error")

    def test_a_rank_that_dies_is_no_mistake_of_the_hook(self) -> None:
        message = run_ranks(die_before_the_sum)[0]
        self.assertIn("rank 1 ended", message)
        self.assertNotIn("the comm hook raised", message)

    def test_what_a_hook_returns_is_checked(self) -> None:
        for message in run_ranks(return_a_number):
            self.assertIn("the comm hook returned a int", message)


if __name__ == "__main__":
    main()
