# SPDX-License-Identifier: Apache-2.0
"""Predicts training steps of modules, finds plans for them, and makes pipeline schedules. Nothing is trained or measured.

All names are available from the package itself, such as `trireme.predict`.
"""
from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from trireme import _torch_version
from trireme.errors import UsageError

_torch_version.check()

from trireme import _planning  # noqa: E402  (after the check of the version)
from trireme._planning import Candidate, Plan, Prediction, RankMemory, Schedule, SearchResult, StepParts, known_clusters  # noqa: E402

__all__ = ["Candidate", "Plan", "Prediction", "RankMemory", "Schedule", "SearchResult", "StepParts", "find_plan", "known_clusters",
           "parse_schedule", "predict", "schedule"]


def _check(kind: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Raises UsageError for tensors that are not plain: the dry run replaces what they hold."""
    if torch.nn.parameter.is_lazy(tensor):
        raise UsageError(f"the {kind} {name} has no shape yet\n  hint: call the module once, as lazy modules need it")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise UsageError(f"the {kind} {name} is a {type(tensor).__name__}, expected a plain tensor\n"
                         "  hint: give the module as it is before it is distributed, quantized or made of fake tensors")
    return tensor


def tensors_of(module: torch.nn.Module, batch_norms: bool = False) -> Any:
    """Returns the tensors of a module for the library. Raises UsageError for tensors that are not plain.

    Args:
        module: any module.
        batch_norms: True to mark its batch norms.
    """
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"the module is a {type(module).__name__}, expected a torch.nn.Module\n  hint: give the module itself")
    norms = [path for path, each in module.named_modules() if batch_norms and isinstance(each, torch.nn.modules.batchnorm._BatchNorm)]
    return _planning.ModuleTensors(
        [path for path, _ in module.named_modules(remove_duplicate=False) if path],
        [(name, _check("parameter", name, tensor)) for name, tensor in module.named_parameters(remove_duplicate=False)],
        [(name, _check("buffer", name, tensor)) for name, tensor in module.named_buffers(remove_duplicate=False)], norms)


class _Snapshot:
    """The attributes of a module and of those within it. A forward that runs without values may keep or replace tensors in them."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._modules = [(each, dict(each.__dict__), {name: dict(table) for name, table in each.__dict__.items() if type(table) is dict})
                         for each in module.modules()]

    def restore(self) -> None:
        for module, attributes, tables in self._modules:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            for name, content in tables.items():
                attributes[name].clear()
                attributes[name].update(content)


def _eager() -> contextlib.AbstractContextManager[Any]:
    """Lets functions of torch.compile run as they are written."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


@contextlib.contextmanager
def _dry_runs(module: torch.nn.Module, forward: Callable[..., torch.Tensor]) -> Iterator[Callable[..., torch.Tensor]]:
    """Gives the function that dry runs call in place of `forward`.

    Gradients are recorded whatever the caller's mode is. The module and torch's random numbers are as before each call, and after all.
    """
    snapshot = _Snapshot(module)

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        snapshot.restore()
        loss = forward(*inputs)
        if not isinstance(loss, torch.Tensor):
            raise UsageError(f"forward returned a {type(loss).__name__}, expected the loss as a tensor\n  hint: return the loss alone")
        return loss

    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]), _eager():
            yield run
    finally:
        snapshot.restore()


def predict(module: torch.nn.Module, forward: Callable[..., torch.Tensor], *, plan: Plan | None = None, ranks: int | None = None,
            cluster: str = "a100-80", inputs: Sequence[torch.Tensor] = (), optimizer: str = "adam", elements: str = "eager",
            **options: Any) -> Prediction:
    """Predicts the time and memory of a training step on as many devices as the plan has ranks.

    Needs one process and none of the devices. `forward` is run once, on tensors without values. The module and torch's random numbers
    are as before afterwards, also after an exception. No other thread may use the module meanwhile.

        with torch.device("meta"):  # a module of any size
            model, tokens = GPT(), torch.zeros(4, 2048, dtype=torch.int64)
        print(trireme.predict(model, lambda tokens: loss(model(tokens), tokens), inputs=[tokens], ranks=64, cluster="h100-80"))

    Args:
        module: on the CPU or on meta.
        forward: runs one micro-batch of the rows that one rank along `data` has, and returns the loss. Called with tensors like
            `inputs`; other tensors that it uses are on the CPU or on meta.
        plan: its mesh names all axes. None or a plan without a mesh: data parallelism over `ranks` ranks.
        ranks: the number of ranks, one for each device. It may be left out if the plan has a mesh.
        cluster: the name of a description that comes with Trireme (`known_clusters()`), or a TOML file.
        inputs: arguments of `forward`. Only their dtypes and sizes are read, but for tensors without dims.
        optimizer: `sgd`, `momentum` or `adam`, by what it keeps for each parameter.
        elements: how operators on elements run: `eager`, `fused` (consecutive ones as one kernel) or `compiled` (as by torch.compile).
        options: has_master_weights, has_float32_gradients, optimizer_state_bytes, optimizer_kernels, reduces_each_micro_batch,
            gathers_ahead_in_backward, repeats_whole_regions and allows_tf32, as in predict::TrainingOptions of C++.

    Raises:
        UsageError: for a plan that is not valid, a cluster that has too few devices, a module on another device, and a forward that
            needs values, such as `loss.item()`.
        ConfigError: for an unknown cluster, or an unknown option, with the nearest name.
        Exception: what `forward` raises.
    """
    plan = plan if plan is not None else Plan()
    sizes = plan.mesh
    if not sizes and ranks is None:
        raise UsageError("neither a mesh nor the number of ranks is given\n"
                         "  hint: give ranks=8 for data parallelism, or a plan with a mesh, such as Plan(mesh={'data': 8})")
    if not sizes:
        plan = plan.replace(mesh={"data": ranks})
    elif ranks is not None and torch.Size(sizes.values()).numel() != ranks:
        raise UsageError(f"the plan's mesh is {sizes}, and ranks is {ranks}\n"
                         "  hint: give as many ranks as the sizes of the mesh multiply to, or leave ranks out")
    tensors = tensors_of(module)
    with _dry_runs(module, forward) as run:
        return _planning.predict(tensors, run, list(inputs), plan, cluster, elements, {"optimizer": optimizer, **options})


def find_plan(module: torch.nn.Module, forward: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], *, ranks: int, rows: int,
              cluster: str = "a100-80", constraints: str | Iterable[str] = (), plan: Plan | None = None, optimizer: str = "adam",
              tensor_layouts: Iterable[str] = (), loop: bool = False, elements: str = "eager", seconds: float = 10,
              patience: int = 150, **options: Any) -> SearchResult:
    """Searches for the plan with the shortest predicted step, within the memory of the devices. As `trireme plan` does.

    Needs one process and none of the devices. `forward` is run a few times with other numbers of rows, on tensors without values. The
    module and torch's random numbers are as before afterwards, also after an exception. No other thread may use the module meanwhile.

        found = trireme.find_plan(model, forward, [images, labels], ranks=64, rows=512, cluster="a100-80", constraints=["pipe=1"])
        print(found)
        found.plan.save("plan.toml")

    Args:
        module: on the CPU or on meta.
        forward: called with tensors like `inputs`, which have another number of rows; returns the loss. It computes everything from
            its arguments and the module.
        inputs: of any number of rows, which are along dim 0. Only their dtypes and sizes are read. Tensors without dims stay as they
            are.
        ranks: the number of ranks, one for each device of the cluster.
        rows: the rows of one step, over all ranks and micro-batches.
        cluster: the name of a description that comes with Trireme (`known_clusters()`), or a TOML file.
        constraints: what the plan must be like: `data`, `pipe` and `tensor` (with `=`, `<=` or `>=`), `zero_level`, `micro_batches`,
            `rows`, `schedule`, `chunks`, `recompute` (`none` or `repeated`) and `memory_gib`, such as `"tensor<=4"`.
        plan: what all plans have in common, such as `Plan(wire="bf16")`.
        optimizer: `sgd`, `momentum` or `adam`, by what it keeps for each parameter.
        tensor_layouts: layouts along `tensor`, such as `"*.qkv.weight -> Shard(0) on tensor"`. Without any, they are searched for.
        loop: True for a loop that calls `backward()` itself: no stages and no recomputation.
        elements: as for `predict`.
        seconds: the time of predictions after which the best plan so far is returned.
        patience: the number of predictions without a better plan after which the search ends.
        options: as for `predict`.

    Raises:
        UsageError: if constraints leave no plan, for fewer rows than one, and as `predict`.
        ConfigError: for an unknown constraint, option or cluster, with the nearest name.
        Exception: what `forward` raises for any number of rows.
    """
    texts = [constraints] if isinstance(constraints, str) else list(constraints)
    tensors = tensors_of(module)
    with _dry_runs(module, forward) as run:
        return _planning.find_plan(tensors, run, list(inputs), rows, ranks, cluster, texts,
                                   plan if plan is not None else Plan(), list(tensor_layouts), elements, loop, seconds, patience,
                                   {"optimizer": optimizer, **options})


def _per_stage(times: float | Sequence[float]) -> list[float]:
    return [float(times)] if isinstance(times, (int, float)) else [float(time) for time in times]


def schedule(kind: str, ranks: int, micro_batches: int, chunks: int = 0, *, forward: float | Sequence[float] = 1,
             backward_input: float | Sequence[float] = 1, backward_weight: float | Sequence[float] = 1,
             communication: float = 0) -> Schedule:
    """Makes a pipeline schedule, verifies that it can be executed, and predicts its time.

    Args:
        kind: `gpipe`, `1f1b`, `interleaved`, `zb-h1`, `zb-h2` or `zb-v`.
        ranks: the number of ranks.
        micro_batches: the number of micro-batches.
        chunks: the stages of each rank; 0 for the default of the kind.
        forward: milliseconds of forward, as one number for all stages of a rank together, or one for each stage.
        backward_input: milliseconds of the input's gradients, in the same way.
        backward_weight: milliseconds of the weights' gradients, in the same way.
        communication: milliseconds of a message.

    Raises:
        UsageError: for an unknown kind, for counts below 1, and for times that match no stages.
    """
    return _planning.make_schedule(kind, ranks, micro_batches, chunks, _per_stage(forward), _per_stage(backward_input),
                                   _per_stage(backward_weight), communication)


def parse_schedule(text: str, *, forward: float | Sequence[float] = 1, backward_input: float | Sequence[float] = 1,
                   backward_weight: float | Sequence[float] = 1, communication: float = 0) -> Schedule:
    """Reads a schedule from its text, as `Schedule.to_text` writes it, and verifies and times it as `schedule` does.

    Raises:
        DataError: with line and column, if the text is no schedule.
        UsageError: if the schedule cannot be executed.
    """
    return _planning.parse_schedule(text, _per_stage(forward), _per_stage(backward_input), _per_stage(backward_weight), communication)
