# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of 512 MiB from each of two ranks: saved and loaded, and what a step waits for an asynchronous save.

Both sides flush to the disk before they return, remove the checkpoint before, and load what the kernel still has in
memory. Each program prints the median of its times after one to warm up. `disk` is one process that writes as many bytes
to one file and flushes it; `memcpy` copies what a rank has into memory that was touched before.

`stall` is how long a step waits for an asynchronous save that begins before it, with Copying::kBeforeChange: for the call
that saves, and before the optimizer for a copy of what is not written yet. Between the two, the step computes what forward
and backward of 32 rows through these tensors would, about half a second. `steps` is how much longer all steps until the
save is on the disk take than as many steps without a save: the thread that writes needs a processor, and there is one for
each rank. The peer `copies_at_once` is the same with Copying::kAtOnce.
"""
from . import BIN, ROOT, Case, Program, torchrun, trireme_run

EQUAL_TERMS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "THP_MEM_ALLOC_ENABLE": "1"}
FOLDER = ROOT / "build" / "bench_checkpoint"
SMOKE = ("--megabytes", "16", "--times", "1")


def milliseconds(record, _):
    return 1e3 * record["seconds"]


def ours(what):
    return Program(trireme_run(2, BIN / "bench_checkpoint", "--what", what, "--folder", FOLDER / what), milliseconds,
                   EQUAL_TERMS)


def dcp(what):
    return Program(torchrun(2, ROOT / "bench/peers/dcp.py", "--what", what, "--folder", FOLDER / f"dcp_{what}"),
                   milliseconds, EQUAL_TERMS)


CASES = [
    Case(case="save, 2 ranks x 512 MiB", metric="save_time", unit="ms", ours=ours("save"), peer=dcp("save"),
         peer_name="dcp", smoke=SMOKE),
    Case(case="load, 2 ranks x 512 MiB", metric="load_time", unit="ms", ours=ours("load"), peer=dcp("load"),
         peer_name="dcp", smoke=SMOKE),
    Case(case="save at the rate of the disk, 2 ranks x 512 MiB", metric="save_time", unit="ms", ours=ours("save"),
         peer=ours("disk"), peer_name="disk", smoke=SMOKE),
    Case(case="asynchronous save, 2 ranks x 512 MiB, stall", metric="stall_time", unit="ms", ours=ours("stall"),
         peer=ours("memcpy"), peer_name="memcpy", smoke=SMOKE),
    Case(case="asynchronous save, 2 ranks x 512 MiB, longer steps", metric="step_time", unit="ms", ours=ours("steps"),
         peer=ours("steps_at_once"), peer_name="copies_at_once", smoke=SMOKE),
]
