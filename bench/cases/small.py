# SPDX-License-Identifier: Apache-2.0
"""A training whose steps take a tenth of a millisecond or less: three parameters, or a network of three hidden layers of 16 units,
fitted to 160 points by a Model, on two ranks of one thread beside one process, DistributedDataParallel, and a loop of LibTorch
without Trireme.

DistributedDataParallel is called from Python, whose interpreter is a part of its step; Model from C++.
With all points on every rank both ranks do the work of one process and their communication. With divided points an epoch has
half of the steps. The loop of LibTorch is timed by the program of one process itself. A Model has a thread that prepares
batches: one process can run it on the second core, two ranks cannot.
"""
from . import BIN, ROOT, Comparison, Goal, Program, Sweep, torchrun, trireme_run

TERMS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def times(record, _):
    return {key: 1e6 * seconds for key, seconds in record.items()}


def sweep(name, layers):
    sized = ("--layers", str(layers))

    def two_ranks(*arguments):
        return Program(trireme_run(2, BIN / "bench_small", *sized, *arguments), times, TERMS)

    return Sweep(
        name=name,
        programs={
            "one": Program((BIN / "bench_small", *sized), times, TERMS),
            "whole": two_ranks("--whole"),
            "divided": two_ranks(),
            "ddp": Program(torchrun(2, ROOT / "bench/peers/ddp_small.py", *sized), times, TERMS),
        },
        comparisons=(
            Comparison("2 ranks with all points each, a step", ours="whole", peer="one", peer_name="one_process",
                       ours_key="step_time", peer_key="step_time", metric="step_time", goal=Goal("ratio", 1.3)),
            Comparison("2 ranks that divide the points, an epoch", ours="divided", peer="one", peer_name="one_process",
                       ours_key="epoch_time", peer_key="epoch_time", goal=Goal("ratio", 1.0)),
            Comparison("2 ranks with all points each, a step, C++ against Python", ours="whole", peer="ddp", peer_name="ddp",
                       ours_key="step_time", peer_key="step_time", metric="step_time"),
            Comparison("1 process, a step of Model", ours="one", peer="one", peer_name="plain",
                       ours_key="step_time", peer_key="arithmetic_time", metric="step_time"),
        ),
        smoke=("--epochs", "1"),
    )


SWEEPS = [sweep("three parameters", 0), sweep("three hidden layers", 3)]
