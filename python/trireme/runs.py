# SPDX-License-Identifier: Apache-2.0
"""Reads what a training has written for its observers: the run folder of docs/formats/run.md.

    run = trireme.read_run("runs/demo")
    print(run.settings["plan"])
    run.frame("step").plot(x="global_step", y="loss")  # with pandas

Needs neither torch nor the extension modules.
"""
from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trireme.errors import DataError, UsageError

if TYPE_CHECKING:
    import pandas

__all__ = ["KINDS", "Run", "read_run"]

KINDS = ("run", "step", "epoch", "evaluation", "checkpoint", "failure", "lost", "end")
_FORMAT = 1
_REPEATED = ("step", "epoch", "evaluation")  # a resumed run writes them again, and the later record counts


class Run:
    """The records of all ranks of a run, in the order of the files."""

    def __init__(self, path: Path, records: list[dict[str, Any]]) -> None:
        self.path = path
        self._records = records

    @property
    def ranks(self) -> list[int]:
        """The ranks that have written a file."""
        return sorted({record["rank"] for record in self._records})

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the last call of fit or train, such as `plan` and `optimizer`."""
        return self._last_run().get("settings", {})

    @property
    def environment(self) -> dict[str, str]:
        """Where the last call of fit or train ran, such as `host` and `torch`."""
        return self._last_run().get("environment", {})

    def records(self, kind: str = "step", rank: int | None = None) -> list[dict[str, Any]]:
        """Returns records as dicts, with the keys of docs/formats/run.md and `rank`. Of steps that occur twice, the later one.

        Args:
            kind: `step`, `epoch`, `evaluation`, `run`, `checkpoint`, `failure`, `lost` or `end`.
            rank: the rank that has written them; None for all.

        Raises:
            UsageError: for a kind that no record may have, and a rank without a file.
        """
        known = sorted({*KINDS, *(record["kind"] for record in self._records)})
        if kind not in known:
            nearest = difflib.get_close_matches(kind, known, 1)
            raise UsageError(f"no record is of the kind '{kind}'\n  hint: "
                             + (f"did you mean {nearest[0]}?" if nearest else f"kinds are {', '.join(known)}"))
        if rank is not None and rank not in self.ranks:
            raise UsageError(f"{self.path} has no file of rank {rank}\n  hint: its ranks are {', '.join(map(str, self.ranks))}")
        return [record for record in self._records if record["kind"] == kind and rank in (None, record["rank"])]

    def frame(self, kind: str = "step", rank: int | None = None) -> pandas.DataFrame:
        """Returns the same records as a table of pandas, with columns such as `loss`, `seconds.total` and `scalars.<name>`.

        Raises:
            UsageError: as `records`, and if pandas is not installed.
        """
        records = self.records(kind, rank)
        try:
            import pandas
        except ImportError:
            raise UsageError("a table of a run needs pandas, which is not installed\n"
                             "  hint: pip install pandas, or use records(), which returns dicts") from None
        return pandas.json_normalize(records)

    def _last_run(self) -> dict[str, Any]:
        runs = self.records("run", self.ranks[0])
        return runs[-1] if runs else {}


def read_run(path: str | os.PathLike[str]) -> Run:
    """Reads the events of a run, which may still be going on. A last line that a kill has cut off is ignored.

    Args:
        path: the folder in which the run writes, or one of its files `events-rank<r>.jsonl`.

    Raises:
        DataError: if there are no such files, or if they are of a later format.
    """
    path = Path(path)
    files = [path] if path.is_file() else sorted(path.glob("events-rank*.jsonl"))
    numbered = [(int(match[1]), file) for file in files if (match := re.fullmatch(r"events-rank(\d+)\.jsonl", file.name))]
    if not numbered:
        found = "has no events-rank<r>.jsonl" if path.exists() else "does not exist"
        raise DataError(f"{path} {found}\n  hint: give the folder in which a JsonlWriter writes, such as runs/demo")
    return Run(path, [record for rank, file in sorted(numbered) for record in _read(rank, file)])


def _read(rank: int, file: Path) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    try:
        text = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}\n  hint: check its permissions") from None
    for line in text.split(b"\n")[:-1]:  # what follows the last newline was cut off
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
            continue
        if record["kind"] == "run":
            if record.get("format", _FORMAT) != _FORMAT:
                raise DataError(f"{file} has format {record['format']}, expected {_FORMAT}\n  hint: install the Trireme that has written it")
            begin = record.get("global_step", 0)  # later steps were discarded
            kept = [each for each in kept if each["kind"] not in _REPEATED or each.get("global_step", 0) <= begin]
        kept.append({**record, "rank": rank})
    last = {each.get("global_step"): place for place, each in enumerate(kept) if each["kind"] == "step"}
    return [each for place, each in enumerate(kept) if each["kind"] != "step" or last[each.get("global_step")] == place]
