# SPDX-License-Identifier: Apache-2.0
"""python -m trireme.benchmark: its numbers mean nothing here, what it prints does."""
from __future__ import annotations

import json
import subprocess
import sys
import unittest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "trireme.benchmark", *arguments], text=True, capture_output=True, timeout=200)


class Benchmark(unittest.TestCase):
    def test_all_reduce_is_compared_size_by_size(self) -> None:
        done = run("allreduce", "--smoke", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)["rows"]
        self.assertEqual([row["what"] for row in rows], ["4 B", "16 B", "64 B", "256 B", "1 KiB", "4 KiB", "16 KiB", "64 KiB"])
        for row in rows:
            self.assertGreater(row["trireme"], 0)
            self.assertAlmostEqual(row["ratio"], row["trireme"] / row["gloo"])

    def test_a_step_of_ddp_has_the_same_losses(self) -> None:
        done = run("ddp", "--smoke")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("a step of DDP, mlp (4.2 M parameters", done.stdout)
        self.assertIn("losses of both: the same bits", done.stdout)

    def test_a_step_of_horovod_has_the_losses_of_ddp(self) -> None:
        done = run("horovod", "--smoke")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"a step of training, mlp \(4.2 M parameters.*\n +Horovod's +DDP")
        self.assertIn("losses of both: the same bits", done.stdout)

    def test_wrong_arguments_are_refused(self) -> None:
        self.assertIn("--ranks is 0", run("ddp", "--ranks", "0").stderr)


if __name__ == "__main__":
    unittest.main()
