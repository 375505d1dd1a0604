# SPDX-License-Identifier: Apache-2.0
"""Runs `trireme plan`, or predicts a plan that was published, and prints one line of JSON.

plan.py find WORDS... : `plan_time` (seconds, start of the program included) and `step_time` (seconds, predicted).
plan.py predict WORDS... : `step_time` of the plan that the words of `trireme predict` give.
plan.py published SECONDS : `plan_time` as its authors report it.
plan.py measure-found RANKS MODEL ROWS CLUSTER CONSTRAINTS... : measured `step_time` (seconds) of the plan that is found.
plan.py measure-grid RANKS MODEL ROWS CLUSTER CONSTRAINTS... : the same of the fastest of all plans of the grid below
  that keep the constraint memory_gib, if there is one.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

BIN = pathlib.Path(__file__).resolve().parents[2] / "build" / "release" / "bin"
TRIREME = BIN / "trireme"
RECOMPUTED = {"gpt": "blocks.*", "bert": "layers.*", "mlp": None, "resnet": None}
HAS_LAYOUTS = ("mlp", "gpt", "bert")
SCHEDULES = ("gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v")
# How often a plan is measured whose time counts: the fastest of the first round, and the one that is found.
REPEATS = 3
FASTEST = 3


def run(*words):
    done = subprocess.run([TRIREME, *words, "--json"], capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        sys.exit(f"trireme {' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def mesh(**axes):
    return "mesh=[" + ", ".join(f'"{name}={size}"' for name, size in axes.items()) + "]"


def grid(ranks, model):
    """Settings of plans that people write: data with each ZeRO level, tensor, and pipelines with each schedule."""
    plans = [(mesh(data=ranks), f"zero_level={level}") for level in range(4)]
    if model in HAS_LAYOUTS:
        plans += [(mesh(data=ranks // size, tensor=size),) for size in (2, 4) if size <= ranks]
    for stages in (2, 4):
        for schedule in SCHEDULES if stages <= ranks else ():
            plans.append((mesh(pipe=stages, data=ranks // stages), f"schedule={schedule}", "micro_batches=4"))
    if RECOMPUTED[model]:
        plans += [(*plan, f'recompute=["{RECOMPUTED[model]}"]') for plan in plans]
    return plans


def measure(ranks, model, rows, cluster, *plan):
    """The record of a plan, or None if it cannot be carried out, such as by networks without as many layers as stages."""
    command = [TRIREME, "run", "-n", ranks, "--cluster", cluster, "--", BIN / "bench_predict", "--model", model, "--rows", rows, *plan]
    # Memory is what the allocator counts, without what a pool keeps.
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          env=dict(os.environ, TRIREME_TENSOR_MEMORY="libtorch"))
    if done.returncode == 0:
        return json.loads(done.stdout.strip().splitlines()[-1])
    if "plan" in done.stderr or "stage" in done.stderr or "row" in done.stderr:
        return None
    sys.exit(f"{command}: exit code {done.returncode}\n{done.stderr}")


def limit_of(constraints):
    given = [float(text.split("=")[1]) for text in constraints if text.startswith("memory_gib=")]
    return given[0] * 2**30 if given else float("inf")


def measure_found(ranks, model, rows, cluster, *constraints):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "plan.toml"
        words = [word for text in constraints for word in ("--with", text)]
        done = subprocess.run([BIN / "bench_predict", "--model", model, "--rows", rows, "--ranks", ranks, "--find", cluster,
                               "--save", file, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(done.stdout)
        print(f"{model} on {ranks} ranks: {found['plan']}", file=sys.stderr)
        records = [measure(ranks, model, rows, cluster, "--plan-file", file) for _ in range(REPEATS)]
    if min(record["peak_memory"] for record in records) > 1.05 * limit_of(constraints):
        sys.exit(f"{found['plan']}: needs {records[0]['peak_memory'] / 2**30:.3f} GiB")
    return {"step_time": min(record["step_time"] for record in records)}


def measure_grid(ranks, model, rows, cluster, *constraints):
    def run_once(plan):
        return measure(ranks, model, rows, cluster, *(word for setting in plan for word in ("--plan", setting)))

    records = [(run_once(plan), plan) for plan in grid(int(ranks), model)]
    fitting = [(record["step_time"], plan) for record, plan in records if record and record["peak_memory"] <= limit_of(constraints)]
    best = {}
    for seconds, plan in sorted(fitting)[:FASTEST]:
        best[plan] = min(seconds, *(run_once(plan)["step_time"] for _ in range(REPEATS - 1)))
    if not best:
        sys.exit("no plan of the grid keeps the memory")
    fastest = min(best, key=best.get)
    print(f"{model} on {ranks} ranks, fastest of {len(fitting)}: {', '.join(fastest)}", file=sys.stderr)
    return {"step_time": best[fastest]}


def main(action, *words):
    began = time.monotonic()
    if action == "published":
        return {"plan_time": float(words[0])}
    if action == "predict":
        return {"step_time": run("predict", *words)["step_seconds"]}
    if action == "measure-found":
        return measure_found(*words)
    if action == "measure-grid":
        return measure_grid(*words)
    found = run("plan", *words)
    return {"plan_time": time.monotonic() - began, "step_time": found["best"][0]["prediction"]["step_seconds"]}


print(json.dumps(main(*sys.argv[1:])))
