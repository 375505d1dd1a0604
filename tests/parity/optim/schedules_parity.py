# SPDX-License-Identifier: Apache-2.0
"""Learning rates of Trireme's schedules against torch.optim.lr_scheduler, step by step, to 1e-9 of the largest; those of
its plateaus against ReduceLROnPlateau, exactly, for scores that fall, rise and stay.

usage: schedules_parity.py <schedules_parity program>
"""

import json
import math
import random
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


def plateau(**options):
    return lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, **options)


PLATEAUS = {
    "plateau": plateau(patience=3),
    "plateau_highest": plateau(mode="max", factor=0.5, patience=2),
    "plateau_absolute": plateau(patience=1, threshold=0.05, threshold_mode="abs"),
    "plateau_highest_absolute": plateau(mode="max", patience=1, threshold=0.05, threshold_mode="abs"),
    "plateau_cooldown": plateau(factor=0.7, patience=0, threshold=0.1, cooldown=4),
    "plateau_least": plateau(patience=0, threshold=0.3, min_lr=0.003),
    "plateau_least_change": plateau(factor=0.9, patience=0, threshold=0.3, eps=0.02),
}


def make_scores():
    numbers = random.Random(5)
    scores = [1 / (1 + step) + numbers.uniform(-0.2, 0.2) for step in range(60)]
    return scores + [scores[-1]] * 8 + [-score for score in scores] + [math.exp(numbers.gauss(0, 1)) for _ in range(60)]


def plateau_rates(make, scores):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler = make(optimizer)
    rates = []
    for score in scores:
        scheduler.step(score)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


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
    scores = make_scores()
    finished = subprocess.run(sys.argv[1:2], check=True, capture_output=True, text=True, input=json.dumps(scores))
    ours = json.loads(finished.stdout)
    known = SCHEDULERS.keys() | PLATEAUS.keys()
    assert ours.keys() == known, ours.keys() ^ known
    failures = 0
    for name, make in PLATEAUS.items():
        theirs = plateau_rates(make, scores)
        assert len(set(theirs)) > 2, f"{name}: the scores never lower the rate"
        print(f"{name}: {'equal' if ours[name] == theirs else 'differs'}")
        failures += ours[name] != theirs
    for name, (rate, make) in SCHEDULERS.items():
        theirs = rates_of(rate, make, len(ours[name]))
        worst = max(abs(a - b) for a, b in zip(ours[name], theirs, strict=True)) / max(theirs)
        print(f"{name}: {worst:.1e}")
        failures += worst > TOLERANCE
    return failures


if __name__ == "__main__":
    sys.exit(main())
