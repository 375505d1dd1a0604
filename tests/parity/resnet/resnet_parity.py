# SPDX-License-Identifier: Apache-2.0
"""The residual networks of models/ against torchvision's with the same weights: logits in evaluation and in training, every gradient,
and the running statistics after a step. Both sides compute in double precision and agree to 1e-10 of the largest value.

usage: resnet_parity.py <resnet_parity program>
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
import torchvision_operators  # noqa: F401
from safetensors.torch import load_file, save_file

import torchvision  # noqa: E402

TOLERANCE = 1e-10


def check(program, name, folder):
    torch.manual_seed(7)
    net = getattr(torchvision.models, name)(weights=None, num_classes=10).double()
    for module in net.modules():  # fresh statistics and scales are 0 and 1, which a mistake could leave in place
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.uniform_(module.bias, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    images, labels = torch.randn(4, 3, 64, 64, dtype=torch.double), torch.randint(10, (4,))
    save_file(net.state_dict(), folder / "weights")
    save_file({"images": images, "labels": labels}, folder / "batch")
    subprocess.run([program, name, folder / "weights", folder / "batch", folder / "results"], check=True)

    expected = {"evaluation": net.eval()(images).detach()}
    logits = net.train()(images)
    torch.nn.functional.cross_entropy(logits, labels).backward()
    expected["training"] = logits.detach()
    expected |= {f"gradient.{key}": parameter.grad for key, parameter in net.named_parameters()}
    expected |= {f"after.{key}": buffer for key, buffer in net.named_buffers()}
    ours = load_file(folder / "results")
    if ours.keys() != expected.keys():
        sys.exit(f"{name}: other names: {sorted(ours.keys() ^ expected.keys())}")
    worst = max(((ours[key] - value).abs().max() / value.abs().max().clamp(min=1e-30)).item() for key, value in expected.items())
    if worst > TOLERANCE:
        sys.exit(f"{name}: differs by {worst} of the largest value, expected at most {TOLERANCE}")
    print(f"{name}: {len(expected)} tensors agree within {worst:.1e}")


def main():
    for name in ("resnet18", "resnet50"):
        with tempfile.TemporaryDirectory() as folder:
            check(sys.argv[1], name, pathlib.Path(folder))


if __name__ == "__main__":
    main()
