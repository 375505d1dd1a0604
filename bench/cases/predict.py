# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured training steps on this machine, after `trireme calibrate`.

Each line has the predicted figure as ours and the measured one as the peer's, so that the error is the ratio's distance
from 1: `step_time_error` of the time of a step, `memory_error` of the peak of what LibTorch's allocator counts and of shared
memory, on the rank that needs most, and `resident_error` of what Linux counts, with all that malloc keeps.
`predict_time` is the time of a prediction, capture included, beside that of one measured step. Models are those of
bench/multi/predict.cpp; data are random. The machine is calibrated anew with as many ranks as each case has.
"""
import subprocess

from . import BIN, ROOT, BenchmarkFailed, Comparison, Program, Sweep, trireme_run

DEADLINE_S = 600
# Tensors come from malloc: what a pool keeps is its own, and no part of a plan.
TERMS = {"TRIREME_TENSOR_MEMORY": "libtorch"}


def description(num_ranks):
    return ROOT / "build" / "calibration" / f"{num_ranks}.toml"


def calibrate(numbers_of_ranks):
    """Measures this machine with each number of ranks."""
    for num_ranks in numbers_of_ranks:
        file = description(num_ranks)
        file.parent.mkdir(parents=True, exist_ok=True)
        command = [str(word) for word in (BIN / "trireme", "calibrate", "--ranks", num_ranks, "--output", file)]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        if run.returncode:
            raise BenchmarkFailed(f"{' '.join(command)}: exit code {run.returncode}\n{run.stderr}")


def prepare():
    calibrate(sorted({ranks for ranks, _, _ in PLANS}))


def figures(record, _):
    record = dict(record)
    record["step_time"] *= 1e3
    record["peak_memory"] /= 1 << 20
    record["resident_memory"] /= 1 << 20
    if "predict_time" in record:
        record["predict_time"] *= 1e3
    return record


def sweep(num_ranks, model, plan):
    words = ["--model", model, *(word for setting in plan for word in ("--plan", setting))]
    name = f"{model}, {num_ranks} {'rank' if num_ranks == 1 else 'ranks'}{''.join(', ' + setting for setting in plan)}"
    comparison = {"ours": "predicted", "peer": "measured", "peer_name": "measured"}
    return Sweep(
        name=name,
        programs={
            "predicted": Program((BIN / "bench_predict", *words, "--ranks", num_ranks, "--predict",
                                  description(num_ranks)), figures),
            # Layouts are chosen by the same links as in the prediction.
            "measured": Program(trireme_run(num_ranks, BIN / "bench_predict", *words), figures,
                                {**TERMS, "TRIREME_CLUSTER": str(description(num_ranks))}),
        },
        comparisons=(
            Comparison(case=name, ours_key="step_time", peer_key="step_time", metric="step_time_error", unit="ms",
                       **comparison),
            Comparison(case=name, ours_key="peak_memory", peer_key="peak_memory", metric="memory_error", unit="MiB",
                       **comparison),
            Comparison(case=name, ours_key="resident_memory", peer_key="resident_memory", metric="resident_error",
                       unit="MiB", **comparison),
            Comparison(case=name, ours_key="predict_time", peer_key="step_time", metric="predict_time", unit="ms",
                       **comparison),
        ),
        smoke=None,
    )


def mesh(*axes):
    return "mesh=[" + ", ".join(f'"{axis}"' for axis in axes) + "]"


def pipeline(micro_batches, *axes):
    return mesh(*axes), f"micro_batches={micro_batches}"


BLOCKS = 'recompute=["blocks.*"]'

# Number of ranks, model, settings of the plan.
PLANS = [
    *((1, model, ()) for model in ("mlp", "resnet", "gpt", "bert")),
    (1, "gpt", (BLOCKS,)),
    *((2, model, (f"zero_level={level}",)) for model in ("mlp", "gpt") for level in (0, 1, 2, 3)),
    *((2, model, ()) for model in ("resnet", "bert")),
    *((2, model, (mesh("tensor=2"),)) for model in ("mlp", "gpt", "bert")),
    *((2, model, pipeline(4, "pipe=2")) for model in ("mlp", "resnet", "gpt", "bert")),
    (2, "gpt", (*pipeline(4, "pipe=2"), BLOCKS)),
    (4, "gpt", ("zero_level=0",)),
    (4, "gpt", ("zero_level=3",)),
    (4, "gpt", (mesh("tensor=4"),)),
    (4, "gpt", pipeline(4, "pipe=2", "data=2")),
    (4, "mlp", pipeline(8, "pipe=4")),
]

SWEEPS = [sweep(*plan) for plan in PLANS]
