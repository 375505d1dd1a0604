# SPDX-License-Identifier: Apache-2.0
"""Checks that the installed torch is the one that the extension modules were built for."""
from __future__ import annotations

import torch

from trireme import _build_info


def _minor(version: str) -> list[str]:
    return version.split("+")[0].split(".")[:2]


def check() -> None:
    """Raises ImportError if torch has another minor version.

    Call it before an extension module is loaded, because its loader would only name a missing symbol.
    """
    if _minor(torch.__version__) != _minor(_build_info.TORCH_VERSION):
        raise ImportError(
            f"trireme {_build_info.VERSION} was built for torch {_build_info.TORCH_VERSION}, but torch {torch.__version__} is installed\n"
            f"  hint: install torch=={_build_info.TORCH_VERSION.split('+')[0]}, or build trireme again beside this torch")
