# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as dicts of tensors."""
from __future__ import annotations

import subprocess
import tempfile
import unittest
from pathlib import Path

import torch
import torch.distributed.checkpoint as distributed
from torch import nn

import trireme
from commands import PROGRAM, needs_program
from ranks import main, thorough


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 2).bfloat16())


class Checkpoints(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def assert_same(self, one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
        self.assertEqual(one.keys(), other.keys())
        for name in one:
            self.assertEqual(one[name].dtype, other[name].dtype)
            self.assertTrue(torch.equal(one[name], other[name]), name)

    def test_a_state_dict_comes_back(self) -> None:
        state = network().state_dict()
        path = trireme.checkpoint.save(state, self.folder, prefix="demo", epoch=3, step=938)
        self.assertEqual(path, self.folder / "demo-3_938")
        loaded = trireme.checkpoint.load(path)
        self.assert_same(loaded, state)
        self.assertEqual((loaded.epoch, loaded.step), (3, 938))
        network().load_state_dict(loaded)

    def test_checkpoints_are_kept_as_asked(self) -> None:
        for step in range(4):
            trireme.checkpoint.save(network().state_dict(), self.folder, step=step, keep=2)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["checkpoint-0_2", "checkpoint-0_3"])

    @needs_program
    @thorough
    def test_the_program_reads_and_converts_them(self) -> None:
        state = network().state_dict()
        path, file = trireme.checkpoint.save(state, str(self.folder)), self.folder / "model.safetensors"
        subprocess.run([PROGRAM, "checkpoint", "verify", path], check=True, capture_output=True)
        subprocess.run([PROGRAM, "checkpoint", "convert", path, file], check=True, capture_output=True)
        self.assert_same(trireme.checkpoint.load(file), state)

    def test_checkpoints_of_torch_are_read_and_written(self) -> None:
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        distributed.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "note": "text"},
                         checkpoint_id=self.folder / "theirs", no_dist=True)
        state = trireme.checkpoint.from_torch_distributed(self.folder / "theirs", "model")
        self.assert_same(state, net.state_dict())
        self.assertIn("optimizer.state.0.momentum_buffer", trireme.checkpoint.from_torch_distributed(self.folder / "theirs"))

        ours = trireme.checkpoint.load(trireme.checkpoint.save(state, self.folder))
        trireme.checkpoint.to_torch_distributed(ours, self.folder / "again", "model")
        other = network()
        loaded = {"model": other.state_dict()}
        distributed.load(loaded, checkpoint_id=self.folder / "again", no_dist=True)
        self.assert_same(loaded["model"], net.state_dict())

    def test_wrong_checkpoints_of_torch_are_explained(self) -> None:
        with self.assertRaisesRegex(trireme.CheckpointError, "no file .metadata"):
            trireme.checkpoint.from_torch_distributed(self.folder)
        folder = trireme.checkpoint.to_torch_distributed({"weight": torch.ones(2)}, self.folder / "one")
        with self.assertRaisesRegex(trireme.CheckpointError, "no tensor below 'model'; its names begin with weight"):
            trireme.checkpoint.from_torch_distributed(folder, "model")
        with self.assertRaisesRegex(trireme.UsageError, "has a checkpoint already"):
            trireme.checkpoint.to_torch_distributed({"weight": torch.ones(2)}, folder)
        (folder / ".metadata").write_bytes(b"rubbish")
        with self.assertRaisesRegex(trireme.CheckpointError, "cannot be read"):
            trireme.checkpoint.from_torch_distributed(folder)

    def test_safetensors_files_are_written(self) -> None:
        state = {"weight": torch.randn(3, 4).t(), "count": torch.tensor(3)}
        path = trireme.checkpoint.save(state, self.folder / "model.safetensors")
        self.assertEqual(path, self.folder / "model.safetensors")
        self.assert_same(trireme.checkpoint.load(path), state)

    def test_mistakes_are_named(self) -> None:
        path = trireme.checkpoint.save({"a.weight": torch.ones(1000)}, self.folder)
        with self.assertRaisesRegex(trireme.CheckpointError, "no section 'modle'\n  hint: did you mean 'model'?"):
            trireme.checkpoint.load(path, "modle")
        with self.assertRaisesRegex(trireme.CheckpointError, "nowhere"):
            trireme.checkpoint.load(self.folder / "nowhere")
        with self.assertRaisesRegex(trireme.UsageError, "the value of 'steps' is a int"):
            trireme.checkpoint.save({"steps": 3}, self.folder)  # type: ignore[dict-item]
        with self.assertRaisesRegex(trireme.UsageError, "'sparse' is sparse"):
            trireme.checkpoint.save({"sparse": torch.eye(3).to_sparse()}, self.folder)
        data = next(path.glob("*.safetensors"))
        damaged = bytearray(data.read_bytes())
        damaged[-100] ^= 1
        data.write_bytes(damaged)
        with self.assertRaisesRegex(trireme.CheckpointError, "a.weight"):
            trireme.checkpoint.load(path)


if __name__ == "__main__":
    main()
