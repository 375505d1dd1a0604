# SPDX-License-Identifier: Apache-2.0
"""trireme.read_run: the records of docs/formats/run.md as dicts and as tables of pandas."""
from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import trireme


def record(kind: str, step: int, **more: Any) -> str:
    return json.dumps({"kind": kind, "time": 1.5, "epoch": 1, "global_step": step, **more}) + "\n"


class Runs(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, *lines: str, rank: int = 0) -> None:
        (self.folder / f"events-rank{rank}.jsonl").write_text("".join(lines), "utf-8")

    def test_records_are_read_by_kind_and_rank(self) -> None:
        for rank in (0, 10):
            self.write(record("run", 0, format=1, settings={"plan": "data=2"}, environment={"host": f"h{rank}"}),
                       record("step", 1, loss=2.5, seconds={"total": 0.5}, scalars={"mine": rank}), record("step", 2, loss=None),
                       record("evaluation", 2, accuracy=0.5), record("unheard-of", 2), rank=rank)
        run = trireme.read_run(self.folder)
        self.assertEqual(run.ranks, [0, 10])
        self.assertEqual(run.settings, {"plan": "data=2"})
        self.assertEqual(run.environment, {"host": "h0"})
        self.assertEqual([(each["rank"], each["global_step"], each["loss"]) for each in run.records()],
                         [(0, 1, 2.5), (0, 2, None), (10, 1, 2.5), (10, 2, None)])
        self.assertEqual([each["scalars"]["mine"] for each in run.records("step", rank=10)[:1]], [10])
        self.assertEqual(len(run.records("evaluation")), 2)
        self.assertEqual(run.records("failure"), [])
        self.assertEqual(len(run.records("unheard-of", rank=0)), 1)
        self.assertEqual(trireme.read_run(self.folder / "events-rank10.jsonl").ranks, [10])

    def test_a_line_that_was_cut_off_and_other_lines_are_ignored(self) -> None:
        self.write(record("run", 0, format=1), record("step", 1), "[1, 2]\n", "what is this\n", '{"a": 1}\n', record("step", 2)[:-1])
        self.assertEqual([each["global_step"] for each in trireme.read_run(self.folder).records()], [1])

    def test_a_resumed_run_discards_and_repeats_steps(self) -> None:
        self.write(record("run", 0, format=1), *(record("step", step, loss=0.0) for step in (1, 2, 3)), record("epoch", 3),
                   record("run", 1, format=1), record("step", 2, loss=1.0), record("step", 2, loss=2.0))
        run = trireme.read_run(self.folder)
        self.assertEqual([(each["global_step"], each["loss"]) for each in run.records()], [(1, 0.0), (2, 2.0)])
        self.assertEqual(run.records("epoch"), [])
        self.assertEqual(len(run.records("run")), 2)

    def test_mistakes_are_named(self) -> None:
        with self.assertRaisesRegex(trireme.DataError, "nowhere does not exist"):
            trireme.read_run(self.folder / "nowhere")
        with self.assertRaisesRegex(trireme.DataError, "has no events-rank<r>.jsonl(.|\n)*JsonlWriter"):
            trireme.read_run(self.folder)
        self.write(record("run", 0, format=2))
        with self.assertRaisesRegex(trireme.DataError, "events-rank0.jsonl has format 2, expected 1"):
            trireme.read_run(self.folder)
        self.write(record("run", 0, format=1), record("step", 1))
        run = trireme.read_run(self.folder)
        with self.assertRaisesRegex(trireme.UsageError, "'stepp'(.|\n)*did you mean step"):
            run.records("stepp")
        with self.assertRaisesRegex(trireme.UsageError, "no file of rank 3(.|\n)*ranks are 0"):
            run.records(rank=3)
        with mock.patch.dict(sys.modules, {"pandas": None}), self.assertRaisesRegex(trireme.UsageError, "pip install pandas(.|\n)*records"):
            run.frame()

    @unittest.skipUnless(importlib.util.find_spec("pandas"), "pandas is not installed")
    def test_tables_have_columns_for_nested_keys(self) -> None:
        self.write(record("run", 0, format=1), record("step", 1, loss=2.5, seconds={"total": 0.5}), record("step", 2, loss=None))
        frame = trireme.read_run(self.folder).frame()
        self.assertEqual(list(frame["global_step"]), [1, 2])
        self.assertEqual(frame["seconds.total"][0], 0.5)
        self.assertTrue(frame["loss"].isna()[1])


if __name__ == "__main__":
    unittest.main()
