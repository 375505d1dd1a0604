# SPDX-License-Identifier: Apache-2.0
"""Runs commands of the program `trireme`, with which the Python package is compared."""
from __future__ import annotations

import json
import os
import subprocess
import unittest
from pathlib import Path
from typing import Any

_FOLDER = Path(os.environ.get("TRIREME_BIN", "/nonexistent"))
PROGRAM = _FOLDER / "trireme"
needs_program = unittest.skipUnless(PROGRAM.exists() and (_FOLDER / "trireme_torch.so").exists(), "the program is not built")


def run_command(*arguments: str) -> dict[str, Any]:
    """Returns what a command prints as JSON, for models in fp32."""
    done = subprocess.run([str(PROGRAM), *arguments, "--json", "--dtype", "float32"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
