# SPDX-License-Identifier: Apache-2.0
"""trireme.parallelize with an axis `tensor`: modules of Python whose parameters are distributed, compared with one process."""
from __future__ import annotations

import copy
import pickle
import unittest
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import nn

import trireme
from plain_networks import GPT, Square
from ranks import cases_of, main

STEPS = 3
COLUMNS, ROWS = "Shard(0) on tensor", "Shard(1) on tensor"
OF_GPT = {"*.attention.input.*": COLUMNS, "*.attention.output.weight": ROWS, "*.mlp_input.*": COLUMNS, "*.mlp_output.weight": ROWS,
          "token_embedding.weight": COLUMNS, "head.weight": COLUMNS}
OF_MLP = {"up.*": COLUMNS, "down.weight": ROWS}


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(16, 64), nn.Linear(64, 16), nn.LayerNorm(16)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(Square.apply(F.gelu(self.up(self.norm(inputs)))))


def loss_of_mlp(model: nn.Module, part: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + part)
    inputs, targets = (torch.randn(4, 3, 16, generator=generator) for _ in range(2))
    return F.mse_loss(model(inputs), targets)


def loss_of_gpt(model: nn.Module, part: int, step: int) -> torch.Tensor:
    return model.loss(torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(10 * step + part)))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[..., torch.Tensor], parts: list[int],
          clip: Callable[[], Any], first: int = 0) -> list[float]:
    """Returns the losses of the last of `parts` of the data. Gradients are the mean over all of them."""
    losses = []
    for step in range(first, first + STEPS):
        optimizer.zero_grad()
        for part in parts:
            loss = loss_of(model, part, step)
            (loss / len(parts)).backward()
        clip()
        optimizer.step()
        losses.append(loss.item())
    return losses


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert list(one) == list(other)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def compare(rank: int, make: Callable[[], nn.Module], loss_of: Callable[..., torch.Tensor], plan: trireme.Plan) -> None:
    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)

    torch.manual_seed(5)
    model = make()
    expected = copy.deepcopy(model)
    expected_optimizer, optimizer = optimizer_of(expected), optimizer_of(model)
    parallel = trireme.parallelize(model, plan, optimizer=optimizer)
    part, parts = parallel.data_part

    def both(first: int) -> None:
        expected_losses = train(expected, expected_optimizer, loss_of, [each for each in range(parts) if each != part] + [part],
                                lambda: nn.utils.clip_grad_norm_(expected.parameters(), 0.5), first)
        losses = train(model, optimizer, loss_of, [part], lambda: parallel.clip_grad_norm_(0.5), first)
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected_losses), rtol=1e-4, atol=1e-5)
        close(model.state_dict(), expected.state_dict())
        state, expected_state = optimizer.state_dict()["state"], expected_optimizer.state_dict()["state"]
        assert state.keys() == expected_state.keys()
        for number in state:
            close(state[number], expected_state[number])

    both(0)
    plain = make()  # the whole state fits plain PyTorch
    plain_optimizer = optimizer_of(plain)
    plain.load_state_dict(model.state_dict())
    plain_optimizer.load_state_dict(optimizer.state_dict())
    expected.load_state_dict(plain.state_dict())
    expected_optimizer.load_state_dict(copy.deepcopy(plain_optimizer.state_dict()))
    model.load_state_dict(plain.state_dict())  # and back
    optimizer.load_state_dict(copy.deepcopy(plain_optimizer.state_dict()))
    both(STEPS)


def an_mlp_trains_as_in_one_process(rank: int, size: int) -> None:
    compare(rank, MLP, loss_of_mlp, trireme.Plan(mesh={"tensor": size}, layouts=OF_MLP))


def a_gpt_trains_as_in_one_process(rank: int, size: int) -> None:
    compare(rank, lambda: GPT(layers=2), loss_of_gpt, trireme.Plan(mesh={"tensor": size}, layouts=OF_GPT))
    compare(rank, lambda: GPT(layers=1, tied=True), loss_of_gpt, trireme.Plan(mesh={"tensor": size}, layouts={
        name: layout for name, layout in OF_GPT.items() if name != "head.weight"}))


def operators_run_as_the_plan_says(rank: int, size: int) -> None:
    plan = trireme.Plan(mesh={"tensor": size}, layouts=OF_MLP,
                        operators=["down gives Shard(1) on tensor"])
    compare(rank, MLP, loss_of_mlp, plan)
    model = MLP()
    # Names of operators hold for all modules on a mesh, and so for a process group.
    trireme.parallelize(model, plan.replace(operators=["down gives Shard(1) on tensor", f"aten::gelu takes {{{{1, 1, {size}}}}}"]),
                        group=torch.distributed.new_group())
    assert "Shard(1)" in repr(model.down(model.up(torch.ones(4, 3, 16))))
    try:
        trireme.parallelize(MLP(), plan.replace(operators=["dwn gives Shard(1) on tensor"]))
    except Exception as error:
        assert "dwn fits no module" in str(error), error
    else:
        raise AssertionError("no error")


def parameters_are_distributed(rank: int, size: int) -> None:
    model = MLP()
    whole = copy.deepcopy(model)
    trireme.parallelize(model, trireme.Plan(mesh={"tensor": size}, layouts=OF_MLP, broadcast_parameters=False))
    assert model.up.weight.shape == (64, 16) and isinstance(model.up.weight, nn.Parameter)
    assert trireme.has_layout(model.up.weight) and not trireme.has_layout(whole.up.weight)
    assert trireme.to_local(model.up.weight).shape == (64 // size, 16)
    assert trireme.full(model.up.weight).shape == (64, 16)


def printing_needs_no_other_rank(rank: int, size: int) -> None:
    model = MLP()
    trireme.parallelize(model, trireme.Plan(mesh={"tensor": size}, layouts=OF_MLP))
    output = model(torch.ones(2, 16))
    if rank == 0:
        shown = repr(model.up.weight)
        assert "Parameter containing" in shown and "float32 [64, 16]" in shown and "Shard(0)" in shown, shown
        assert "requires_grad=True" in shown, shown
        assert "[2, 16]" in str(output) and "grad_fn=<Add" in f"{output}", str(output)
        assert "up.weight" not in repr(model)
    assert repr(torch.ones(2)) == "tensor([1., 1.])"


def what_needs_memory_is_refused(rank: int, size: int) -> None:
    model = MLP()
    trireme.parallelize(model, trireme.Plan(mesh={"tensor": size}, layouts=OF_MLP))
    weight = model.up.weight.detach()
    for call in (weight.numpy, weight.tolist, weight.data_ptr, lambda: pickle.dumps(weight), lambda: pickle.dumps(model)):
        try:
            call()
        except RuntimeError as error:
            assert "a distributed tensor has no memory of its own" in str(error), error
        else:
            raise AssertionError(f"{call} worked")


def other_rows_on_ranks_that_work_together_are_an_error(rank: int, size: int) -> None:
    model = MLP()
    trireme.parallelize(model, trireme.Plan(mesh={"tensor": size}, layouts=OF_MLP))
    try:
        model(torch.full((2, 16), float(rank))).sum().backward()
    except RuntimeError as error:
        assert "plain tensor" in str(error) or "differ" in str(error), error
    else:
        raise AssertionError("no error")


def a_data_axis_and_zero_come_on_top(rank: int, size: int) -> None:
    for level in (0, 1, 2, 3):
        compare(rank, MLP, loss_of_mlp, trireme.Plan(mesh={"data": 2, "tensor": 2}, layouts=OF_MLP, zero_level=level))
    compare(rank, lambda: GPT(layers=1), loss_of_gpt, trireme.Plan(mesh={"data": 2, "tensor": 2}, layouts=OF_GPT, zero_level=2))


def optimizers_that_have_stepped_are_distributed(rank: int, size: int) -> None:
    torch.manual_seed(5)
    model = MLP()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)
    train(model, optimizer, loss_of_mlp, [0], lambda: None)
    expected, expected_optimizer = copy.deepcopy((model, optimizer))
    trireme.parallelize(model, trireme.Plan(mesh={"tensor": size}, layouts=OF_MLP), optimizer=optimizer)
    assert trireme.has_layout(optimizer.state[model.up.weight]["exp_avg"])
    for each, its_optimizer in ((model, optimizer), (expected, expected_optimizer)):
        train(each, its_optimizer, loss_of_mlp, [0], lambda: None, first=STEPS)
    close(model.state_dict(), expected.state_dict())


class WithWholePart(MLP):
    """Has a part that reads the memory of its input."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.down(F.gelu(self.up(inputs)))

        def whole(features: torch.Tensor) -> tuple[torch.Tensor, int]:
            return self.norm(features) * float(features.detach().numpy().shape[0]), 4

        normed, number = trireme.run_replicated(whole, hidden)
        assert number == 4
        return inputs + normed


def layers_may_stay_whole(rank: int, size: int) -> None:
    compare(rank, WithWholePart, loss_of_mlp, trireme.Plan(mesh={"data": 2, "tensor": 2}, layouts={**OF_MLP, "norm.*": "plain"}))


OverTwoRanks = cases_of([an_mlp_trains_as_in_one_process, a_gpt_trains_as_in_one_process,
                         operators_run_as_the_plan_says, parameters_are_distributed, optimizers_that_have_stepped_are_distributed, printing_needs_no_other_rank, what_needs_memory_is_refused,
                         other_rows_on_ranks_that_work_together_are_an_error])
OverFourRanks = cases_of([an_mlp_trains_as_in_one_process, a_data_axis_and_zero_come_on_top, layers_may_stay_whole], 4)

if __name__ == "__main__":
    main()
