# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed, which its wheel brings, over Trireme in place of Gloo: four ranks on CPUs.

Tests that need GPUs are skipped. What fails is listed here, and docs/guide/python.md says why.
"""
from __future__ import annotations

import os
import tempfile
import unittest
import warnings
from pathlib import Path

warnings.simplefilter("ignore")  # the suite calls much that torch marks as deprecated
_folder = tempfile.TemporaryDirectory()
for part in ("barrier", "test_dir", "init_dir"):
    Path(_folder.name, part).mkdir()
os.environ.update(BACKEND="gloo", WORLD_SIZE="4", TEMP_DIR=_folder.name, MASTER_ADDR="127.0.0.1", MASTER_PORT="0",
                  INIT_METHOD=f"file://{_folder.name}/init_dir/shared_init_file")

import torch.distributed as dist  # noqa: E402  (after the settings that the suite reads)
import torch.multiprocessing  # noqa: E402
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402

import trireme.torch  # noqa: E402

assert trireme.torch.is_replacing_gloo() and dist.is_available()

FAILING = {"test_ddp_logging_data_cpu"}


class OverTrireme(TestDistBackend, DistributedTest._DistTestBase):
    """The cases of the suite. Each forks ranks from this process, which has imported torch already."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def test_collectives_are_those_of_trireme(self) -> None:
        assert trireme.torch.engine() == "shm" and dist.get_backend() == "gloo"


for _name in FAILING:
    setattr(OverTrireme, _name, unittest.expectedFailure(getattr(OverTrireme, _name)))

# The bases are in this module too, and are no tests by themselves.
del DistributedTest, TestDistBackend

if __name__ == "__main__":
    unittest.main()
