# SPDX-License-Identifier: Apache-2.0
"""Every schedule of pipelines, against torch.distributed.pipelining and plain model parallel; recomputation.

Two models, fp32 with SGD, 8 micro-batches: `gpt` (8 layers of the one in bench-data-parallel, two rows of 128 tokens in
a micro-batch) and `resnet50` (two 112x112 images), cut at the same layers on both sides so that stages take about the
same time. Every rank has one thread; two ranks have a core each, four share two. Both do the same work, gradients
included: a program whose losses in the first three steps are not those of the others is an error. Then it prints the
median of the next three (in the second, third, fifth, ninth and so on ours compares its record of the module with a new
one), and the peak of memory as bench-data-parallel does, of the rank that takes most: `peak_memory` since before the
model was made, `in steps` of the timed ones.

Ours has a pool of memory for tensors, as init() sees to; PyTorch has what it comes with, glibc's malloc, and is given huge
pages for it. `PyTorch on tcmalloc` is the same with that allocator preloaded, which takes the least memory and time of
those that Debian has.

Every rank has memory for its own stages alone: ours by deferred(), PyTorch's makes no others. PyTorch gets what makes
it fastest: stages know all shapes before, outputs are not collected, and checkpoint keeps no random state. Its `zb-h1`
is ScheduleInterleavedZeroBubble with one stage a rank. Interleaved and ZB-V have two stages a rank.

1F1B is compared with two ways in which one stage computes at a time: `model parallel` has the whole batch at once, as
such programs are written; `in turn` takes the same micro-batches, each through all stages and back before the next, so
that the kernels have the same sizes and only what overlaps differs. The schedule allows 16/9 = 1.78 times the latter.

`devices` has the two stages on threads of one process (TrainingStepOptions::devices), beside the same with the whole batch at once: one
device after the other.

The peer `prediction` is the timeline of the schedule (trireme/schedule), fed with mean times of a further step: of
forward, backward and its parts by stage, of messages, and of the optimizer by rank; the ratio is the measured step over
it.

`recompute` runs the blocks of the GPT on 4 rows in one process, each within recompute(), beside torch.utils.checkpoint,
and beside the same blocks kept.

Aims: 0.95 of PyTorch's time and no more memory for each schedule; 1F1B in 1 / 1.6 of the time with one stage at a time;
recomputing everything in 1.35 times the plain step.

Parts: --only 'gpt', --only '2 ranks', --only 'zb', --only 'recompute'.
"""
from . import BIN, PYTHON, ROOT, Comparison, Program, SameLosses, Sweep, trireme_run

EQUAL_TERMS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# By model and ranks: all in 25 minutes, on two cores. One stage a rank unless it is in CHUNKS.
SCHEDULES = {
    ("gpt", 2): ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"),
    ("gpt", 4): ("1f1b", "zb-h1"),
    ("resnet50", 2): ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"),
    ("resnet50", 4): ("1f1b",),
}
CHUNKS = {"interleaved": 2, "zb-v": 2}
# One stage at a time: how many passes, each of one micro-batch.
IN_TURN = {"model parallel": 1, "in turn": 8}
# In one process: how many micro-batches.
DEVICES = {"devices": 8, "devices, one at a time": 1}
# Schedules that PyTorch also runs on tcmalloc.
WITH_TCMALLOC = ("1f1b", "zb-v")
TCMALLOC = {"LD_PRELOAD": "libtcmalloc_minimal.so.4"}
SMOKE = ("--steps", "1", "--warm-up", "2")  # losses depend on gradients from the second on
SMOKE_SWEEPS = ("gpt, 2 ranks",)


class Figures:
    """Milliseconds and MiB of programs that do the same work: the first that runs says which losses its steps have."""

    def __init__(self):
        self.losses = SameLosses()

    def __call__(self, record, _):
        self.losses.check(record["losses"])
        times = {name: 1e3 * record[name] for name in ("step_time", "predicted_time") if name in record}
        return times | {name: record[name] / 2**20 for name in ("peak_memory", "step_memory") if name in record}


# By model and number of micro-batches: batch norm is over one.
FIGURES = {("gpt", 1): Figures(), ("resnet50", 8): Figures(), ("resnet50", 1): Figures()}
FIGURES["gpt", 8] = FIGURES["gpt", 1]
RECOMPUTE_FIGURES = Figures()


def arguments(model, schedule, num_ranks, micro_batches):
    """Of both programs."""
    return ("--model", model, "--schedule", schedule, "--stages", num_ranks * CHUNKS.get(schedule, 1),
            "--micro-batches", micro_batches)


def ours(model, num_ranks, schedule, passes, micro_batches, *options):
    command = (BIN / "bench_pipeline", *arguments(model, schedule, num_ranks, micro_batches), "--passes", passes, *options)
    return Program(trireme_run(num_ranks, *command), FIGURES[model, passes * micro_batches], EQUAL_TERMS)


def torch_pipelining(model, num_ranks, schedule, more_environment=()):
    command = (PYTHON, ROOT / "bench/peers/pipeline.py", "--ranks", num_ranks, *arguments(model, schedule, num_ranks, 8))
    return Program(command, FIGURES[model, 8], EQUAL_TERMS | dict(more_environment))


def in_process(model, num_devices, micro_batches):
    command = (BIN / "bench_pipeline", "--devices", num_devices, *arguments(model, "1f1b", num_devices, micro_batches))
    return Program(command, FIGURES[model, micro_batches], EQUAL_TERMS)


def programs(model, num_ranks):
    """Beside each of ours its peer, so that they run one after the other."""
    made = {}
    for schedule in SCHEDULES[model, num_ranks]:
        made[schedule] = ours(model, num_ranks, schedule, 1, 8, "--reports", int(num_ranks == 2))
        made[f"torch {schedule}"] = torch_pipelining(model, num_ranks, schedule)
        if num_ranks == 2 and schedule in WITH_TCMALLOC:
            made[f"torch {schedule}, tcmalloc"] = torch_pipelining(model, num_ranks, schedule, TCMALLOC)
    if num_ranks == 2:
        made |= {name: ours(model, num_ranks, "gpipe", passes, 1) for name, passes in IN_TURN.items()}
        made |= {name: in_process(model, num_ranks, micro_batches) for name, micro_batches in DEVICES.items()}
    return made


def compared(case, ours_name, peer, key, peer_name):
    """The figure `key` of two programs."""
    unit = "MiB" if key.endswith("memory") else "ms"
    return Comparison(case + (", in steps" if key == "step_memory" else ""), ours_name, peer, peer_name, key, key,
                      metric="peak_memory" if unit == "MiB" else key, unit=unit)


def comparisons(case, schedules, num_ranks):
    for schedule in schedules:
        for key in ("step_time", "peak_memory", "step_memory"):
            yield compared(f"{case}, {schedule}", schedule, f"torch {schedule}", key, "torch_pipelining")
    if num_ranks == 2:
        for schedule in WITH_TCMALLOC:
            for key in ("step_time", "peak_memory", "step_memory"):
                yield compared(f"{case}, {schedule}, PyTorch on tcmalloc", schedule, f"torch {schedule}, tcmalloc", key,
                               "torch_pipelining")
        for schedule in schedules:
            yield Comparison(f"{case}, {schedule}, against its timeline", schedule, schedule, "prediction", "step_time",
                             "predicted_time", "step_time", "ms")
        for name in IN_TURN:
            yield compared(f"{case}, 1f1b, against {name}", "1f1b", name, "step_time", "model_parallel")
        yield compared(f"{case}, devices of one process", *DEVICES, "step_time", "model_parallel")


def sweep(model, num_ranks):
    case = f"{model}, {num_ranks} ranks"
    return Sweep(case, programs(model, num_ranks), tuple(comparisons(case, SCHEDULES[model, num_ranks], num_ranks)),
                 SMOKE if case in SMOKE_SWEEPS else None)


def recomputation():
    def pair(*command):
        return [Program((*command, "--recompute", is_on), RECOMPUTE_FIGURES, EQUAL_TERMS) for is_on in (0, 1)]

    made = dict(zip(("plain", "recompute"), pair(BIN / "bench_recompute")))
    made |= zip(("torch plain", "torch checkpoint"), pair(PYTHON, ROOT / "bench/peers/recompute.py"))
    both = ("step_time", "step_memory")
    return Sweep("recompute", made, (
        *(compared("recompute", "recompute", "torch checkpoint", key, "torch_checkpoint") for key in both),
        *(compared("recompute, against plain", "recompute", "plain", key, "plain") for key in both),
        *(compared("recompute, PyTorch's against its plain", "torch checkpoint", "torch plain", key, "plain")
          for key in both),
    ), SMOKE)


SWEEPS = [*(sweep(model, num_ranks) for model, num_ranks in SCHEDULES), recomputation()]
