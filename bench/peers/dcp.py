# SPDX-License-Identifier: Apache-2.0
"""Times saving and loading of checkpoints by torch.distributed.checkpoint: bench/multi/checkpoint.cpp in Python.

Each rank has tensors of its own, which is the least that this package can have to do: no tensor is cut, none has to be
put together. Files are flushed to the disk, as is its default.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

TENSOR_MEGABYTES = 16


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=("save", "load"), default="save")
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--megabytes", type=int, default=512, help="of each rank")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    count = max(options.megabytes // TENSOR_MEGABYTES, 1)
    elements = TENSOR_MEGABYTES * 2**20 // 4
    state = {f"rank{rank}.tensor{i}": torch.randn(elements) for i in range(count)}

    def save(step):
        dcp.save(state, storage_writer=dcp.FileSystemWriter(options.folder / str(step), sync_files=True))
        if rank == 0 and step > 0:
            shutil.rmtree(options.folder / str(step - 1))

    seconds = []
    if options.what == "load":
        save(0)
    for step in range(options.times + 1):
        dist.barrier()
        began = time.perf_counter()
        if options.what == "save":
            save(step)
        else:
            dcp.load(state, storage_reader=dcp.FileSystemReader(options.folder / "0"))
        seconds.append(time.perf_counter() - began)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(options.folder)
        print(json.dumps({"seconds": statistics.median(seconds[1:])}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
