# SPDX-License-Identifier: Apache-2.0
"""Distributed tensors of Trireme against DTensor of Python torch.

Two ranks of each are given the same whole inputs in the same layouts, in double precision. Placements of results agree, and
with them what every rank holds, and the gradient of every input, brought to the input's layout, agrees rank by rank; where
DTensor chooses another placement by design, DIFFERENT says why, and the whole results are compared.

Sizes that do not divide are cut alike on two ranks only: DTensor cuts by torch.chunk (7 on 3 ranks: 3, 3, 1), Trireme as
evenly as it can be (3, 2, 2).

usage: tensor_parity.py <tensor_parity program> <trireme program>
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "checkpoint"))
import tensor_file  # noqa: E402

RANKS, TOLERANCE = 2, 1e-12
R, P = Replicate(), Partial()


def S(dim):
    return Shard(dim)


WIDTH, HEADS = 12, 4
WEIGHTS = {"norm1.weight": R, "norm1.bias": R, "query": S(0), "key": S(0), "value": S(0), "output": S(1),
           "norm2.weight": R, "norm2.bias": R, "up": S(0), "up.bias": S(0), "down": S(1), "down.bias": R}


def attention(query, key, value):
    """DTensor has no rule for the kernel that LibTorch takes on CPU."""
    scores = (query @ key.mT) * query.shape[-1] ** -0.5
    return scores.softmax(-1) @ value


def block(x, norm1, norm1_bias, query, key, value, output, norm2, norm2_bias, up, up_bias, down, down_bias):
    """A transformer's, cut as Megatron-LM cuts it: whole activations between pairs of products."""
    rows = functional.layer_norm(x, (WIDTH,), norm1, norm1_bias)
    parts = [functional.linear(rows, weight).unflatten(-1, (HEADS, -1)).transpose(1, 2) for weight in (query, key, value)]
    mixed = attention(*parts)
    x = x + functional.linear(mixed.transpose(1, 2).flatten(2), output)
    rows = functional.layer_norm(x, (WIDTH,), norm2, norm2_bias)
    return x + functional.linear(functional.gelu(functional.linear(rows, up, up_bias)), down, down_bias)


def block_shapes(width):
    shapes = {"query": (width, width), "key": (width, width), "value": (width, width), "output": (width, width),
              "up": (4 * width, width), "up.bias": (4 * width,), "down": (width, 4 * width)}
    return [shapes.get(name, (width,)) for name in WEIGHTS]


# Name: function, shapes of inputs, their placements.
CASES = {
    "add": (lambda a, b: a + b, [(5, 3), (5, 3)], [S(0), S(0)]),
    "add to rows": (lambda a, b: a + b, [(5, 3), (3,)], [S(0), R]),
    "add columns": (lambda a, b: a + b, [(5, 3), (3,)], [S(1), S(0)]),
    "multiply partial": (lambda a, b: a * b, [(5, 3), (5, 3)], [P, R]),
    "gelu": (functional.gelu, [(7, 2)], [S(0)]),
    "columns of a product": (torch.mm, [(5, 3), (3, 7)], [R, S(1)]),
    "rows of a product": (torch.mm, [(5, 3), (3, 7)], [S(0), R]),
    "summands of a product": (torch.mm, [(5, 7), (7, 3)], [S(1), S(0)]),
    "batched product": (torch.bmm, [(3, 2, 4), (3, 4, 5)], [S(0), S(0)]),
    "linear by columns": (functional.linear, [(5, 3), (7, 3), (7,)], [R, S(0), S(0)]),
    "linear by rows": (functional.linear, [(5, 6), (7, 6)], [S(1), S(1)]),
    "sum of all": (lambda a: a.sum(), [(5, 3)], [S(0)]),
    "sum of the cut dim": (lambda a: a.sum(0), [(5, 3)], [S(0)]),
    "sum of rows": (lambda a: a.sum(1, keepdim=True), [(5, 3)], [S(0)]),
    "mean of the cut dim": (lambda a: a.mean(0), [(4, 3)], [S(0)]),
    "largest of the cut dim": (lambda a: a.amax(0), [(5, 3)], [S(0)]),
    "softmax of rows": (lambda a: a.softmax(1), [(5, 3)], [S(0)]),
    "softmax of the cut dim": (lambda a: a.softmax(1), [(4, 5)], [S(1)]),
    "layer norm": (lambda a, w, b: functional.layer_norm(a, (4,), w, b), [(5, 4), (4,), (4,)], [S(0), R, R]),
    "view": (lambda a: a.view(6, 2, 2), [(6, 4)], [S(0)]),
    "flatten": (lambda a: a.flatten(0, 1), [(4, 3, 2)], [S(0)]),
    "transpose": (lambda a: a.t(), [(5, 3)], [S(0)]),
    "slice": (lambda a: a[:, 1:3], [(5, 4)], [S(0)]),
    "cat": (lambda a, b: torch.cat((a, b), 1), [(5, 3), (5, 2)], [S(0), S(0)]),
    "split": (lambda a: torch.sub(*torch.split(a, 2, 1)), [(5, 4)], [S(0)]),
    "attention over heads": (attention, [(2, 4, 5, 3)] * 3, [S(1)] * 3),
    "transformer block": (block, [(3, 5, WIDTH), *block_shapes(WIDTH)], [R, *WEIGHTS.values()]),
    # Even: DTensor refuses to fold a batch of 3 that is cut by 2 into the rows of a product.
    "transformer block, cut batch": (block, [(4, 5, WIDTH), *block_shapes(WIDTH)], [S(0), *[R] * len(WEIGHTS)]),
}

# Cases in which the placements of the results differ, and why.
DIFFERENT = {
    "softmax of the cut dim": "DTensor gathers the dim; Trireme exchanges maxima and sums, and leaves it cut",
    "transformer block": "Trireme reduce-scatters a sum for the norm that follows, and the sum stays so (sequence parallel); "
                         "DTensor all-reduces it for the norm alone and adds to summands",
}


def code(placement):
    """A placement as two numbers."""
    if placement.is_shard():
        return [1, placement.dim]
    return [2, 0] if placement.is_partial() else [0, 0]


def name_of(numbers):
    return ("Replicate", f"Shard({numbers[1]})", "Partial")[numbers[0]]


def make_inputs():
    given = {}
    for name, (_, shapes, placements) in CASES.items():
        for i, shape in enumerate(shapes):
            given[f"{name}/{i}"] = torch.randn(shape, dtype=torch.double)
        given[f"{name}/placements"] = torch.tensor([code(placement) for placement in placements])
    return given


def on_mesh(tensor, mesh, placement):
    if placement.is_partial():
        # A summand each: the tensor on rank 0, nothing elsewhere.
        local = tensor if mesh.get_rank() == 0 else torch.zeros_like(tensor)
        return DTensor.from_local(local.clone(), mesh, [placement])
    return distribute_tensor(tensor, mesh, [placement])


def run_case(name, given, mesh):
    function, shapes, placements = CASES[name]
    inputs = [on_mesh(given[f"{name}/{i}"], mesh, placement).detach().requires_grad_()
              for i, placement in enumerate(placements)]
    result = function(*inputs)
    whole = result.full_tensor()
    # Weighted, so that every element's gradient differs.
    (whole * torch.arange(1, whole.numel() + 1, dtype=torch.double).view(whole.shape)).sum().backward()
    found = {f"{name}/placement": torch.tensor(code(result.placements[0])), f"{name}/local": result.to_local(),
             f"{name}/whole": whole}
    for i, (tensor, placement) in enumerate(zip(inputs, placements)):
        target = R if placement.is_partial() else placement
        found[f"{name}/gradient {i}"] = tensor.grad.redistribute(mesh, [target]).to_local()
    return {key: tensor.detach().contiguous() for key, tensor in found.items()}


def run_rank(rank, folder):
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", RANKS)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    given, _ = tensor_file.load(f"{folder}/in.safetensors")
    found = {}
    for name in CASES:
        found |= run_case(name, given, mesh)
    tensor_file.save(found, f"{folder}/theirs.{rank}.safetensors")
    torch.distributed.destroy_process_group()


def close(ours, theirs, what):
    assert ours.shape == theirs.shape, f"{what} is {list(ours.shape)} here and {list(theirs.shape)} in DTensor"
    assert torch.allclose(ours, theirs, TOLERANCE, TOLERANCE), f"{what} differs:\n{ours}\n{theirs}"


def compare(ours, theirs, rank):
    for name, (_, shapes, _) in CASES.items():
        placements = [name_of(each[f"{name}/placement"].tolist()) for each in (ours, theirs)]
        if name in DIFFERENT:
            assert placements[0] != placements[1], f"{name}: both are {placements[0]} now; take it out of DIFFERENT"
        else:
            assert placements[0] == placements[1], f"{name}: {placements[0]} here, {placements[1]} in DTensor"
            if placements[0] != "Partial":  # which rank has which summand is nobody's business
                close(ours[f"{name}/local"], theirs[f"{name}/local"], f"{name}, the part of rank {rank}")
        close(ours[f"{name}/whole"], theirs[f"{name}/whole"], name)
        for i in range(len(shapes)):
            close(ours[f"{name}/gradient {i}"], theirs[f"{name}/gradient {i}"],
                  f"{name}, the gradient of input {i} on rank {rank}")


def main():
    program, trireme = sys.argv[1:]
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        tensor_file.save(make_inputs(), f"{folder}/in.safetensors")
        subprocess.run([trireme, "run", "-n", str(RANKS), "--", program, f"{folder}/in.safetensors", f"{folder}/ours"],
                       check=True)
        torch.multiprocessing.spawn(run_rank, (folder,), RANKS)
        for rank in range(RANKS):
            ours, _ = tensor_file.load(f"{folder}/ours.{rank}.safetensors")
            theirs, _ = tensor_file.load(f"{folder}/theirs.{rank}.safetensors")
            compare(ours, theirs, rank)
    print(f"{len(CASES)} cases agree on {RANKS} ranks, {len(DIFFERENT)} of them with another placement by design")


if __name__ == "__main__":
    main()
