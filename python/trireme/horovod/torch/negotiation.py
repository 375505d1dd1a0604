# SPDX-License-Identifier: Apache-2.0
"""Matches the calls of all ranks of a process set by name, in whatever order each rank makes them.

Ranks take part in rounds. In a round, every rank announces the calls that it has made since the last one: the digest of each name and of
what is called. All ranks then know the same. They carry out the calls that every rank has announced, in the order of announcement.

A rank enters a round when it has something to announce, when one of its threads waits for a result, or when all that it waits for depends
on others. The round is a collective that blocks, so that nothing is polled, and an idle rank communicates nothing. The calling thread runs
rounds itself while it waits; a thread of the process set runs them for asynchronous calls.

A round in which every rank waits and nothing new is announced shows that the calls will never match. All ranks then raise an error that
names them. Ranks that make different calls under one name raise an error too. The process set stays usable in both cases.
"""
from __future__ import annotations

import array
import datetime
import pickle
import threading
import time
from typing import Any, Callable

import torch

from trireme.errors import CommError, Error, UsageError
from trireme.horovod.torch.execution import Executor, zeros_for
from trireme.horovod.torch.requests import UNNAMED, Call, Handle, digest_of_call, digest_of_name

_ANNOUNCED = 64  # calls that a rank announces in one round; more wait for the next one
_BLOCKED, _JOINED = 1, 2  # flags of a rank in a round
_HEADER, _ENTRY = 2, 3  # numbers: count and flags; digest of the name, digest of the call, rows
_MISTAKE = -1  # instead of the digest of a call with wrong arguments
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05  # seconds between rounds that bring nothing

Entry = tuple[int, int]  # digest of a call, and the rows of its first tensor


class Negotiator:
    """The calls of one process set. Thread-safe."""

    def __init__(self, backend: Any, rank: int, size: int, timeout: datetime.timedelta, name: str) -> None:
        self.rank, self.size = rank, size
        self.on_executed: Callable[[Handle, float, float], None] | None = None
        """Called with each call that was carried out, and the times of its beginning and end."""
        self._backend, self._name, self._timeout = backend, name, timeout.total_seconds()
        self._executor = Executor(backend, rank, size)
        # Both sides of a round as arrays, which Python reads faster than tensors, and as tensors of the same memory.
        width = _HEADER + _ENTRY * _ANNOUNCED
        self._own, self._everyone = array.array("q", bytes(8 * width)), array.array("q", bytes(8 * width * size))
        self._tensors = [torch.frombuffer(numbers, dtype=torch.int64) for numbers in (self._everyone, self._own)]
        lock = threading.Lock()
        self._progress = threading.Condition(lock)  # for threads that wait for a result
        self._work = threading.Condition(lock)  # for the thread of this process set
        # All below is guarded by the lock, except in rounds, of which one runs at a time.
        self._pending: dict[int, Handle] = {}  # by digest of the name
        self._new: list[Handle] = []
        self._announced: dict[int, dict[int, Entry]] = {}  # by digest of the name, then by rank
        self._joined: set[int] = set()
        self._last_joined = -1
        self._join: Handle | None = None
        self._waiting: dict[int, Handle] = {}  # by thread
        self._callers: set[int] = set()  # threads that have made calls
        self._is_running = False  # a round
        self._was_polled = False
        self._fruitless = 0  # rounds in a row that brought nothing
        self._failure: Error | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._num_optimizers = 0
        self._unnamed = 0
        self._epoch = 0  # how often calls without a name were counted anew

    def name_for(self, name: str | None) -> str:
        """Returns the name, or one made from the number of calls without a name, which must come in the same order on all ranks."""
        if name is not None:
            return name
        with self._progress:
            self._unnamed += 1
            return f"{UNNAMED}{f'{self._epoch}.' if self._epoch else ''}{self._unnamed}"

    def count_optimizer(self) -> int:
        """Returns 1 for the first optimizer over this process set, 2 for the second, and so on."""
        self._num_optimizers += 1
        return self._num_optimizers

    def submit(self, handle: Handle, is_async: bool) -> Handle:
        """Adds a call. Does not block. Raises UsageError if a call with this name is under way, or the process set is closed."""
        digest = digest_of_name(handle.name)
        with self._progress:
            self._check_open()
            if digest in self._pending:
                raise UsageError(f"{handle.call} has the name '{handle.name}' of a call that is still under way: "
                                 f"{self._pending[digest].call}\n"
                                 "  hint: give each tensor a name of its own, or synchronize the earlier call first")
            if self._join is not None:
                raise UsageError(f"{handle} during join() of this rank\n  hint: join() is the last call of a rank until it returns")
            self._pending[digest] = handle
            self._new.append(handle)
            self._callers.add(threading.get_ident())
            if is_async:
                self._start_thread()
                if not self._is_running:
                    self._work.notify()
        return handle

    def poll(self, handle: Handle) -> bool:
        """Returns whether the call is complete or has failed. Does not block."""
        with self._progress:
            if not handle.is_done:
                self._was_polled = True
                self._start_thread()
                self._work.notify()
            return handle.is_done

    def wait(self, handle: Handle) -> None:
        """Blocks until the call is complete. Raises its error."""
        thread = threading.get_ident()
        started = time.monotonic()
        with self._progress:
            self._waiting[thread] = handle
        try:
            while not handle.is_done:
                with self._progress:
                    while not handle.is_done and self._is_running:
                        self._progress.wait()
                    if handle.is_done:
                        break
                    if self._fruitless:
                        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._fruitless, 10))
                        self._progress.wait(pause)
                        if handle.is_done or self._is_running:
                            continue
                    self._is_running = True
                    is_late = self._fruitless > 0 and time.monotonic() - started > self._timeout
                self._run_round(handle if is_late else None)
        finally:
            with self._progress:
                self._waiting.pop(thread, None)
                self._pass_on()
        if handle.error is not None:
            raise handle.error.with_traceback(None)

    def join(self) -> int:
        """Takes part in the calls of the others, contributing zeros, until all ranks have joined. Returns the last rank that did."""
        handle = Handle("join", Call("join"))
        with self._progress:
            self._check_open()
            if self._join is not None:
                raise UsageError("join() while another thread of this rank is in join()\n  hint: call it once on each rank")
            self._join = handle
            self._callers.add(threading.get_ident())
        self.wait(handle)
        return int(handle.results[0])

    def close(self) -> None:
        """Ends the calls that are under way, and the connection. Other ranks that wait for this one get a CommError."""
        with self._progress:
            if self._is_closed:
                return
            self._is_closed = True
            is_running, thread = self._is_running, self._thread
            error = UsageError(f"{self._name} was shut down\n  hint: synchronize all calls before shutdown()")
            for handle in self._outstanding():
                self._complete(handle, error)
            self._work.notify_all()
            self._progress.notify_all()
        if is_running:
            self._backend.abort()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._backend.shutdown()

    # What follows needs the lock.

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._is_closed:
            raise UsageError(f"{self._name} was shut down\n  hint: make no calls after shutdown() or remove_process_set()")

    def _start_thread(self) -> None:
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._serve, name=f"trireme {self._name}", daemon=True)
            self._thread.start()

    def _outstanding(self) -> list[Handle]:
        return [*self._pending.values(), *([self._join] if self._join is not None else [])]

    def _complete(self, handle: Handle, error: Error | None = None) -> None:
        handle.error = error
        handle.is_done = True
        if handle is self._join:
            self._join = None
        self._pending.pop(digest_of_name(handle.name), None)

    def _is_waited_for(self) -> bool:
        return any(not handle.is_done for handle in self._waiting.values())

    def _is_blocked(self) -> bool:
        """Returns whether no thread of this rank that makes calls can make another one before a result is there."""
        if not self._is_waited_for():
            return False
        living = self._callers if len(self._callers) == 1 else {thread.ident for thread in threading.enumerate()}
        return all(thread in self._waiting and not self._waiting[thread].is_done for thread in self._callers & living)

    def _wants_round(self) -> bool:
        if self._failure is not None or self._is_closed or self._is_running:
            return False
        if self._new or self._was_polled or self._is_waited_for():
            return True
        # Nobody waits, but the others may complete what is under way. If this rank's own calls are missing, they need it only then.
        return bool(self._pending) and not self._fruitless and all(self.rank in entry for entry in self._announced.values())

    def _pass_on(self) -> None:
        """Wakes who is to run the next round. Threads that wait for a result come first: they do it without a change of threads."""
        self._progress.notify_all()
        if self._thread is not None and not self._is_waited_for() and self._wants_round():
            self._work.notify()

    # What follows runs without the lock.

    def _serve(self) -> None:
        """Runs rounds for asynchronous calls, until the process set is closed."""
        while True:
            with self._progress:
                while not self._is_closed and not (self._wants_round() and not self._is_waited_for()):
                    self._work.wait()
                if self._is_closed:
                    return
                self._is_running = True
            self._run_round()

    def _run_round(self, late: Handle | None = None) -> None:
        """Runs a round, or ends all calls if one was not made by the others in time. All errors end up in handles."""
        try:
            if late is not None:
                self._backend.abort()
                raise CommError(f"the other ranks have not called it within {self._timeout:g} s\n"
                                "  hint: see what they do; calls match by name, and without names in order")
            self._round()
        except Exception as error:
            self._fail(error)
        except BaseException as error:  # KeyboardInterrupt
            self._fail(CommError(f"rank {self.rank} was interrupted: {type(error).__name__}\n  hint: start the run again"))
            raise
        finally:
            with self._progress:
                self._is_running = False
                self._pass_on()

    def _fail(self, error: Exception) -> None:
        """Ends all calls: the connection cannot be used any more."""
        with self._progress:
            outstanding = self._outstanding()
            waited = next((handle for handle in self._waiting.values() if not handle.is_done), outstanding[0] if outstanding else None)
            during = f"while it waited for {waited}: " if waited is not None else ""
            kind = type(error) if isinstance(error, Error) else Error
            failure = kind(f"rank {self.rank} {during}{error}" if during else str(error))
            failure.__dict__.update(error.__dict__)
            failure.__cause__ = error
            self._failure = failure
            for handle in outstanding:
                self._complete(handle, failure)
        if not isinstance(error, CommError):  # the others do not know yet
            self._backend.abort()

    def _round(self) -> None:
        with self._progress:
            self._was_polled = False
            announced, self._new = self._new[:_ANNOUNCED], self._new[_ANNOUNCED:]
            flags = _BLOCKED * self._is_blocked() | _JOINED * (self._join is not None)
        numbers = [len(announced), flags]
        for handle in announced:
            numbers += (digest_of_name(handle.name), digest_of_call(handle.call) if not handle.call.mistake else _MISTAKE, handle.rows)
        self._own[:len(numbers)] = array.array("q", numbers)
        self._executor.all_gather_into(*self._tensors)
        all_flags = self._everyone[1::len(self._own)]
        is_something_new = self._note()
        joined = {rank for rank, flag in enumerate(all_flags) if flag & _JOINED}
        if joined != self._joined:
            is_something_new = True
            self._last_joined = max(joined - self._joined, default=self._last_joined)
            self._joined = joined
        ready = [digest for digest, ranks in self._announced.items() if len(ranks) + len(joined - ranks.keys()) == self.size]
        self._carry_out(ready)
        is_fruitless = not ready and not is_something_new
        with self._progress:
            self._fruitless = self._fruitless + 1 if is_fruitless else 0
            if len(joined) == self.size:
                self._finish_join()
        if is_fruitless and all(flag & _BLOCKED for flag in all_flags):
            self._refuse_all()

    def _note(self) -> bool:
        """Notes the announcements of all ranks, in their order. Returns whether there are any."""
        is_something_new = False
        for rank in range(self.size):
            start = rank * len(self._own) + _HEADER
            for entry in range(start, start + _ENTRY * self._everyone[start - _HEADER], _ENTRY):
                name, call, rows = self._everyone[entry:entry + _ENTRY]
                self._announced.setdefault(name, {})[rank] = (call, rows)
                is_something_new = True
        return is_something_new

    def _carry_out(self, ready: list[int]) -> None:
        """Carries out the calls that all ranks have made, and refuses those that differ."""
        if not ready:
            return
        entries = [self._announced.pop(digest) for digest in ready]
        with self._progress:
            handles = [self._pending.get(digest) for digest in ready]
        refused = self._refuse_some(handles, entries)
        if self._joined:
            handles = self._fill_in(handles, entries, refused)
        matched = [(handle, [entry.get(rank, (0, 0))[1] for rank in range(self.size)])
                   for handle, entry, is_refused in zip(handles, entries, refused) if not is_refused and handle is not None]
        if not matched:
            return
        started = time.monotonic()
        self._executor.run([handle for handle, _ in matched], [rows for _, rows in matched])
        ended = time.monotonic()
        with self._progress:
            for handle, _ in matched:
                self._complete(handle, handle.error)
        if self.on_executed is not None:
            for handle, _ in matched:
                self.on_executed(handle, started, ended)

    def _refuse_some(self, handles: list[Handle | None], entries: list[dict[int, Entry]]) -> list[bool]:
        """Fails the calls that differ between ranks, or have wrong arguments. Collective if there are any. Returns which they are."""
        calls = [{call for call, _ in entry.values()} for entry in entries]
        refused = [len(each) > 1 or _MISTAKE in each for each in calls]
        for handle, is_refused in zip(handles, refused):
            if is_refused:
                self._refuse(handle)
        return refused

    def _refuse(self, handle: Handle | None) -> None:
        """Fails a call with what each rank has called. Collective."""
        own = (handle.name, str(handle.call), handle.call.kind, handle.call.mistake) if handle is not None else None
        told = [pickle.loads(each) for each in self._executor.all_gather_bytes(pickle.dumps(own))]
        if handle is None:
            return
        calls = [(rank, each) for rank, each in enumerate(told) if each is not None]
        wrong = next(((rank, kind, mistake) for rank, (_, _, kind, mistake) in calls if mistake), None)
        if wrong is not None:
            text = f"{wrong[1]} '{handle.name}' on rank {wrong[0]}: {wrong[2]}"
        else:
            first, first_call = calls[0][0], calls[0][1][1]
            other = next((f"rank {rank} calls {call}" for rank, (_, call, _, _) in calls if call != first_call),
                         "another rank the same with other tensors")
            text = (f"'{handle.name}' differs between ranks: rank {first} calls {first_call}, {other}\n"
                    "  hint: make the same call on every rank")
        with self._progress:
            self._complete(handle, UsageError(text))

    def _fill_in(self, handles: list[Handle | None], entries: list[dict[int, Entry]], refused: list[bool]) -> list[Handle | None]:
        """Makes the contributions of ranks that have joined. Collective: ranks that take part tell them what is called."""
        teller = min(set(range(self.size)) - self._joined, default=None)
        if teller is None:
            return handles
        own = [(handle.name, handle.call) if handle is not None else None for handle in handles]
        told = pickle.loads(self._executor.all_gather_bytes(pickle.dumps(own) if self.rank == teller else b"")[teller])
        filled: list[Handle | None] = []
        for handle, entry, what, is_refused in zip(handles, entries, told, refused):
            if what is None or len(entry) == self.size or is_refused:
                filled.append(handle)
                continue
            try:
                zeros = zeros_for(what[1], what[0])
                filled.append(handle if handle is not None else zeros)
            except UsageError as error:
                if handle is not None:
                    with self._progress:
                        self._complete(handle, error)
                filled.append(None)
        return filled

    def _finish_join(self) -> None:
        """Lets join() return. Needs the lock."""
        if self._join is not None:
            self._join.results = [torch.tensor(self._last_joined)]
            self._complete(self._join)
        self._joined = set()
        self._count_anew()

    def _count_anew(self) -> None:
        """Counts calls without a name from 1 again, after ranks may have made different numbers of them. Needs the lock."""
        self._epoch += 1
        self._unnamed = 0

    def _refuse_all(self) -> None:
        """Fails all calls, because every rank waits for one that the others have not made. Collective."""
        with self._progress:
            handles = self._outstanding()
            waited = [handle for handle in self._waiting.values() if not handle.is_done] or handles
        text = ", ".join(str(handle) for handle in waited[:3])
        texts = [each.decode() for each in self._executor.all_gather_bytes(text.encode())]
        what = "; ".join(f"rank {rank} waits for {each}" for rank, each in list(enumerate(texts))[:8])
        error = UsageError(f"calls of different names on different ranks: {what}\n"
                           "  hint: make the same calls, with the same names, on every rank; calls without a name match in order")
        with self._progress:
            for handle in handles:
                self._complete(handle, error)
            self._new.clear()
            self._fruitless = 0
            self._count_anew()
        self._announced.clear()
        self._joined = set()
