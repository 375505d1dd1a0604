# SPDX-License-Identifier: Apache-2.0
"""Times the blocks of a GPT with torch.utils.checkpoint: bench/multi/pipeline/recompute.cpp in Python."""
import argparse
import json

import torch
from data_parallel import Block, PeakMemory, median_time
from pipeline import LEARNING_RATE, fill, numbers
from torch.utils.checkpoint import checkpoint


def recomputed(block, inputs):
    return checkpoint(block, inputs, use_reentrant=False, preserve_rng_state=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--recompute", type=int, default=0)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=3)
    options = parser.parse_args()

    torch.set_num_threads(1)
    memory = PeakMemory()
    blocks = torch.nn.Sequential(*(Block(256, 4) for _ in range(8)))
    fill(blocks)
    optimizer = torch.optim.SGD(blocks.parameters(), lr=LEARNING_RATE, foreach=False)
    features = torch.randn(4, 128, 256, generator=numbers(0))

    def step():
        optimizer.zero_grad()
        outputs = features.detach().requires_grad_()
        for block in blocks:
            outputs = recomputed(block, outputs) if options.recompute else block(outputs)
        loss = outputs.square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = [step() for _ in range(options.warm_up)]
    memory.end_stretch()
    step_time = median_time(options.steps, step)
    print(json.dumps({"losses": losses, "step_time": step_time, "step_memory": memory.end_stretch()}))


if __name__ == "__main__":
    main()
