# SPDX-License-Identifier: Apache-2.0
"""The layer of bench/multi/tensor_layer.cpp, cut over the ranks by PyTorch's parallelize_module.

Queries, keys and values are a product each, as DTensor wants it: the columns of one product of all three would have to be
gathered. That is the same work.
"""
import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

BATCH, SEQUENCE, HIDDEN, HEADS = 4, 128, 256, 8


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.queries, self.keys, self.values = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.output = nn.Linear(HIDDEN, HIDDEN)
        self.mlp_input, self.mlp_output = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def attention(self, features):
        # The heads of this rank: as many as its columns make.
        parts = [product(features).unflatten(-1, (-1, HIDDEN // HEADS)).transpose(1, 2)
                 for product in (self.queries, self.keys, self.values)]
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def forward(self, features):
        attended = features + self.attention(self.norm1(features))
        return attended + self.mlp_output(functional.gelu(self.mlp_input(self.norm2(attended))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--samples", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    layer = Layer()
    features = torch.randn(BATCH, SEQUENCE, HIDDEN).requires_grad_()
    columns = {name: ColwiseParallel() for name in ("queries", "keys", "values", "mlp_input")}
    rows = {name: RowwiseParallel() for name in ("output", "mlp_output")}
    parallelize_module(layer, init_device_mesh("cpu", (dist.get_world_size(),)), {**columns, **rows})

    def calls():
        for _ in range(options.calls):
            features.grad = None
            layer.zero_grad(set_to_none=True)
            layer(features).sum().backward()

    calls()
    seconds = []
    for _ in range(options.samples):
        dist.barrier()
        began = time.perf_counter()
        calls()
        seconds.append((time.perf_counter() - began) / options.calls)
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps({"GPT layer": statistics.median(seconds)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
