# SPDX-License-Identifier: Apache-2.0
"""The operators of bench/multi/tensor.cpp on PyTorch's DTensor and on plain tensors, from Python."""
import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist

BEGAN = time.perf_counter()
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

START = time.perf_counter() - BEGAN

ROWS, COLUMNS = 8, 64


def measure_beside(plain, distributed, calls, samples, clock=time.perf_counter):
    """Median over samples, taken by turns, of the seconds that one call of each takes."""
    seconds = {plain: [], distributed: []}
    for call in seconds:
        for _ in range(calls):
            call()
    for _ in range(samples):
        for call, its in seconds.items():
            began = clock()
            for _ in range(calls):
                call()
            its.append((clock() - began) / calls)
    return statistics.median(seconds[plain]), statistics.median(seconds[distributed])


def operators(rows, make):
    a, b = make(torch.randn(rows, COLUMNS), True), make(torch.randn(rows, COLUMNS), True)
    ones = make(torch.ones(rows, COLUMNS), True)
    square = make(torch.randn(COLUMNS, COLUMNS), False)
    weight, bias = make(torch.ones(COLUMNS), False), make(torch.zeros(COLUMNS), False)
    some = [make(torch.randn(rows, COLUMNS), True) for _ in range(100)]
    others = [make(torch.randn(rows, COLUMNS), True) for _ in range(100)]
    return {
        "add": lambda: a + b,
        "mm": lambda: a.mm(square),
        "sum": lambda: a.sum(),
        "softmax": lambda: torch.softmax(a, 1),
        "layer_norm": lambda: torch.nn.functional.layer_norm(a, (COLUMNS,), weight, bias),
        "view": lambda: a.view(rows, 8, 8),
        "in-place multiply": lambda: a.mul_(ones),
        "cat": lambda: torch.cat((a, b), 1),
        "detach": lambda: a.detach(),
        "foreach add of 100": lambda: torch._foreach_add(some, others),
        "foreach add in place of 100": lambda: torch._foreach_add_(some, others),
    }


def perceptron_step(rows, make):
    weights = [make(torch.randn(COLUMNS, COLUMNS) / 8, False).detach().requires_grad_() for _ in range(4)]
    values = make(torch.randn(rows, COLUMNS), True)

    def step():
        for weight in weights:
            weight.grad = None
        x = values
        for weight in weights:
            x = torch.relu(torch.nn.functional.linear(x, weight))
        x.sum().backward()

    return step


def adam_step(rows, make):
    parameters = [make(torch.randn(rows, COLUMNS), True).detach().requires_grad_() for _ in range(100)]
    for parameter in parameters:
        parameter.grad = make(torch.randn(rows, COLUMNS), True)
    return torch.optim.Adam(parameters).step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))

    def plain(tensor, _):
        return tensor

    def distributed(tensor, is_cut):
        return distribute_tensor(tensor, mesh, [Shard(0) if is_cut else Replicate()])

    results = {"start": START}

    def keep(name, *measured):
        results[f"{name}, plain"], results[f"{name}, distributed"] = measure_beside(*measured)

    with torch.no_grad():
        on_plain, on_distributed = operators(ROWS, plain), operators(ROWS * ranks, distributed)
        for name, call in on_plain.items():
            calls = max(options.calls // 50, 1) if name.startswith("foreach") else options.calls
            keep(name, call, on_distributed[name], calls, options.samples)
        row, whole = torch.randn(ROWS, COLUMNS), torch.empty(ROWS * ranks, COLUMNS)
        tensor = distributed(torch.randn(ROWS * ranks, COLUMNS), True)
        keep("all-gather", lambda: dist.all_gather_into_tensor(whole, row),
             lambda: tensor.redistribute(mesh, [Replicate()]).to_local(), max(options.calls // 10, 1), options.samples,
             time.process_time)
    steps = max(options.calls // 20, 1)
    keep("MLP", perceptron_step(ROWS, plain), perceptron_step(ROWS * ranks, distributed), steps, options.samples)
    keep("Adam over 100", adam_step(COLUMNS, plain), adam_step(COLUMNS * ranks, distributed), max(steps // 10, 1),
         options.samples)
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
