# SPDX-License-Identifier: Apache-2.0
"""What the scripts of training steps have in common: options, the process group, the timed loop, and the line that rank 0 prints."""
from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from trireme.benchmark import silent
from trireme.benchmark.networks import NETWORKS, Training

Model = tuple[nn.Module, torch.optim.Optimizer]


def parser() -> argparse.ArgumentParser:
    """Returns the options of all scripts of training steps."""
    options = argparse.ArgumentParser()
    options.add_argument("--collectives", choices=("trireme", "gloo"), default="trireme", help="gloo: without the import")
    options.add_argument("--network", choices=list(NETWORKS), required=True)
    options.add_argument("--steps", type=int, default=5, help="measured steps (default: %(default)s)")
    options.add_argument("--warm-up", type=int, default=2, help="steps before these (default: %(default)s)")
    options.add_argument("--batch", type=int, default=0, help="samples of each rank; 0 stands for the network's own number")
    options.add_argument("--alone", action="store_true", help="no steps over a group that exchanges nothing between the measured ones")
    return options


def connect(collectives: str) -> None:
    """Makes the default process group: an ordinary script, which imports trireme.torch only where it is told to."""
    if collectives == "trireme":
        import trireme.torch  # noqa: F401
    dist.init_process_group("gloo")


def make(arguments: argparse.Namespace) -> Training:
    """Returns the network, with the same values on every rank and in every call."""
    torch.manual_seed(0)
    return NETWORKS[arguments.network]()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-4)


def step(model: Model, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Makes a training step, and returns the loss."""
    network, optimizer = model
    optimizer.zero_grad()
    loss = F.cross_entropy(network(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


def time_calls(arguments: argparse.Namespace, training: Training, step_of: Callable[[torch.Tensor, torch.Tensor], float],
               barrier: Callable[[], object], silent_step: Callable[[torch.Tensor, torch.Tensor], object] | None = None) -> dict[str, Any]:
    """Trains by a function that makes a step and returns the loss, and returns the median time of a step and the losses.

    With the same step over a group that exchanges nothing, both are made by turns, and the median difference is returned too.
    """
    times, differences, losses = [], [], []
    for number in range(arguments.warm_up + arguments.steps):
        inputs, targets = training.batch(arguments.batch or training.samples)
        barrier()
        started = time.perf_counter()
        losses.append(step_of(inputs, targets))
        taken = time.perf_counter() - started
        without = 0.0
        if silent_step is not None:
            barrier()
            copied, started = silent.seconds_of_copies(), time.perf_counter()
            silent_step(inputs, targets)
            without = time.perf_counter() - started - (silent.seconds_of_copies() - copied)
        if number >= arguments.warm_up:
            times.append(taken)
            differences.append(taken - without)
    result = {"seconds": statistics.median(times), "losses": losses}
    return result if silent_step is None else result | {"communication": statistics.median(differences)}


def time_steps(arguments: argparse.Namespace, training: Training, model: Model, barrier: Callable[[], object],
               silent_model: Model | None = None) -> dict[str, Any]:
    """Trains a model, with or without the same model over a group that exchanges nothing: see time_calls."""
    silent_step = functools.partial(step, silent_model) if silent_model is not None else None
    result = time_calls(arguments, training, functools.partial(step, model), barrier, silent_step)
    return result | {"parameters": sum(each.numel() for each in model[0].parameters())}


def run(wrap: Callable[[Training, dist.ProcessGroup], nn.Module], shares_batch: bool = False) -> None:
    """Times a script of torch.distributed, of which `wrap` returns the parallel form of a network. Rank 0 prints the result."""
    arguments = parser().parse_args()
    connect(arguments.collectives)

    training = make(arguments)
    network = wrap(training, dist.group.WORLD)
    silent_model = None
    if not arguments.alone:
        silent_network = wrap(make(arguments), silent.make_group())
        silent_model = silent_network, adam(silent_network)
    torch.manual_seed(1 if shares_batch else 1 + dist.get_rank())
    result = time_steps(arguments, training, (network, adam(network)), dist.barrier, silent_model)
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()
