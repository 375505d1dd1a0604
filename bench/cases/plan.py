# SPDX-License-Identifier: Apache-2.0
"""Finding a plan: how long it takes, and its predicted step beside that of plans that were published.

`plan_time` is the time of `trireme plan` from its start to its end, beside the time that the authors of other planners report for theirs, on
other machines: AutoParallel (PyTorch) needs 52 s for the layouts of LLaMA-3-8B on 64 devices, without pipelines and without memory of activations;
Alpa (Zheng et al. 2022) about 40 minutes for a GPT on 64 devices, with profiling runs.

`planned_step_time` compares the predicted step of the found plan with that of the plan of table 1 in Narayanan et al. (2021), for the same model,
devices and rows. Both are predictions, for fused operators on elements and fp16.

`step_time` is measured on this machine, after `trireme calibrate`: the plan that is found beside the fastest of a grid of plans as people write
them, with the same rows of a step, on 2 and 4 ranks, and with a limit of memory that excludes the fastest.
"""
from . import PYTHON, ROOT, Goal, Program, Sweep, Comparison
from .predict import calibrate, description

SCRIPT = ROOT / "bench" / "peers" / "plan.py"


def program(*words):
    return Program((PYTHON, SCRIPT, *words), lambda record, _: record)


def model(family, **settings):
    return ["--model", family, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


def timed(name, peer, seconds, goal, words):
    return Sweep(
        name=name,
        programs={"found": program("find", *words), peer: program("published", seconds)},
        comparisons=(Comparison(case=name, ours="found", peer=peer, peer_name=peer, ours_key="plan_time", peer_key="plan_time",
                                metric="plan_time", unit="s", goal=Goal("ours", goal)),),
        smoke=None,
    )


LLAMA = {"vocabulary": 128256, "sequence": 8192, "key_value_heads": 8}
LLAMA_8B = model("llama", layers=32, hidden=4096, heads=32, feed_forward=14336, **LLAMA)
GPT_145B = model("gpt", layers=80, hidden=12288, heads=96, vocabulary=51200, sequence=2048)

# Parameters in billions, layers, hidden, heads, tensor, pipe, stages of a rank, devices, rows of a step and of a micro-batch.
PUBLISHED = [
    (7.5, 36, 4096, 32, 4, 1, 1, 128, 512, 16),
    (39.1, 48, 8192, 64, 8, 2, 1, 512, 1536, 4),
    (145.6, 80, 12288, 96, 8, 8, 2, 1536, 2304, 2),
]


def published(billions, layers, hidden, heads, tensor, pipe, chunks, devices, rows, micro_batch):
    name = f"GPT of {billions} billion, {devices} A100"
    words = [*model("gpt", layers=layers, hidden=hidden, heads=heads, vocabulary=51200, sequence=2048), "-n", devices,
             "--cluster", "a100-80", "--dtype", "float16", "--elements", "fused"]
    data = devices // tensor // pipe
    axes = ([f"pipe={pipe}"] if pipe > 1 else []) + [f"data={data}", f"tensor={tensor}"]
    plan = ["mesh=[" + ", ".join(f'"{axis}"' for axis in axes) + "]", f"micro_batches={rows // data // micro_batch}",
            'recompute=["blocks.*"]']
    if chunks > 1:
        plan += ['schedule="interleaved"', f"chunks={chunks}"]
    settings = [word for setting in plan for word in ("--plan-set", setting)]
    return Sweep(
        name=name,
        programs={"found": program("find", *words, "--batch", rows),
                  "published": program("predict", *words, "--rows", micro_batch, *settings)},
        comparisons=(Comparison(case=name, ours="found", peer="published", peer_name="published_plan", ours_key="step_time",
                                peer_key="step_time", metric="planned_step_time", unit="s", goal=Goal("ratio", 1.0)),),
        smoke=None,
    )


# Model, ranks, rows of a step over all ranks, constraints.
MEASURED = [
    *(("mlp", ranks, 256, ()) for ranks in (2, 4)),
    *(("resnet", ranks, 64, ()) for ranks in (2, 4)),
    *((family, ranks, 16, ()) for family in ("gpt", "bert") for ranks in (2, 4)),
    ("gpt", 2, 16, ("memory_gib=0.12",)),
]


def measured(family, ranks, rows, constraints):
    name = ", ".join((f"{family}, {ranks} ranks", *constraints))
    words = (ranks, family, rows, description(ranks), *constraints)
    return Sweep(
        name=name,
        programs={"found": program("measure-found", *words), "grid": program("measure-grid", *words)},
        comparisons=(Comparison(case=name, ours="found", peer="grid", peer_name="best_of_grid", ours_key="step_time",
                                peer_key="step_time", metric="step_time", unit="s", goal=Goal("ratio", 1.05)),),
        smoke=None,
    )


def prepare():
    calibrate(sorted({ranks for _, ranks, _, _ in MEASURED}))


SWEEPS = [
    timed("LLaMA 8B, 64 H100", "autoparallel_published", 52, 2.0, [*LLAMA_8B, "-n", 64, "--cluster", "h100-80", "--batch", 128]),
    timed("GPT 145.6B, 1536 A100", "alpa_published", 2400, 10.0,
          [*GPT_145B, "-n", 1536, "--cluster", "a100-80", "--dtype", "float16", "--elements", "fused", "--batch", 2304]),
    *(published(*case) for case in PUBLISHED),
    *(measured(*case) for case in MEASURED),
]
