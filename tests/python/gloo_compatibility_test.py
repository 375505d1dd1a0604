# SPDX-License-Identifier: Apache-2.0
"""What scripts find in PyTorch's Gloo beyond the collectives of torch.distributed: calls of a process group with several tensors,
values of futures, records of profilers, and words in messages."""
from __future__ import annotations

import re
import time
from typing import Any, Callable

import torch
import torch.distributed as dist

from ranks import cases_of, main, make_gloo_group

_gloo: dict[int, dist.ProcessGroup] = {}


def as_gloo(call: Callable[[dist.ProcessGroup], list[torch.Tensor]]) -> None:
    """Makes a call in both groups, and compares the lists of tensors that it returns."""
    if not _gloo:
        _gloo[0] = make_gloo_group()
    for ours, theirs in zip(call(dist.group.WORLD), call(_gloo[0]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def backend_of(group: dist.ProcessGroup) -> Any:
    return group._get_backend(torch.device("cpu"))


def all_reduce_adds_several_tensors_of_each_rank(rank: int, size: int) -> None:
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
        def call(group: dist.ProcessGroup) -> list[torch.Tensor]:
            tensors = [torch.arange(6.0).reshape(2, 3) + rank + number for number in range(3)]
            options = dist.AllreduceOptions()
            options.reduceOp = op
            work = backend_of(group).allreduce(tensors, options)
            work.wait()
            return tensors + work.result() + work.get_future().wait()
        as_gloo(call)


def sparse_tensors_of_a_rank_are_added_too(rank: int, size: int) -> None:
    tensors = [torch.sparse_coo_tensor([[number, rank + 2]], [1.0, 2.0], (8,)) for number in range(2)]
    backend_of(dist.group.WORLD).allreduce(tensors, dist.AllreduceOptions()).wait()
    expected = torch.zeros(8)
    for other in range(size):
        expected[0] += 1
        expected[1] += 1
        expected[other + 2] += 4
    for tensor in tensors:
        assert torch.equal(tensor.to_dense(), expected), tensor


def broadcast_copies_one_of_several_tensors(rank: int, size: int) -> None:
    for root in range(size):
        for chosen in range(2):
            def call(group: dist.ProcessGroup) -> list[torch.Tensor]:
                tensors = [torch.full((4,), 10.0 * rank + number) for number in range(2)]
                options = dist.BroadcastOptions()
                options.rootRank, options.rootTensor = root, chosen
                return tensors + backend_of(group).broadcast(tensors, options).get_future().wait()
            as_gloo(call)


def all_gather_collects_several_tensors_of_each_rank(rank: int, size: int) -> None:
    def call(group: dist.ProcessGroup) -> list[torch.Tensor]:
        inputs = [torch.full((2, 3), 10 * rank + number) for number in range(2)]
        outputs = [[torch.empty_like(inputs[0]) for _ in range(2 * size)] for _ in inputs]
        value = backend_of(group).allgather(outputs, inputs).get_future().wait()
        return [tensor for each in (outputs, value) for tensors in each for tensor in tensors]
    as_gloo(call)


def coalesced_calls_have_the_tensors_as_their_value(rank: int, size: int) -> None:
    def call(group: dist.ProcessGroup) -> list[torch.Tensor]:
        tensors = [torch.full((length,), float(rank)) for length in (1, 5, 0)]
        return dist.all_reduce_coalesced(tensors, group=group, async_op=True).wait() + tensors
    as_gloo(call)


def a_tensor_that_is_given_twice_is_reduced_once(rank: int, size: int) -> None:
    def call(group: dist.ProcessGroup) -> list[torch.Tensor]:
        tensor, whole = torch.full((3,), rank + 1.0), torch.arange(8.0) + rank
        work = dist.all_reduce_coalesced([tensor, tensor, whole[:6], whole[2:]], group=group, async_op=True)
        return [*work.wait()[:2], tensor]
    as_gloo(call)


def events_of(call: Callable[[], Any]) -> list[Any]:
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        call()
    return [event for event in profile.function_events if ":" in event.name and not event.name.startswith(("c10d::", "aten::"))]


def profiles_record_each_collective_with_shapes(rank: int, size: int) -> None:
    group = dist.new_group(backend="gloo")
    tensor, parts = torch.ones(3, 5), [torch.ones(3, 5) for _ in range(size)]
    root = rank == 0
    calls: list[tuple[str, list[list[int]], Callable[[], Any]]] = [
        ("all_reduce", [[3, 5]], lambda: dist.all_reduce(tensor, group=group)),
        ("all_reduce", [[3, 5]], lambda: dist.all_reduce(tensor, group=group, async_op=True).wait()),
        ("all_reduce", [[3, 5], [2]], lambda: dist.all_reduce_coalesced([tensor, torch.ones(2)], group=group)),
        ("broadcast", [[3, 5]], lambda: dist.broadcast(tensor, 0, group=group)),
        ("reduce", [[3, 5]], lambda: dist.reduce(tensor, 0, group=group)),
        ("all_gather", [[3, 5]], lambda: dist.all_gather(parts, tensor, group=group)),
        ("gather", [[3, 5]], lambda: dist.gather(tensor, parts if root else None, 0, group=group)),
        ("barrier", [], lambda: dist.barrier(group)),
        ("send" if root else "recv", [[3, 5]],
         lambda: (dist.send(tensor, 1, group) if root else dist.recv(tensor, 0, group)) if rank < 2 else None),
    ]
    for name, shapes, call in calls:
        events = events_of(call)
        if rank >= 2 and name == "recv":
            assert not events, events
            continue
        assert [event.name for event in events] == [f"gloo:{name}"], (name, events)
        assert events[0].input_shapes == shapes and events[0].is_async, (name, events[0].input_shapes)
    named = dist.new_group(backend="trireme")
    assert [event.name for event in events_of(lambda: dist.all_reduce(tensor, group=named))] == ["trireme:all_reduce"]
    dist.destroy_process_group(named)
    dist.destroy_process_group(group)


def records_last_as_long_as_the_calls(rank: int, size: int) -> None:
    group = dist.new_group(backend="gloo")
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(torch.ones(4), group=group),
        lambda: dist.all_reduce(torch.ones(4), group=group, async_op=True).wait(),
        lambda: dist.all_reduce_coalesced([torch.ones(4), torch.ones(2)], group=group),
        lambda: dist.all_reduce_coalesced([torch.ones(4), torch.ones(2)], group=group, async_op=True).wait(),
    ]
    for call in calls:
        dist.barrier(group)

        def late() -> None:
            if rank == 1:
                time.sleep(0.05)
            call()
        (event,) = events_of(late)
        if rank == 0:
            assert event.time_range.elapsed_us() > 40_000, event
    dist.destroy_process_group(group)


def a_refused_coalesced_call_leaves_the_group_as_it_was(rank: int, size: int) -> None:
    mixed = [torch.ones(1), torch.ones(1, dtype=torch.float64)]
    try:
        with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu")):
            for tensor in mixed:
                dist.all_reduce(tensor)
    except RuntimeError as error:
        assert "tensors must all have the same type" in str(error), error
    else:
        raise AssertionError("expected an error")
    options = dist.AllreduceOptions()
    options.asyncOp = False
    one = torch.ones(1)
    assert backend_of(dist.group.WORLD).allreduce([one], options) is None  # done, as with NCCL
    assert one.item() == size


def tensors_of_inference_mode_are_accepted(rank: int, size: int) -> None:
    with torch.inference_mode():
        tensors = [torch.ones(2), torch.ones(2)]
    backend_of(dist.group.WORLD).allreduce(tensors, dist.AllreduceOptions()).wait()
    assert tensors[1].tolist() == [2.0 * size] * 2


def errors_contain_the_words_of_gloo(rank: int, size: int) -> None:
    backend = backend_of(dist.group.WORLD)
    one, ints, two = torch.ones(1), torch.ones(1, dtype=torch.int64), torch.ones(2)

    def with_root(options: Any, root: int, tensor: int = 0) -> Any:
        options.rootRank = root
        if hasattr(options, "rootTensor"):
            options.rootTensor = tensor
        return options

    calls: list[tuple[str, Callable[[], Any]]] = [
        ("invalid root rank", lambda: backend.broadcast([one], with_root(dist.BroadcastOptions(), size))),
        ("invalid root tensor", lambda: backend.broadcast([one], with_root(dist.BroadcastOptions(), 0, 1))),
        ("invalid tensor type", lambda: backend.broadcast([one, ints], with_root(dist.BroadcastOptions(), 0))),
        ("requires non-empty tensor list", lambda: backend.allreduce([], dist.AllreduceOptions())),
        ("invalid tensor size", lambda: backend.allreduce([one, two], dist.AllreduceOptions())),
        ("invalid tensor layout", lambda: backend.allreduce([one, one.to_sparse()], dist.AllreduceOptions())),
        ("tensors must all have the same type", lambda: backend.allreduce_coalesced([one, ints], dist.AllreduceCoalescedOptions())),
        ("unsupported layout", lambda: backend.allreduce_coalesced([one.to_sparse()], dist.AllreduceCoalescedOptions())),
        ("invalid root rank", lambda: backend.reduce([one], with_root(dist.ReduceOptions(), -1))),
        ("requires a single-element tensor list", lambda: backend.reduce([one, one], with_root(dist.ReduceOptions(), 0))),
        ("requires a single-element input tensor list", lambda: backend.gather([], [one, one], with_root(dist.GatherOptions(), 0))),
        ("requires a single-element output list", lambda: backend.gather([], [one], with_root(dist.GatherOptions(), rank))),
        (f"Incorrect output list size {size + 1}. Output list size should be {size}",
         lambda: backend.gather([[one] * (size + 1)], [one], with_root(dist.GatherOptions(), rank))),
        ("requires empty output on non-root",
         lambda: backend.gather([[one] * size], [one], with_root(dist.GatherOptions(), (rank + 1) % size))),
        ("requires a single-element output tensor list", lambda: backend.scatter([], [], with_root(dist.ScatterOptions(), 0))),
        ("requires a single-element input list", lambda: backend.scatter([one], [], with_root(dist.ScatterOptions(), rank))),
        ("invalid tensor size", lambda: backend.scatter([one], [[two] * size], with_root(dist.ScatterOptions(), rank))),
        ("requires empty input on non-root",
         lambda: backend.scatter([one], [[one] * size], with_root(dist.ScatterOptions(), (rank + 1) % size))),
        ("requires non-empty input tensor list", lambda: backend.allgather([], [])),
        ("requires input/output tensor lists to have the same length", lambda: backend.allgather([], [one])),
        ("invalid output tensor list at index 0", lambda: backend.allgather([[one] * (size + 1)], [one])),
        ("invalid tensor type", lambda: backend.allgather([[ints] * size], [one])),
        ("invalid tensor size", lambda: backend.allgather([[one, two] * size] * 2, [one, one])),
        ("share memory", lambda: backend.allreduce_coalesced([one.expand(4), one.expand(4)], dist.AllreduceCoalescedOptions())),
        ("output lists should be equal to world size", lambda: dist.all_gather_coalesced([[one]] * (size + 1), [one])),
        ("invalid size of output tensor at index 0", lambda: dist.all_gather_coalesced([[two]] * size, [one])),
        ("unsupported reduction operation", lambda: dist.all_reduce(one.to_sparse(), dist.ReduceOp.MAX)),
    ]
    for text, call in calls:
        try:
            call()
        except RuntimeError as error:
            assert re.search(re.escape(text), str(error)) and "hint:" in str(error), (text, str(error))
        else:
            raise AssertionError(f"expected an error with '{text}'")
    dist.barrier()


CASES = [value for value in list(globals().values())
         if callable(value) and getattr(value, "__annotations__", {}).get("size") == "int" and value.__module__ == __name__]

OverTwoRanks = cases_of(CASES, label="thorough")
OverThreeRanks = cases_of(CASES, 3, label="slow")

if __name__ == "__main__":
    main()
