# SPDX-License-Identifier: Apache-2.0
"""From typing the command to the first all-reduce done, on two ranks of one host.

Each program prints the time of day at which its all-reduce returned on rank 0; the runner subtracts the moment at which
it started the command. Ending the processes is not counted, on either side.
"""
from . import BIN, ROOT, Case, Program, torchrun, trireme_run


def seconds_until_done(record, began):
    return record["done_at"] - began


CASES = [
    Case(
        case="2 ranks, all-reduce of one float",
        metric="start_time",
        unit="s",
        ours=Program(trireme_run(2, BIN / "bench_start"), seconds_until_done),
        peer=Program(torchrun(2, ROOT / "bench/peers/start.py"), seconds_until_done, {"OMP_NUM_THREADS": "1"}),
        peer_name="torchrun",
        pairs=9,
    ),
]
