# SPDX-License-Identifier: Apache-2.0
"""Compares a script of torch.distributed with and without the import, and prints the ratio of times and a chart.

    python -m trireme.benchmark allreduce
    python -m trireme.benchmark ddp --network gpt
    python -m trireme.benchmark fsdp --network wide-mlp
    python -m trireme.benchmark dtensor
    python -m trireme.benchmark pipelining --network wide-mlp
    python -m trireme.benchmark horovod
    python -m trireme.benchmark parallelize --network resnet18

`horovod` compares Horovod's DistributedOptimizer with DDP, both with the import. `parallelize` compares trireme.parallelize with DDP over
Gloo and with DDP over Trireme. Of a step of ddp, fsdp and dtensor, `communication` is the time that it takes longer than the same step over
a process group that exchanges nothing (silent.py).

Runs alternate, so that both see the same machine. Numbers are medians over the runs; ratios are medians of those of the pairs, with
the smallest and the largest.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch.distributed as dist

from trireme.benchmark.chart import bars
from trireme.benchmark.networks import NETWORKS

DEADLINE = 600  # seconds for one run
HOST = "127.0.0.1"
STEPS = {"ddp": "DDP", "fsdp": "FSDP2", "dtensor": "DTensor", "pipelining": "pipelining", "horovod": "training", "parallelize": "training"}  # scripts of training steps, and what they time
LACKS = {"dtensor": "resnet18", "pipelining": "gpt"}  # networks that a script cannot divide
Run = dict[str, Any]  # what rank 0 of a script printed


def run(script: str, *more: str, arguments: argparse.Namespace) -> Run:
    """Runs a script once, as ranks that find each other by the variables of torchrun."""
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    cores = len(os.sched_getaffinity(0))
    options = [f"--{name.replace('_', '-')}={value}" for name, value in vars(arguments).items()
               if name not in ("script", "ranks", "pairs", "smoke", "json") and (name != "zero_level" or script == "parallelize")]
    ranks = []
    for rank in range(arguments.ranks):
        environment = {"OMP_NUM_THREADS": str(max(1, cores // arguments.ranks)), **os.environ, "RANK": str(rank),
                       "LOCAL_RANK": str(rank), "WORLD_SIZE": str(arguments.ranks), "LOCAL_WORLD_SIZE": str(arguments.ranks),
                       "MASTER_ADDR": HOST, "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        command = [sys.executable, "-W", "ignore", "-m", f"trireme.benchmark.{script}", *more, *options]
        ranks.append(subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL))
    deadline = time.monotonic() + DEADLINE
    try:
        output = ranks[0].communicate(timeout=DEADLINE)[0]
        for number, rank in enumerate(ranks):
            if rank.wait(max(1, deadline - time.monotonic())) != 0:
                sys.exit(f"trireme.benchmark: rank {number} of {script} ended with {rank.returncode}\n"
                         "  hint: its message is above")
    except subprocess.TimeoutExpired:
        sys.exit(f"trireme.benchmark: {script} is not done after {DEADLINE} s\n  hint: give fewer or shorter operations")
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
    return json.loads(output.splitlines()[-1])


def compare(*sides: tuple[str, ...], arguments: argparse.Namespace) -> list[list[Run]]:
    """Runs sides, each a script and its options, by turns, and returns their runs. Every other round is in the opposite order."""
    runs: list[list[Run]] = [[] for _ in sides]
    for pair in range(arguments.pairs):
        for place in range(len(sides)) if pair % 2 else reversed(range(len(sides))):
            runs[place].append(run(*sides[place], arguments=arguments))
    return runs


def show_time(seconds: float) -> str:
    if abs(seconds) < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def show_bytes(count: int) -> str:
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if count >= size and count % size == 0:
            return f"{count // size} {unit}"
    return f"{count} B"


def row(title: str, ours: list[float], theirs: list[float], peer: str = "gloo") -> dict[str, Any]:
    """Returns a line of the table. A difference may come out below zero, within noise, and has no ratio then."""
    ratios = [one / other for one, other in zip(ours, theirs)] if min(theirs) > 0 else None
    return {"what": title, "trireme": statistics.median(ours), peer: statistics.median(theirs),
            "ratio": statistics.median(ratios) if ratios else None, "smallest": min(ratios) if ratios else None,
            "largest": max(ratios) if ratios else None}


def show(title: str, rows: list[dict[str, Any]], as_json: bool, ours: str = "Trireme", peer: str = "Gloo") -> None:
    if as_json:
        print(json.dumps({"title": title, "rows": rows}))
        return
    print(title)
    width = max(14, *(len(each["what"]) + 1 for each in rows))
    print(f"  {'':{width}}{ours:>12}{peer:>12}   ratio (smallest .. largest)")
    for each in rows:
        ratio = "within noise" if each["ratio"] is None else f"{each['ratio']:.3g} ({each['smallest']:.3g} .. {each['largest']:.3g})"
        print(f"  {each['what']:{width}}{show_time(each['trireme']):>12}{show_time(each[peer.lower()]):>12}   {ratio}")
    can_show_blocks = "█".encode(sys.stdout.encoding or "ascii", "ignore") != b""
    print("\n" + bars([(each["what"], [(name, each[key], show_time(each[key])) for name, key in ((ours, "trireme"), (peer, peer.lower()))])
                       for each in rows], "█" if can_show_blocks else "#"))


def parse(arguments: list[str]) -> argparse.Namespace:
    general = argparse.ArgumentParser(add_help=False)
    general.add_argument("--ranks", type=int, default=2, help="number of processes (default: %(default)s)")
    general.add_argument("--pairs", type=int, default=5, help="runs with and without the import (default: %(default)s)")
    general.add_argument("--smoke", action="store_true", help="one short pair: shows that everything works")
    general.add_argument("--json", action="store_true", help="print one line of JSON")
    parser = argparse.ArgumentParser(prog="python -m trireme.benchmark", description=__doc__.split("\n")[0])
    scripts = parser.add_subparsers(dest="script", required=True)
    allreduce = scripts.add_parser("allreduce", parents=[general], help="dist.all_reduce of float32, from 4 B to 64 MiB")
    allreduce.add_argument("--largest", dest="limit", type=int, default=64 * 2**20,
                           help="bytes of the largest tensor, up to 256 MiB (default: %(default)s)")
    allreduce.add_argument("--seconds", type=float, default=0.5, help="time for each size (default: %(default)s)")
    texts = {"horovod": "a step of Horovod's optimizer against DDP's", "parallelize": "a step of trireme.parallelize against DDP's",
             "pipelining": "a training step of torch.distributed.pipelining, 1F1B with 4 micro-batches"}
    for name, what in STEPS.items():
        text = texts.get(name, f"a training step of {what}")
        steps = scripts.add_parser(name, parents=[general], help=text)
        steps.add_argument("--network", choices=[one for one in NETWORKS if one != LACKS.get(name)], default="mlp",
                           help="mlp: 4 M parameters; wide-mlp: 101 M; gpt: 7 M; resnet18: 11 M (default: %(default)s)")
        steps.add_argument("--steps", type=int, default=30, help="measured steps of a run (default: %(default)s)")
        steps.add_argument("--batch", type=int, default=0, help="samples of each rank (default: 32; wide-mlp 16, gpt 4)")
        if name == "parallelize":
            steps.add_argument("--zero-level", type=int, choices=range(4), default=0, help="what is sharded (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    if chosen.smoke:
        chosen.pairs = 1
        if chosen.script == "allreduce":
            chosen.limit, chosen.seconds = 2**16, 0.02
        else:
            chosen.steps = 2
    if chosen.ranks < 1 or chosen.pairs < 1:
        parser.error(f"--ranks is {chosen.ranks} and --pairs {chosen.pairs}, expected 1 or more")
    return chosen


def show_all_reduce(arguments: argparse.Namespace, over: str) -> None:
    sides = compare(("allreduce",), ("allreduce", "--collectives=gloo"), arguments=arguments)
    rows = [row(show_bytes(int(size)), *([run["seconds"][size] for run in side] for side in sides)) for size in sides[0][0]["seconds"]]
    show(f"all_reduce of float32, {over}", rows, arguments.json)


def show_steps(arguments: argparse.Namespace, over: str) -> None:
    script = arguments.script
    if script == "horovod":
        names, sides = ("Horovod's", "DDP"), compare(("horovod",), ("ddp", "--alone"), arguments=arguments)
    else:
        names, sides = ("Trireme", "Gloo"), compare((script,), (script, "--collectives=gloo"), arguments=arguments)
    rows = [row(name, *([run[key] for run in side] for side in sides), names[1].lower())
            for name, key in (("step", "seconds"), ("communication", "communication")) if key in sides[0][0]]
    title = f"a step of {STEPS[script]}, {arguments.network} ({sides[0][0]['parameters'] / 1e6:.1f} M parameters, Adam), {over}"
    show(title, rows, arguments.json, *names)
    equal = all(ours["losses"] == theirs["losses"] for ours, theirs in zip(*sides))
    if not arguments.json:
        print(f"  losses of both: {'the same bits' if equal else 'not the same bits'}")


def show_parallelize(arguments: argparse.Namespace, over: str) -> None:
    sides = compare(("parallelize",), ("ddp", "--alone"), ("ddp", "--alone", "--collectives=gloo"), arguments=arguments)
    title = (f"a step of trireme.parallelize, ZeRO level {arguments.zero_level}, {arguments.network} "
             f"({sides[0][0]['parameters'] / 1e6:.1f} M parameters, Adam), {over}")
    rows = [row(f"against {name}", *([run["seconds"] for run in side] for side in (sides[0], other)), "ddp")
            for name, other in (("DDP, Gloo", sides[2]), ("DDP, Trireme", sides[1]))]
    show(title, rows, arguments.json, "parallelize", "DDP")
    equal = all(len({tuple(run["losses"]) for run in runs}) == 1 for runs in zip(*sides))
    if not arguments.json:
        print(f"  losses of all: {'the same bits' if equal else 'not the same bits'}")


def main() -> None:
    arguments = parse(sys.argv[1:])
    over = f"{arguments.ranks} ranks, medians of {arguments.pairs} pairs of runs"
    if arguments.script == "allreduce":
        show_all_reduce(arguments, over)
    elif arguments.script == "parallelize":
        show_parallelize(arguments, over)
    else:
        show_steps(arguments, over)


if __name__ == "__main__":
    main()
