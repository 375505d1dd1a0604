# SPDX-License-Identifier: Apache-2.0
"""Parameters after each step of LAMB against the formulas of You et al., "Large Batch Optimization for Deep Learning", algorithm 2,
computed in Python, to 1e-12 of the largest.

usage: lamb_parity.py <lamb_parity program>
"""

import json
import math
import random
import subprocess
import sys

TOLERANCE = 1e-12
STEPS = 30
GROUPS = [
    {"adapts": True, "options": {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, "weight_decay": 0.01,
                                 "largest_norm": 10}},
    {"adapts": False, "options": {"learning_rate": 0.02, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0,
                                  "largest_norm": 10}},
    {"adapts": True, "options": {"learning_rate": 0.05, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1,
                                 "largest_norm": 1}},
]


def norm(values):
    return math.sqrt(math.fsum(value * value for value in values))


def step(parameter, gradient, mean, square, number, group):
    """Changes a parameter and its state, lists of numbers, in place."""
    options = group["options"]
    beta1, beta2 = options["beta1"], options["beta2"]
    update = []
    for place, g in enumerate(gradient):
        mean[place] = beta1 * mean[place] + (1 - beta1) * g
        square[place] = beta2 * square[place] + (1 - beta2) * g * g
        corrected = mean[place] / (1 - beta1**number)
        update.append(corrected / (math.sqrt(square[place] / (1 - beta2**number)) + options["epsilon"])
                      + options["weight_decay"] * parameter[place])
    ratio = 1
    if group["adapts"] and norm(parameter) > 0 and norm(update) > 0:
        ratio = min(norm(parameter), options["largest_norm"]) / norm(update)
    for place, change in enumerate(update):
        parameter[place] -= options["learning_rate"] * ratio * change


def main():
    numbers = random.Random(7)
    groups = [{**group, "parameters": [[numbers.gauss(0, scale) for _ in range(size)] for size, scale in ((1, 1), (40, 3), (7, 0))]}
              for group in GROUPS]
    sizes = [len(parameter) for group in groups for parameter in group["parameters"]]
    gradients = [[[numbers.gauss(0, 1) for _ in range(size)] for size in sizes] for _ in range(STEPS)]
    request = json.dumps({"groups": groups, "gradients": gradients})
    finished = subprocess.run(sys.argv[1:2], check=True, capture_output=True, text=True, input=request)
    ours = json.loads(finished.stdout)
    stepped = [(parameter, group) for group in groups for parameter in group["parameters"]]
    states = [([0.0] * size, [0.0] * size) for size in sizes]
    worst = 0
    for number in range(1, STEPS + 1):
        for (parameter, group), gradient, (mean, square) in zip(stepped, gradients[number - 1], states, strict=True):
            step(parameter, gradient, mean, square, number, group)
        for (parameter, _), actual in zip(stepped, ours[number - 1], strict=True):
            largest = max(map(abs, parameter))
            worst = max(worst, *(abs(a - b) / largest for a, b in zip(actual, parameter, strict=True)))
    print(f"{STEPS} steps of {len(sizes)} parameters differ by {worst:.1e} at most")
    return worst > TOLERANCE


if __name__ == "__main__":
    sys.exit(main())
