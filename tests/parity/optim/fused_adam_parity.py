# SPDX-License-Identifier: Apache-2.0
"""Parameters after each step of fused_adam() and fused_adamw() against torch.optim with fused=True.

Parameters of whole blocks of vector instructions have the same bits. The kernel steps the end of others one element at a time,
which Trireme avoids: their elements agree to 1e-6.

usage: fused_adam_parity.py <fused_adam_parity program>
"""

import json
import subprocess
import sys

import torch

TOLERANCE = 1e-6
STEPS = 12
SIZES = (64, 4096, 7, 130)
WHOLE_BLOCKS = 64
CASES = [(optimizer, {"lr": lr, "betas": betas, "eps": 1e-8, "weight_decay": weight_decay, "amsgrad": amsgrad})
         for optimizer in ("Adam", "AdamW") for amsgrad in (False, True)
         for lr, betas, weight_decay in ((1e-3, (0.9, 0.999), 0.01), (0.05, (0.7, 0.9), 0))]


def main():
    generator = torch.Generator().manual_seed(7)
    parameters = [torch.randn(size, generator=generator) for size in SIZES]
    gradients = [[torch.randn(size, generator=generator) for size in SIZES] for _ in range(STEPS)]
    as_lists = {"parameters": [each.tolist() for each in parameters],
                "gradients": [[each.tolist() for each in step] for step in gradients]}
    request = json.dumps([{"optimizer": optimizer, "options": options, **as_lists} for optimizer, options in CASES])
    finished = subprocess.run(sys.argv[1:2], check=True, capture_output=True, text=True, input=request)
    failures = []
    for (name, options), steps in zip(CASES, json.loads(finished.stdout), strict=True):
        theirs = [each.clone().requires_grad_() for each in parameters]
        optimizer = getattr(torch.optim, name)(theirs, fused=True, **options)
        for number, ours in enumerate(steps):
            for parameter, gradient in zip(theirs, gradients[number], strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
            for size, expected, values in zip(SIZES, theirs, ours, strict=True):
                actual = torch.tensor(values)
                is_equal = (torch.equal(actual, expected) if size % WHOLE_BLOCKS == 0
                            else torch.allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE))
                if not is_equal:
                    failures.append(f"{name} {options}, step {number + 1}: {size} elements differ by "
                                    f"{(actual - expected).abs().max().item():.1e} at most")
    print("\n".join(failures[:10]) or f"{STEPS} steps of {len(CASES)} optimizers agree")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
