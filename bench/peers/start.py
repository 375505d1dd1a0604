# SPDX-License-Identifier: Apache-2.0
"""The start of a run with torchrun: bench/multi/start.cpp in Python."""
import json
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
if dist.get_rank() == 0:
    print(json.dumps({"done_at": time.time()}), flush=True)
assert value.item() == dist.get_world_size()
dist.destroy_process_group()
