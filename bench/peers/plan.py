# SPDX-License-Identifier: Apache-2.0
"""Runs `trireme plan`, or predicts a plan that was published, and prints one line of JSON.

plan.py find WORDS... : `plan_time` (seconds, start of the program included) and `step_time` (seconds, predicted).
plan.py predict WORDS... : `step_time` of the plan that the words of `trireme predict` give.
plan.py published SECONDS : `plan_time` as its authors report it.
"""
import json
import pathlib
import subprocess
import sys
import time

TRIREME = pathlib.Path(__file__).resolve().parents[2] / "build" / "release" / "bin" / "trireme"


def run(*words):
    done = subprocess.run([TRIREME, *words, "--json"], capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        sys.exit(f"trireme {' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def main(action, *words):
    began = time.monotonic()
    if action == "published":
        return {"plan_time": float(words[0])}
    if action == "predict":
        return {"step_time": run("predict", *words)["step_seconds"]}
    found = run("plan", *words)
    return {"plan_time": time.monotonic() - began, "step_time": found["best"][0]["prediction"]["step_seconds"]}


print(json.dumps(main(*sys.argv[1:])))
