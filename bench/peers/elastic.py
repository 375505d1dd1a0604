# SPDX-License-Identifier: Apache-2.0
"""bench/multi/elastic.cpp with DistributedDataParallel under torchrun.

Rank 0 saves model and optimizer to a folder in memory after every tenth step, and all ranks load the newest one when they start.
"""
import argparse
import json
import os
import signal
import time

BEGAN = time.time()

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROWS = 32
SAVE_EVERY = 10


def fail(options):
    with open(options.stamp, "w") as file:
        file.write(f"{time.time():.6f}")
    os.kill(os.getpid(), signal.SIGKILL if options.fault == "kill" else signal.SIGSTOP)


def save(path, model, optimizer, step):
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".new")
    os.rename(path + ".new", path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--stamp", default="")
    parser.add_argument("--state", required=True, help="file for the state")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fault-step", type=int, default=40)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(1)
    layers = [layer for _ in range(4) for layer in (nn.Linear(options.width, options.width), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs = torch.randn(options.steps, ROWS, options.width)
    targets = torch.zeros(ROWS, options.width)
    done = 0
    if attempt > 0:
        state = torch.load(options.state)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    first = None
    for step in range(done, options.steps):
        if options.fault != "none" and attempt == 0 and rank == 1 and step + 1 == options.fault_step:
            fail(options)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[step]), targets).backward()
        optimizer.step()
        if first is None and attempt > 0 and rank == 0:
            now = time.time()
            with open(options.stamp) as file:
                fault = float(file.read())
            print(json.dumps({"restart_time": BEGAN - fault, "resume_time": now - fault,
                              "lost_steps": options.fault_step - step - 1}), flush=True)
        first = first or step
        if rank == 0 and (step + 1) % SAVE_EVERY == 0:
            save(options.state, model, optimizer, step + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
