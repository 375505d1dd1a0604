# SPDX-License-Identifier: Apache-2.0
"""Plans as values and files, searches for plans of modules of Python, and schedules."""
from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any

import torch

import trireme
from commands import needs_program, run_command
from plain_networks import GPT, SIZES, ProductAndSum, ResNet18, on_meta, tokens
from ranks import main, thorough


class Plans(unittest.TestCase):
    def test_fields_have_the_names_of_toml(self) -> None:
        plan = trireme.Plan(mesh={"pipe": 2, "data": 4}, schedule="zb-v", micro_batches=8, zero_level=1, stages={"layer3": 1},
                            zero_level_of=[("head", 0)], recompute=["blocks.*"], wire="bf16", gradient_predivide=2)
        self.assertEqual(plan.mesh, {"pipe": 2, "data": 4})
        self.assertEqual((plan.schedule, plan.micro_batches, plan.zero_level, plan.wire), ("zb-v", 8, 1, "bf16"))
        self.assertEqual((plan.stages, plan.zero_level_of, plan.recompute), ([("layer3", 1)], [("head", 0)], ["blocks.*"]))
        self.assertEqual(plan.gradient_predivide, 2.0)
        self.assertIs(plan.data_parallel, True)
        self.assertEqual(plan, trireme.Plan(**plan.to_dict()))
        self.assertEqual(trireme.Plan(mesh=["pipe=2", "data=4"]).mesh, plan.mesh)
        self.assertIn("pipe=2, data=4", str(plan))

    def test_layouts_are_texts_or_pairs(self) -> None:
        plan = trireme.Plan(mesh={"tensor": 2}, layouts={"*.qkv.weight": "Shard(0) on tensor"})
        self.assertEqual(plan.layouts, ["*.qkv.weight -> Shard(0) on tensor"])
        self.assertEqual(plan, trireme.Plan(mesh={"tensor": 2}, layouts=plan.layouts))

    def test_plans_are_values(self) -> None:
        plan = trireme.Plan(mesh={"data": 2}, zero_level=2)
        self.assertEqual(repr(plan), "Plan(mesh={'data': 2}, zero_level=2)")
        self.assertEqual(eval(repr(plan), {"Plan": trireme.Plan}), plan)
        self.assertEqual(repr(trireme.Plan()), "Plan()")
        other = plan.replace(zero_level=3)
        self.assertEqual((plan.zero_level, other.zero_level, other.mesh), (2, 3, {"data": 2}))
        self.assertNotEqual(plan, other)
        self.assertNotEqual(plan, "data=2")
        self.assertEqual(pickle.loads(pickle.dumps(plan)), plan)
        with self.assertRaises(AttributeError):
            plan.zero_level = 3  # type: ignore[misc]

    def test_plans_are_files(self) -> None:
        plan = trireme.Plan(mesh={"pipe": 2, "data": 2}, micro_batches=4)
        self.assertEqual(trireme.Plan.from_toml(plan.to_toml()), plan)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.toml"
            plan.save(path)
            self.assertEqual(trireme.Plan.load(path), plan)
            self.assertEqual(trireme.Plan.load(str(path)), plan)
            with self.assertRaisesRegex(trireme.ConfigError, "none"):
                plan.save(Path(folder) / "none" / "plan.toml")
            with self.assertRaisesRegex(trireme.ConfigError, "cannot read"):
                trireme.Plan.load(Path(folder) / "other.toml")

    @needs_program
    @thorough
    def test_the_program_reads_plans_of_python_and_writes_them(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "plan.toml")
            plan = trireme.Plan(mesh={"pipe": 2, "data": 2}, zero_level=1, micro_batches=2, schedule="gpipe")
            plan.save(path)
            model = on_meta(lambda: GPT(linear=ProductAndSum))
            self.assertEqual(run_command("predict", "--model", "gpt", *SIZES, "--rows", "2", "-n", "4", "--plan", path),
                             trireme.predict(model, model.loss, inputs=[tokens(2)], plan=plan).to_dict())
            run_command("plan", "--model", "gpt", *SIZES, "-n", "4", "--batch", "8", "--with", "pipe=2", "--save", path)
            self.assertEqual(trireme.Plan.load(path).mesh["pipe"], 2)

    def test_mistakes_are_named(self) -> None:
        for fields, expected in (({"zero_levl": 3}, "did you mean 'zero_level'?"), ({"zero_stage": 3}, "it is 'zero_level' now"),
                                 ({"zero_level": 7}, "expected an integer, 0 to 3"), ({"mesh": {"data": "x"}}, "an axis and its size"),
                                 ({"layouts": ["x"]}, "a pattern and its placement"), ({"micro_batches": "4"}, "expected an integer"),
                                 ({"schedule": 3}, "schedule is 3")):
            with self.subTest(fields=fields), self.assertRaises(trireme.ConfigError) as caught:
                trireme.Plan(**fields)
            self.assertIn(expected, str(caught.exception))
            self.assertIn(f"Plan({next(iter(fields))}=", str(caught.exception))
        with self.assertRaisesRegex(trireme.UsageError, "is of type object"):
            trireme.Plan(recompute=[object()])
        with self.assertRaisesRegex(trireme.UsageError, "is of type int"):
            trireme.Plan(bucket_bytes=1 << 80)
        with self.assertRaisesRegex(trireme.ConfigError, r"mine.toml:2:\d+"):
            trireme.Plan.from_toml("zero_level = 1\nzero_levels = 2\n", "mine.toml")


class Searches(unittest.TestCase):
    def find(self, model: Any, rows: int = 64, ranks: int = 8, **options: Any) -> trireme.SearchResult:
        return trireme.find_plan(model, model.loss, [tokens(1)], ranks=ranks, rows=rows, **options)

    @needs_program
    @thorough
    def test_the_result_is_that_of_the_command(self) -> None:
        model = on_meta(lambda: GPT(linear=ProductAndSum))
        for constraints in ([], ["pipe=1"], ["data=2", "recompute=repeated"]):
            expected = run_command("plan", "--model", "gpt", *SIZES, "-n", "8", "--batch", "64", "--cluster", "h100-80",
                                   *(word for constraint in constraints for word in ("--with", constraint)))
            found = self.find(model, cluster="h100-80", constraints=constraints)
            with self.subTest(constraints=constraints):
                self.assertEqual(found.to_dict() | {"seconds": 0}, expected | {"seconds": 0})

    def test_the_found_plan_has_the_prediction_that_is_returned(self) -> None:
        model = GPT()
        found = self.find(model)
        again = trireme.predict(model, model.loss, inputs=[tokens(found.fastest.rows)], plan=found.plan)
        # A search does not replay the allocator.
        self.assertEqual([rank | {"lost": 0} for rank in again.to_dict()["memory"]], found.prediction.to_dict()["memory"])
        self.assertEqual(again.to_dict() | {"memory": None}, found.prediction.to_dict() | {"memory": None})
        self.assertEqual(found.best[0].plan, found.plan)
        self.assertLessEqual(len(found.best), 10)
        self.assertEqual(sorted(each.prediction.step_seconds for each in found.best), [each.prediction.step_seconds for each in found.best])
        self.assertLessEqual(found.lower_bound, found.prediction.step_seconds)
        self.assertTrue(0 <= found.gap < 1)
        self.assertIn("the best plans", str(found))
        self.assertIn("predicted", found.summary)

    @thorough
    def test_constraints_and_common_settings_hold(self) -> None:
        model = GPT()
        found = self.find(model, constraints=["pipe=1", "zero_level=2", "data>=4"], plan=trireme.Plan(wire="bf16"))
        self.assertEqual((found.plan.zero_level, found.plan.wire), (2, "bf16"))
        self.assertNotIn("pipe", found.plan.mesh)
        self.assertGreaterEqual(found.plan.mesh["data"], 4)
        other = self.find(model, constraints=["pipe=2"], plan=trireme.Plan(wire="bf16"))
        self.assertIn("why not pipe=2", found.compare(other, "pipe=2"))
        automatic = self.find(model, plan=trireme.Plan(mode="auto", constraints=["pipe=2"]))
        self.assertEqual((automatic.plan.mesh["pipe"], automatic.plan.mode), (2, "manual"))
        self.assertEqual(self.find(model, loop=True, constraints="data=8").plan.recompute, [])

    def test_numbers_of_rows_that_forward_refuses_are_left_out(self) -> None:
        model = on_meta(ResNet18)  # one value per channel at the end, of which batch norm needs more
        inputs = [torch.empty(1, 3, 32, 32), torch.empty(1, dtype=torch.int64)]
        self.assertGreater(trireme.find_plan(model, model.loss, inputs, ranks=4, rows=16, constraints="tensor=1").fastest.rows, 1)
        with self.assertRaisesRegex(trireme.UsageError, "no plan can be carried out.*Expected more than 1 value per channel"):
            trireme.find_plan(model, model.loss, inputs, ranks=4, rows=16, constraints=["tensor=1", "rows=1"])

    def test_too_large_modules_are_explained(self) -> None:
        model = on_meta(lambda: GPT(50257, 64, 12288, 16, 96))
        found = self.find(model, ranks=1, rows=1)
        self.assertEqual(found.best, [])
        self.assertIn("NO PLAN FITS", str(found))
        self.assertIsNotNone(found.smallest)
        with self.assertRaises(trireme.UsageError):
            found.plan

    def test_mistakes_are_named(self) -> None:
        model = GPT()
        for options, error, expected in (
                ({"constraints": ["tenser=2"]}, trireme.ConfigError, "did you mean 'tensor'?"),
                ({"constraints": ["tensor=3"]}, trireme.UsageError, "no plan for 8 ranks"),
                ({"plan": trireme.Plan(zero_level=2)}, trireme.UsageError, "which the search finds"),
                ({"plan": trireme.Plan(activation_bytes=2)}, trireme.UsageError, "which the search does not choose"),
                ({"tensor_layouts": ["x"]}, trireme.UsageError, "tensor_layouts has 'x'"), ({"rows": 0}, trireme.UsageError, "rows")):
            with self.subTest(options=options), self.assertRaises(error) as caught:
                self.find(model, **options)
            self.assertIn(expected, str(caught.exception))

    def test_other_threads_run_during_a_search(self) -> None:
        model, counts, is_done = GPT(), [0], threading.Event()

        def count() -> None:
            while not is_done.is_set():
                counts[0] += 1
                is_done.wait(0.001)

        thread = threading.Thread(target=count)
        thread.start()
        try:
            self.find(model, ranks=16)
        finally:
            is_done.set()
            thread.join()
        self.assertGreater(counts[0], 5)


class Schedules(unittest.TestCase):
    def test_a_schedule_has_text_times_and_pictures(self) -> None:
        made = trireme.schedule("1f1b", 4, 8)
        self.assertAlmostEqual(made.bubble, 3 / 11)  # (ranks - 1) of (ranks - 1 + micro-batches)
        self.assertEqual((made.name, made.ranks, made.micro_batches, made.rank_of_stage), ("1f1b", 4, 8, [0, 1, 2, 3]))
        self.assertEqual((made.step_time, made.kept_micro_batches), (33.0, 4.0))
        self.assertTrue(made.to_svg().startswith("<svg"))
        self.assertIn("traceEvents" if made.to_trace().startswith("{") else '"ph"', made.to_trace())
        read = trireme.parse_schedule(made.to_text())
        self.assertEqual((read.to_text(), read.step_time), (str(made), made.step_time))
        plan = trireme.Plan(mesh={"pipe": 4}, schedule=made.to_text(), micro_batches=8)
        model = GPT()
        named = trireme.predict(model, model.loss, inputs=[tokens(1)], plan=plan.replace(schedule="1f1b"))
        self.assertEqual(trireme.predict(model, model.loss, inputs=[tokens(1)], plan=plan).step_seconds, named.step_seconds)

    def test_times_are_those_of_stages(self) -> None:
        made = trireme.schedule("interleaved", 2, 4, 2, forward=[1, 1, 2, 2], backward_input=2, backward_weight=0, communication=0.5)
        self.assertEqual(len(made.rank_of_stage), 4)
        self.assertGreater(made.step_time, 4 * (3 + 2))

    def test_mistakes_are_named(self) -> None:
        with self.assertRaisesRegex(trireme.UsageError, "1f1c"):
            trireme.schedule("1f1c", 2, 4)
        with self.assertRaisesRegex(trireme.UsageError, "forward has 3 numbers, but there are 2 stages"):
            trireme.schedule("1f1b", 2, 4, forward=[1, 2, 3])
        with self.assertRaisesRegex(trireme.DataError, ":1:"):
            trireme.parse_schedule("no schedule")


class Package(unittest.TestCase):
    @thorough
    def test_the_import_for_collectives_loads_nothing_of_it(self) -> None:
        program = ("import sys, trireme.torch\nassert 'trireme._planning' not in sys.modules and 'trireme.planning' not in sys.modules\n"
                   "import trireme\nassert trireme.Plan().mode == 'manual' and trireme.checkpoint.load\n"
                   "assert {'Plan', 'predict', 'find_plan', 'checkpoint'} <= set(dir(trireme))\n"
                   "try:\n  trireme.predicted\nexcept AttributeError as error:\n  assert 'predicted' in str(error)\n"
                   "import torch.distributed as dist\n"
                   "dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)\n"
                   "tensor = torch = __import__('torch').ones(3)\ndist.all_reduce(tensor)\nassert trireme.torch.engine() == 'shm'\n")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_clusters_are_known(self) -> None:
        self.assertIn("a100-80", trireme.known_clusters())


if __name__ == "__main__":
    main()
