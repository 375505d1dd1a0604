# SPDX-License-Identifier: Apache-2.0
"""Predictions of modules of Python: the figures of `trireme predict`, which networks work, and what is refused."""
from __future__ import annotations

import copy
import json
import unittest
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import trireme
from commands import needs_program, run_command
from plain_networks import GPT, SIZES, ProductAndSum, ResNet18, Square, on_meta, tokens
from ranks import main, thorough


class LikeTheCommand(unittest.TestCase):
    @needs_program
    @thorough
    def test_the_same_operators_have_the_same_prediction(self) -> None:
        model = on_meta(lambda: GPT(linear=ProductAndSum))
        for settings in ({"mesh": {"data": 8}},
                         {"mesh": {"pipe": 2, "data": 4}, "micro_batches": 4, "zero_level": 1, "schedule": "zb-h1"},
                         {"mesh": {"data": 8}, "zero_level": 3, "recompute": ["blocks.*"]}):
            plan = trireme.Plan(**settings)
            options = [f"{name}={json.dumps([f'{axis}={size}' for axis, size in value.items()] if name == 'mesh' else value)}"
                       for name, value in settings.items()]
            expected = run_command("predict", "--model", "gpt", *SIZES, "--rows", "2", "-n", "8", "--cluster", "h100-80",
                                   *(word for option in options for word in ("--plan-set", option)))
            with self.subTest(plan=plan):
                given = trireme.predict(model, model.loss, inputs=[tokens(2)], plan=plan, cluster="h100-80")
                self.assertEqual(given.to_dict(), expected)
                used = trireme.predict(model, lambda: model.loss(tokens(2)), plan=plan, cluster="h100-80")
                self.assertEqual(used.to_dict(), expected)

    @needs_program
    @thorough
    def test_layers_of_pytorch_differ_by_their_kernels_alone(self) -> None:
        # torch::nn::Linear adds its bias by a kernel of its own, and torch::nn::BatchNorm counts batches by another operator.
        for make, arguments, inputs in (
                (GPT, ["gpt", *SIZES, "--rows", "2"], [tokens(2)]),
                (lambda: GPT(tied=True), ["gpt", *SIZES, "--set", "tied=true", "--rows", "2"], [tokens(2)]),
                (ResNet18, ["resnet", "--set", "blocks=2,2,2,2", "--set", "bottleneck=false", "--rows", "4"],
                 [torch.empty(4, 3, 224, 224, device="meta"), torch.empty(4, dtype=torch.int64, device="meta")])):
            expected = run_command("predict", "--model", *arguments, "-n", "8")
            model = on_meta(make)
            given = trireme.predict(model, model.loss, inputs=inputs, ranks=8)
            with self.subTest(model=type(model).__name__):
                for name in ("parameters", "flops_per_rank", "checkpoint_bytes"):
                    self.assertEqual(getattr(given, name), expected[name])
                for name in ("parameters", "gradients", "optimizer", "activations"):
                    self.assertEqual(getattr(given.memory[0], name), expected["memory"][0][name])
                self.assertLess(abs(given.step_seconds / expected["step_seconds"] - 1), 0.02)

    def test_figures_add_up(self) -> None:
        model = GPT()
        prediction = trireme.predict(model, model.loss, inputs=[tokens(2)], plan=trireme.Plan(mesh={"pipe": 2, "data": 2}))
        parts = prediction.parts
        whole = parts.compute + parts.recomputation + parts.layouts + parts.data_exchange + parts.pipeline + parts.optimizer
        self.assertAlmostEqual(whole, prediction.step_seconds)
        self.assertEqual(len(prediction.memory), 2)
        self.assertEqual(prediction.peak_memory, max(rank.total for rank in prediction.memory))
        self.assertTrue(prediction.fits)
        self.assertIn("prediction for 4 ranks", str(prediction))
        self.assertEqual(prediction.to_dict(), json.loads(prediction.to_json()))


class Networks(unittest.TestCase):
    def figures(self, make: Callable[[], nn.Module], forward: Callable[..., torch.Tensor], *inputs: torch.Tensor,
                **options: Any) -> trireme.Prediction:
        """Returns the prediction, which is the same for a module on the CPU and one on meta."""
        model = make()
        prediction = trireme.predict(model, lambda *given: forward(model, *given), inputs=inputs, ranks=2, **options)
        empty = on_meta(make)
        on_meta_too = [each.to("meta") for each in inputs]
        again = trireme.predict(empty, lambda *given: forward(empty, *given), inputs=on_meta_too, ranks=2, **options)
        self.assertEqual(prediction.to_dict(), again.to_dict())
        self.assertEqual(prediction.parameters, sum(parameter.numel() for parameter in model.parameters()))
        return prediction

    def test_the_flops_of_products_are_three_times_those_of_forward(self) -> None:
        prediction = self.figures(lambda: nn.Sequential(nn.Embedding(10, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16)),
                                  lambda model, words: model(words).sum(), torch.zeros(4, 8, dtype=torch.int64))
        self.assertEqual(prediction.flops_per_rank, 3 * 2 * 4 * 8 * (32 * 64 + 64 * 16))

    def test_layers_work(self) -> None:
        features, images = torch.randn(4, 16, 32), torch.randn(4, 3, 16, 16)
        labels = torch.randint(10, (4,))
        for make, forward, inputs in (
                (lambda: nn.MultiheadAttention(32, 4, batch_first=True), lambda model, x: model(x, x, x)[0].sum(), [features]),
                (lambda: nn.MultiheadAttention(32, 4, dropout=0.1), lambda model, x: model(x, x, x, need_weights=False)[0].sum(),
                 [features]),
                (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2),
                 lambda model, x: model(x, mask=nn.Transformer.generate_square_subsequent_mask(16), is_causal=True).sum(), [features]),
                (lambda: nn.Transformer(32, 4, 1, 1, 64, batch_first=True), lambda model, x: model(x, x).sum(), [features]),
                (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Flatten(),
                                       nn.Linear(8 * 14 * 14, 10)), lambda model, x, y: F.cross_entropy(model(x), y), [images, labels]),
                (lambda: nn.Sequential(nn.Conv1d(16, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.RMSNorm(30)),
                 lambda model, x: model(x).square().mean(), [features]),
                (lambda: nn.GRU(32, 16, batch_first=True), lambda model, x: model(x)[0].sum(), [features]),
                (ResNet18, ResNet18.loss, [images.repeat(1, 1, 4, 4), labels])):
            with self.subTest(model=type(make()).__name__):
                self.assertGreater(self.figures(make, forward, *inputs).flops_per_rank, 0)

    def test_python_takes_part_in_backward(self) -> None:
        def with_hook(model: nn.Module, features: torch.Tensor) -> torch.Tensor:
            outputs = model(features)
            outputs.register_hook(lambda gradient: gradient * 2)
            return outputs.sum()

        features = torch.randn(4, 32)
        plain = self.figures(lambda: nn.Linear(32, 8), lambda model, x: model(x).sum(), features)
        squared = self.figures(lambda: nn.Linear(32, 8), lambda model, x: Square.apply(model(x)).sum(), features)
        hooked = self.figures(lambda: nn.Linear(32, 8), with_hook, features)
        self.assertGreater(squared.parts.compute, plain.parts.compute)
        self.assertGreater(hooked.parts.compute, plain.parts.compute)

    def test_checkpointed_modules_are_computed_twice(self) -> None:
        def make() -> nn.Module:
            return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

        features = torch.randn(4, 32)
        kept = self.figures(make, lambda model, x: model(model(x)).sum(), features)
        again = self.figures(make, lambda model, x: model(checkpoint(model, x, use_reentrant=False)).sum(), features)
        self.assertGreater(again.flops_per_rank, kept.flops_per_rank)
        self.assertLess(again.memory[0].activations, kept.memory[0].activations)

    def test_half_precision_and_autocast_work(self) -> None:
        def with_autocast(model: nn.Module, features: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return model(features).float().sum()

        features = torch.randn(4, 32)
        single = self.figures(lambda: nn.Linear(32, 64), lambda model, x: model(x).sum(), features)
        half = self.figures(lambda: nn.Linear(32, 64).bfloat16(), lambda model, x: model(x.bfloat16()).sum(), features)
        self.assertEqual(half.memory[0].parameters, single.memory[0].parameters / 2)
        mixed = self.figures(lambda: nn.Linear(32, 64), with_autocast, features)
        self.assertEqual(mixed.memory[0].parameters, single.memory[0].parameters)

    @thorough
    def test_compiled_modules_run_as_they_are_written(self) -> None:
        model = nn.Linear(32, 8)
        compiled = torch.compile(model)
        features = torch.randn(4, 32)
        self.assertEqual(trireme.predict(compiled, lambda x: compiled(x).sum(), inputs=[features], ranks=2).step_seconds,
                         trireme.predict(model, lambda x: model(x).sum(), inputs=[features], ranks=2).step_seconds)

    def test_weights_are_divided_along_tensor(self) -> None:
        model = nn.Sequential(nn.Linear(64, 256, bias=False), nn.GELU(), nn.Linear(256, 64, bias=False))
        plan = trireme.Plan(mesh={"tensor": 2}, layouts={"0.weight": "Shard(0) on tensor", "2.weight": "Shard(1) on tensor"})
        features = torch.randn(32, 64)
        whole = trireme.predict(model, lambda x: model(x).sum(), inputs=[features], ranks=1)
        divided = trireme.predict(model, lambda x: model(x).square().sum(), inputs=[features], plan=plan)
        self.assertEqual(divided.memory[0].parameters, whole.memory[0].parameters / 2)
        self.assertEqual(divided.flops_per_rank, whole.flops_per_rank / 2)  # of products
        self.assertGreater(divided.parts.layouts, 0)

    def test_options_change_the_figures(self) -> None:
        model = GPT()
        adam, sgd, fused = (trireme.predict(model, model.loss, inputs=[tokens(2)], ranks=2, **options)
                            for options in ({}, {"optimizer": "sgd"}, {"elements": "fused", "optimizer_kernels": 0}))
        self.assertGreater(adam.memory[0].optimizer, 0)
        self.assertEqual(sgd.memory[0].optimizer, 0)
        self.assertLess(fused.step_seconds, adam.step_seconds)

    def test_the_mode_of_the_caller_makes_no_difference(self) -> None:
        model = GPT()
        expected = trireme.predict(model, model.loss, inputs=[tokens(2)], ranks=2).to_dict()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                self.assertEqual(trireme.predict(model, model.loss, inputs=[tokens(2)], ranks=2).to_dict(), expected)


class Stateful(nn.Module):
    """Keeps what it computes, counts its calls, and replaces a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 4), nn.BatchNorm1d(4)
        self.register_buffer("mean", torch.zeros(4))
        self.calls = 0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.outputs = F.dropout(self.norm(self.linear(features)))
        self.mean = 0.9 * self.mean + self.outputs.detach().mean(0)
        return self.outputs.sum()


class Unchanged(unittest.TestCase):
    def check(self, forward: Callable[[Stateful], torch.Tensor], expected: type[BaseException] | None) -> None:
        model, batch = Stateful(), torch.randn(3, 8)
        model(torch.randn(3, 8)).backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        attributes, state, numbers = dict(model.__dict__), copy.deepcopy(model.state_dict()), torch.get_rng_state()
        tensors = [id(tensor) for tensor in model.state_dict(keep_vars=True).values()]
        for call in (lambda: trireme.predict(model, lambda: forward(model), ranks=2),
                     lambda: trireme.find_plan(model, lambda features: forward(model), [batch], ranks=2, rows=16)):
            if expected is None:
                call()
            else:
                self.assertRaises(expected, call)
        self.assertEqual(model.__dict__.keys(), attributes.keys())
        self.assertTrue(all(model.__dict__[name] is attributes[name] for name in attributes))
        self.assertEqual([id(tensor) for tensor in model.state_dict(keep_vars=True).values()], tensors)
        self.assertTrue(all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items()))
        self.assertTrue(all(torch.equal(parameter.grad, gradient) for parameter, gradient in zip(model.parameters(), gradients)))
        self.assertTrue(torch.equal(torch.get_rng_state(), numbers))
        model(torch.randn(3, 8)).backward()

    def test_a_module_is_as_before_after_a_prediction(self) -> None:
        self.check(lambda model: model(torch.randn(4, 8)), None)

    def test_a_module_is_as_before_after_an_exception(self) -> None:
        def interrupted(model: Stateful) -> torch.Tensor:
            model(torch.randn(4, 8))
            raise KeyboardInterrupt

        self.check(lambda model: model(torch.randn(4, 8)) + model.missing, AttributeError)
        self.check(interrupted, KeyboardInterrupt)


class Refused(unittest.TestCase):
    model = nn.Linear(8, 2)

    def message(self, error: type[Exception], forward: Callable[[], Any] | None = None, model: Any = None, **options: Any) -> str:
        model = self.model if model is None else model
        options = options or {"ranks": 2}
        with self.assertRaises(error) as caught:
            trireme.predict(model, forward or (lambda: model(torch.randn(4, 8)).sum()), **options)
        return str(caught.exception)

    def test_values_are_not_known(self) -> None:
        for forward in (lambda: self.model(torch.randn(4, 8)).sum().item(), lambda: print(self.model.weight),
                        lambda: self.model.bias if self.model.weight.sum() > 0 else self.model.weight):
            message = self.message(trireme.UsageError, forward)
            self.assertIn("depends on values", message)
            self.assertIn("hint: leave what needs it", message)
        self.assertIn("has no memory of its own", self.message(RuntimeError, lambda: self.model.weight.detach().numpy()))

    def test_exceptions_of_forward_arrive(self) -> None:
        self.assertIn("reduction dim", self.message(RuntimeError, lambda: self.model(torch.randn(4, 3)).sum()))
        self.message(ZeroDivisionError, lambda: 1 / 0)

        class Failing(torch.autograd.Function):
            @staticmethod
            def forward(context: Any, features: torch.Tensor) -> torch.Tensor:
                return features.clone()

            @staticmethod
            def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
                raise LookupError("in backward")

        self.assertIn("in backward", self.message(LookupError, lambda: Failing.apply(self.model(torch.randn(4, 8))).sum()))

    def test_forward_returns_the_loss(self) -> None:
        self.assertIn("forward returned a tuple", self.message(trireme.UsageError, lambda: (self.model(torch.randn(4, 8)).sum(), 3)))

    def test_modules_have_plain_tensors(self) -> None:
        self.assertIn("has no shape yet", self.message(trireme.UsageError, model=nn.LazyLinear(3)))
        with FakeTensorMode():
            fake = nn.Linear(8, 2)
        self.assertIn("the parameter weight is a FakeTensor", self.message(trireme.UsageError, model=fake))
        self.assertIn("expected a torch.nn.Module", self.message(trireme.UsageError, model=lambda x: x))

    def test_the_number_of_ranks_is_known(self) -> None:
        self.assertIn("give ranks=8", self.message(trireme.UsageError, plan=trireme.Plan()))
        self.assertIn("ranks is 4", self.message(trireme.UsageError, plan=trireme.Plan(mesh={"data": 2}), ranks=4))
        self.assertIn("expected sizes of 1 or more", self.message(trireme.UsageError, ranks=0))

    def test_names_are_suggested(self) -> None:
        self.assertIn("did you mean 'h100-80'?", self.message(trireme.ConfigError, ranks=2, cluster="h10-80"))
        self.assertIn("did you mean 'adam'?", self.message(trireme.UsageError, ranks=2, optimizer="adams"))
        self.assertIn("did you mean 'optimizer_kernels'?", self.message(trireme.ConfigError, ranks=2, optimizer_kernel=2))
        self.assertIn("give eager, fused or compiled", self.message(trireme.ConfigError, ranks=2, elements="lazy"))

    def test_what_predictions_do_not_know_is_named(self) -> None:
        self.assertIn("activation_bytes", self.message(trireme.UsageError, ranks=2, plan=trireme.Plan(activation_bytes=1)))
        self.assertIn("no layout names its axis tensor", self.message(trireme.UsageError, plan=trireme.Plan(mesh={"tensor": 2})))


if __name__ == "__main__":
    main()
