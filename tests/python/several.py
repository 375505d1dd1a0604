# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of several files in one process: `several.py --fast collectives errors`.

The imports of torch, here and in the process that ranks are forked from, take longer than most tests.
"""
from __future__ import annotations

import sys

from ranks import main

if __name__ == "__main__":
    main([f"{part}_test" for part in sys.argv[1:] if not part.startswith("--")])
