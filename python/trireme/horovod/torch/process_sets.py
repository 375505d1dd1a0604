# SPDX-License-Identifier: Apache-2.0
"""Process sets: some of the ranks, which communicate among themselves."""
from __future__ import annotations

from typing import Any, Iterable, Sequence

from trireme.errors import UsageError
from trireme.horovod.torch import world
from trireme.horovod.torch.negotiation import Negotiator
from trireme.horovod.torch.requests import Call, Handle


class ProcessSet:
    """Some of the ranks. It can be used after it was given to `init` or `add_process_set`, by the ranks in it."""

    process_set_id: int | None = None
    """A number, 0 for the set of all ranks; None while the set cannot be used."""
    ranks: list[int]
    """The ranks, in rising order."""

    def __init__(self, ranks: Iterable[int]) -> None:
        """Names the ranks. Does not communicate.

        Raises:
            UsageError: if anything but ranks, each once, is given; MPI communicators are not supported.
        """
        listed = sorted(ranks) if isinstance(ranks, Iterable) else None
        if listed is None or any(not isinstance(rank, int) or rank < 0 for rank in listed) or len(set(listed)) < len(listed):
            raise UsageError(f"ProcessSet was given {ranks!r}, expected a list of different ranks\n"
                             "  hint: for instance ProcessSet([0, 2]); communicators of MPI are not supported")
        self.ranks = listed
        self._negotiator: Negotiator | None = None

    def size(self) -> int | None:
        """Returns the number of ranks in the set; None while it cannot be used."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """Returns the place of this rank in the set; None while it cannot be used. Raises UsageError if this rank is not in it."""
        if self.process_set_id is None:
            return None
        self._check_included("rank()")
        return self.ranks.index(world.rank())

    def included(self) -> bool:
        """Returns whether this rank is in the set."""
        return world.rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    def _check_included(self, call: str) -> None:
        if not self.included():
            raise UsageError(f"{call} with the process set of ranks {self.ranks} on rank {world.rank()}, which is not in it\n"
                             "  hint: call it only where process_set.included()")

    def _open(self, call: str) -> Negotiator:
        """Returns what matches the calls of this set. Raises UsageError if the set cannot be used."""
        world.check_initialized(call)
        if self.process_set_id is None or (self._negotiator is None and self.included()):
            raise UsageError(f"{call} with a process set of ranks {self.ranks} that was not added, or was removed\n"
                             "  hint: give it to init(process_sets=[...]) or add_process_set() on every rank")
        self._check_included(call)
        assert self._negotiator is not None
        return self._negotiator


global_process_set = ProcessSet([])
"""The set of all ranks."""

_sets: dict[int, ProcessSet] = {}
_num_made = 0


def open_global() -> None:
    """Connects the set of all ranks, for `init`."""
    global _num_made
    global_process_set.ranks = list(range(world.size()))
    global_process_set._negotiator = world.connect(global_process_set.ranks, "world")
    global_process_set.process_set_id = 0
    _sets.clear()
    _sets[0] = global_process_set
    _num_made = 0


def close_all() -> None:
    """Disconnects all sets, for `shutdown`."""
    for process_set in reversed(list(_sets.values())):
        _close(process_set)
    _sets.clear()
    global_process_set.ranks = []


def _close(process_set: ProcessSet) -> None:
    negotiator, process_set._negotiator, process_set.process_set_id = process_set._negotiator, None, None
    if negotiator is not None:
        negotiator.close()


def _agree(text: str) -> None:
    """Waits until all ranks have made the same call. Raises UsageError if they have not."""
    negotiator = global_process_set._open(text)
    negotiator.wait(negotiator.submit(Handle(negotiator.name_for(None), Call("barrier", detail=text)), is_async=False))


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a process set usable, and returns it. Collective over all ranks, also those that are not in it; blocking.

    Args:
        process_set: the set, or its ranks.

    Raises:
        UsageError: if there is such a set already, a rank does not exist, or the other ranks add another set.
    """
    global _num_made
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    _agree(f"add_process_set of ranks {process_set.ranks}")
    if not process_set.ranks or process_set.ranks[-1] >= world.size():
        raise UsageError(f"add_process_set was given the ranks {process_set.ranks} of {world.size()}\n"
                         f"  hint: name at least one of the ranks 0 to {world.size() - 1}")
    if any(each.ranks == process_set.ranks for each in _sets.values()):
        raise UsageError(f"there is a process set of ranks {process_set.ranks} already\n  hint: use that one, or remove it first")
    _num_made += 1
    if process_set.included():
        process_set._negotiator = world.connect(process_set.ranks, f"process set {_num_made}")
    process_set.process_set_id = _num_made
    _sets[_num_made] = process_set
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends the use of a process set. Collective over all ranks; blocking.

    Returns:
        True; False if it cannot be used anyway, or is the set of all ranks.
    """
    world.check_initialized("remove_process_set()")
    if not process_set.process_set_id:
        return False
    _agree(f"remove_process_set of ranks {process_set.ranks}")
    del _sets[process_set.process_set_id]
    _close(process_set)
    return True


def set_listener(listener: Any) -> None:
    """Sets what is called with each call of all ranks that was carried out; None for nothing."""
    negotiator = global_process_set._open("start_timeline()")
    negotiator.on_executed = listener
