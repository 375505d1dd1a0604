# SPDX-License-Identifier: Apache-2.0
"""Compares a script of torch.distributed with and without the import, and prints the ratio of times.

    python -m trireme.benchmark allreduce
    python -m trireme.benchmark ddp --network gpt
    python -m trireme.benchmark horovod

The last one compares Horovod's DistributedOptimizer with DDP, both with the import.

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
from pathlib import Path
from typing import Any

import torch.distributed as dist

DEADLINE = 600  # seconds for one run
HOST = "127.0.0.1"


def run(script: str, arguments: argparse.Namespace, imports: bool) -> dict[str, Any]:
    """Runs a script once, as ranks that find each other by the variables of torchrun. Returns what rank 0 printed."""
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    cores = len(os.sched_getaffinity(0))
    options = [f"--{name.replace('_', '-')}={value}" for name, value in vars(arguments).items()
               if name not in ("script", "ranks", "pairs", "smoke", "json")]
    ranks = []
    for rank in range(arguments.ranks):
        environment = {"OMP_NUM_THREADS": str(max(1, cores // arguments.ranks)), **os.environ, "RANK": str(rank),
                       "LOCAL_RANK": str(rank), "WORLD_SIZE": str(arguments.ranks), "LOCAL_WORLD_SIZE": str(arguments.ranks),
                       "MASTER_ADDR": HOST, "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / f"{script}.py"), *options]
        if imports:
            command.append("--import-trireme")
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


def compare(script: str, arguments: argparse.Namespace) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns what the runs with and without the import printed, in pairs. Every other pair begins with the other one."""
    pairs = []
    for pair in range(arguments.pairs):
        if pair % 2:
            ours = run(script, arguments, True)
            pairs.append((ours, run(script, arguments, False)))
        else:
            theirs = run(script, arguments, False)
            pairs.append((run(script, arguments, True), theirs))
    return pairs


def show_time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def show_bytes(count: int) -> str:
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if count >= size and count % size == 0:
            return f"{count // size} {unit}"
    return f"{count} B"


def row(title: str, ours: list[float], theirs: list[float], peer: str = "gloo") -> dict[str, Any]:
    ratios = [one / other for one, other in zip(ours, theirs)]
    return {"what": title, "trireme": statistics.median(ours), peer: statistics.median(theirs), "ratio": statistics.median(ratios),
            "smallest": min(ratios), "largest": max(ratios)}


def show(title: str, rows: list[dict[str, Any]], as_json: bool, ours: str = "Trireme", peer: str = "Gloo") -> None:
    if as_json:
        print(json.dumps({"title": title, "rows": rows}))
        return
    print(title)
    print(f"  {'':14}{ours:>12}{peer:>12}   ratio (smallest .. largest)")
    for each in rows:
        print(f"  {each['what']:14}{show_time(each['trireme']):>12}{show_time(each[peer.lower()]):>12}   "
              f"{each['ratio']:.3g} ({each['smallest']:.3g} .. {each['largest']:.3g})")


def parse(arguments: list[str]) -> argparse.Namespace:
    general = argparse.ArgumentParser(add_help=False)
    general.add_argument("--ranks", type=int, default=2, help="number of processes (default: %(default)s)")
    general.add_argument("--pairs", type=int, default=5, help="runs with and without the import (default: %(default)s)")
    general.add_argument("--smoke", action="store_true", help="one short pair: shows that everything works")
    general.add_argument("--json", action="store_true", help="print one line of JSON")
    parser = argparse.ArgumentParser(prog="python -m trireme.benchmark", description=__doc__.split("\n")[0])
    scripts = parser.add_subparsers(dest="script", required=True)
    allreduce = scripts.add_parser("allreduce", parents=[general], help="dist.all_reduce of float32, from 4 B to 64 MiB")
    allreduce.add_argument("--largest", type=int, default=64 * 2**20, help="bytes of the largest tensor (default: %(default)s)")
    allreduce.add_argument("--seconds", type=float, default=0.5, help="time for each size (default: %(default)s)")
    for name, text in (("ddp", "a training step of DistributedDataParallel"), ("horovod", "a step of Horovod's optimizer against DDP's")):
        steps = scripts.add_parser(name, parents=[general], help=text)
        steps.add_argument("--network", choices=("mlp", "wide-mlp", "gpt"), default="mlp",
                           help="mlp: 4 M parameters; wide-mlp: 101 M; gpt: 7 M (default: %(default)s)")
        steps.add_argument("--steps", type=int, default=30, help="measured steps of a run (default: %(default)s)")
        steps.add_argument("--batch", type=int, default=32, help="samples of each rank (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    if chosen.smoke:
        chosen.pairs = 1
        if chosen.script == "allreduce":
            chosen.largest, chosen.seconds = 2**16, 0.02
        else:
            chosen.steps = 2
    if chosen.ranks < 1 or chosen.pairs < 1:
        parser.error(f"--ranks is {chosen.ranks} and --pairs {chosen.pairs}, expected 1 or more")
    return chosen


def main() -> None:
    arguments = parse(sys.argv[1:])
    pairs = compare(arguments.script, arguments)
    over = f"{arguments.ranks} ranks, medians of {arguments.pairs} pairs of runs"
    if arguments.script == "allreduce":
        sizes = list(pairs[0][0]["seconds"])
        rows = [row(show_bytes(int(size)), *([run["seconds"][size] for run in side] for side in zip(*pairs))) for size in sizes]
        show(f"all_reduce of float32, {over}", rows, arguments.json)
        return
    names = ("Trireme", "Gloo") if arguments.script == "ddp" else ("Horovod's", "DDP")
    what = "DDP" if arguments.script == "ddp" else "training"
    title = f"a step of {what}, {arguments.network} ({pairs[0][0]['parameters'] / 1e6:.1f} M parameters, Adam), {over}"
    show(title, [row("step", *([run["seconds"] for run in side] for side in zip(*pairs)), names[1].lower())], arguments.json, *names)
    equal = all(ours["losses"] == theirs["losses"] for ours, theirs in pairs)
    if not arguments.json:
        print(f"  losses of both: {'the same bits' if equal else 'not the same bits'}")


if __name__ == "__main__":
    main()
