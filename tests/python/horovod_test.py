# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives in Python: results, matching by name, gradients, process sets, joining, and what happens when ranks disagree."""
from __future__ import annotations

import datetime
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist

import trireme
import trireme.horovod.torch as hvd
from collectives_test import FLOATS, INTEGERS, same, sum_of, values
from ranks import HOST, cases_of, main, run_ranks, slow, thorough


def connected(rank: int, size: int, port: int) -> None:
    """Connects the ranks as a launcher's variables say."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size), MASTER_ADDR=HOST,
                      MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    hvd.init()


def error_of(call: Callable[[], Any], kind: type[Exception] = trireme.UsageError) -> str:
    try:
        result = call()
    except kind as error:
        return str(error)
    raise AssertionError(f"expected {kind.__name__}, got {result}")


def ranks_have_their_numbers(rank: int, size: int) -> None:
    assert not hvd.is_initialized()
    assert "before init()" in error_of(hvd.rank)
    assert "before init()" in error_of(lambda: hvd.allreduce(torch.ones(1)))
    hvd.init()
    hvd.init()
    assert hvd.is_initialized() and (hvd.rank(), hvd.size()) == (rank, size)
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (rank, size, 0, 1)
    assert hvd.is_homogeneous() and not hvd.mpi_threads_supported()
    assert hvd.gloo_built() and hvd.gloo_enabled()
    assert not any(each() for each in (hvd.mpi_built, hvd.mpi_enabled, hvd.nccl_built, hvd.ddl_built, hvd.ccl_built, hvd.cuda_built,
                                       hvd.rocm_built))
    assert (hvd.global_process_set.ranks, hvd.global_process_set.process_set_id) == (list(range(size)), 0)


def allreduce_has_every_reduction(rank: int, size: int) -> None:
    for dtype, shape in itertools.product(FLOATS + INTEGERS, [(), (7,), (3, 40), (0, 2)]):
        everyone = [values(other, dtype, *shape) for other in range(size)]
        mine = values(rank, dtype, *shape)
        same(hvd.allreduce(mine, op=hvd.Sum), sum_of(everyone))
        same(hvd.allreduce(mine, op=hvd.Min), torch.stack(everyone).amin(0))
        same(hvd.allreduce(mine, op=hvd.Max), torch.stack(everyone).amax(0))
        if dtype in FLOATS:
            wide = dtype if dtype.itemsize > 2 else torch.float32
            same(hvd.allreduce(mine), (sum_of([each.to(wide) for each in everyone]) / size).to(dtype))
        same(mine, everyone[rank])
    same(hvd.allreduce(torch.full((3,), rank + 1), op=hvd.Product), torch.full((3,), 2 if size == 2 else 6))
    same(hvd.allreduce(torch.full((3,), 60000.0, dtype=torch.float16)), torch.full((3,), 60000.0, dtype=torch.float16))
    assert "the average of int64" in error_of(lambda: hvd.allreduce(torch.tensor([3])))


def allreduce_scales_before_and_after(rank: int, size: int) -> None:
    everyone = [values(other, torch.float32, 50) for other in range(size)]
    same(hvd.allreduce(everyone[rank], op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
         sum_of([0.5 * each for each in everyone]) * 3)
    same(hvd.allreduce(everyone[rank], average=True), sum_of(everyone) / size)
    assert "scaled" in error_of(lambda: hvd.allreduce(torch.ones(3), name="scaled", prescale_factor=1.0 + rank))


def results_can_be_written_in_place(rank: int, size: int) -> None:
    everyone = [values(other, torch.float32, 6, 8) for other in range(size)]
    tensor = everyone[rank].clone()
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    same(tensor, sum_of(everyone))
    strided = everyone[rank].clone().t()[1:, ::2]
    hvd.synchronize(hvd.allreduce_async_(strided, op=hvd.Sum))
    same(strided.contiguous(), sum_of([each.t()[1:, ::2].contiguous() for each in everyone]))
    parameter = torch.nn.Parameter(everyone[rank].clone())
    assert hvd.broadcast_(parameter, size - 1) is parameter
    same(parameter, everyone[size - 1])


def grouped_calls_are_one_operation(rank: int, size: int) -> None:
    shapes = [(3,), (5, 2), ()]
    everyone = [[values(10 * other + place, torch.float32, *shape) for place, shape in enumerate(shapes)] for other in range(size)]
    expected = [sum_of(list(each)) for each in zip(*everyone)]
    same(hvd.grouped_allreduce(everyone[rank], op=hvd.Sum, name="group"), expected)
    same(hvd.synchronize(hvd.grouped_allreduce_async(everyone[rank], op=hvd.Sum)), expected)
    mine = [each.clone() for each in everyone[rank]]
    assert all(one is other for one, other in zip(hvd.grouped_allreduce_(mine, op=hvd.Sum), mine))
    same(mine, expected)
    gathered = hvd.grouped_allgather([torch.full((rank + 1, 2), float(rank)), torch.tensor([rank])])
    same(gathered[0], torch.cat([torch.full((other + 1, 2), float(other)) for other in range(size)]))
    same(gathered[1], torch.arange(size))
    parts = hvd.grouped_reducescatter([torch.arange(2.0 * size), torch.ones(size, 3)], op=hvd.Sum)
    same(parts[0], torch.arange(2.0 * size)[2 * rank:2 * rank + 2] * size)
    same(parts[1], torch.full((1, 3), float(size)))
    assert "no tensors" in error_of(lambda: hvd.grouped_allreduce([]))


def allgather_takes_any_number_of_rows(rank: int, size: int) -> None:
    for dtype, rows in itertools.product([torch.float32, torch.int64, torch.bool, torch.float16],
                                         [lambda other: other + 1, lambda other: 2, lambda other: 3 * other]):
        same(hvd.allgather(values(rank, dtype, rows(rank), 3)), torch.cat([values(other, dtype, rows(other), 3) for other in range(size)]))
    same(hvd.allgather(torch.tensor(rank)), torch.arange(size))
    message = error_of(lambda: hvd.allgather(torch.ones(2, 3 + rank)))
    assert "rank 0 calls allgather of float32 [*, 3], rank 1 calls allgather of float32 [*, 4]" in message, message


def alltoall_sends_rows_by_splits(rank: int, size: int) -> None:
    received, splits = hvd.alltoall(torch.full(((rank + 1) * size, 2), float(rank)), splits=torch.tensor([rank + 1] * size))
    same(received, torch.cat([torch.full((other + 1, 2), float(other)) for other in range(size)]))
    same(splits, torch.arange(1, size + 1))
    same(hvd.alltoall(torch.arange(size) + 10 * rank), torch.tensor([10 * other + rank for other in range(size)]))
    received, splits = hvd.synchronize(hvd.alltoall_async(torch.zeros(0, 4), [0] * size))
    assert received.shape == (0, 4) and splits.tolist() == [0] * size
    message = error_of(lambda: hvd.alltoall(torch.ones(size), splits=[1] * (size - rank), name="few"))
    assert "alltoall 'few' on rank 1: splits are" in message and "give one number for each rank" in message, message
    assert "cannot be cut" in error_of(lambda: hvd.alltoall(torch.ones(size + 1)))


def reducescatter_gives_the_first_ranks_more(rank: int, size: int) -> None:
    for rows in (2 * size, 2 * size + 1, 1):
        everyone = [values(other, torch.float32, rows, 3) for other in range(size)]
        same(hvd.reducescatter(everyone[rank], op=hvd.Sum), sum_of(everyone).tensor_split(size)[rank])
        same(hvd.synchronize(hvd.reducescatter_async(everyone[rank])), (sum_of(everyone) / size).tensor_split(size)[rank])
    assert "op is" in error_of(lambda: hvd.reducescatter(torch.ones(4), op=hvd.Max))


def broadcast_has_every_root(rank: int, size: int) -> None:
    for root in range(size):
        same(hvd.broadcast(values(rank, torch.float32, 4, 2), root, name="root"), values(root, torch.float32, 4, 2))
        same(hvd.synchronize(hvd.broadcast_async(torch.tensor(rank), root)), torch.tensor(root))
    assert f"root_rank is {size}" in error_of(lambda: hvd.broadcast(torch.ones(1), size))
    assert "from rank 0" in error_of(lambda: hvd.broadcast(torch.ones(1), min(rank, 1)))


def sparse_tensors_are_added(rank: int, size: int) -> None:
    def sparse(owner: int) -> torch.Tensor:
        return torch.sparse_coo_tensor([[owner, 3]], [[1.0 + owner, 2.0], [0.5, owner]], (5, 2))
    expected = sum_of([sparse(other).to_dense() for other in range(size)])
    same(hvd.synchronize(hvd.sparse_allreduce_async(sparse(rank), name="sparse", op=hvd.Average)).to_dense(), expected / size)


def compression_casts_on_the_way(rank: int, size: int) -> None:
    everyone = [values(other, torch.float32, 100) for other in range(size)]
    for compression, dtype in ((hvd.Compression.fp16, torch.float16), (hvd.Compression.bf16, torch.bfloat16)):
        expected = sum_of([each.to(dtype) for each in everyone])
        same(hvd.allreduce(everyone[rank], op=hvd.Sum, compression=compression), expected.float())
    same(hvd.allreduce(torch.tensor([rank]), op=hvd.Sum, compression=hvd.Compression.fp16), torch.tensor([size * (size - 1) // 2]))


def adasum_adds_what_is_orthogonal_and_averages_what_is_equal(rank: int, size: int) -> None:
    if size != 2:
        assert f"Adasum over {size} ranks" in error_of(lambda: hvd.allreduce(torch.ones(2), op=hvd.Adasum))
        return
    same(hvd.allreduce(torch.eye(2)[rank] * 3, op=hvd.Adasum), torch.tensor([3.0, 3.0]))
    same(hvd.allreduce(torch.tensor([2.0, -4.0]), op=hvd.Adasum), torch.tensor([2.0, -4.0]))
    same(hvd.allreduce(torch.zeros(3), op=hvd.Adasum), torch.zeros(3))
    a, b = (values(other, torch.float64, 30) for other in range(2))
    expected = (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b
    torch.testing.assert_close(hvd.allreduce([a, b][rank], op=hvd.Adasum), expected, rtol=1e-14, atol=1e-14)


def calls_match_by_name_in_any_order(rank: int, size: int) -> None:
    names = [f"tensor {place}" for place in range(200)]
    order = names if rank == 0 else names[::-1]
    handles = {name: hvd.allreduce_async(torch.full((3,), float(names.index(name))), name=name, op=hvd.Sum) for name in order}
    for name in names[rank::7] + names:
        same(hvd.synchronize(handles[name]), torch.full((3,), float(names.index(name) * size)))
    # Blocking calls may come while others are under way elsewhere.
    first = hvd.allreduce_async(torch.ones(1), name="first", op=hvd.Sum) if rank == 0 else None
    same(hvd.broadcast(torch.tensor([rank]), 0, name="second"), torch.tensor([0]))
    first = first or hvd.allreduce_async(torch.ones(1), name="first", op=hvd.Sum)
    same(hvd.synchronize(first), torch.full((1,), float(size)))


def polling_ends_when_all_have_called(rank: int, size: int) -> None:
    names = ["one", "other"] if rank == 0 else ["other", "one"]
    handles = [hvd.allreduce_async(torch.ones(1000), name=name, op=hvd.Sum) for name in names]
    deadline = time.monotonic() + 60
    while not all(hvd.poll(handle) for handle in handles):
        assert time.monotonic() < deadline
        time.sleep(0)
    for handle in handles:
        same(hvd.synchronize(handle), torch.full((1000,), float(size)))


def a_name_cannot_be_used_twice_at_once(rank: int, size: int) -> None:
    handle = hvd.allreduce_async(torch.ones(2), name="twice")
    if not handle.is_done:
        try:
            hvd.allreduce_async(torch.ones(2), name="twice")
        except trireme.UsageError as error:
            assert "the name 'twice' of a call that is still under way" in str(error)
    hvd.synchronize(handle)
    hvd.barrier()


def different_calls_are_both_named_and_the_ranks_go_on(rank: int, size: int) -> None:
    message = error_of(lambda: hvd.allreduce(torch.ones(3 + min(rank, 1)), name="shape"))
    assert "rank 0 calls allreduce (Average) of float32 [3], rank 1 calls allreduce (Average) of float32 [4]" in message, message
    message = error_of(lambda: hvd.allreduce(torch.ones(3)) if rank == 0 else hvd.allgather(torch.ones(3)))
    assert "rank 0 calls allreduce" in message and "rank 1 calls allgather" in message, message
    message = error_of(lambda: hvd.allreduce(torch.ones(3), op=hvd.Sum if rank == 0 else hvd.Average, name="op"))
    assert "(Sum)" in message and "(Average)" in message
    same(hvd.allreduce(torch.ones(2)), torch.ones(2))


def calls_that_never_match_are_named_and_the_ranks_go_on(rank: int, size: int) -> None:
    message = error_of(lambda: hvd.allreduce(torch.ones(3), name=f"own {rank}"))
    assert "rank 0 waits for allreduce (Average) of float32 [3] 'own 0'; rank 1 waits for" in message, message
    same(hvd.allreduce(torch.ones(2)), torch.ones(2))


def gradients_are_those_of_horovod(rank: int, size: int) -> None:
    def gradient_of(call: Callable[[torch.Tensor], torch.Tensor], rows: int = 4) -> torch.Tensor:
        tensor = values(rank, torch.float32, rows, 2).requires_grad_()
        result = call(tensor)
        (result * (rank + 1)).sum().backward()
        return tensor.grad
    total = size * (size + 1) / 2  # of the gradients of all ranks
    same(gradient_of(lambda tensor: hvd.allreduce(tensor, op=hvd.Sum)), torch.full((4, 2), total))
    same(gradient_of(hvd.allreduce), torch.full((4, 2), total / size))
    same(gradient_of(lambda tensor: hvd.grouped_allreduce([tensor, tensor], op=hvd.Sum)[1]), torch.full((4, 2), total))
    same(gradient_of(hvd.allgather, rank + 1), torch.full((rank + 1, 2), total / size))
    same(gradient_of(lambda tensor: hvd.grouped_allgather([tensor])[0], rank + 1), torch.full((rank + 1, 2), total / size))
    same(gradient_of(lambda tensor: hvd.broadcast(tensor, 1)), torch.full((4, 2), total / size if rank == 1 else 0.0))
    sent = gradient_of(lambda tensor: hvd.alltoall(tensor, splits=[1] * size)[0], size)
    same(sent, torch.arange(1.0, size + 1)[:, None].expand(size, 2).contiguous())
    sums = gradient_of(lambda tensor: hvd.reducescatter(tensor, op=hvd.Sum), size)
    same(sums, torch.arange(1.0, size + 1)[:, None].expand(size, 2) * size)
    averages = gradient_of(hvd.reducescatter, size)
    same(averages, torch.arange(1.0, size + 1)[:, None].expand(size, 2).contiguous())
    same(gradient_of(lambda tensor: hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16)), torch.full((4, 2), total))
    assert "has no gradient" in error_of(lambda: gradient_of(lambda tensor: hvd.allreduce(tensor, op=hvd.Max)))


def objects_are_sent(rank: int, size: int) -> None:
    assert hvd.broadcast_object({"rank": rank, "text": "x" * 1000} if rank == 1 else None, root_rank=1)["rank"] == 1
    assert hvd.allgather_object(["y" * rank, rank], name="lists") == [["y" * other, other] for other in range(size)]


def process_sets_communicate_among_themselves(rank: int, size: int) -> None:
    for ranks in ([0], [1], list(range(size))[1:][::-1] if size > 2 else [1, 0]):
        if sorted(ranks) == list(range(size)):
            assert "there is a process set of ranks" in error_of(lambda: hvd.add_process_set(ranks))
            continue
        process_set = hvd.add_process_set(ranks)
        assert process_set.ranks == sorted(ranks) and process_set.included() == (rank in ranks) and process_set.size() == len(ranks)
        if process_set.included():
            assert process_set.rank() == sorted(ranks).index(rank)
            same(hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=process_set), torch.full((2,), float(len(ranks))))
            same(hvd.broadcast(torch.tensor(rank), max(ranks), process_set=process_set), torch.tensor(max(ranks)))
            assert hvd.broadcast_object(rank, max(ranks), process_set=process_set) == max(ranks)
        else:
            assert "which is not in it" in error_of(lambda: hvd.barrier(process_set))
        assert hvd.remove_process_set(process_set) and process_set.size() is None and not hvd.remove_process_set(process_set)
        assert "was not added" in error_of(lambda: hvd.barrier(process_set))
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert "add_process_set of ranks [0]" in error_of(lambda: hvd.add_process_set([min(rank, 1)]))
    assert f"of {size}" in error_of(lambda: hvd.add_process_set([0, size]))
    assert "list of different ranks" in error_of(lambda: hvd.ProcessSet([0, 0]))


def ranks_that_have_joined_contribute_zeros(rank: int, size: int) -> None:
    for repetition in range(2):  # after all have joined, they go on as before
        for step in range(2 + rank):
            present = sum(2 + other > step for other in range(size))
            same(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(present)))
            same(hvd.allreduce(torch.ones(3), name=f"step {step}"), torch.full((3,), present / size))
            handles = [hvd.allreduce_async(torch.ones(2, 2), name=f"{step} {place}", op=hvd.Sum) for place in range(3)]
            for handle in handles:
                same(hvd.synchronize(handle), torch.full((2, 2), float(present)))
            assert hvd.allgather(torch.tensor([rank])).tolist() == [other for other in range(size) if 2 + other > step]
            if present == size:
                hvd.barrier()
        assert hvd.join() == size - 1
        hvd.barrier()
    if rank == 0:
        hvd.join()
    else:
        message = error_of(lambda: hvd.broadcast(torch.tensor(0), 0, name="late"))
        assert "broadcast from rank 0 of int64 [] 'late' after a rank has joined" in message, message
        assert "zeros change its result" in error_of(lambda: hvd.allreduce(torch.ones(1), op=hvd.Max))
        hvd.join()


def threads_may_call_at_the_same_time(rank: int, size: int) -> None:
    failures: list[BaseException] = []

    def call(number: int) -> None:
        try:
            for step in range(20):
                same(hvd.allreduce(torch.full((50,), float(number)), name=f"thread {number}", op=hvd.Sum),
                     torch.full((50,), float(number * size)))
        except BaseException as error:
            failures.append(error)
    threads = [threading.Thread(target=call, args=(number,)) for number in (range(3) if rank == 0 else reversed(range(3)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def a_timeline_shows_the_calls(rank: int, size: int) -> None:
    path = Path(tempfile.gettempdir()) / f"trireme_timeline_{os.getpid()}.json"
    hvd.start_timeline(str(path))
    hvd.allreduce(torch.ones(3), name="timed")
    hvd.stop_timeline()
    hvd.allreduce(torch.ones(3), name="not timed")
    assert path.exists() == (rank == 0)
    if rank == 0:
        events = json.loads(path.read_text())
        assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE"} <= {event["name"] for event in events}
        assert "timed" in str(events) and "not timed" not in str(events)
        path.unlink()


def ranks_can_meet_again(rank: int, size: int) -> None:
    for _ in range(2):
        handle = hvd.allreduce_async(torch.ones(2), name="last", op=hvd.Sum)
        same(hvd.synchronize(handle), torch.full((2,), float(size)))
        hvd.barrier()
        hvd.shutdown()
        assert not hvd.is_initialized() and "after shutdown()" in error_of(hvd.size)
        assert "after shutdown()" in error_of(lambda: hvd.allreduce(torch.ones(1)))
        hvd.init(process_sets=[hvd.ProcessSet([0])])
    hvd.shutdown()
    assert "process sets" in error_of(lambda: hvd.init(comm=[0]))
    hvd.init()


CASES = [ranks_have_their_numbers, allreduce_has_every_reduction, allreduce_scales_before_and_after, results_can_be_written_in_place,
         grouped_calls_are_one_operation, allgather_takes_any_number_of_rows, alltoall_sends_rows_by_splits,
         reducescatter_gives_the_first_ranks_more, broadcast_has_every_root, sparse_tensors_are_added, compression_casts_on_the_way,
         adasum_adds_what_is_orthogonal_and_averages_what_is_equal, calls_match_by_name_in_any_order, polling_ends_when_all_have_called,
         a_name_cannot_be_used_twice_at_once, different_calls_are_both_named_and_the_ranks_go_on,
         calls_that_never_match_are_named_and_the_ranks_go_on, gradients_are_those_of_horovod, objects_are_sent,
         process_sets_communicate_among_themselves, ranks_that_have_joined_contribute_zeros, threads_may_call_at_the_same_time,
         a_timeline_shows_the_calls, ranks_can_meet_again]
OverTwoRanks = cases_of(CASES)
OverThreeRanks = cases_of(CASES, 3, label="slow")


def adasum_over_four(rank: int, size: int, port: int) -> Any:
    connected(rank, size, port)
    result = hvd.allreduce(values(rank, torch.float64, 20), op=hvd.Adasum)
    hvd.shutdown()
    return result.tolist()


def die_while_others_wait(rank: int, size: int, port: int) -> Any:
    connected(rank, size, port)
    hvd.barrier()
    if rank == 1:
        os._exit(3)
    try:
        hvd.allreduce(torch.ones(3), name="last words")
    except hvd.HorovodInternalError as error:
        return str(error), isinstance(error, trireme.CommError), error_of(lambda: hvd.barrier(), trireme.CommError)
    return "no error"


def leave_while_others_wait(rank: int, size: int, port: int) -> Any:
    connected(rank, size, port)
    handle = hvd.allreduce_async(torch.ones(3), name=f"only on {rank}")
    if rank == 1:
        hvd.shutdown()
        return error_of(lambda: hvd.synchronize(handle))
    return error_of(lambda: hvd.synchronize(handle), trireme.Error)


def stay_away(rank: int, size: int, port: int) -> Any:
    connected(rank, size, port)
    store = dist.TCPStore(HOST, port, is_master=False)
    if rank == 1:
        store.wait(["failed"])
        return ""
    hvd.global_process_set._negotiator._backend.set_timeout(datetime.timedelta(seconds=1))
    message = error_of(lambda: hvd.allreduce(torch.ones(3), name="alone"), trireme.CommError)
    store.set("failed", "1")
    return message


def let_other_threads_run(rank: int, size: int, port: int) -> Any:
    connected(rank, size, port)
    store = dist.TCPStore(HOST, port, is_master=False)
    counted = 0

    def count() -> None:  # runs Python while the main thread waits below
        nonlocal counted
        for counted in range(1, 1001):
            pass
        store.set("counted", "1")
    if rank == 1:
        store.wait(["counted"])
        hvd.barrier()
        return 0
    timer = threading.Timer(0.2, count)
    timer.start()
    hvd.barrier()
    timer.join()
    return counted


def fork_a_child(rank: int, size: int, port: int) -> Any:
    connected(rank, size, port)
    child = os.fork()
    if child == 0:
        try:
            hvd.allreduce(torch.ones(1))
        except trireme.UsageError as error:
            os._exit(42 if "forked" in str(error) else 1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, float(hvd.allreduce(torch.ones(1)))


class Failures(unittest.TestCase):
    def test_a_rank_that_dies_is_named_by_the_others(self) -> None:
        message, is_comm_error, again = run_ranks(die_while_others_wait)[0]
        self.assertTrue(is_comm_error)
        self.assertIn("while it waited for allreduce (Average) of float32 [3] 'last words'", message)
        self.assertIn("rank 1 ended", message)
        self.assertIn("rank 1 ended", again)

    def test_a_rank_that_shuts_down_ends_the_calls_of_all(self) -> None:
        results = run_ranks(leave_while_others_wait)
        self.assertIn("rank 1", results[0])
        self.assertIn("was shut down", results[1])

    def test_a_rank_that_does_not_come_is_named(self) -> None:
        message = run_ranks(stay_away)[0]
        self.assertIn("'alone'", message)
        self.assertIn("rank 1", message)

    def test_other_threads_run_while_one_waits(self) -> None:
        self.assertEqual(run_ranks(let_other_threads_run), [1000, 0])

    def test_forked_children_are_refused(self) -> None:
        self.assertEqual(run_ranks(fork_a_child), [(42, 1.0)] * 2)

    def test_adasum_combines_pairs_of_neighbours(self) -> None:
        from trireme.horovod.torch.adasum import combine

        a, b, c, d = (values(rank, torch.float64, 20) for rank in range(4))
        expected = combine(combine(a, b), combine(c, d)).tolist()
        self.assertEqual(run_ranks(adasum_over_four, 4), [expected] * 4)


class Alone(unittest.TestCase):
    def run_python(self, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", text], text=True, capture_output=True, timeout=120, env={**os.environ, **environment})

    @thorough
    def test_a_process_without_launcher_is_a_world_of_one(self) -> None:
        done = self.run_python("import torch, trireme.horovod.torch as hvd\n"
                               "hvd.init()\n"
                               "print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.allreduce(torch.tensor([3.0])).item(), hvd.join())\n"
                               "model = torch.nn.Linear(2, 1)\n"
                               "optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())\n"
                               "hvd.broadcast_parameters(model.state_dict(), 0)\n"
                               "hvd.broadcast_optimizer_state(optimizer, 0)\n"
                               "model(torch.ones(1, 2)).sum().backward()\n"
                               "optimizer.step()\n"
                               "handle = hvd.allreduce_async(torch.ones(3))\n")
        self.assertEqual((done.returncode, done.stderr, done.stdout.split()), (0, "", ["0", "1", "0", "3.0", "0"]))

    @slow
    def test_variables_that_contradict_each_other_are_named(self) -> None:
        done = self.run_python("import trireme.horovod.torch as hvd; hvd.init()", RANK="3", WORLD_SIZE="2")
        self.assertIn("ConfigError: environment variables RANK and WORLD_SIZE are '3' and '2'", done.stderr)
        done = self.run_python("import trireme.horovod.torch as hvd; hvd.init()", OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
        self.assertIn("has no address where the ranks meet", done.stderr)

    def test_elastic_training_says_what_to_do_instead_when_it_is_used(self) -> None:
        self.assertIn("broadcast_parameters", error_of(lambda: hvd.elastic.run(lambda state: None)))
        self.assertIn("hvd.elastic.TorchState", error_of(lambda: hvd.elastic.TorchState(model=None)))
        self.assertIn("DistributedSampler", error_of(lambda: hvd.elastic.ElasticSampler([])))

    @thorough
    def test_the_shim_gives_the_module_its_old_name(self) -> None:
        shim = Path(__file__).resolve().parents[2] / "python" / "horovod_shim"
        done = self.run_python("import horovod, horovod.torch as hvd, trireme.horovod.torch as ours\n"
                               "from horovod.torch.compression import Compression\n"
                               "assert hvd is ours and Compression is hvd.Compression\n"
                               "try: horovod.run(print, np=2)\n"
                               "except ValueError as error: assert 'trireme run' in str(error)\n",
                               PYTHONPATH=os.pathsep.join([str(shim), os.environ.get("PYTHONPATH", "")]))
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    main()
