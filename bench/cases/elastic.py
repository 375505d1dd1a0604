# SPDX-License-Identifier: Apache-2.0
"""A rank of two fails during a training of an MLP with four million parameters: time until a step is finished again.

`restart_time` is the time from the fault to the first line of the program that is started again, `resume_time` the time to the
end of its first step. Both sides keep their state in a folder in memory. torchrun looks at its ranks as often as it can be told
to. `step_time` compares the mean step of a training that keeps its state, or compares what both ranks hold (`--check-replicas`), with
one that does not.
"""
import atexit
import shutil
import tempfile

from . import BIN, ROOT, Case, Comparison, Goal, Program, Sweep, torchrun, trireme_run

TERMS = {"OMP_NUM_THREADS": "1"}
# With the store that torchrun keeps over restarts, ranks over Gloo find the addresses of the attempt before, and wait for ever
# (PyTorch 2.13).
PEER_TERMS = {**TERMS, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
FOLDER = tempfile.mkdtemp(prefix="trireme-bench-elastic-", dir="/dev/shm")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def run_ours(*arguments, options=("--restarts", 3)):
    words = trireme_run(2, BIN / "bench_elastic", *arguments)
    return (*words[:2], *options, *words[2:])


def run_peer(*arguments):
    words = torchrun(2, ROOT / "bench/peers/elastic.py", *arguments, "--state", f"{FOLDER}/state.pt")
    return (words[0], "--standalone", "--max-restarts", 3, "--monitor-interval", "0.05", *words[1:])


def times(record, _):
    return {key: value for key, value in record.items() if key.endswith("_time")}


def mean_step(record, _):
    return 1e3 * record["mean_step_time"]


def fault(name, side):
    return "--fault", name, "--stamp", f"{FOLDER}/{side}_{name}"


SWEEPS = [
    Sweep(
        name="2 ranks, one is killed",
        programs={
            "ours": Program(run_ours(*fault("kill", "ours")), times, TERMS),
            "torchrun": Program(run_peer(*fault("kill", "torchrun")), times, PEER_TERMS),
        },
        comparisons=tuple(
            Comparison(case="2 ranks, one is killed", ours="ours", peer="torchrun", peer_name="torchrun", ours_key=metric,
                       peer_key=metric, metric=metric, unit="s", goal=goal)
            for metric, goal in (("restart_time", None), ("resume_time", Goal("ratio", 0.2)))
        ),
    ),
]
CASES = [
    Case(
        case="2 ranks, with and without keeping the state",
        metric="step_time",
        unit="ms",
        ours=Program(run_ours("--steps", 400), mean_step, TERMS),
        peer=Program(run_ours("--steps", 400, options=()), mean_step, TERMS),
        peer_name="no_restarts",
        smoke=("--steps", 20),
        pairs=9,
    ),
    *(
        Case(
            case=f"2 ranks, comparing replicas after every {steps} steps and never",
            metric="step_time",
            unit="ms",
            ours=Program(run_ours("--steps", 200, options=("--check-replicas", steps)), mean_step, TERMS),
            peer=Program(run_ours("--steps", 200, options=()), mean_step, TERMS),
            peer_name="no_checks",
            smoke=("--steps", 20),
            pairs=9,
        )
        for steps in (1, 100)
    ),
]
