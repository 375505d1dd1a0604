# SPDX-License-Identifier: Apache-2.0
"""Process groups: which backend they get, groups of some ranks, timeouts, and what ends a group."""
from __future__ import annotations

import datetime
import itertools
import os
import threading
import time
import unittest
import warnings
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import trireme.torch
from ranks import cases_of, init, main, make_gloo_group, run_ranks

SECOND = datetime.timedelta(seconds=1)


def total(group: dist.ProcessGroup | None = None) -> int:
    """Returns the number of ranks that take part in an all-reduce."""
    one = torch.ones(1, dtype=torch.int64)
    dist.all_reduce(one, group=group)
    return int(one.item())


def a_group_that_names_no_backend_gets_trireme(rank: int, size: int) -> None:
    assert trireme.torch.engine() == "shm"
    assert dist.get_backend() == "undefined"  # as without trireme
    assert dist.get_backend_config() == "cpu:trireme"


def a_group_of_gloo_keeps_its_name_and_gets_trireme(rank: int, size: int) -> None:
    group = dist.new_group(backend="gloo")
    assert trireme.torch.engine(group) == "shm" and dist.get_backend(group) == "gloo"
    assert total(group) == size
    dist.destroy_process_group(group)


def a_group_can_ask_for_trireme_by_name(rank: int, size: int) -> None:
    for backend in ("trireme", "cpu:trireme", "cpu:gloo"):
        group = dist.new_group(backend=backend)
        assert trireme.torch.engine(group) == "shm" and dist.get_backend(group) == backend
        assert total(group) == size
        dist.destroy_process_group(group)


def gloo_is_left_alone_on_demand(rank: int, size: int) -> None:
    group = make_gloo_group()
    assert trireme.torch.engine(group) is None
    assert isinstance(group._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)
    dist.monitored_barrier(group)
    assert total(group) == size


def groups_of_some_ranks_work(rank: int, size: int) -> None:
    for ranks in itertools.chain([[0], [1], [0, 1]], [[0, 2], [2, 1]] if size > 2 else []):
        group = dist.new_group(ranks)
        if rank in ranks:
            assert total(group) == len(ranks) and group.size() == len(ranks)
        else:
            assert group is dist.GroupMember.NON_GROUP_MEMBER
    group = dist.new_group([0, 1], use_local_synchronization=True)
    assert rank > 1 or total(group) == 2
    own, groups = dist.new_subgroups(1)
    assert total(own) == 1 and len(groups) == size


def a_group_can_be_split(rank: int, size: int) -> None:
    part = dist.split_group(split_ranks=[[0], list(range(1, size))])
    assert part.size() == (1 if rank == 0 else size - 1) and total(part) == part.size()
    assert dist.get_process_group_ranks(part) == ([0] if rank == 0 else list(range(1, size)))
    whole = dist.split_group(split_ranks=[list(range(size))], group_desc="all")
    assert dist.get_rank(whole) == rank and total(whole) == size
    assert (dist.split_group(split_ranks=[[0]]) is None) == (rank != 0)
    try:
        dist.split_group(split_ranks=[[0, 0]])
    except ValueError as error:
        assert "at most once" in str(error)
    else:
        raise AssertionError("expected an error")


def a_device_mesh_makes_its_groups(rank: int, size: int) -> None:
    mesh = dist.init_device_mesh("cpu", (size, 1), mesh_dim_names=("data", "tensor"))
    assert total(mesh.get_group("data")) == size and total(mesh.get_group("tensor")) == 1


def a_monitored_barrier_names_who_is_late_and_leaves_the_group_usable(rank: int, size: int) -> None:
    late = size - 1
    store = distributed_c10d._get_default_store()
    if rank == late:
        store.wait(["failed"])
    try:
        dist.monitored_barrier(timeout=SECOND, wait_all_ranks=True)
    except trireme.CommError as error:
        assert f"Rank {late} failed to pass monitoredBarrier in 1000 ms" in str(error), error
        store.set("failed", "1")
    else:
        raise AssertionError("expected an error")
    assert total() == size


def closed_groups_say_so(rank: int, size: int) -> None:
    group = dist.new_group()
    dist.destroy_process_group(group)
    try:
        group.allreduce([torch.ones(1)])
    except trireme.UsageError as error:
        assert "was destroyed on this rank" in str(error)
    else:
        raise AssertionError("expected an error")


def a_group_that_was_destroyed_finishes_what_was_started(rank: int, size: int) -> None:
    group = dist.new_group()
    tensor = torch.ones(100_000)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    called = threading.Event()
    work.get_future().add_done_callback(lambda future: called.set())  # Python, while the group is closed
    dist.destroy_process_group(group)
    work.wait()
    assert called.wait(60)
    assert (tensor == size).all()


def a_timeout_can_be_changed(rank: int, size: int) -> None:
    group = dist.new_group()
    distributed_c10d._set_pg_timeout(SECOND, group)
    if rank == 0:
        started = time.monotonic()
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except trireme.CommError as error:
            assert "within the timeout of 1 s" in str(error), error  # or that ranks wait for each other, where both have waited for long
        assert time.monotonic() - started < 20
    dist.barrier()


def another_thread_runs_while_one_waits(rank: int, size: int) -> None:
    if rank == 0:
        advanced = threading.Event()
        store = distributed_c10d._get_default_store()

        def release() -> None:  # runs Python while the main thread waits below
            advanced.set()
            store.set("released", "1")  # the others enter the barrier only now, so it cannot end before
        timer = threading.Timer(0.2, release)
        timer.start()
        dist.barrier()
        assert advanced.is_set()
    else:
        distributed_c10d._get_default_store().wait(["released"])
        dist.barrier()


def works_are_freed(rank: int, size: int) -> None:
    tensor = torch.ones(1000)
    for _ in range(1000):
        dist.all_reduce(tensor, async_op=True).wait()
        tensor.fill_(1)
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1])
    for _ in range(4000):
        dist.all_reduce(tensor, async_op=True).wait()
        tensor.fill_(1)
    with open("/proc/self/statm") as file:
        assert int(file.read().split()[1]) - before < 300  # pages


CASES = [a_group_that_names_no_backend_gets_trireme, a_group_of_gloo_keeps_its_name_and_gets_trireme,
         a_group_can_ask_for_trireme_by_name, gloo_is_left_alone_on_demand, groups_of_some_ranks_work, a_group_can_be_split,
         a_device_mesh_makes_its_groups, a_monitored_barrier_names_who_is_late_and_leaves_the_group_usable, closed_groups_say_so,
         a_group_that_was_destroyed_finishes_what_was_started, a_timeout_can_be_changed, another_thread_runs_while_one_waits,
         works_are_freed]
OverTwoRanks = cases_of(CASES)
OverThreeRanks = cases_of(CASES, 3, label="thorough")


def make_groups_again(rank: int, size: int, port: int) -> int:
    count = 0
    for _ in range(4):
        init(rank, size, port, backend="gloo")
        dist.new_group([0])
        count += total()
        dist.destroy_process_group()
    return count


def abort(rank: int, size: int, port: int) -> str:
    init(rank, size, port)
    if rank == 0:
        dist.distributed_c10d._get_default_store().wait(["waits"])
        distributed_c10d._abort_process_group()
        return ""
    distributed_c10d._get_default_store().set("waits", "1")
    try:
        dist.barrier()
    except trireme.CommError as error:
        return str(error)
    return "no error"


def train_alone(rank: int, size: int, port: int) -> int:
    init(rank, 1, port)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    dist.barrier()
    return int(tensor.sum())


def under_environment(rank: int, size: int, port: int) -> Any:
    init(rank, size, port, backend="gloo")
    return trireme.torch.engine(), total()


class Lifetime(unittest.TestCase):
    def test_groups_can_be_destroyed_and_made_again_over_one_store(self) -> None:
        self.assertEqual(run_ranks(make_groups_again), [8, 8])

    def test_an_abort_ends_the_calls_of_all_ranks(self) -> None:
        self.assertIn("rank 0 aborted the group", run_ranks(abort)[1])

    def test_one_rank_is_a_group(self) -> None:
        self.assertEqual(run_ranks(train_alone, 1), [3])

    def test_the_engine_can_be_named(self) -> None:
        self.assertEqual(run_ranks(under_environment, environment={"TRIREME_ENGINE": "gloo"}), [("gloo", 2)] * 2)

    def test_collectives_can_be_checked_by_torch(self) -> None:
        self.assertEqual(run_ranks(under_environment, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}), [("shm", 2)] * 2)


class Choice(unittest.TestCase):
    def test_trireme_carries_cpu_tensors_alone(self) -> None:
        self.assertEqual(trireme.torch._replaced("gloo", False), "trireme")
        self.assertEqual(trireme.torch._replaced("gloo", True), "cpu:trireme,cuda:gloo")
        self.assertEqual(trireme.torch._replaced("trireme", True), "cpu:trireme,cuda:nccl")
        self.assertEqual(trireme.torch._replaced("cpu:gloo,cuda:nccl", True), "cpu:trireme,cuda:nccl")
        self.assertEqual(trireme.torch._replaced("nccl", True), "nccl")
        with mock.patch.dict(os.environ, TRIREME_REPLACE="0"):
            self.assertEqual(trireme.torch._replaced("gloo", False), "gloo")
            self.assertEqual(trireme.torch._replaced("trireme", False), "trireme")

    def test_a_wrong_setting_is_refused(self) -> None:
        with mock.patch.dict(os.environ, TRIREME_REPLACE="no"), self.assertRaisesRegex(trireme.ConfigError, "'no', expected 0 or 1"):
            trireme.torch._replaced("gloo", False)

    def test_a_plan_for_a_script_is_a_warning(self) -> None:
        with mock.patch.dict(os.environ, TRIREME_PLAN="auto"), self.assertWarnsRegex(UserWarning, "TRIREME_PLAN has no effect"):
            trireme.torch._warn_of_plan()

    def test_there_is_no_engine_without_a_group(self) -> None:
        with self.assertRaisesRegex(trireme.UsageError, "call init_process_group first"), warnings.catch_warnings():
            trireme.torch.engine()


if __name__ == "__main__":
    main()
