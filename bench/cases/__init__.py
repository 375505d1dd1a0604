# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: one module for each, with a docstring and CASES or SWEEPS; see bench/README.md."""
import dataclasses
import pathlib
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "release" / "bin"
PYTHON = ROOT / "build" / "python" / "bin" / "python"

# All are costs: lower is better.
METRICS = ("start_time restart_time resume_time step_time communication_time added_time time peak_memory sample_time save_time load_time "
           "stall_time step_time_error memory_error resident_error predict_time call_overhead "
           "plan_time planned_step_time").split()
PEERS = ("gloo openmpi mpich intelmpi oneccl memcpy torchrun ddp fsdp2 dtensor plain torch_pipelining model_parallel "
         "torch_checkpoint torch_dataloader libtorch_dataloader mindspore dcp disk no_communication one_process "
         "prediction measured process_group autoparallel_published alpa_published published_plan "
         "best_of_grid no_restarts gather deepspeed all_to_all_by_hand copies_at_once").split()


class BenchmarkFailed(Exception):
    """A program of a case failed, printed no figure, or did other work than those beside it."""


def check_names(metric, peer_name):
    if metric not in METRICS:
        raise ValueError(f"metric is '{metric}', expected one of {METRICS}")
    if peer_name not in PEERS:
        raise ValueError(f"peer_name is '{peer_name}', expected one of {PEERS}")


class SameLosses:
    """Makes sure that programs do the same work: all must have the losses of the first that runs."""

    def __init__(self):
        self.expected = None

    def check(self, losses):
        self.expected = self.expected or losses
        if len(losses) != len(self.expected):
            raise BenchmarkFailed(f"it has {len(losses)} losses, and the first program {len(self.expected)}")
        for step, (loss, expected) in enumerate(zip(losses, self.expected)):
            if not abs(loss - expected) <= 1e-5 * abs(expected):  # not a number is no loss
                raise BenchmarkFailed(f"the loss of step {step} is {loss}, that of the first program {expected}: this is "
                                      "not the same work")


@dataclasses.dataclass(frozen=True)
class Program:
    """A command that prints one line of JSON, and how its figure is read from that.

    `figure` takes the object that was printed and the time (seconds since 1970) at which the command was started.
    """

    command: tuple
    figure: Callable[[dict, float], float]
    environment: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Case:
    """One comparison: the same work by us and by a peer. `smoke` is appended to both commands for a quick look."""

    case: str
    metric: str
    unit: str
    ours: Program
    peer: Program
    peer_name: str
    smoke: tuple = ()
    pairs: int = 7

    def __post_init__(self):
        check_names(self.metric, self.peer_name)


@dataclasses.dataclass(frozen=True)
class Goal:
    """The most that a field of a record, `ratio` or `ours`, should be. The table says whether it is."""

    field: str
    most: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One line of the results of a sweep: the figures `ours_key` and `peer_key` of two of its programs, by name.

    `ours_less` and `peer_less` name a program and its figure that is taken off, round by round. A goal is shown, not recorded.
    """

    case: str
    ours: str
    peer: str
    peer_name: str
    ours_key: str
    peer_key: str
    metric: str = "time"
    unit: str = "us"
    ours_less: tuple = ()
    peer_less: tuple = ()
    goal: Goal | None = None

    def __post_init__(self):
        check_names(self.metric, self.peer_name)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Programs that measure many figures in one run each, and take turns: each round runs all of them once.

    `figure` of these programs gives a dictionary. `smoke` is appended to all commands for a quick look, which may lack
    some figures then; None leaves the sweep out of it.
    """

    name: str
    programs: dict
    comparisons: tuple
    smoke: tuple | None = ()
    rounds: int = 5


def trireme_run(num_ranks, *command):
    return (BIN / "trireme", "run", "-n", num_ranks, "--", *command)


def torchrun(num_ranks, *command):
    return (PYTHON.parent / "torchrun", "--nproc-per-node", num_ranks, *command)
