# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch.distributed by Trireme, bit by bit as by Gloo, or as computed here where Gloo has none.

Gloo adds the ranks in another order than Trireme where there are more than two, so that floating-point sums are compared for two.
"""
from __future__ import annotations

import itertools
import os
import pathlib
import unittest
from typing import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp

from ranks import cases_of, main, make_gloo_group

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
COMPLEX = [torch.complex64, torch.complex128]
_gloo: dict[int, dist.ProcessGroup] = {}


def gloo() -> dist.ProcessGroup:
    """Returns a group of PyTorch's Gloo over all ranks."""
    if not _gloo:
        _gloo[0] = make_gloo_group()
    return _gloo[0]


def values(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Returns numbers of this rank, the same in every run."""
    generator = torch.Generator().manual_seed(1000 + rank)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype in INTEGERS:
        return torch.randint(0, 11, shape, generator=generator).to(dtype)
    if dtype in COMPLEX:
        return torch.complex(*(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def same(ours: torch.Tensor | list[torch.Tensor], theirs: torch.Tensor | list[torch.Tensor]) -> None:
    """Compares bit by bit."""
    if isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs):
            same(one, other)
        return
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, f"{ours.dtype} {ours.shape}, {theirs.dtype} {theirs.shape}"
    one, other = (tensor.detach().contiguous().flatten().view(torch.uint8) if tensor.numel() else tensor for tensor in (ours, theirs))
    assert torch.equal(one, other), f"{ours.flatten()[:8]} and {theirs.flatten()[:8]}"


def sum_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Adds in the order of ranks. Half precision is rounded once, at the end."""
    dtype = tensors[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return sum((tensor.to(wide) for tensor in tensors[1:]), tensors[0].to(wide)).to(dtype)


def as_gloo(call: Callable[[dist.ProcessGroup | None], torch.Tensor | list[torch.Tensor]]) -> None:
    """Makes a call in both groups, and compares what it returns."""
    same(call(None), call(gloo()))


def all_reduce_adds_every_dtype_as_gloo_does(rank: int, size: int) -> None:
    for dtype, count in itertools.product(FLOATS + INTEGERS + COMPLEX, (0, 1, 7, 1000, 70_000)):
        def call(group: dist.ProcessGroup | None) -> torch.Tensor:
            tensor = values(rank, dtype, count)
            dist.all_reduce(tensor, group=group)
            return tensor
        if dtype is not torch.int16 and (size == 2 or dtype not in FLOATS + COMPLEX):  # Gloo has no int16
            as_gloo(call)
        else:
            same(call(None), sum_of([values(other, dtype, count) for other in range(size)]))


def all_reduce_has_every_reduction(rank: int, size: int) -> None:
    for op, dtype in itertools.product((ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX), FLOATS + INTEGERS):
        def call(group: dist.ProcessGroup | None) -> torch.Tensor:
            tensor = values(rank, dtype, 3, 50)
            dist.all_reduce(tensor, op, group)
            return tensor
        gloo_has_it = dtype is not torch.int16 and (size == 2 or dtype not in FLOATS)
        as_gloo(call) if gloo_has_it else call(None)
    for op, dtype in itertools.product((ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR), [each for each in INTEGERS if each is not torch.int16]):
        def combine(group: dist.ProcessGroup | None) -> torch.Tensor:
            tensor = values(rank, dtype, 40)
            dist.all_reduce(tensor, op, group)
            return tensor
        as_gloo(combine)


def averages_and_flags_are_reduced(rank: int, size: int) -> None:
    def average(group: dist.ProcessGroup | None) -> torch.Tensor:
        tensor = values(rank, torch.float32, 100)
        dist.all_reduce(tensor, ReduceOp.AVG, group)
        return tensor
    same(average(None), sum_of([values(other, torch.float32, 100) for other in range(size)]) / size)
    for op in (ReduceOp.MAX, ReduceOp.MIN):
        def any_or_all(group: dist.ProcessGroup | None) -> torch.Tensor:
            flags = values(rank, torch.bool, 100)
            dist.all_reduce(flags, op, group)
            return flags
        as_gloo(any_or_all)
    if size == 2:
        as_gloo(average)


def sums_can_be_scaled_before_they_are_added(rank: int, size: int) -> None:
    all_values = [values(other, torch.float32, 100) for other in range(size)]
    tensor = values(rank, torch.float32, 100)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    same(tensor, sum_of([0.5 * each for each in all_values]))


def all_reduce_takes_any_strides(rank: int, size: int) -> None:
    every_rank = [values(other, torch.float64, 6, 8).t()[1:, ::2] for other in range(size)]
    whole = values(rank, torch.float64, 6, 8)
    part = whole.t()[1:, ::2]
    dist.all_reduce(part)
    same(part, sum_of(every_rank))
    same(whole[1::2], values(rank, torch.float64, 6, 8)[1::2])  # what lies between is left alone


def an_asynchronous_call_has_a_future(rank: int, size: int) -> None:
    tensor = torch.full((1000,), float(rank))
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    assert work.wait()
    assert work.is_completed() and work.is_success()
    same(doubled.wait(), torch.full((1000,), float(size * (size - 1))))
    same(work.result(), [tensor])


def many_asynchronous_calls_end_in_any_order_of_waiting(rank: int, size: int) -> None:
    tensors = [torch.full((count,), rank + 1) for count in range(1, 60)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for tensor in tensors:
        assert (tensor == size * (size + 1) // 2).all()


def broadcast_and_reduce_have_every_root(rank: int, size: int) -> None:
    for root, dtype in itertools.product(range(size), [torch.float32, torch.int64, torch.bool, torch.complex64]):
        def share(group: dist.ProcessGroup | None) -> torch.Tensor:
            tensor = values(rank, dtype, 5, 3)
            dist.broadcast(tensor, root, group)
            return tensor
        as_gloo(share)
        if dtype is torch.bool:
            continue
        tensor = values(rank, dtype, 5, 3)
        dist.reduce(tensor, root)
        if rank == root:
            same(tensor, sum_of([values(other, dtype, 5, 3) for other in range(size)]))


def all_gather_has_all_forms(rank: int, size: int) -> None:
    for dtype in FLOATS + INTEGERS + [torch.bool, torch.complex64, torch.float8_e4m3fn]:
        mine = values(rank, torch.float32, 4, 3).to(dtype)
        expected = [values(other, torch.float32, 4, 3).to(dtype) for other in range(size)]
        outputs = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(outputs, mine)
        same(outputs, expected)
        whole = torch.empty(4 * size, 3, dtype=dtype)
        dist.all_gather_into_tensor(whole, mine)
        same(whole, torch.cat([each.view(torch.uint8) for each in expected]).view(dtype) if dtype.itemsize == 1 else torch.cat(expected))


def all_gather_takes_pieces_of_different_length(rank: int, size: int) -> None:
    outputs = [torch.empty(other + 1) for other in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    same(outputs, [torch.full((other + 1,), float(other)) for other in range(size)])


def gather_and_scatter_have_every_root(rank: int, size: int) -> None:
    for root in range(size):
        def collect(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
            outputs = [torch.empty(4, 2) for _ in range(size)] if rank == root else None
            dist.gather(values(rank, torch.float32, 4, 2), outputs, root, group)
            return outputs or []
        as_gloo(collect)

        def spread(group: dist.ProcessGroup | None) -> torch.Tensor:
            output = torch.empty(4, 2)
            inputs = [values(other, torch.float32, 4, 2) for other in range(size)] if rank == root else None
            dist.scatter(output, inputs, root, group)
            return output
        as_gloo(spread)


def reduce_scatter_has_both_forms(rank: int, size: int) -> None:
    inputs = [[values(size * sender + piece, torch.float32, 5) for piece in range(size)] for sender in range(size)]
    expected = sum_of([inputs[sender][rank] for sender in range(size)])
    output = torch.empty(5)
    dist.reduce_scatter(output, inputs[rank])
    same(output, expected)
    dist.reduce_scatter_tensor(output, torch.cat(inputs[rank]))
    same(output, expected)
    dist.reduce_scatter_tensor(output, torch.cat(inputs[rank]), ReduceOp.AVG)
    same(output, expected / size)


def all_to_all_has_both_forms(rank: int, size: int) -> None:
    output = torch.empty(size, dtype=torch.int64)
    dist.all_to_all_single(output, torch.arange(size) + 10 * rank)
    same(output, torch.tensor([10 * other + rank for other in range(size)]))
    # rank r sends r + 1 rows to each
    rows = sum(other + 1 for other in range(size))
    split = torch.empty(rows, 2)
    dist.all_to_all_single(split, torch.full(((rank + 1) * size, 2), float(rank)), [other + 1 for other in range(size)],
                           [rank + 1] * size)
    same(split, torch.cat([torch.full((other + 1, 2), float(other)) for other in range(size)]))
    outputs = [torch.empty(other + 1) for other in range(size)]
    dist.all_to_all(outputs, [torch.full((rank + 1,), float(rank)) for _ in range(size)])
    same(outputs, [torch.full((other + 1,), float(other)) for other in range(size)])


def messages_go_to_and_from_any_rank(rank: int, size: int) -> None:
    peer, last = (rank + 1) % size, (rank - 1) % size
    received = torch.empty(1000)
    work = dist.isend(torch.full((1000,), float(rank)), peer, tag=7)
    dist.recv(received, last, tag=7)
    work.wait()
    assert (received == last).all()
    if rank == 0:
        sources = set()
        for _ in range(size - 1):
            sources.add(dist.recv(received))
        assert sources == set(range(1, size))
    else:
        dist.send(torch.ones(1000), 0)


def batched_messages_do_not_wait_for_each_other(rank: int, size: int) -> None:
    received = torch.empty(300_000)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((300_000,), float(rank)), (rank + 1) % size),
                                    dist.P2POp(dist.irecv, received, (rank - 1) % size)])
    for work in works:
        work.wait()
    assert (received == (rank - 1) % size).all()


def coalesced_calls_are_one_work(rank: int, size: int) -> None:
    tensors = [torch.full((count,), float(rank + 1)) for count in (3, 500)]
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        assert (tensor == size * (size + 1) / 2).all()
    dist.all_reduce_coalesced(tensors)
    assert all((tensor == size * size * (size + 1) / 2).all() for tensor in tensors)
    outputs = [torch.empty(size * 2), torch.empty(size * 3)]
    inputs = [torch.full((2,), float(rank)), torch.full((3,), float(rank))]
    with dist._coalescing_manager(device=torch.device("cpu")):
        for output, own in zip(outputs, inputs):
            dist.all_gather_into_tensor(output, own)
    same(outputs, [torch.arange(float(size)).repeat_interleave(count) for count in (2, 3)])


def objects_travel_by_every_collective(rank: int, size: int) -> None:
    mine = {"rank": rank, "text": "x" * (10 + 1000 * rank)}
    everything = [None] * size
    dist.all_gather_object(everything, mine)
    assert [each["rank"] for each in everything] == list(range(size))
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(mine, gathered)
    assert rank != 0 or gathered == everything
    shared = [mine if rank == size - 1 else None]
    dist.broadcast_object_list(shared, size - 1)
    assert shared[0] == everything[-1]
    received = [None]
    dist.scatter_object_list(received, everything if rank == 0 else None)
    assert received[0] == mine
    if rank == 0:
        dist.send_object_list([mine], 1)
    elif rank == 1:
        dist.recv_object_list(received, 0)
        assert received[0] == everything[0]


def functional_collectives_work(rank: int, size: int) -> None:
    everyone = dist.group.WORLD
    same(functional.wait_tensor(functional.all_reduce(torch.full((4,), rank + 1), "sum", everyone)),
         torch.full((4,), size * (size + 1) // 2))
    same(functional.wait_tensor(functional.all_gather_tensor(torch.tensor([rank]), 0, everyone)), torch.arange(size))
    same(functional.wait_tensor(functional.reduce_scatter_tensor(torch.ones(2 * size), "sum", 0, everyone)),
         torch.full((2,), float(size)))
    coalesced = functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", everyone)
    for tensor in coalesced:
        assert (functional.wait_tensor(tensor) == size).all()
    same(functional.wait_tensor(functional.all_to_all_single(torch.arange(size) + 10 * rank, None, None, everyone)),
         torch.tensor([10 * other + rank for other in range(size)]))
    same(functional.wait_tensor(functional.broadcast(torch.tensor([rank]), 1, everyone)), torch.tensor([1]))
    functional_with_gradient = torch.ones(3, requires_grad=True)
    functional.wait_tensor(functional.all_reduce(functional_with_gradient * (rank + 1), "sum", everyone))


def collectives_with_gradients_work(rank: int, size: int) -> None:
    import torch.distributed.nn

    tensor = torch.full((3,), float(rank + 1), requires_grad=True)
    total = torch.distributed.nn.all_reduce(tensor * 2)
    total.sum().backward()
    same(tensor.grad, torch.full((3,), 2.0 * size))


def sparse_tensors_are_added(rank: int, size: int) -> None:
    def call(group: dist.ProcessGroup | None) -> torch.Tensor:
        indices = torch.tensor([[rank, rank + 2, 5]])
        tensor = torch.sparse_coo_tensor(indices, values(rank, torch.float32, 3, 4), (8 + size, 4))
        dist.all_reduce(tensor, group=group)
        return tensor.to_dense()
    as_gloo(call) if size == 2 else call(None)


def tensors_that_are_reduced_often_are_used_in_place(rank: int, size: int) -> None:
    tensor = torch.empty(500_000)
    start = tensor.data_ptr()
    for call in range(12):
        tensor.fill_(rank + call)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full_like(tensor, sum(range(size)) + size * call))
    with open("/proc/self/maps", encoding="ascii") as maps:
        shared = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps if "memfd:trireme" in line and " rw-s " in line]
    assert any(begin <= start < end for begin, end in shared), "the tensor is not shared"
    # A forked process has its own.
    child = os.fork()
    if child == 0:
        tensor.fill_(-1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(tensor, torch.full_like(tensor, sum(range(size)) + size * 11))


def barriers_meet(rank: int, size: int) -> None:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()
    dist.monitored_barrier(wait_all_ranks=True)


def wrong_arguments_are_refused_before_anything_is_sent(rank: int, size: int) -> None:
    for call, text in [(lambda: dist.all_gather([torch.empty(3)] * size, torch.empty(4)), "expected 4"),
                       (lambda: dist.all_to_all_single(torch.empty(size + 1), torch.empty(size + 1)), "split sizes"),
                       (lambda: dist.all_reduce(torch.ones(3), ReduceOp.BAND), "not defined for Float"),
                       (lambda: dist.all_reduce(torch.ones(1).expand(3)), "share memory")]:
        try:
            call()
        except ValueError as error:
            assert text in str(error) and "hint:" in str(error), str(error)
        else:
            raise AssertionError(f"expected an error with '{text}'")
    dist.barrier()


CASES = [value for value in list(globals().values())
         if callable(value) and getattr(value, "__annotations__", {}).get("size") == "int" and value.__module__ == __name__]

OverTwoRanks = cases_of(CASES)
OverThreeRanks = cases_of(CASES, 3, label="slow")


def many_calls_leave_nothing(rank: int, size: int) -> None:
    """Memory, descriptors and threads of a rank do not grow with the number of calls."""
    small, large = torch.ones(16), torch.ones(100_000)  # copied, and used in place

    def call(count: int) -> None:
        for _ in range(count):
            dist.all_reduce(small)
            dist.all_reduce(small, async_op=True).wait()
            dist.broadcast(small, 0)
        for _ in range(count // 100):
            dist.all_reduce(large)

    def held() -> tuple[int, int, int]:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    call(2_000)
    before = held()
    call(33_000)
    after = held()
    assert after[1:] == before[1:], f"{before} and {after}"
    assert after[0] - before[0] < 2**20, f"{after[0] - before[0]} bytes more after 100,000 calls"


ManyCalls = cases_of([many_calls_leave_nothing], label="slow")

if __name__ == "__main__":
    main()
