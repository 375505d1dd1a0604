# SPDX-License-Identifier: Apache-2.0
"""The operators of bench/multi/tensor.cpp on PyTorch's DTensor and on plain tensors, from Python."""
import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

ROWS, COLUMNS = 8, 64


def measure(call, calls, samples, clock=time.perf_counter):
    """Median over samples of the seconds that one call takes."""
    for _ in range(calls):
        call()
    seconds = []
    for _ in range(samples):
        began = clock()
        for _ in range(calls):
            call()
        seconds.append((clock() - began) / calls)
    return statistics.median(seconds)


def operators(rows, make):
    a, b = make(torch.randn(rows, COLUMNS), True), make(torch.randn(rows, COLUMNS), True)
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
        "in-place multiply": lambda: a.mul_(b),
        "cat": lambda: torch.cat((a, b), 1),
        "detach": lambda: a.detach(),
        "foreach add of 100": lambda: torch._foreach_add(some, others),
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

    results = {}
    with torch.no_grad():
        on_plain, on_distributed = operators(ROWS, plain), operators(ROWS * ranks, distributed)
        for name, call in on_plain.items():
            calls = max(options.calls // 50, 1) if name.startswith("foreach") else options.calls
            results[f"{name}, plain"] = measure(call, calls, options.samples)
            results[f"{name}, distributed"] = measure(on_distributed[name], calls, options.samples)
        row, whole = torch.randn(ROWS, COLUMNS), torch.empty(ROWS * ranks, COLUMNS)
        tensor = distributed(torch.randn(ROWS * ranks, COLUMNS), True)
        few = max(options.calls // 10, 1)
        results["all-gather, plain"] = measure(lambda: dist.all_gather_into_tensor(whole, row), few, options.samples,
                                               time.process_time)
        results["all-gather, distributed"] = measure(
            lambda: tensor.redistribute(mesh, [Replicate()]).to_local(), few, options.samples, time.process_time)
    steps = max(options.calls // 20, 1)
    results["MLP, plain"] = measure(perceptron_step(ROWS, plain), steps, options.samples)
    results["MLP, distributed"] = measure(perceptron_step(ROWS * ranks, distributed), steps, options.samples)
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
