# SPDX-License-Identifier: Apache-2.0
"""Trireme for Python.

`import trireme.torch` gives torch.distributed the collectives of Trireme: ordinary scripts of DDP, FSDP2 and DTensor run faster on
CPUs. See docs/guide/python.md.
"""
from trireme._build_info import VERSION as __version__
from trireme.errors import CommError, ConfigError, Error, UsageError

__all__ = ["CommError", "ConfigError", "Error", "UsageError", "__version__"]
