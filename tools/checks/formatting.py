# SPDX-License-Identifier: Apache-2.0
"""clang-format, at the version that tools/versions.env pins."""
import re
import subprocess

from .tree import ROOT, Result

PROGRAM = ROOT / "build" / "python" / "bin" / "clang-format"


def check(tree):
    run = subprocess.run([PROGRAM, "--dry-run", "--Werror", "--ferror-limit=1", *tree.cpp], cwd=ROOT,
                         capture_output=True, text=True, check=False)
    places = dict.fromkeys(re.findall(r"^([^:\n]+:\d+):\d+: error", run.stderr, re.MULTILINE))
    findings = [f"{place}: not formatted; `make fix` does it" for place in places]
    if run.returncode and not findings:
        findings = [run.stderr.strip()]
    return Result(f"{len(tree.cpp)} files", findings)


def fix(tree):
    subprocess.run([PROGRAM, "-i", *tree.cpp], cwd=ROOT, check=True)
    return f"check: formatted {len(tree.cpp)} files"
