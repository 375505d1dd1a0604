# SPDX-License-Identifier: Apache-2.0
"""python -m trireme.benchmark: its numbers mean nothing here, what it prints does."""
from __future__ import annotations

import json
import subprocess
import sys
import unittest

import torch
import torch.distributed as dist

from ranks import cases_of, main
from trireme.benchmark import silent
from trireme.benchmark.chart import bars


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

    def test_steps_have_the_same_losses(self) -> None:
        for script, network, title in (("ddp", "resnet18", "DDP, resnet18 (11.2 M"), ("fsdp", "gpt", "FSDP2, gpt (7.4 M"),
                                       ("dtensor", "mlp", "DTensor, mlp (4.2 M")):
            with self.subTest(script=script):
                done = run(script, "--network", network, "--batch", "2", "--smoke")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f"a step of {title} parameters", done.stdout)
                self.assertRegex(done.stdout, r"\n +communication +-?[0-9.]+ (us|ms|s) ")
                self.assertIn("losses of both: the same bits", done.stdout)

    def test_a_step_of_horovod_has_the_losses_of_ddp(self) -> None:
        done = run("horovod", "--smoke")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"a step of training, mlp \(4.2 M parameters.*\n +Horovod's +DDP")
        self.assertIn("losses of both: the same bits", done.stdout)

    def test_a_step_of_parallelize_has_the_losses_of_ddp(self) -> None:
        done = run("parallelize", "--smoke", "--zero-level", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"ZeRO level 2, mlp \(4.2 M.*\n +parallelize +DDP.*\n +against DDP, Gloo .*\n +against DDP, Trireme ")
        self.assertIn("losses of all: the same bits", done.stdout)

    def test_a_step_of_a_pipeline_has_the_same_losses(self) -> None:
        done = run("pipelining", "--smoke")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("a step of pipelining, mlp (4.2 M parameters", done.stdout)
        self.assertIn("losses of both: the same bits", done.stdout)

    def test_times_are_drawn_as_bars(self) -> None:
        done = run("allreduce", "--smoke")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\n +4 B +Trireme +█+ [0-9.]+ us\n +Gloo +█+ [0-9.]+ (us|ms)\n")
        linear = bars([("step", [("Trireme", 0.5, "0.5 s"), ("Gloo", 1.0, "1 s")]), ("rest", [("Trireme", -0.1, "-0.1 s")])], "#")
        self.assertEqual(linear.splitlines(), ["  step  Trireme  " + "#" * 24 + " 0.5 s", "        Gloo     " + "#" * 48 + " 1 s",
                                               "  rest  Trireme   -0.1 s", "  (linear scale)"])
        logarithmic = bars([("", [("a", 1e-6, ""), ("b", 1e-3, "")])], "#")
        self.assertEqual([line.count("#") for line in logarithmic.splitlines()], [12, 48, 0])
        self.assertEqual(bars([("step", [("Trireme", 0.0, "0 s")])]), "")

    def test_wrong_arguments_are_refused(self) -> None:
        self.assertIn("--ranks is 0", run("ddp", "--ranks", "0").stderr)
        self.assertIn("invalid choice: 'resnet18'", run("dtensor", "--network", "resnet18").stderr)
        self.assertIn("invalid choice: 'gpt'", run("pipelining", "--network", "gpt").stderr)
        self.assertIn("invalid choice: 4", run("parallelize", "--zero-level", "4").stderr)


def over_silence(rank: int, size: int) -> None:
    """A silent group leaves sums alone, and fills gathered tensors with this rank's values."""
    group = silent.make_group()
    before = silent.seconds_of_copies()
    own, gathered, part = torch.full((4,), float(rank)), torch.empty(4 * size), torch.empty(2)
    dist.all_reduce(own, group=group)
    assert own.tolist() == [float(rank)] * 4
    dist.all_gather_into_tensor(gathered, own, group=group)
    assert gathered.tolist() == [float(rank)] * 4 * size
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size), group=group)
    assert part.tolist() == [2.0 * rank, 2.0 * rank + 1]
    assert silent.seconds_of_copies() > before


OverTwoRanks = cases_of([over_silence])


if __name__ == "__main__":
    main()
