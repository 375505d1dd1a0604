# SPDX-License-Identifier: Apache-2.0
"""models/resnet.h against the same networks in Python torch: one training pass from the same weights.

The weights travel through a safetensors file that the safetensors package writes. Both sides run the same kernels
on one thread, so logits, loss and gradients agree to 1e-5 of each tensor's largest value (bit for bit on most machines).
The same weights go into a checkpoint and come back into a module of torch by load_state_dict, bit for bit.

usage: resnet_parity.py <checkpoint_parity program>
"""

import copy
import pathlib
import subprocess
import sys
import tempfile

import torch
from torch import nn

import tensor_file


class Residual(nn.Module):
    """Body and shortcut of one block; `kernels` of its convolutions, the stride in the first 3x3."""

    def __init__(self, channels, width, kernels, out, stride):
        super().__init__()
        self.depth = len(kernels)
        strided = kernels.index(3) + 1
        before = channels
        for index, kernel in enumerate(kernels, 1):
            after = out if index == self.depth else width
            step = stride if index == strided else 1
            self.add_module(f"conv{index}", nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False))
            self.add_module(f"bn{index}", nn.BatchNorm2d(after))
            before = after
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        else:
            self.downsample = nn.Identity()

    def forward(self, x):
        y = x
        for index in range(1, self.depth + 1):
            y = getattr(self, f"bn{index}")(getattr(self, f"conv{index}")(y))
            if index < self.depth:
                y = torch.relu(y)
        return torch.relu(y + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self, channels, width, stages, bottleneck, large_stem, widening=1):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 7 if large_stem else 3, 2 if large_stem else 1,
                               3 if large_stem else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1) if large_stem else nn.Identity()
        features = width
        for index, blocks in enumerate(stages):
            inner, layers = width * 2**index, []
            for block in range(blocks):
                out = inner * 4 if bottleneck else inner
                stride = 2 if index > 0 and block == 0 else 1
                kernels = [1, 3, 1] if bottleneck else [3, 3]
                layers.append(Residual(features, inner * widening, kernels, out, stride))
                features = out
            self.add_module(f"layer{index + 1}", nn.Sequential(*layers))
        self.stages = len(stages)
        self.fc = nn.Linear(features, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        for index in range(self.stages):
            x = getattr(self, f"layer{index + 1}")(x)
        return self.fc(x.mean((2, 3)))


CASES = {
    "resnet20": (ResNet(1, 16, [3, 3, 3], False, False), (4, 1, 28, 28)),
    "resnet18": (ResNet(3, 64, [2, 2, 2, 2], False, False), (2, 3, 32, 32)),
    "resnet50": (ResNet(3, 64, [3, 4, 6, 3], True, True), (2, 3, 96, 96)),
    "wide": (ResNet(3, 16, [1, 2], True, False, widening=3), (2, 3, 32, 32)),
}
TOLERANCE = 1e-5


def check_round_trip(program, name, net, folder):
    """state_dict() into a network of ours, that into a checkpoint, the checkpoint into one file and a new module."""
    weights, exported = pathlib.Path(folder, "weights.safetensors"), pathlib.Path(folder, "exported.safetensors")
    tensor_file.save({key: value.clone() for key, value in net.state_dict().items()}, weights)
    subprocess.run([program, "import", name, weights, pathlib.Path(folder, "runs")], check=True)
    subprocess.run([program, "export", pathlib.Path(folder, "runs"), exported], check=True)
    other = copy.deepcopy(net)
    for value in other.state_dict().values():
        value.fill_(0)
    other.load_state_dict(tensor_file.load(exported)[0])
    for key, value in other.state_dict().items():
        assert torch.equal(value, net.state_dict()[key]), f"{name}: {key} came back otherwise"


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    for name, (net, shape) in CASES.items():
        net.train()
        images, labels = torch.randn(shape), torch.arange(shape[0])
        given = {f"model.{key}": value.clone() for key, value in net.state_dict().items()}
        logits = net(images)
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        expected = {"logits": logits.detach(), "loss": loss.detach()}
        expected |= {f"gradient.{key}": value.grad for key, value in net.named_parameters()}
        expected |= {f"buffer.{key}": value for key, value in net.named_buffers()}

        with tempfile.TemporaryDirectory() as folder:
            source, result = pathlib.Path(folder, "in.safetensors"), pathlib.Path(folder, "out.safetensors")
            tensor_file.save(given | {"images": images, "labels": labels}, source)
            subprocess.run([sys.argv[1], "resnet", name, source, result], check=True)
            got, _ = tensor_file.load(result)
            check_round_trip(sys.argv[1], name, net, folder)
        assert got.keys() == expected.keys(), got.keys() ^ expected.keys()
        worst = 0.0
        for key, value in expected.items():
            difference = (got[key].double() - value.double()).abs().max() / value.double().abs().max().clamp_min(1e-6)
            worst = max(worst, difference.item())
            assert difference <= TOLERANCE, f"{name}: {key} differs by {difference:.2e} of its largest value"
        print(f"{name}: {len(expected)} tensors agree, largest relative difference {worst:.1e}")


main()
