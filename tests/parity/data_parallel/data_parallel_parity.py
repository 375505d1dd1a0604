# SPDX-License-Identifier: Apache-2.0
"""Data parallel of Trireme against DistributedDataParallel and fully_shard (FSDP2) of Python torch.

Two ranks of each train the same networks from the same weights on the same data, in fp32 on one thread: the losses of
every step and rank agree to 1e-5 of their value. The sums of two ranks are the same in any order; what may differ is
where a mean is divided, how kernels split what they are given whole or in parts, and how an optimizer orders its terms,
a few units in the last place (6e-8) a step, which ten steps of momentum or AdamW make larger.

usage: data_parallel_parity.py <data_parallel_parity program> <trireme program>
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "checkpoint"))
import tensor_file  # noqa: E402

STEPS, RANKS, TOLERANCE = 10, 2, 1e-5
WORDS, TIME, HIDDEN, HEADS, LAYERS = 61, 16, 32, 4, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.input = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.output = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x):
        parts = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.input(x).chunk(3, -1)]
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(HIDDEN), Attention()
        self.norm2, self.mlp_input = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 4 * HIDDEN)
        self.mlp_output = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp_output(functional.gelu(self.mlp_input(self.norm2(x))))


class Gpt(nn.Module):
    """models/gpt.h, tied and without dropout."""

    def __init__(self):
        super().__init__()
        self.token_embedding = nn.Embedding(WORDS, HIDDEN)
        self.position_embedding = nn.Embedding(TIME, HIDDEN)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(HIDDEN)
        for weight in (self.token_embedding.weight, self.position_embedding.weight):
            nn.init.normal_(weight, 0, 0.02)

    def forward(self, tokens):
        x = self.token_embedding(tokens) + self.position_embedding(torch.arange(tokens.shape[1]))
        return functional.linear(self.norm(self.blocks(x)), self.token_embedding.weight)


def make_network(name):
    if name == "gpt":
        return Gpt()
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def make_data(name):
    """Inputs and targets, [steps, ranks, ...], with something in them to be learned."""
    if name == "gpt":
        text = torch.randint(7, (STEPS, RANKS, 4, TIME + 1)).cumsum(-1) % WORDS
        return text[..., :-1].contiguous(), text[..., 1:].contiguous()
    inputs = torch.randn(STEPS, RANKS, 16, 20)
    return inputs, inputs[..., :10].argmax(-1)


OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01, weight_decay=0.1),
}


def parallelize(net, how):
    if how == "ddp":
        return DistributedDataParallel(net)
    for block in getattr(net, "blocks", []):
        fully_shard(block)
    return fully_shard(net)


def train(net, optimizer, inputs, targets, rank):
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = net(inputs[step, rank])
        loss = functional.cross_entropy(logits.flatten(0, -2), targets[step, rank].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def run_rank(rank, folder):
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", RANKS)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    given, _ = tensor_file.load(f"{folder}/in.safetensors")
    result = {}
    for name in ("mlp", "gpt"):
        prefix = f"{name}.model."
        weights = {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
        for optimizer_name, make_optimizer in OPTIMIZERS.items():
            for how in ("ddp", "fsdp"):
                net = make_network(name)
                net.load_state_dict(weights)
                net = parallelize(net, how)
                own = train(net, make_optimizer(net.parameters()), given[f"{name}.inputs"], given[f"{name}.targets"],
                            rank)
                losses = [torch.empty_like(own) for _ in range(RANKS)]
                torch.distributed.all_gather(losses, own)
                result[f"{name}.{optimizer_name}.{how}"] = torch.stack(losses, 1)
    if rank == 0:
        tensor_file.save(result, f"{folder}/theirs.safetensors")
    # A process that has trained by fully_shard over Gloo now and then aborts at its end, in a destructor: not ours to
    # test. The store is a file, so no rank notices that the other has gone.
    store.set(f"finished{rank}", "")
    store.wait([f"finished{other}" for other in range(RANKS)])
    os._exit(0)


def compare(ours, theirs):
    """Every run of Trireme, one for each ZeRO level, with both of Python."""
    worst = 0.0
    for name, expected in theirs.items():
        assert expected[-1].mean() < 0.97 * expected[0].mean(), f"{name} learned nothing: {expected}"
    for name, got in ours.items():
        for how in ("ddp", "fsdp"):
            expected = theirs[f"{name.rpartition('.')[0]}.{how}"]
            assert got.shape == expected.shape == (STEPS, RANKS)
            difference = ((got - expected).abs() / expected.abs()).max().item()
            worst = max(worst, difference)
            assert difference <= TOLERANCE, f"{name} differs from {how} by {difference:.2e} of a loss"
    return worst


def main():
    program, trireme = sys.argv[1:]
    torch.manual_seed(1)
    given = {}
    for name in ("mlp", "gpt"):
        given |= {f"{name}.model.{key}": value for key, value in make_network(name).state_dict().items()}
        given[f"{name}.inputs"], given[f"{name}.targets"] = make_data(name)
    with tempfile.TemporaryDirectory() as folder:
        tensor_file.save(given, f"{folder}/in.safetensors")
        subprocess.run([trireme, "run", "-n", str(RANKS), "--", program, f"{folder}/in.safetensors",
                        f"{folder}/ours.safetensors"], check=True)
        torch.multiprocessing.spawn(run_rank, (folder,), RANKS)
        ours, _ = tensor_file.load(f"{folder}/ours.safetensors")
        theirs, _ = tensor_file.load(f"{folder}/theirs.safetensors")
    worst = compare(ours, theirs)
    print(f"{len(theirs)} runs of Python and {len(ours)} of Trireme agree, largest relative difference {worst:.1e}")


if __name__ == "__main__":
    main()
