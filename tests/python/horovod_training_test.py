# SPDX-License-Identifier: Apache-2.0
"""Training with Horovod's DistributedOptimizer, compared bit by bit with the same gradients added in one process."""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from typing import Any, Callable, Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import trireme.horovod.torch as hvd
from horovod_test import error_of
from ranks import HOST, cases_of, main
from trireme.horovod.torch.adasum import combine

STEPS = 3
SCRIPTS = Path(__file__).parent / "scripts"


def make_network(seed: int = 7) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, 20, generator=generator), torch.randint(0, 5, (16,), generator=generator)


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    inputs, targets = batch(rank, step)
    return F.cross_entropy(model(inputs), targets)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


def gradients_of(model: nn.Module, losses: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the gradients of losses one after the other, accumulated in this order."""
    model.zero_grad()
    for loss in losses:
        loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


Reduce = Callable[[list[torch.Tensor]], torch.Tensor]


def mean(gradients: list[torch.Tensor]) -> torch.Tensor:
    return sum(gradients[1:], gradients[0]) / len(gradients)


def train_alone(size: int, make: Callable[[nn.Module], torch.optim.Optimizer], reduce: Reduce = mean,
                passes: int = 1) -> list[torch.Tensor]:
    """Trains in one process with the gradients of all ranks. Returns the parameters."""
    model = make_network()
    optimizer = make(model)
    for step in range(STEPS):
        of_ranks = [gradients_of(model, (loss_of(model, rank, passes * step + each) for each in range(passes))) for rank in range(size)]
        for parameter, *gradients in zip(model.parameters(), *of_ranks):
            parameter.grad = reduce(gradients)
        optimizer.step()
    return list(model.parameters())


def train(rank: int, make: Callable[[nn.Module], torch.optim.Optimizer], passes: int = 1, grouped: bool = False,
          **options: Any) -> list[torch.Tensor]:
    model = make_network()
    if grouped:
        options["groups"] = [[model[0].weight, model[2].bias], [model[4].bias]]
    optimizer = hvd.DistributedOptimizer(make(model), model.named_parameters(), backward_passes_per_step=passes, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        for each in range(passes):
            loss_of(model, rank, passes * step + each).backward()
        optimizer.step()
    return list(model.parameters())


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.equal(one, other), f"{place}: {one.flatten()[:5]} and {other.flatten()[:5]}"


def ranks_train_as_one_process(rank: int, size: int) -> None:
    hvd.init()
    for make in (adam, momentum):
        expected = train_alone(size, make)
        for options in ({}, {"groups": 2}, {"groups": 100}, {"grouped": True}, {"gradient_predivide_factor": 2.0}):
            equal(train(rank, make, **options), expected)
    equal(train(rank, momentum, op=hvd.Sum), train_alone(size, momentum, lambda gradients: sum(gradients[1:], gradients[0])))


def gradients_are_compressed_on_the_way(rank: int, size: int) -> None:
    for compression, dtype in ((hvd.Compression.fp16, torch.float16), (hvd.Compression.bf16, torch.bfloat16)):
        def reduce(gradients: list[torch.Tensor]) -> torch.Tensor:
            return mean([gradient.to(dtype).float() for gradient in gradients]).to(dtype).float()
        equal(train(rank, momentum, compression=compression), train_alone(size, momentum, reduce))


def gradients_of_several_passes_are_added(rank: int, size: int) -> None:
    equal(train(rank, momentum, passes=2), train_alone(size, momentum, passes=2))
    model = make_network()
    optimizer = hvd.DistributedOptimizer(momentum(model), model.named_parameters(), backward_passes_per_step=2)
    loss_of(model, rank, 0).backward()
    optimizer.step()  # a last step may have fewer passes
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(1)
    loss_of(model, rank, 1).backward()
    assert "more than 1 times before step()" in error_of(lambda: loss_of(model, rank, 1).backward())
    optimizer.synchronize()


def models_are_merged(rank: int, size: int) -> None:
    encoder, decoder = make_network(1), nn.Linear(5, 2)
    parameters = [*encoder.parameters(), *decoder.parameters()]

    def wrap(named: Any, **options: Any) -> Any:
        return hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), named, **options)
    message = error_of(lambda: wrap([*encoder.named_parameters(), *make_network().named_parameters()]))
    assert "these names are there twice: 0.bias, 0.weight" in message and "a prefix of its own" in message, message
    message = error_of(lambda: wrap(encoder.named_parameters()))
    assert "not among the named ones (group.place and sizes): 0.6 [2, 5], 0.7 [2]" in message, message
    assert "other items than tuples" in error_of(lambda: wrap(encoder.parameters()))
    message = error_of(lambda: wrap([*encoder.named_parameters(), *decoder.named_parameters("decoder")], backward_passes_per_step=1 + rank))
    assert "over 1 backward passes" in message and "rank 1 has SGD" in message, message
    named = [*encoder.named_parameters(), *decoder.named_parameters("decoder")]
    hvd.broadcast_parameters(named, 0)
    optimizer = wrap(named)
    decoder(encoder(batch(rank, 0)[0])).sum().backward()
    optimizer.step()
    weights = hvd.allgather(decoder.weight.detach()[None])
    assert all(torch.equal(weights[0], each) for each in weights)


def wrong_options_are_refused(rank: int, size: int) -> None:
    model = make_network()
    for options, text in (({"op": hvd.Max}, "op is Op.Max"), ({"backward_passes_per_step": 0}, "backward_passes_per_step is 0"),
                          ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "with Average only"), ({"groups": 0}, "groups is 0"),
                          ({"groups": [[1]]}, "no tensors"), ({"groups": [[model[0].bias], [model[0].bias]]}, "twice in groups"),
                          ({"groups": 2, "op": hvd.Adasum}, "Adasum")):
        message = error_of(lambda: hvd.DistributedOptimizer(momentum(model), model.named_parameters(), **options))
        assert text in message and "hint:" in message, message
    # A mistake of one rank is an error on all.
    passes = 1 - min(rank, 1)
    message = error_of(lambda: hvd.DistributedOptimizer(momentum(model), model.named_parameters(), backward_passes_per_step=passes))
    assert "DistributedOptimizer on rank 1: backward_passes_per_step is 0" in message, message


def optimizers_keep_their_class_and_state(rank: int, size: int) -> None:
    model = make_network()
    own = momentum(model)
    scheduler = torch.optim.lr_scheduler.StepLR(own, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(own, model.named_parameters())
    assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
    loss_of(model, rank, 0).backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05 and len(own.state) == len(list(model.parameters()))
    optimizer.load_state_dict(optimizer.state_dict())
    assert "once" in error_of(lambda: hvd.DistributedOptimizer(optimizer, model.named_parameters()))


def gradients_can_be_clipped_before_the_step(rank: int, size: int) -> None:
    model = make_network()
    optimizer = hvd.DistributedOptimizer(momentum(model), model.named_parameters())
    loss_of(model, rank, 0).backward()
    assert "zero_grad() after backward()" in error_of(optimizer.zero_grad)
    optimizer.synchronize()
    norms = hvd.allgather(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)[None])
    assert (norms == norms[0]).all()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    with optimizer.skip_synchronize():
        optimizer.step()
    equal([parameter.grad for parameter in model.parameters()], before)
    optimizer.zero_grad()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, rank, 1)
        loss.backward()
        return loss
    assert optimizer.step(closure).item() > 0


def gradients_may_get_ready_in_any_order(rank: int, size: int) -> None:
    torch.manual_seed(3)
    parts = nn.ModuleDict({name: nn.Linear(4, 4) for name in "abc"})
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parts.parameters(), lr=0.1), parts.named_parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        output = torch.full((2, 4), float(rank + 1))
        for name in ("abc" if rank == 0 else "cba") if step < 2 else "ab"[rank % 2]:  # at last, each rank uses one part alone
            output = parts[name](output)
        output.sum().backward()
        optimizer.step()
        assert all(parameter.grad is not None for parameter in parts.parameters())
    weights = hvd.allgather(torch.stack([part.weight.detach() for part in parts.values()])[None])
    assert all(torch.equal(weights[0], each) for each in weights)


def sparse_gradients_are_added(rank: int, size: int) -> None:
    def run(as_dense: bool) -> torch.Tensor:
        torch.manual_seed(1)
        model = nn.Embedding(30, 4, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                             sparse_as_dense=as_dense)
        for step in range(STEPS):
            optimizer.zero_grad()
            if step < 2 or rank == 0:
                model(torch.tensor([rank, step, 5, 5 + rank])).square().sum().backward()
            optimizer.step()
            assert model.weight.grad.is_sparse or (as_dense and step == 2)
        return model.weight.detach()

    torch.manual_seed(1)
    model = nn.Embedding(30, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        for other in range(size):
            if step < 2 or other == 0:
                (model(torch.tensor([other, step, 5, 5 + other])).square().sum() / size).backward()
        optimizer.step()
    for as_dense in (False, True):
        torch.testing.assert_close(run(as_dense), model.weight.detach())


def parameters_and_state_come_from_the_root(rank: int, size: int) -> None:
    model = make_network(seed=rank)
    message = error_of(lambda: hvd.broadcast_parameters([("weight", torch.ones(2 + min(rank, 1)))], 0))
    assert "rank 0 has weight float32 [2], rank 1 has weight float32 [3]" in message, message
    assert f"root_rank is {size}" in error_of(lambda: hvd.broadcast_parameters(model.state_dict(), size))
    assert "model.state_dict()" in error_of(lambda: hvd.broadcast_parameters(5, 0))
    hvd.broadcast_parameters({**model.state_dict(), "count": torch.tensor(rank)}, root_rank=1)
    equal(list(model.parameters()), list(make_network(seed=1).parameters()))
    for make in (adam, momentum):
        optimizer = make(model)
        if rank == 1:
            optimizer.param_groups[0]["lr"] = 0.5
            loss_of(model, 0, 0).backward()
            optimizer.step()
        hvd.broadcast_parameters(model.state_dict(), root_rank=1)
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert optimizer.param_groups[0]["lr"] == 0.5 and len(optimizer.state) == len(list(model.parameters()))
        everything = hvd.allgather_object([[value for value in state.values()] for state in optimizer.state.values()])
        for other in everything:
            for one, two in zip(everything[0], other, strict=True):
                equal([each for each in one if isinstance(each, torch.Tensor)], [each for each in two if isinstance(each, torch.Tensor)])
        optimizer.zero_grad()
        loss_of(model, 0, 1).backward()
        optimizer.step()  # the state fits
    assert "LBFGS" in error_of(lambda: hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0))
    message = error_of(lambda: hvd.broadcast_optimizer_state(adam(model) if rank == 0 else momentum(model), 0))
    assert "rank 0 has optimizer Adam, rank 1 has optimizer SGD" in message, message


def parameters_that_were_not_broadcast_are_named(rank: int, size: int) -> None:
    model = make_network()
    with torch.no_grad():
        model[2].bias[3] += rank
    optimizer = hvd.DistributedOptimizer(momentum(model), model.named_parameters())
    loss_of(model, rank, 0).backward()
    message = error_of(optimizer.step)
    assert "parameter 2.bias is not the same on ranks 0 and 1" in message and "broadcast_parameters" in message, message
    optimizer.synchronize()  # is not compared again


def parameters_that_the_optimizer_does_not_step_are_named(rank: int, size: int) -> None:
    model = make_network()
    model[0].weight.requires_grad_(False)  # frozen
    with torch.no_grad():
        model[0].weight[0] += rank
    last = model[4]
    stepped = [parameter for parameter in model.parameters() if parameter is not last.bias]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(stepped, lr=0.1), model.named_parameters())
        loss_of(model, rank, 0).backward()
        optimizer.step()
    messages = [str(warning.message) for warning in caught]
    assert any("does not have these named parameters, whose gradients are not reduced: 4.bias" in each for each in messages), messages
    assert any("parameter 0.weight, whose gradient is not reduced, is not the same on ranks 0 and 1" in each and
               "hvd.broadcast_parameters" in each for each in messages), messages


def optimizers_may_have_the_same_names(rank: int, size: int) -> None:
    first, second = make_network(1), make_network(2)
    optimizers = [hvd.DistributedOptimizer(momentum(model), model.named_parameters()) for model in (first, second)]
    (loss_of(first, rank, 0) + loss_of(second, rank, 0)).backward()
    for optimizer in optimizers:
        optimizer.step()


def optimizers_of_a_process_set_leave_others_alone(rank: int, size: int) -> None:
    process_set = hvd.add_process_set(list(range(size - 1)))
    model = make_network()
    optimizer = hvd.DistributedOptimizer(momentum(model), model.named_parameters(), process_set=process_set)
    loss_of(model, rank, 0).backward()
    own = [parameter.grad.clone() for parameter in model.parameters()]
    optimizer.step()
    if rank == size - 1:
        equal([parameter.grad for parameter in model.parameters()], own)
    hvd.remove_process_set(process_set)


def ranks_may_have_uneven_batches(rank: int, size: int) -> None:
    model = make_network()
    optimizer = hvd.DistributedOptimizer(momentum(model), model.named_parameters())
    for step in range(1 + 2 * rank):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        before = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        loss.backward()
        optimizer.step()
        if step > 0 and size == 2:  # rank 0 has joined, and contributes zeros
            reduced = [parameter.grad.clone() for parameter in model.parameters()]
            own = [gradient / size for gradient in before]
            equal(reduced, own)
    assert hvd.join() == size - 1
    hvd.broadcast_parameters(model.state_dict(), root_rank=size - 1)


def adasum_combines_steps(rank: int, size: int) -> None:
    if size != 2:
        return
    ours = train(rank, momentum, op=hvd.Adasum)
    models = [make_network(), make_network()]
    optimizers = [momentum(model) for model in models]
    for step in range(STEPS):
        before = [parameter.detach().clone() for parameter in models[0].parameters()]
        for other, (model, optimizer) in enumerate(zip(models, optimizers)):
            optimizer.zero_grad()
            loss_of(model, other, step).backward()
            optimizer.step()
        with torch.no_grad():
            for old, one, two in zip(before, *(model.parameters() for model in models)):
                one.copy_(old + combine(one - old, two - old))
                two.copy_(one)
    equal(ours, list(models[0].parameters()))
    model = make_network()
    optimizer = hvd.DistributedOptimizer(momentum(model), model.named_parameters(), op=hvd.Adasum)
    assert "skip_synchronize() with Adasum" in error_of(optimizer.skip_synchronize)


def batch_norm_is_that_of_the_whole_batch(rank: int, size: int) -> None:
    counts = [4 + other for other in range(size)]
    torch.manual_seed(5)
    whole, weights = torch.randn(sum(counts), 3, 6) * 2 + 1, torch.randn(sum(counts), 3, 6)
    for momentum_of, affine in ((0.1, True), (None, False)):
        alone, ours = nn.BatchNorm1d(3, momentum=momentum_of, affine=affine), hvd.SyncBatchNorm(3, momentum=momentum_of, affine=affine)
        expected_input, own_input = whole.clone().requires_grad_(), whole.split(counts)[rank].clone().requires_grad_()
        expected, result = alone(expected_input), ours(own_input)
        torch.testing.assert_close(result, expected.split(counts)[rank], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.running_mean, alone.running_mean)
        torch.testing.assert_close(ours.running_var, alone.running_var)
        (expected * weights).sum().backward()
        (result * weights.split(counts)[rank]).sum().backward()
        torch.testing.assert_close(own_input.grad, expected_input.grad.split(counts)[rank], rtol=1e-4, atol=1e-5)
        if affine:
            torch.testing.assert_close(hvd.allreduce(ours.weight.grad, op=hvd.Sum), alone.weight.grad, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(hvd.allreduce(ours.bias.grad, op=hvd.Sum), alone.bias.grad, rtol=1e-4, atol=1e-4)
        alone.eval(), ours.eval()
        torch.testing.assert_close(ours(own_input), alone(own_input))
    assert "[N, C, ...]" in error_of(lambda: hvd.SyncBatchNorm(3)(torch.ones(3)))


CASES = [ranks_train_as_one_process, gradients_are_compressed_on_the_way, gradients_of_several_passes_are_added, models_are_merged,
         wrong_options_are_refused, optimizers_keep_their_class_and_state, gradients_can_be_clipped_before_the_step,
         gradients_may_get_ready_in_any_order, sparse_gradients_are_added, parameters_and_state_come_from_the_root,
         parameters_that_were_not_broadcast_are_named, parameters_that_the_optimizer_does_not_step_are_named,
         optimizers_may_have_the_same_names, optimizers_of_a_process_set_leave_others_alone,
         ranks_may_have_uneven_batches, adasum_combines_steps, batch_norm_is_that_of_the_whole_batch]
OverTwoRanks = cases_of(CASES)
OverThreeRanks = cases_of(CASES, 3)


class Scripts(unittest.TestCase):
    """Scripts with the calls of Horovod's examples, each in its order."""

    def run_script(self, name: str, *arguments: str) -> str:
        """Runs a script in two ranks, and returns what rank 0 printed."""
        store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        ranks = []
        for rank in range(2):
            environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                           "MASTER_ADDR": HOST, "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
            ranks.append(subprocess.Popen([sys.executable, "-W", "ignore", str(SCRIPTS / name), *arguments], env=environment, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        outputs = [rank.communicate(timeout=120) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
        return outputs[0][0]

    def losses(self, output: str) -> list[float]:
        return [float(line.split()[-1]) for line in output.splitlines() if line.startswith("loss")]

    def test_classification(self) -> None:
        plain = self.losses(self.run_script("horovod_digits.py"))
        self.assertLess(plain[-1], 0.8 * plain[0])
        losses = self.losses(self.run_script("horovod_digits.py", "--use-adasum", "--fp16-allreduce"))
        self.assertLess(losses[-1], 0.9 * losses[0])

    def test_accumulation_and_going_on_from_a_checkpoint(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            first = self.run_script("horovod_residual.py", "--folder", folder, "--epochs", "1")
            second = self.run_script("horovod_residual.py", "--folder", folder, "--epochs", "2")
        self.assertIn("begins with epoch 0", first)
        self.assertIn("begins with epoch 1", second)
        self.assertLess(self.losses(second)[-1], self.losses(first)[0])


if __name__ == "__main__":
    main()
