# SPDX-License-Identifier: Apache-2.0
"""Records when calls were made and carried out, as a trace that Perfetto and chrome://tracing show."""
from __future__ import annotations

import json
import threading
import warnings
from typing import IO

from trireme.errors import UsageError
from trireme.horovod.torch import process_sets, world
from trireme.horovod.torch.requests import UNNAMED, Handle

_lock = threading.Lock()
_file: IO[str] | None = None
_rows: dict[str, int] = {}  # by name


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins to write the calls over all ranks to a file, on rank 0; other ranks write nothing. Does not communicate.

    Each call is two events in a row of its name: `NEGOTIATE_…`, from the call to the moment when all ranks had made it, and the operation,
    which it may share with other calls.

    Args:
        file_path: the file, which is replaced.
        mark_cycles: accepted, and without effect: there are no cycles.

    Raises:
        UsageError: before `init`, or if a timeline is being written.
    """
    global _file
    world.check_initialized("start_timeline()")
    if world.rank() != 0:
        return
    with _lock:
        if _file is not None:
            raise UsageError(f"start_timeline of {file_path} while {_file.name} is being written\n  hint: call stop_timeline() first")
        _file = open(file_path, "w")
        _file.write("[\n")
        _rows.clear()
    process_sets.set_listener(_write)


def stop_timeline() -> None:
    """Ends the file. Does nothing if there is none. Raises UsageError before `init`."""
    world.check_initialized("stop_timeline()")
    if world.rank() == 0:
        process_sets.set_listener(None)
    close()


def close() -> None:
    """Ends the file, for `shutdown`."""
    global _file
    with _lock:
        if _file is not None:
            _file.write('{"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "rank 0"}}]\n')
            _file.close()
            _file = None


def _write(handle: Handle, started: float, ended: float) -> None:
    try:
        _write_events(handle, started, ended)
    except OSError as error:  # training goes on
        warnings.warn(f"the timeline is not written any more: {error}", stacklevel=2)
        process_sets.set_listener(None)


def _write_events(handle: Handle, started: float, ended: float) -> None:
    with _lock:
        if _file is None:
            return
        title = UNNAMED.rstrip() if handle.name.startswith(UNNAMED) else handle.name
        if title not in _rows:
            _rows[title] = len(_rows) + 1
            _file.write(json.dumps({"name": "thread_name", "ph": "M", "pid": 0, "tid": _rows[title], "args": {"name": title}}) + ",\n")
        row = {"cat": handle.call.kind, "ph": "X", "pid": 0, "tid": _rows[title]}
        for name, begin, end in ((f"NEGOTIATE_{handle.call.kind.upper()}", handle.submitted, started),
                                 (handle.call.kind.upper(), started, ended)):
            event = {**row, "name": name, "ts": begin * 1e6, "dur": (end - begin) * 1e6, "args": {"call": str(handle.call)}}
            _file.write(json.dumps(event) + ",\n")
