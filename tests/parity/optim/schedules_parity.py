# SPDX-License-Identifier: Apache-2.0
"""Learning rates of Trireme's schedules against torch.optim.lr_scheduler, step by step, to 1e-9 of the largest.

usage: schedules_parity.py <schedules_parity program>
"""

import json
import subprocess
import sys

import torch
from torch.optim import lr_scheduler

TOLERANCE = 1e-9


def linear(optimizer, first, last, steps):
    """LinearLR from `first` to `last`, in units of the optimizer's rate."""
    return lr_scheduler.LinearLR(optimizer, start_factor=first, end_factor=last, total_iters=steps)


# The rate that the optimizer is made with, and what makes the scheduler.
SCHEDULERS = {
    "constant": (0.3, lambda o: lr_scheduler.ConstantLR(o, factor=1)),
    "linear": (0.2, lambda o: linear(o, 1, 0.25, 25)),
    "steps": (0.5, lambda o: lr_scheduler.StepLR(o, 7, 0.3)),
    "milestones": (0.5, lambda o: lr_scheduler.MultiStepLR(o, [3, 11, 11, 30], 0.2)),
    "exponential": (0.5, lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
    "polynomial": (0.5, lambda o: lr_scheduler.PolynomialLR(o, 20, 2)),
    "cosine": (0.5, lambda o: lr_scheduler.CosineAnnealingLR(o, 39, 0.01)),
    "one_cycle": (0.5, lambda o: lr_scheduler.OneCycleLR(o, 0.5, 40, cycle_momentum=False)),
    "one_cycle_other": (0.5, lambda o: lr_scheduler.OneCycleLR(o, 0.5, 40, pct_start=0.45, cycle_momentum=False,
                                                               div_factor=10, final_div_factor=100)),
    "then": (0.5, lambda o: lr_scheduler.SequentialLR(
        o, [linear(o, 0.2, 1, 10), lr_scheduler.CosineAnnealingLR(o, 30)], [10])),
}


def rates_of(rate, make, count):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    scheduler = make(optimizer)
    rates = []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(rates) < count:
            scheduler.step()
    return rates


def main():
    ours = json.loads(subprocess.run(sys.argv[1:2], check=True, capture_output=True, text=True).stdout)
    assert ours.keys() == SCHEDULERS.keys(), ours.keys() ^ SCHEDULERS.keys()
    failures = 0
    for name, (rate, make) in SCHEDULERS.items():
        theirs = rates_of(rate, make, len(ours[name]))
        worst = max(abs(a - b) for a, b in zip(ours[name], theirs, strict=True)) / max(theirs)
        print(f"{name}: {worst:.1e}")
        failures += worst > TOLERANCE
    return failures


if __name__ == "__main__":
    sys.exit(main())
