# SPDX-License-Identifier: Apache-2.0
"""Starts ranks as processes of their own for the tests of the Python package.

A module of tests lists cases: functions that every rank calls, one after the other, in one process group. `cases_of` makes a test of
each. `run_ranks` starts ranks for a single function, for tests in which ranks fail. `main` runs the tests of a module.
"""
from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
import unittest
import warnings
from typing import Any, Callable

import torch
import torch.distributed as dist

DEADLINE = 120  # seconds, for everything that ranks are started for
HOST = "127.0.0.1"


class Failed(AssertionError):
    """A rank raised an exception; the message is its traceback."""


def make_gloo_group(**keywords: Any) -> dist.ProcessGroup:
    """Returns a group of PyTorch's own Gloo, in a process that has imported trireme.torch."""
    os.environ["TRIREME_REPLACE"] = "0"
    try:
        return dist.new_group(backend="gloo", **keywords)
    finally:
        del os.environ["TRIREME_REPLACE"]


def init(rank: int, size: int, port: int, **keywords: Any) -> None:
    """Makes the default group, over the store that the parent process serves."""
    store = dist.TCPStore(HOST, port, is_master=False)
    dist.init_process_group(store=store, rank=rank, world_size=size, **keywords)


def _enter(function: Callable[..., Any], rank: int, size: int, port: int, results: Any, environment: dict[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch marks much as deprecated that scripts still call
    try:
        results.send((True, function(rank, size, port)))
    except BaseException:  # KeyboardInterrupt too
        results.send((False, traceback.format_exc()))


def run_ranks(function: Callable[..., Any], size: int = 2, environment: dict[str, str] | None = None) -> list[Any]:
    """Calls function(rank, size, port) in as many processes, and returns what each of them returned.

    A rank that raised gives its traceback as a Failed. One that ended without a result gives its exit code, which is negative after a
    signal. Ranks that are still running at the deadline are killed, and the test fails.
    """
    sys.stdout.flush()
    # Ranks are forked from a process that has imported torch, which takes seconds, and done nothing else.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(size):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_enter, args=(function, rank, size, store.port, sender, environment or {}))
        process.start()
        sender.close()
        pipes.append(receiver)
        processes.append(process)
    deadline = time.monotonic() + DEADLINE
    results: list[Any] = []
    try:
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                raise Failed(f"rank {rank} is not done after {DEADLINE} s")
            try:
                succeeded, value = pipe.recv()
                results.append(value if succeeded else Failed(value))
            except EOFError:
                processes[rank].join()
                results.append(processes[rank].exitcode)
        for rank, process in enumerate(processes):
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                raise Failed(f"rank {rank} does not end")
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    return results


class _Cases:
    """Runs cases in one process group and notes for each which failed. Sent to the ranks."""

    def __init__(self, cases: list[Callable[[int, int], None]]) -> None:
        self.cases = cases

    def __call__(self, rank: int, size: int, port: int) -> dict[str, str | None]:
        import trireme.torch  # noqa: F401

        init(rank, size, port)
        outcome: dict[str, str | None] = {}
        for case in self.cases:
            try:
                case(rank, size)
                outcome[case.__name__] = None
            except Exception:
                outcome[case.__name__] = f"rank {rank}: {traceback.format_exc()}"
            failed = torch.tensor([outcome[case.__name__] is not None], dtype=torch.int32)
            try:
                dist.all_reduce(failed)
            except Exception:
                break  # the group has failed; the cases that follow have no outcome
        dist.destroy_process_group()
        return outcome


def cases_of(cases: list[Callable[[int, int], None]], size: int = 2, label: str = "fast") -> type[unittest.TestCase]:
    """Returns a test case with a test for each function, run as case(rank, size) on every rank."""
    label_of_class = label

    class OverRanks(unittest.TestCase):
        outcomes: list[Any]
        label = label_of_class

        @classmethod
        def setUpClass(cls) -> None:
            cls.outcomes = run_ranks(_Cases(cases), size)

    for case in cases:
        def test(self: OverRanks, name: str = case.__name__) -> None:
            for outcome in self.outcomes:
                if not isinstance(outcome, dict):
                    raise Failed(f"a rank ended with {outcome}")
                if name not in outcome:
                    self.skipTest("a case before this one broke the process group")
                if outcome[name] is not None:
                    raise Failed(outcome[name])

        setattr(OverRanks, f"test_{case.__name__}", test)
    OverRanks.__qualname__ = OverRanks.__name__ = f"Over{size}Ranks"
    return OverRanks


def thorough(test: Any) -> Any:
    """Marks a test, or a class of tests, as one of the thorough tests."""
    test.label = "thorough"
    return test


def slow(test: Any) -> Any:
    """Marks a test, or a class of tests, as one of the slow tests."""
    test.label = "slow"
    return test


def main(modules: list[str] | None = None) -> None:
    """Runs the tests of the program, or of these modules. With --fast, --thorough or --slow it runs those of that label only."""
    part = next((word for word in sys.argv[1:] if word in ("--fast", "--thorough", "--slow")), None)

    class Loader(unittest.TestLoader):
        def getTestCaseNames(self, case: type[unittest.TestCase]) -> list[str]:
            names = super().getTestCaseNames(case)
            if part is None:
                return list(names)
            return [name for name in names if getattr(getattr(case, name), "label", getattr(case, "label", "fast")) == part[2:]]

    words = [word for word in sys.argv if word != part]
    if modules is not None:
        words = [words[0], *modules]
    gc.freeze()  # collections need not visit what the imports made
    done = unittest.main(module=None if modules else "__main__", argv=words, testLoader=Loader(), exit=False)
    sys.stdout.flush()
    sys.stderr.flush()
    has_succeeded = done.result.wasSuccessful() and done.result.testsRun > 0
    os._exit(0 if has_succeeded else 1)  # the destructors of torch take a third of a second
