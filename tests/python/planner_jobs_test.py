"""bench/planner_jobs.py without a GPU: a small job is recorded, replayed and compared."""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

import harness
import xml_main

sys.path.insert(0, str(harness.ROOT / "bench"))

import planner_jobs  # noqa: E402


def recorded(compute):
    times = ("waited_for_creates_s", "waited_for_gets_s", "program_s", "blocked_s")
    return {"compute_s": compute, **dict.fromkeys(times, 0.5)}


class PlannerJobsTest(unittest.TestCase):
    def test_only_whole_steps_after_the_warm_up_are_counted(self):
        outcome = {
            "recorded": [recorded(100)] * 4 + [recorded(1), recorded(3)] + [recorded(100)],
            "iteration_stall_s": [50, 50, 50, 50, 4],
        }
        means = planner_jobs.per_step(outcome, 6)
        self.assertEqual((means["compute_s"], means["stall_s"]), (2, 2))
        self.assertEqual(means["waited_for_gets_s"], 0.5)
        self.assertEqual(planner_jobs.per_step({**outcome, "recorded": [recorded(1)] * 5}, 4), {})

    def test_a_step_of_two_passes_has_the_sum_of_both(self):
        outcome = {
            "recorded": [recorded(100)] * 8 + [recorded(1), recorded(3)] * 2 + [recorded(100)],
            "iteration_stall_s": [50] * 8 + [4, 0, 4, 0],
        }
        means = planner_jobs.per_step(outcome, 6)
        self.assertEqual((means["compute_s"], means["stall_s"]), (4, 4))

    def test_budgets_follow_the_plain_peak_where_a_job_has_none_of_its_own(self):
        arguments = argparse.Namespace(budget=None, small=False)
        of = planner_jobs.budgets_of
        self.assertEqual(of("unet", arguments, None), (10 << 30,))
        self.assertEqual(of("gan", arguments, {"peak": 10 << 30})[0], 6 << 30)
        self.assertEqual(of("gan", arguments, None), ())
        self.assertEqual(of("unet", argparse.Namespace(budget=7, small=False), None), (7,))

    @staticmethod
    def measured(job):
        """What is printed of the job, small and on the CPU, and its recording's size."""
        with tempfile.TemporaryDirectory() as out:
            arguments = argparse.Namespace(
                device="cpu",
                small=True,
                steps=7,
                budget=0,
                device_name="no GPU",
                ends_within=300,
            )
            printed = io.StringIO()
            with (
                unittest.mock.patch.dict(
                    os.environ, {"OUT": out, "PYTHONPATH": str(harness.ROOT / "python")}
                ),
                contextlib.redirect_stdout(printed),
            ):
                planner_jobs.measure(job, arguments, (2.0, 2.0))
            size = (pathlib.Path(out) / f"recorded/{job}.trace").stat().st_size
        return *(json.loads(line) for line in printed.getvalue().splitlines()), size

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "no transformers")
    def test_a_job_is_recorded_and_replayed(self):
        compute, truth, size = self.measured("lora")
        self.assertGreater(size, 1000)
        self.assertEqual(compute["name"], "planner.recorded_compute_lora")
        self.assertEqual(truth["name"], "planner.simulated_over_measured_lora")
        # How near they come is the machine's: this one may be busy with other work.
        self.assertGreater(truth["value"], 0)
        self.assertGreater(compute["program_s"], 0)

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "no transformers")
    def test_a_growing_cache_is_recorded_and_replayed(self):
        compute, truth, size = self.measured("generate")
        self.assertGreater(size, 1000)
        self.assertGreater(truth["value"], 0)
        self.assertEqual(compute["budget"], 20 << 20)

    def test_a_job_that_is_kept_back_is_recorded_and_not_replayed(self):
        compute, truth, size = self.measured("gan")
        self.assertGreater(size, 1000)
        self.assertGreater(compute["recorded_s"], 0)
        self.assertEqual((compute["value"], truth["value"]), (None, None))


if __name__ == "__main__":
    xml_main.main()
