# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a training in PyTorch share: the step, sums over ranks, and the end."""
import json
import os

import torch
import torch.distributed as dist


def summed(value):
    """Returns the sum of a number over all ranks."""
    total = torch.as_tensor(float(value), dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def take_step(loss, model, optimizer, scheduler):
    """Steps by the gradients of a loss, clipped to a norm of 1. Returns the mean loss over the ranks."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    return summed(loss.detach()) / dist.get_world_size()


def end(losses, validation_loss):
    """Prints the result on rank 0, and ends the process."""
    if dist.get_rank() == 0:
        print(json.dumps({"losses": losses, "validation_loss": validation_loss}), flush=True)
    dist.barrier()
    # Without this, the destructor of ProcessGroupGloo may wait without end for its thread, which waits for Python's lock.
    os._exit(0)
