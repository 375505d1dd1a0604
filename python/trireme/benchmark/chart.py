# SPDX-License-Identifier: Apache-2.0
"""Draws times as bars of text."""
from __future__ import annotations

import math
from collections.abc import Sequence

WIDTH = 48  # characters of the longest bar
DECADES = 2  # times that differ by more than so many powers of ten are drawn on a logarithmic scale


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float, str]]]], block: str = "█") -> str:
    """Returns a chart, with a line for each time.

    Args:
        rows: titles, each with its times: a name, seconds, and the seconds as text. A time that is not above 0, as a difference may come
            out within noise, gets no bar.
        block: what bars are made of, one character.
    """
    times = [seconds for _, sides in rows for _, seconds, _ in sides if seconds > 0]
    if not times:
        return ""
    least, most = min(times), max(times)
    is_logarithmic = most > least * 10**DECADES
    # On a logarithmic scale the shortest bar has a tenth of the least time before it, so that it can be seen.
    decades = math.log10(most / least) + 1

    def length(seconds: float) -> int:
        if seconds <= 0:
            return 0
        share = (math.log10(seconds / least) + 1) / decades if is_logarithmic else seconds / most
        return max(1, round(WIDTH * share))

    title_width = max(len(title) for title, _ in rows)
    name_width = max(len(name) for _, sides in rows for name, _, _ in sides)
    lines = [f"  {title if number == 0 else '':{title_width}}  {name:{name_width}}  {block * length(seconds)} {text}"
             for title, sides in rows for number, (name, seconds, text) in enumerate(sides)]
    scale = "  (logarithmic scale)" if is_logarithmic else "  (linear scale)"
    return "\n".join([*lines, scale])
