# SPDX-License-Identifier: Apache-2.0
"""Data parallel training with every ZeRO level, against DistributedDataParallel and fully_shard, with Adam, on one host.

Four models: `mlp` (10 M parameters, batch of 64 on each rank), `resnet18` (11 M, 28x28 images, 32), `gpt` (7 M, 128
tokens, 4) and `large` (an MLP of 101 M, 16). Every rank has one thread. A program prints the median of its steps after
two that warm up, and the peak of memory on the rank that has most: `step_memory` of the timed steps, `peak_memory` since
before the model was made; bench/multi/peak_memory.h says what counts. The optimizer is LibTorch's Adam and in PyTorch
the same arithmetic, one parameter after the other, so that what differs is the exchange. All have tensors in malloc's
memory (ours would take a pool by itself) and let malloc take huge pages, which `trireme run` sees to; `small_pages` is
the same program without.

`communication_time` is a step less the same step of a program that exchanges nothing, in the same round; where the
optimizer steps a part of the parameters (ZeRO, fully_shard), it does so in that step too. It may be below zero, within
noise: no ratio then. The peer `prediction` is parameters, gradients and two states of Adam, each divided by the ranks
where the level cuts it: what a step needs besides activations, temporaries and buffers. fully_shard is compared with
ZeRO levels 2 and 3; it frees parameters after forward, as ZeRO level 3 does.

Parts: --only 'gpt', --only '^(mlp|large), 2 ranks', --only 'ZeRO [01]'.
"""
from . import BIN, ROOT, Comparison, Program, Sweep, torchrun, trireme_run

# All in 40 minutes, on two cores: four ranks of ResNet-18, which computes much and sends little, would take five more.
RANKS = {"mlp": (2, 4), "resnet18": (2,), "gpt": (2, 4), "large": (2, 4)}
# Timed steps of a run, an odd number: the median of an even one differs between both sides.
STEPS = {"mlp": 7, "resnet18": 3, "gpt": 3, "large": 1}
EQUAL_TERMS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
               "TRIREME_TENSOR_MEMORY": "libtorch"}
SMALL_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
SMOKE = ("--steps", "1", "--warm-up", "1")
SMOKE_SWEEPS = ("resnet18, 2 ranks", "gpt, 2 ranks")  # and a world of one of each model
LEVELS = (0, 1, 2, 3)
# Which peers a level is compared with.
PEERS = {0: ("ddp",), 1: ("ddp",), 2: ("ddp", "fsdp2"), 3: ("fsdp2",)}


def figures(record, _):
    """Milliseconds and MiB."""
    times = {name: 1e3 * record[name] for name in ("step_time", "part_step_time") if name in record}
    memory = {name: record[name] / 2**20 for name in ("peak_memory", "step_memory", "formula") if name in record}
    return {**times, **memory, "sample_time": times["step_time"] / record["samples"]}


def ours(model, *options):
    return (BIN / "bench_data_parallel", "--model", model, "--steps", STEPS[model], *options)


def compared(case, ours_name, peer, key, peer_name=None, **others):
    """The figure `key` of two programs."""
    unit = "MiB" if key.endswith("memory") else "ms"
    metric = "peak_memory" if unit == "MiB" else key
    return Comparison(case + (", in steps" if key == "step_memory" else ""), ours_name, peer, peer_name or peer, key, key,
                      metric=metric, unit=unit, **others)


def comparisons(case):
    for level in LEVELS:
        name, of_level = f"zero{level}", f"{case}, ZeRO {level}"
        local = ("local", "part_step_time" if level else "step_time")
        for peer in PEERS[level]:
            for key in ("step_time", "peak_memory", "step_memory"):
                yield compared(of_level, name, peer, key)
            yield Comparison(of_level, name, peer, peer, "step_time", "step_time", "communication_time", "ms", local,
                             ("torch_local", "part_step_time" if peer == "fsdp2" else "step_time"))
        yield Comparison(f"{of_level}, in steps", name, name, "prediction", "step_memory", "formula", "peak_memory", "MiB")
        yield compared(f"{of_level}, against 1 process", name, "alone", "sample_time", "one_process")
    for key in ("step_time", "peak_memory"):
        yield compared(f"{case}, huge pages against small ones", "zero0", "small_pages", key, "plain")
    for key in ("step_time", "step_memory"):
        yield compared(f"{case}, without communication, LibTorch against PyTorch", "local", "torch_local", key, "plain")


def sweep(model, num_ranks):
    def peer(mode):
        return Program((*torchrun(num_ranks, ROOT / "bench/peers/data_parallel.py"), "--model", model, "--mode", mode,
                        "--steps", STEPS[model]), figures, EQUAL_TERMS)

    programs = {f"zero{level}": Program(trireme_run(num_ranks, *ours(model, "--zero", level)), figures, EQUAL_TERMS)
                for level in LEVELS}
    programs |= {
        "ddp": peer("ddp"),
        "fsdp2": peer("fsdp2"),
        "local": Program(trireme_run(num_ranks, *ours(model, "--exchange", "no")), figures, EQUAL_TERMS),
        "torch_local": peer("plain"),
        "alone": Program(ours(model, "--exchange", "no"), figures, EQUAL_TERMS),
        "small_pages": Program(trireme_run(num_ranks, *ours(model)), figures, EQUAL_TERMS | SMALL_PAGES),
    }
    case = f"{model}, {num_ranks} ranks"
    return Sweep(case, programs, tuple(comparisons(case)), SMOKE if case in SMOKE_SWEEPS else None)


def world_of_one(model):
    programs = {"one": Program(ours(model), figures, EQUAL_TERMS),
                "alone": Program(ours(model, "--exchange", "no"), figures, EQUAL_TERMS)}
    case = f"{model}, world of one"
    return Sweep(case, programs, tuple(compared(case, "one", "alone", key, "plain")
                                       for key in ("step_time", "peak_memory", "step_memory")), SMOKE)


SWEEPS = [sweep_of for model, all_ranks in RANKS.items()
          for sweep_of in (world_of_one(model), *(sweep(model, num_ranks) for num_ranks in all_ranks))]
