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
        told = {
            "recorded": [recorded(100)] * 4 + [recorded(1), recorded(3)] + [recorded(100)],
            "iteration_stall_s": [50, 50, 50, 50, 4],
        }
        means = planner_jobs.per_step(told)
        self.assertEqual((means["compute_s"], means["stall_s"]), (2, 2))
        self.assertEqual(means["waited_for_gets_s"], 0.5)
        self.assertEqual(planner_jobs.per_step({**told, "recorded": [recorded(1)] * 5}), {})

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "no transformers")
    def test_a_job_is_recorded_and_replayed(self):
        with tempfile.TemporaryDirectory() as out:
            arguments = argparse.Namespace(
                device="cpu", small=True, steps=7, budget=0, device_name="no GPU"
            )
            printed = io.StringIO()
            with (
                unittest.mock.patch.dict(
                    os.environ, {"OUT": out, "PYTHONPATH": str(harness.ROOT / "python")}
                ),
                contextlib.redirect_stdout(printed),
            ):
                planner_jobs.measure("lora", arguments, (2.0, 2.0))
            self.assertGreater((pathlib.Path(out) / "recorded/lora.trace").stat().st_size, 1000)
        compute, truth = (json.loads(line) for line in printed.getvalue().splitlines())
        self.assertEqual(compute["name"], "planner.recorded_compute_lora")
        self.assertEqual(truth["name"], "planner.simulated_over_measured_lora")
        # How near they come is the machine's: this one may be busy with other work.
        self.assertGreater(truth["value"], 0)
        self.assertGreater(compute["program_s"], 0)


if __name__ == "__main__":
    xml_main.main()
