# SPDX-License-Identifier: Apache-2.0
"""Stands in for Horovod: `import horovod.torch as hvd` is Trireme's interface of the same names. Install it only where Horovod is not."""
from trireme.horovod import run

__all__ = ["run"]
