# SPDX-License-Identifier: Apache-2.0
"""The extension module of predictions, plans, schedules, checkpoints and training by plans. Use the names of trireme and
trireme.checkpoint instead."""
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Backend
from torch.distributed import Store

class ModuleTensors:
    def __init__(self, modules: Sequence[str], parameters: Sequence[tuple[str, torch.Tensor]],
                 buffers: Sequence[tuple[str, torch.Tensor]], batch_norms: Sequence[str] = ...) -> None: ...

class Plan:
    """All choices of a parallel training. Cannot be changed; `replace` returns a changed one.

    The keyword arguments and attributes are the fields of Plan in C++, under the names that they have in TOML. `mesh` is a dict from
    axes to sizes, and `layouts` may be given as a dict from patterns to placements. Lists of pairs may be given as dicts.

        plan = Plan(mesh={"data": 2, "pipe": 4}, schedule="zb-v", micro_batches=8, zero_level=1)

    Raises ConfigError for an unknown field, with the nearest name, and for a value outside the limits of its field.
    """
    def __init__(self, *, mode: str = "manual", constraints: Sequence[str] = ...,
                 mesh: Mapping[str, int] | Sequence[str] = ..., layouts: Mapping[str, str] | Sequence[str] = ...,
                 operators: Sequence[str] = ..., sequence_attention: str = "cheapest",
                 stages: Mapping[str, int] | Sequence[tuple[str, int]] = ..., schedule: str = "1f1b", chunks: int = 0,
                 recompute: Sequence[str] = ..., activation_bytes: int = 0, offload_activations: bool = False,
                 data_parallel: bool = True, micro_batches: int = 1, bucket_bytes: int = 0, first_bucket_bytes: int = ...,
                 allreduce_streams: int = 0, zero_level: int = 0, zero_level_of: Mapping[str, int] | Sequence[tuple[str, int]] = ...,
                 shard_ranks: int = 0, gathered_buckets: int = 2, offload_optimizer: bool = False,
                 sparse_gradients: Sequence[str] = ..., gradient_reduction: str = "mean", gradient_predivide: float = 1,
                 wire: str = "as_is", divide_by_active_ranks: bool = False, broadcast_parameters: bool = True,
                 broadcast_buffers: bool = True, sync_batch_norm: bool = False) -> None: ...
    @property
    def mode(self) -> str: ...
    @property
    def constraints(self) -> list[str]: ...
    @property
    def mesh(self) -> dict[str, int]: ...
    @property
    def layouts(self) -> list[str]: ...
    @property
    def operators(self) -> list[str]: ...
    @property
    def sequence_attention(self) -> str: ...
    @property
    def stages(self) -> list[tuple[str, int]]: ...
    @property
    def schedule(self) -> str: ...
    @property
    def chunks(self) -> int: ...
    @property
    def recompute(self) -> list[str]: ...
    @property
    def activation_bytes(self) -> int: ...
    @property
    def offload_activations(self) -> bool: ...
    @property
    def data_parallel(self) -> bool: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def bucket_bytes(self) -> int: ...
    @property
    def first_bucket_bytes(self) -> int: ...
    @property
    def allreduce_streams(self) -> int: ...
    @property
    def zero_level(self) -> int: ...
    @property
    def zero_level_of(self) -> list[tuple[str, int]]: ...
    @property
    def shard_ranks(self) -> int: ...
    @property
    def gathered_buckets(self) -> int: ...
    @property
    def offload_optimizer(self) -> bool: ...
    @property
    def sparse_gradients(self) -> list[str]: ...
    @property
    def gradient_reduction(self) -> str: ...
    @property
    def gradient_predivide(self) -> float: ...
    @property
    def wire(self) -> str: ...
    @property
    def divide_by_active_ranks(self) -> bool: ...
    @property
    def broadcast_parameters(self) -> bool: ...
    @property
    def broadcast_buffers(self) -> bool: ...
    @property
    def sync_batch_norm(self) -> bool: ...
    def replace(self, **fields: Any) -> Plan:
        """Returns the plan with other values of these fields. Raises as the constructor."""
    @staticmethod
    def from_toml(text: str, name: str = "text") -> Plan:
        """Reads a plan from TOML. `name` stands for the file in messages. Raises ConfigError with line and column."""
    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """Reads a plan from a TOML file. Raises ConfigError."""
    def to_toml(self) -> str:
        """Returns the plan as TOML, which reads back as the same plan."""
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the TOML to a file atomically: `trireme run --plan` and `trireme predict --plan` read it. Raises ConfigError."""
    def to_dict(self) -> dict[str, Any]:
        """Returns all fields by name."""
    def __eq__(self, other: object) -> bool: ...

class StepParts:
    """Where the time of a step goes, in seconds of the slowest rank along `pipe`. The parts add up to the step."""
    @property
    def compute(self) -> float: ...
    @property
    def recomputation(self) -> float: ...
    @property
    def layouts(self) -> float: ...
    @property
    def data_exchange(self) -> float: ...
    @property
    def pipeline(self) -> float: ...
    @property
    def optimizer(self) -> float: ...

class RankMemory:
    """The memory of the ranks of one coordinate along `pipe`, in bytes of one device."""
    @property
    def parameters(self) -> float: ...
    @property
    def gradients(self) -> float: ...
    @property
    def optimizer(self) -> float: ...
    @property
    def buckets(self) -> float: ...
    @property
    def activations(self) -> float: ...
    @property
    def temporary(self) -> float: ...
    @property
    def inputs(self) -> float: ...
    @property
    def lost(self) -> float: ...
    @property
    def peak_module(self) -> str: ...
    @property
    def activations_by_module(self) -> list[tuple[str, float]]: ...
    @property
    def host(self) -> float: ...
    @property
    def total(self) -> float:
        """The peak on the device."""

class Prediction:
    """The time and memory of a training step. `str` gives a table."""
    @property
    def cluster(self) -> str: ...
    @property
    def ranks(self) -> int: ...
    @property
    def step_seconds(self) -> float: ...
    @property
    def parts(self) -> StepParts: ...
    @property
    def flops_per_rank(self) -> float:
        """The FLOPs of a step on one rank, without recomputation, as a mean."""
    @property
    def repeated_flops(self) -> float: ...
    @property
    def utilization(self) -> float:
        """The share of the peak rate of the devices."""
    @property
    def parameters(self) -> float:
        """The number of parameters of the module."""
    @property
    def memory(self) -> list[RankMemory]:
        """The memory by rank along `pipe`."""
    @property
    def device_memory(self) -> float:
        """The bytes of the smallest device."""
    @property
    def peak_memory(self) -> float:
        """The bytes of the rank that needs most."""
    @property
    def fits(self) -> bool: ...
    @property
    def checkpoint_bytes(self) -> float: ...
    @property
    def checkpoint_seconds(self) -> float:
        """The time to write a checkpoint by all hosts at once; 0 if their disks are unknown."""
    @property
    def stage_seconds(self) -> list[float]:
        """Forward and backward of one micro-batch, by stage."""
    def to_json(self) -> str:
        """Returns one JSON object, as `trireme predict --json` prints it (docs/formats/prediction.md)."""
    def to_dict(self) -> dict[str, Any]:
        """Returns the content of `to_json`."""

class Candidate:
    """A plan with its prediction."""
    @property
    def plan(self) -> Plan: ...
    @property
    def rows(self) -> int:
        """The rows of a micro-batch on a rank along `data`."""
    @property
    def recomputed(self) -> int:
        """The number of repeated modules that are recomputed."""
    @property
    def prediction(self) -> Prediction: ...
    @property
    def fits(self) -> bool: ...

class SearchResult:
    """The result of a search. `str` explains it: the plan, where its time and memory go, the other plans, and how certain it is."""
    @property
    def plan(self) -> Plan:
        """The fastest plan. Raises UsageError that says what is missing if none fits."""
    @property
    def prediction(self) -> Prediction:
        """The prediction of the fastest plan. Raises as `plan`."""
    @property
    def fastest(self) -> Candidate:
        """The fastest plan with its prediction. Raises as `plan`."""
    @property
    def best(self) -> list[Candidate]:
        """Ten plans that fit at most, the fastest first. Empty if none does."""
    @property
    def smallest(self) -> Candidate | None:
        """If nothing fits: the plan that needs least memory."""
    @property
    def one_device(self) -> Candidate | None:
        """The same training on one device; None if there is no valid plan for it."""
    @property
    def gap(self) -> float:
        """By how much the best plan may be slower than the fastest possible one, as a share of its time."""
    @property
    def lower_bound(self) -> float:
        """No plan of the search takes fewer seconds."""
    @property
    def memory_limit(self) -> float:
        """The bytes that a rank may use."""
    @property
    def considered(self) -> int: ...
    @property
    def predicted(self) -> int: ...
    @property
    def invalid(self) -> int: ...
    @property
    def first_invalid(self) -> str: ...
    @property
    def without_tensor(self) -> str:
        """A size of `tensor` that was left out because operators cannot compute on shards, and why; empty if there is none."""
    @property
    def left(self) -> int:
        """Plans that were neither predicted nor excluded by bounds."""
    @property
    def seconds(self) -> float: ...
    @property
    def is_complete(self) -> bool: ...
    @property
    def summary(self) -> str:
        """The fastest plan and its prediction in one line. Raises as `plan`."""
    def compare(self, alternative: SearchResult, wish: str) -> str:
        """Returns why a plan under the further constraint `wish` was not chosen.

        Args:
            alternative: the result of a search with it.
            wish: the constraint, such as `tensor=8`.
        """
    def to_json(self) -> str:
        """Returns one JSON object, as `trireme plan --json` prints it (docs/formats/search.md)."""
    def to_dict(self) -> dict[str, Any]:
        """Returns the content of `to_json`."""

class Schedule:
    """A pipeline schedule that was verified, with its predicted times. `str` gives its text."""
    @property
    def name(self) -> str: ...
    @property
    def ranks(self) -> int: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def rank_of_stage(self) -> list[int]: ...
    @property
    def step_time(self) -> float:
        """Milliseconds from the first start to the last end on any rank."""
    @property
    def bubble(self) -> float:
        """The share of its time in which a rank does not compute, as the mean over ranks."""
    @property
    def kept_micro_batches(self) -> float:
        """The micro-batches that a rank keeps for backward at most."""
    def to_text(self) -> str:
        """Returns the text that `parse_schedule`, `Plan(schedule=...)` and `trireme schedule --read` take."""
    def to_svg(self) -> str:
        """Returns a self-contained picture: ranks as rows, time from left to right."""
    def to_trace(self) -> str:
        """Returns the step for Perfetto or chrome://tracing."""

def predict(tensors: ModuleTensors, forward: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], plan: Plan, cluster: str,
            elements: str, options: dict[str, Any]) -> Prediction: ...
def find_plan(tensors: ModuleTensors, forward: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], rows: int, ranks: int,
              cluster: str, constraints: Sequence[str], plan: Plan, tensor_layouts: Sequence[str], elements: str, loop: bool,
              seconds: float, patience: int, options: dict[str, Any]) -> SearchResult: ...
def make_schedule(kind: str, ranks: int, micro_batches: int, chunks: int, forward: Sequence[float], backward_input: Sequence[float],
                  backward_weight: Sequence[float], communication: float) -> Schedule: ...
def parse_schedule(text: str, forward: Sequence[float], backward_input: Sequence[float], backward_weight: Sequence[float],
                   communication: float) -> Schedule: ...
def load_checkpoint(path: str, section: str) -> tuple[dict[str, torch.Tensor], int, int]: ...
def save_checkpoint(tensors: dict[str, torch.Tensor], path: str, prefix: str, epoch: int, step: int, keep: int) -> os.PathLike[str]: ...
def known_clusters() -> list[str]:
    """Returns the names of the descriptions that come with Trireme, such as `a100-80`."""

def requested_plan(plan: Plan) -> Plan:
    """Returns the plan that `trireme run --plan` asks for, or `plan`."""

class Group:
    """The ranks that train, and their connection."""
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def engine(self) -> str: ...

def connect(store: Store, rank: int, size: int, timeout: timedelta, name: str, world_ranks: list[int]) -> Group: ...
def timeout_of(backend: Backend) -> timedelta: ...
def agree(group: Group, doing: str, failure: str) -> None:
    """Raises UsageError on all ranks if `failure` is not empty on one. Collective."""
def check_same(group: Group, what: str, text: str) -> None: ...
def data_part(plan: Plan, group: Group) -> tuple[int, int]: ...
def watch_signals_of_this_thread() -> None: ...

class PartOfParameter:
    """A parameter that is sharded, and what this rank steps in its place."""
    @property
    def parameter(self) -> torch.Tensor: ...
    @property
    def zero_level(self) -> int: ...
    @property
    def elements(self) -> int:
        """Elements of this rank's part."""
    @property
    def stepped(self) -> list[torch.Tensor]:
        """Flat tensors, in order, which are the part together."""

class Stepped:
    """Stands for an optimizer whose parameters are sharded. While it lives, its tensors count as stepped."""
    @property
    def groups(self) -> list[list[torch.Tensor]]: ...

class GradientBucket:
    """The gradients of one bucket on this rank, complete and ready to be exchanged."""
    @property
    def memory(self) -> torch.Tensor:
        """[elements], flat: the gradients, with zeros as padding between them. A comm hook leaves the sum over ranks here."""
    @property
    def gradients(self) -> list[torch.Tensor]:
        """Slices of `memory` in the shapes of the parameters, or of this rank's parts of distributed ones."""
    @property
    def names(self) -> list[str]:
        """Names of the parameters, in the same order."""

class CommHook:
    """Sums buckets of gradients over ranks in place of all-reduce. One object serves one module on one rank."""

class PowerSgd(CommHook):
    """Approximates the sum of each gradient by a product of two thin matrices (Vogels et al., "PowerSGD", NeurIPS 2019).

    What the approximation loses is added to the next gradient. All ranks give the same options, else the first step raises UsageError.

    Args:
        rank: columns of the matrices. 1 to 4 are common; more cost more time and bytes.
        start_iteration: steps before the gradients of a parameter are compressed.
        min_compression_rate: the factor by which compression must reduce a gradient's elements; others are sent whole.
        error_feedback: whether what the approximation loses is added to the next gradient.
        warm_start: whether a step starts from the right matrix of the step before, and not from a random one.
        seed: of the random matrices.
        orthogonalization_epsilon: a column that has no more than this fraction of its length left counts as dependent.

    Raises:
        UsageError: for options out of range.
    """
    def __init__(self, *, rank: int = 1, start_iteration: int = 1000, min_compression_rate: float = 2.0, error_feedback: bool = True,
                 warm_start: bool = True, seed: int = 0, orthogonalization_epsilon: float = 1e-6) -> None: ...

class TopK(CommHook):
    """Sends the elements of largest magnitude of each gradient, with their positions (Lin et al., ICLR 2018).

    All ranks give the same options, else the first step raises UsageError.

    Args:
        fraction: the fraction of each gradient's elements to send, above 0 and at most 1.
        error_feedback: whether what was not sent is added to the next gradient.

    Raises:
        UsageError: for a fraction out of range.
    """
    def __init__(self, *, fraction: float = 0.01, error_feedback: bool = True) -> None: ...

class PythonCommHook(CommHook):
    """Calls a function of Python with each bucket."""
    def __init__(self, start: Callable[[GradientBucket], Callable[[], object] | None]) -> None: ...

class ModuleInParallel:
    """What parallelize() of C++ made of a module. Destroyed without waiting for other ranks."""
    def __init__(self, tensors: ModuleTensors, plan: Plan, group: Group) -> None: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def seconds_of_exchange(self) -> float: ...
    def close(self) -> None: ...
    def drop(self) -> None: ...
    def shard(self, groups: Sequence[Sequence[torch.Tensor]]) -> Stepped: ...
    def sharded_parameters(self) -> list[PartOfParameter]: ...
    def cut(self, parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Returns a copy of this rank's part of a tensor like the parameter: flat [n]."""
    def join(self, parameter: torch.Tensor, part: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        """Returns the tensor like the parameter whose parts the ranks have. Collective."""
    def clip(self, stepped: Sequence[torch.Tensor], max_norm: float | None) -> torch.Tensor: ...
    def begin_no_sync(self) -> None: ...
    def end_no_sync(self) -> None: ...
    def gather_parameters(self) -> None: ...
    def register_comm_hook(self, hook: CommHook | None) -> None: ...
    def join_steps(self, step: Callable[[], None]) -> None: ...
    def abandon_step(self) -> None: ...
    def abort(self, reason: str) -> None: ...

def has_layout(tensor: torch.Tensor) -> bool: ...
def describe_layout(tensor: torch.Tensor) -> str: ...
def full(tensor: torch.Tensor) -> torch.Tensor: ...
def to_local(tensor: torch.Tensor) -> torch.Tensor: ...
def whole_input(input: torch.Tensor) -> torch.Tensor: ...
def replicate_beside(beside: torch.Tensor, whole: torch.Tensor) -> torch.Tensor: ...
def distribute_like(parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor: ...
