# SPDX-License-Identifier: Apache-2.0
"""From Python: collectives and training steps with `import trireme.torch`, against the same scripts over PyTorch's Gloo.

Both sides are the scripts of python/trireme/benchmark, started by `trireme run`, with one thread for each rank and huge
pages. torch's wheel has no backend for MPI, so that Gloo is the only peer.

`all_reduce` is dist.all_reduce, timed as bench/multi/comm_loop.h times the calls of C++. `call_overhead` is what such a call
takes longer than ProcessGroup::allreduce from C++ over the same engine, with the same sizes, ranks and loop, in the same
round; the peer `process_group` is that call. With four ranks on two cores, what two ranks add is waited for too.

Steps are those of Adam with the batches of bench-data-parallel, two ranks: DDP with both of its fast options, fully_shard
layer by layer with parameters freed after forward, and DTensor (the products of a layer divided by columns and rows).
`wide-mlp` has 101 M parameters, `gpt` 7 M, `resnet18` 11 M. `communication_time` is the median of a step less the same step
over a process group that exchanges nothing (python/trireme/benchmark/silent.py), which the program makes in between: the
same calls of PyTorch and the same computation on both ranks at once. What that group copies within a process is counted as
communication. The difference may be below zero, within noise: no ratio then. `Horovod` is its DistributedOptimizer,
compared with DDP over Trireme, both without the steps in between. `parallelize` is trireme.parallelize at ZeRO level 0,
compared with DDP over both.

All programs of a network must have the same losses; those of DTensor are others, because its ranks share a batch.

Parts: --only all_reduce, --only 'gpt', --only '^DDP', --only '^Horovod', --only '^parallelize'.
"""
from . import PYTHON, ROOT, Comparison, Goal, Program, SameLosses, Sweep, comm, trireme_run

RANKS = (2, 4)
SIZES = [4, *(4**power << 10 for power in (0, 2, 3, 4, 5, 6, 7, 8, 9))]  # 1 KiB, 16 KiB to 256 MiB
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
               "PYTHONPATH": str(ROOT / "build/release/python"), "PYTHONDONTWRITEBYTECODE": "1",
               "PYTHONWARNINGS": "ignore"}
# All in 40 minutes, on two cores: the timed steps of a run, odd numbers. DTensor's are more, because little of a step is communication.
STEPS = {"resnet18": 3, "gpt": 5, "wide-mlp": 3}
DTENSOR_STEPS = {"gpt": 15, "wide-mlp": 9}
METHODS = {"DDP": ("ddp", ("resnet18", "gpt", "wide-mlp")), "FSDP2": ("fsdp", ("gpt", "wide-mlp")),
           "DTensor": ("dtensor", ("gpt", "wide-mlp"))}
ROUNDS = 7  # of training steps, which vary more than collectives
SMOKE = ("--steps", "1", "--warm-up", "1")
OVERHEAD_GOAL = Goal("ours", 5)
STEP_GOAL = Goal("ratio", 1)
COMMUNICATION_GOAL = Goal("ratio", 0.25)


def script(name, num_ranks, collectives, figures, *options):
    command = (PYTHON, "-m", f"trireme.benchmark.{name}", "--collectives", collectives, *options)
    return Program(trireme_run(num_ranks, *command), figures, ENVIRONMENT)


def goal_of(size):
    """For all_reduce of that many bytes, against Gloo."""
    return Goal("ratio", 1 / 20 if size <= 64 << 10 else 1 / 5 if size <= 1 << 20 else 1 / 4)


def microseconds(record, _):
    return {f"all_reduce/{size}": 1e6 * seconds for size, seconds in record["seconds"].items()}


def all_reduce(num_ranks):
    programs = {name: script("allreduce", num_ranks, name, microseconds, "--sizes", ",".join(map(str, SIZES)))
                for name in ("trireme", "gloo")}
    programs["process_group"] = comm.group(num_ranks, comm.words(all_reduce=comm.LAYER_SIZES), "--engine", "shm", "--layer",
                                           "process_group")
    comparisons = []
    for size in SIZES:
        case, key = f"all_reduce/float32/{size}B/{num_ranks}ranks", f"all_reduce/{size}"
        comparisons.append(Comparison(case, "trireme", "gloo", "gloo", key, key, goal=goal_of(size)))
        if size in comm.LAYER_SIZES:
            comparisons.append(Comparison(case, "trireme", "process_group", "process_group", key, key, "call_overhead",
                                          ours_less=("process_group", key), goal=OVERHEAD_GOAL))
    return Sweep(f"all_reduce, {num_ranks} ranks", programs, tuple(comparisons), comm.SMOKE)


class Figures:
    """Milliseconds of programs that do the same work."""

    def __init__(self):
        self.losses = SameLosses()

    def __call__(self, record, _):
        self.losses.check(record["losses"])
        return {name: 1e3 * record[key] for name, key in (("step_time", "seconds"), ("communication_time", "communication"))
                if key in record}


LOSSES = {network: Figures() for network in STEPS}


def step_comparison(case, ours, peer, peer_name, metric, goal=None):
    return Comparison(case, ours, peer, peer_name, metric, metric, metric, "ms", goal=goal)


def steps(method, network):
    name = METHODS[method][0]
    figures, num_steps = (Figures(), DTENSOR_STEPS) if name == "dtensor" else (LOSSES[network], STEPS)
    programs = {collectives: script(name, 2, collectives, figures, "--network", network, "--steps", num_steps[network])
                for collectives in ("trireme", "gloo")}
    case = f"{method}, {network}, 2 ranks"
    comparisons = (step_comparison(case, "trireme", "gloo", "gloo", "step_time", STEP_GOAL),
                   step_comparison(case, "trireme", "gloo", "gloo", "communication_time", COMMUNICATION_GOAL))
    return Sweep(case, programs, comparisons, SMOKE if network == "gpt" else None, ROUNDS)


def horovod(network):
    options = ("--network", network, "--steps", STEPS[network], "--alone")
    programs = {name: script(name, 2, "trireme", LOSSES[network], *options) for name in ("horovod", "ddp")}
    case = f"Horovod, {network}, 2 ranks"
    return Sweep(case, programs, (step_comparison(case, "horovod", "ddp", "ddp", "step_time"),),
                 SMOKE if network == "gpt" else None, ROUNDS)


def parallelize(network):
    options = ("--network", network, "--steps", STEPS[network])
    programs = {"parallelize": script("parallelize", 2, "trireme", LOSSES[network], *options)}
    programs |= {name: script("ddp", 2, name, LOSSES[network], *options, "--alone") for name in ("trireme", "gloo")}
    case = f"parallelize, {network}, 2 ranks"
    comparisons = (step_comparison(f"{case}, DDP over Gloo", "parallelize", "gloo", "ddp", "step_time", STEP_GOAL),
                   step_comparison(f"{case}, DDP over Trireme", "parallelize", "trireme", "ddp", "step_time"))
    return Sweep(case, programs, comparisons, SMOKE if network == "gpt" else None, ROUNDS)


SWEEPS = [*(all_reduce(num_ranks) for num_ranks in RANKS),
          *(steps(method, network) for method, (_, networks) in METHODS.items() for network in networks),
          *(horovod(network) for network in STEPS), *(parallelize(network) for network in STEPS)]
