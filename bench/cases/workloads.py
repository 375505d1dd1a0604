# SPDX-License-Identifier: Apache-2.0
"""Training steps of transformers in several dimensions, against what users of PyTorch have for each of them.

Four models in fp32 with AdamW (fused in all programs): `gpt` (7 M parameters, 128 tokens) and `bert`
(4 layers of 256 features, masked tokens, tied head), four rows on each rank; `long`, a GPT of 2 layers on one row of
8,192 tokens; `experts`, a GPT whose second and fourth layer have eight experts, two for each token, four rows on each
rank. Every rank has one thread and huge pages; the tensors of ours lie in the pool that init() makes.

Programs whose work is the same must have the same losses in their first three steps. Then they print the median of the
next, and the peak of memory of the rank that takes most, as bench-data-parallel.

- ZeRO levels against DistributedDataParallel (0), fully_shard (2 and 3) and DeepSpeed's ZeRO of the same level. DeepSpeed
  (PyPI `deepspeed`) runs on the CPU over Gloo with overlap_comm; it is left out where pip has none.
- Two stages of two ranks that share the products of each layer, 1F1B with four micro-batches, against
  torch.distributed.pipelining over modules that parallelize_module has divided, with loss_parallel.
- An axis `context`, against one process of PyTorch with as many threads as there are cores, up to the number of ranks:
  PyTorch's context_parallel refuses tensors on the CPU. All in one process is also what a user without it has. Memory is that of
  one rank, beside all of the process.
- An axis `expert` against an all-to-all that is written by hand, with DistributedDataParallel for everything else. Ours reads
  the rows of all ranks on each.

Goals: 0.9 of the peer's time in the rows of transformers, and no more memory.

Parts: --only '^gpt, 2', --only context, --only experts, --only pipe.
"""
import os
import sys

from . import BIN, ROOT, Comparison, Goal, Program, SameLosses, Sweep, torchrun, trireme_run

EQUAL_TERMS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
DEEPSPEED = ROOT / "build" / "deepspeed"
STEPS = {"gpt": 7, "bert": 7, "experts": 7, "long": 3}
TIME_GOAL, MEMORY_GOAL = Goal("ratio", 0.9), Goal("ratio", 1)
SMOKE = ("--steps", "1", "--warm-up", "2")  # losses depend on gradients from the second on
SMOKE_SWEEPS = ("gpt, 2 ranks", "experts, 2 ranks, expert 2", "gpt, 4 ranks, tensor 2 x pipe 2")


class Figures:
    """Milliseconds and MiB of programs that do the same work."""

    def __init__(self):
        self.losses = SameLosses()

    def __call__(self, record, _):
        self.losses.check(record["losses"])
        return {"step_time": 1e3 * record["step_time"], "peak_memory": record["peak_memory"] / 2**20}


def ours(model, num_ranks, figures, rows, *plan):
    command = (BIN / "bench_workloads", "--model", model, "--rows", rows, "--steps", STEPS[model],
               *(word for setting in plan for word in ("--plan-set", setting)))
    return Program(trireme_run(num_ranks, *command), figures, EQUAL_TERMS)


def peer(mode, model, num_ranks, figures, rows, **environment):
    command = (ROOT / "bench/peers/workloads.py", "--mode", mode, "--model", model, "--rows", rows, "--steps", STEPS[model])
    return Program(torchrun(num_ranks, *command), figures, EQUAL_TERMS | environment)


def compared(case, name, peer_name, called=None):
    for metric, unit, goal in (("step_time", "ms", TIME_GOAL), ("peak_memory", "MiB", MEMORY_GOAL)):
        yield Comparison(case, name, peer_name, called or peer_name, metric, metric, metric, unit, goal=goal)


def has_deepspeed():
    found = (DEEPSPEED / "deepspeed").is_dir()
    if not found:
        print("workloads: no DeepSpeed (tools/setup says why in build/deepspeed.log): left out", file=sys.stderr)
    return found


def sweep(case, programs, comparisons):
    return Sweep(case, programs, tuple(comparisons), SMOKE if case in SMOKE_SWEEPS else None)


def data_parallel(model, num_ranks):
    figures = Figures()
    programs = {f"zero{level}": ours(model, num_ranks, figures, 4, f"zero_level={level}") for level in range(4)}
    programs |= {mode: peer(mode, model, num_ranks, figures, 4) for mode in ("ddp", "fsdp2")}
    peers = {0: ["ddp"], 1: [], 2: ["fsdp2"], 3: ["fsdp2"]}
    if has_deepspeed():
        for level in (1, 2, 3):
            programs[f"deepspeed{level}"] = peer(f"zero{level}", model, num_ranks, figures, 4, PYTHONPATH=str(DEEPSPEED),
                                                 DS_ACCELERATOR="cpu")
            peers[level].append(f"deepspeed{level}")
    comparisons = [comparison for level, names in peers.items() for name in names
                   for comparison in compared(f"{model}, {num_ranks} ranks, ZeRO {level}", f"zero{level}", name,
                                              "deepspeed" if name.startswith("deepspeed") else name)]
    return sweep(f"{model}, {num_ranks} ranks", programs, comparisons)


def tensor_and_pipeline():
    figures = Figures()
    plan = ("mesh=pipe=2,tensor=2", "micro_batches=4", 'stages=[["blocks.2", 1]]')
    programs = {"ours": ours("gpt", 4, figures, 16, *plan), "torch": peer("tensor_pipeline", "gpt", 4, figures, 16)}
    case = "gpt, 4 ranks, tensor 2 x pipe 2"
    return sweep(case, programs, compared(case, "ours", "torch", "torch_pipelining"))


def context(num_ranks):
    figures = Figures()
    threads = str(min(num_ranks, len(os.sched_getaffinity(0))))
    programs = {"ours": ours("long", num_ranks, figures, 1, f"mesh=context={num_ranks}"),
                "torch": peer("plain", "long", 1, figures, 1, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)}
    case = f"8,192 tokens, {num_ranks} ranks, context {num_ranks}"
    return sweep(case, programs, compared(case, "ours", "torch", "one_process"))


def experts(num_ranks):
    figures = Figures()
    programs = {"ours": ours("experts", num_ranks, figures, 4 * num_ranks, f"mesh=expert={num_ranks}"),
                "torch": peer("experts", "experts", num_ranks, figures, 4)}
    case = f"experts, {num_ranks} ranks, expert {num_ranks}"
    return sweep(case, programs, compared(case, "ours", "torch", "all_to_all_by_hand"))


SWEEPS = [*(data_parallel(model, num_ranks) for model in ("gpt", "bert") for num_ranks in (2, 4)),
          tensor_and_pipeline(), *(context(num_ranks) for num_ranks in (2, 4)),
          *(experts(num_ranks) for num_ranks in (2, 4))]
