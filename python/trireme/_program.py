# SPDX-License-Identifier: Apache-2.0
"""The command `trireme` of an installed package: runs the program that the wheel carries."""
from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def main() -> None:
    """Replaces this process by the program, with the same arguments. It loads the torch that this Python would import.

    Exits with 127 if the package has no program.
    """
    # Beside the extension modules, which may lie elsewhere than this file.
    native = importlib.util.find_spec("trireme._native")
    folder = Path(native.origin if native is not None and native.origin is not None else __file__).parent
    program = folder / "bin" / "trireme"
    if not program.exists():
        print(f"trireme: this package has no program: {program} does not exist\n"
              "  hint: install the wheel of `make wheel`, or use bin/trireme of the build", file=sys.stderr)
        raise SystemExit(127)
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None:
        os.environ.setdefault("TRIREME_TORCH_DIR", str(Path(torch.origin).parent))
    os.execv(program, [sys.argv[0], *sys.argv[1:]])
