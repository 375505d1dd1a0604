#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs benchmarks beside their peers and records the comparison.

bench/run.py [--smoke] [--pairs N] [--only EXPRESSION [--record]] [all | NAME...]

For each case of bench/cases/NAME.py: one pair of runs to warm up, then pairs of ours and the peer's, who takes turns at
being first. A pair gives one ratio, ours over the peer's; what drifts slowly (clock rates, caches, neighbours) touches
both runs of a pair and falls out of it. A sweep (SWEEPS) is the same with programs that measure many cases in one run:
each round runs every program once, and gives a pair for each comparison. Writes bench/results/NAME.jsonl and
machine.json; see bench/README.md. --smoke runs one short pair of each, writes nothing, and only shows that everything
still works. --only measures the cases whose name has the regular expression, prints the table and writes nothing;
with --record it replaces the records of these cases in the results.
"""
import argparse
import dataclasses
import importlib
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from cases import PYTHON, ROOT, BenchmarkFailed  # noqa: E402  (after the path)

RESULTS = ROOT / "bench" / "results"
# A run that takes longer hangs: the longest, a few steps of ResNet-18 on a slow core, takes less than a minute.
DEADLINE_S = 600


def run_once(program, more=()):
    """Runs a command and returns its figure: the last line of its output that is a JSON object has it."""
    command = [str(word) for word in (*program.command, *more)]
    environment = {**os.environ, **program.environment}
    began = time.time()
    try:
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
                             stdin=subprocess.DEVNULL, timeout=DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise BenchmarkFailed(f"{' '.join(command)}: {failure}") from failure
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode or not lines:
        tail = "\n".join((run.stdout + run.stderr).splitlines()[-15:])
        raise BenchmarkFailed(f"{' '.join(command)}: exit code {run.returncode}, {len(lines)} lines of JSON\n{tail}")
    try:
        return program.figure(json.loads(lines[-1]), began)
    except BenchmarkFailed as failure:
        raise BenchmarkFailed(f"{' '.join(command)}: {failure}") from failure


def quantile(values, share):
    """Linear between the closest ranks, as numpy does."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def measure(case, num_pairs, smoke):
    """Returns the figures of ours and of the peer, pair by pair."""
    more = case.smoke if smoke else ()
    ours, peer = [], []
    for pair in range(num_pairs if smoke else num_pairs + 1):
        sides = [(case.ours, ours), (case.peer, peer)]
        for program, figures in sides if pair % 2 == 0 else reversed(sides):
            figures.append(run_once(program, more))
    return (ours, peer) if smoke else (ours[1:], peer[1:])  # the first pair warms up


def measure_sweep(sweep, num_rounds, smoke):
    """Returns each comparison with the figures of ours and of the peer, round by round."""
    more = sweep.smoke if smoke else ()
    names = list(sweep.programs)
    runs = {name: [] for name in names}
    for number in range(num_rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:  # another one is first each time; the programs warm up themselves
            runs[name].append(run_once(sweep.programs[name], more))
    known = [comparison for comparison in sweep.comparisons
             if not smoke or (comparison.ours_key in runs[comparison.ours][0] and
                              comparison.peer_key in runs[comparison.peer][0])]

    def series(program, key, less):
        figures = [run[key] for run in runs[program]]
        return [figure - run[less[1]] for figure, run in zip(figures, runs[less[0]])] if less else figures

    return [(comparison, series(comparison.ours, comparison.ours_key, comparison.ours_less),
             series(comparison.peer, comparison.peer_key, comparison.peer_less)) for comparison in known]


def part_of(sweep, only):
    """The comparisons whose case has the expression `only`, and the programs that they need."""
    comparisons = tuple(comparison for comparison in sweep.comparisons if re.search(only, comparison.case))
    needed = {name for comparison in comparisons
              for name in (comparison.ours, comparison.peer, *comparison.ours_less[:1], *comparison.peer_less[:1])}
    programs = {name: program for name, program in sweep.programs.items() if name in needed}
    return dataclasses.replace(sweep, programs=programs, comparisons=comparisons)


def record_of(case, ours, peer):
    """One line of the results: exactly these fields. A difference may have come out below zero, and has no ratio then."""
    ratios = [a / b for a, b in zip(ours, peer)] if min(peer) > 0 else None

    def rounded(value):
        return float(f"{value:.5g}")

    return {
        "case": case.case,
        "metric": case.metric,
        "unit": case.unit,
        "ours": rounded(statistics.median(ours)),
        "peer": rounded(statistics.median(peer)),
        "peer_name": case.peer_name,
        "ratio": rounded(statistics.median(ratios)) if ratios else None,
        "p10": rounded(quantile(ratios, 0.1)) if ratios else None,
        "p90": rounded(quantile(ratios, 0.9)) if ratios else None,
        "ours_range": [rounded(min(ours)), rounded(max(ours))],
        "peer_range": [rounded(min(peer)), rounded(max(peer))],
    }


def verdict(record):
    if record["ratio"] is None or record["p10"] <= 1 <= record["p90"]:
        return "within noise"
    return "ours is less" if record["ratio"] < 1 else "ours is more"


def against(goal, record):
    """Whether a record reaches its goal, in words; nothing where there is none."""
    if goal is None:
        return ""
    reached = record[goal.field]
    unit = f" {record['unit']}" if goal.field == "ours" else ""
    state = "no ratio" if reached is None else "reached" if reached <= goal.most else "not reached"
    return f"goal {goal.most:g}{unit}: {state}"


def table(records, goals):
    """The records as columns for people."""
    rows = [("case", "metric", "ours", "peer", "ratio", "10 % .. 90 %", "", "")]
    for record, goal in zip(records, goals):
        unit = record["unit"]
        ratios = ("-", "-") if record["ratio"] is None else (f"{record['ratio']:.3f}",
                                                             f"{record['p10']:.3f} .. {record['p90']:.3f}")
        rows.append((record["case"], record["metric"], f"{record['ours']:.4g} {unit}",
                     f"{record['peer']:.4g} {unit} ({record['peer_name']})", *ratios, verdict(record), against(goal, record)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def machine():
    """What the figures depend on; nothing that names the machine."""
    def first_line(*command):
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        return run.stdout.split("\n")[0].strip()

    cpu = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())
    cache = (ROOT / "build/release/CMakeCache.txt").read_text()
    compiler = re.search(r"CMAKE_CXX_COMPILER:\w+=(.*)", cache)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": cpu.group(1) if cpu else platform.machine(),
        "memory_gib": round(int(memory.group(1)) / 2**20, 1) if memory else None,
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
        "compiler": first_line(compiler.group(1), "--version") if compiler else "",
        "python": platform.python_version(),
        "torch": first_line(PYTHON, "-c", "import torch; print(torch.__version__)"),
        "commit": first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def replaced(known, measured):
    """The known records, with those that were measured again in their places, and new ones at the end."""
    def key(record):
        return record["case"], record["metric"], record["peer_name"]

    records = {key(record): record for record in (*known, *measured)}
    if len({key(record) for record in known}) < len(known):
        raise ValueError("two records have the same case, metric and peer: measure all cases instead")
    return list(records.values())


def run_benchmark(name, options):
    """Measures all cases of one benchmark, prints the table and writes the results. Returns what failed."""
    module = importlib.import_module(f"cases.{name}")
    print(f"\n{name}: {module.__doc__.splitlines()[0]}", flush=True)
    records, goals, failures = [], [], []
    if hasattr(module, "prepare") and not options.smoke:
        try:
            module.prepare()
        except BenchmarkFailed as failure:
            return [f"{name}: {failure}"]
    for case in getattr(module, "CASES", ()):
        if not re.search(options.only, case.case):
            continue
        num_pairs = 1 if options.smoke else max(5, options.pairs or case.pairs)
        print(f"  {case.case}, against {case.peer_name}: {num_pairs} pairs", flush=True)
        try:
            records.append(record_of(case, *measure(case, num_pairs, options.smoke)))
            goals.append(None)
        except BenchmarkFailed as failure:
            failures.append(f"{name}, {case.case}: {failure}")
    for sweep in getattr(module, "SWEEPS", ()):
        sweep = part_of(sweep, options.only)
        if not sweep.programs or (options.smoke and sweep.smoke is None):
            continue
        num_rounds = 1 if options.smoke else max(5, options.pairs or sweep.rounds)
        print(f"  {sweep.name}, {', '.join(sweep.programs)}: {num_rounds} rounds", flush=True)
        try:
            measured = measure_sweep(sweep, num_rounds, options.smoke)
            records += [record_of(*one) for one in measured]
            goals += [comparison.goal for comparison, _, _ in measured]
        except BenchmarkFailed as failure:
            failures.append(f"{name}, {sweep.name}: {failure}")
    if options.smoke:
        return failures
    print(table(records, goals), flush=True)
    if records and not failures and (options.record or not options.only):
        RESULTS.mkdir(exist_ok=True)
        file = RESULTS / f"{name}.jsonl"
        if options.only and file.exists():
            records = replaced([json.loads(line) for line in file.read_text().splitlines()], records)
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        machines = RESULTS / "machine.json"
        known = json.loads(machines.read_text()) if machines.exists() else {}
        described = {**machine(), **getattr(module, "versions", dict)()}
        entry = f"{name} --only {options.only}" if options.only else name
        machines.write_text(json.dumps({**known, entry: described}, indent=2, sort_keys=True) + "\n")
    return failures


def main():
    available = sorted(path.stem for path in (ROOT / "bench/cases").glob("*.py") if path.stem != "__init__")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="one short pair of each; writes no results")
    parser.add_argument("--pairs", type=int, help="pairs for each case, at least 5")
    parser.add_argument("--only", default="", metavar="EXPRESSION",
                        help="only cases whose name has this regular expression; writes no results without --record")
    parser.add_argument("--record", action="store_true", help="with --only: replace the records of these cases in the results")
    parser.add_argument("names", nargs="*", choices=[*available, "all"], default="all", metavar="NAME",
                        help="; ".join(available))
    options = parser.parse_args()
    if options.record and (options.smoke or not options.only):
        parser.error("--record goes with --only, and not with --smoke")
    names = available if "all" in options.names else options.names
    failures = [failure for name in names for failure in run_benchmark(name, options)]
    for failure in failures:
        print(f"bench: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
