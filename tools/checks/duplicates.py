# SPDX-License-Identifier: Apache-2.0
"""Blocks of code that stand in two places of the library."""
import re

from .tree import Result

LENGTH = 8  # lines of code, without comments, blank lines, includes and lines of brackets alone
COMMENT = re.compile(r"//.*$")
NO_CODE = re.compile(r"#include\b.*|#pragma once|namespace\b.*\{|using [\w:]+;|[\s{}()\[\];,]*")


def code_lines(text):
    """Yields (line number, text) of the lines that count."""
    for number, line in enumerate(text.splitlines(), 1):
        code = " ".join(COMMENT.sub("", line).split())
        if not NO_CODE.fullmatch(code):
            yield number, code


def repeated_blocks(tree):
    """No eight lines of trireme/ stand in two places: the second becomes a call of the first."""
    places = {}
    findings = []
    for path in tree.having(".h", ".cpp", under="trireme/"):
        lines = list(code_lines(tree.text(path)))
        last_found = None
        for begin in range(len(lines) - LENGTH + 1):
            block = tuple(code for _, code in lines[begin:begin + LENGTH])
            here = (path, lines[begin][0], begin)
            if block not in places:
                places[block] = here
                continue
            there = places[block]
            continues = last_found == (there[0], there[2] - 1, begin - 1)
            last_found = (there[0], there[2], begin)
            if there[0] == path and begin - there[2] < LENGTH:
                continue  # a run of equal lines overlaps itself
            if continues:
                continue
            findings.append(f"{path}:{lines[begin][0]}: {LENGTH} lines that also stand in {there[0]}:{there[1]}")
    return Result(f"{len(places)} blocks", findings)
