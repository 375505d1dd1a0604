# SPDX-License-Identifier: Apache-2.0
"""The command `trireme` of an installed package: runs the program that the wheel carries."""
from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Replaces this process by the program, with the same arguments. Exits with 127 if the package has no program."""
    program = Path(__file__).parent / "bin" / "trireme"
    if not program.exists():
        print(f"trireme: this package has no program: {program} does not exist\n"
              "  hint: install the wheel of `make wheel`, or use bin/trireme of the build", file=sys.stderr)
        raise SystemExit(127)
    os.execv(program, [sys.argv[0], *sys.argv[1:]])
