# SPDX-License-Identifier: Apache-2.0
"""Trireme for Python.

`import trireme.torch` gives torch.distributed the collectives of Trireme: ordinary scripts of DDP, FSDP2 and DTensor run faster on
CPUs. `trireme.parallelize` trains a module as a plan says. `trireme.predict` says how long a training step takes on a cluster and how much memory it needs, and `trireme.find_plan` finds
the plan that trains fastest. See docs/guide/python.md.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trireme._build_info import VERSION as __version__
from trireme.errors import CheckpointError, CommError, ConfigError, DataError, Error, UsageError

if TYPE_CHECKING:
    from trireme import checkpoint
    from trireme.distributed_tensors import full, has_layout, run_replicated, to_local
    from trireme.parallel import CommHook, GradientBucket, Parallelized, PowerSgd, TopK, parallelize
    from trireme.planning import (Plan, Prediction, Schedule, SearchResult, find_plan, known_clusters, parse_schedule, predict,
                                  schedule)
    from trireme.runs import Run, read_run

__all__ = ["CheckpointError", "CommError", "CommHook", "ConfigError", "DataError", "Error", "GradientBucket", "Parallelized", "Plan",
           "PowerSgd", "Prediction", "Run", "Schedule", "SearchResult", "TopK", "UsageError", "__version__", "checkpoint", "find_plan",
           "full", "has_layout", "known_clusters", "parallelize", "parse_schedule", "predict", "read_run", "run_replicated", "schedule",
           "to_local"]

_MODULES = {
    "trireme.distributed_tensors": ("full", "has_layout", "run_replicated", "to_local"),
    "trireme.parallel": ("CommHook", "GradientBucket", "Parallelized", "PowerSgd", "TopK", "parallelize"),
    "trireme.planning": ("Plan", "Prediction", "Schedule", "SearchResult", "find_plan", "known_clusters", "parse_schedule", "predict",
                         "schedule"),
    "trireme.runs": ("Run", "read_run"),
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: torch and the extension module take longer than the rest of the package.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    if name == "checkpoint":
        return importlib.import_module("trireme.checkpoint")
    raise AttributeError(f"module 'trireme' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
