#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the build itself in fresh clones, without a compiler cache; own figures only.

    make bench-build

    demo_time   `make demo` in a new clone: installs LibTorch into it, builds, trains over two processes
    test_time   `make test` in another new clone: builds everything and runs the fast tests
    edit_time   from changing one .cpp file to the end of its tests: compile, link, run; one record for each file

Writes bench/results/build.jsonl and an entry in machine.json. The clones lie in build/bench-build and are removed at the
end. What is committed is what is timed. System packages are installed already: how long that takes is the network's.
"""
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import run as runner  # noqa: E402  (after the path)

ROOT = runner.ROOT
WORK = ROOT / "build" / "bench-build"
# A small and a large component, near the bottom and near the top of those that others include: a file, the program that
# tests it, and its cases.
EDITS = (("trireme/schedule/schedule_text.cpp", "unit_schedule", "ScheduleText*"),
         ("trireme/data/csv.cpp", "unit_data", "Csv*"),
         ("trireme/tensor/layout.cpp", "unit_tensor", "Layout*"),
         ("trireme/parallel/state/state_dict.cpp", "ranks_sharded", "*StateOf*"))
REPEATS = 3


def timed(folder, *command):
    """Runs a command; returns its seconds."""
    environment = {**os.environ, "CCACHE_DISABLE": "1"}
    began = time.monotonic()
    with open(WORK / "output.log", "a", encoding="utf-8") as log:
        run = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    if run.returncode:
        sys.exit(f"bench-build: {' '.join(command)} in {folder} ended with {run.returncode}; see {WORK / 'output.log'}")
    return time.monotonic() - began


def clone(name):
    folder = WORK / name
    subprocess.run(["git", "clone", "--quiet", "--local", ROOT, folder], check=True)
    return folder


def edit_time(folder, source, program, cases):
    """Returns the median of REPEATS changes, each with its compilation, links and tests."""
    seconds = []
    for number in range(REPEATS):
        with open(folder / source, "a", encoding="utf-8") as text:
            text.write(f"// change {number}\n")
        seconds.append(timed(folder, "tools/build", "release", program) +
                       timed(folder, folder / "build/release/bin" / program, f"--gtest_filter={cases}", "--gtest_brief=1"))
    return statistics.median(seconds)


def record(case, metric, seconds):
    print(f"{metric:<10} {seconds:8.1f} s  {case}", flush=True)
    return {"case": case, "metric": metric, "unit": "s", "ours": round(seconds, 1)}


def main():
    for source, _, _ in EDITS:
        if not (ROOT / source).exists():
            sys.exit(f"bench-build: {source} does not exist; change EDITS in bench/build_times.py")
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    demo = clone("demo")
    records = [record("make demo, from clone to trained network", "demo_time", timed(demo, "make", "demo"))]
    shutil.rmtree(demo)
    test = clone("test")
    records.append(record("make test, from clone to the end of the fast tests", "test_time", timed(test, "make", "test")))
    records += [record(f"{source} changed, {program} run", "edit_time", edit_time(test, source, program, cases))
                for source, program, cases in EDITS]
    with open(runner.RESULTS / "build.jsonl", "w", encoding="utf-8") as results:
        results.writelines(json.dumps(each) + "\n" for each in records)
    machines = runner.RESULTS / "machine.json"
    known = json.loads(machines.read_text())
    machines.write_text(json.dumps({**known, "build": runner.machine()}, indent=2, sort_keys=True) + "\n")
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
