"""bench/optimizer_bench.py runs where there is no GPU, with a tiny model."""

import json
import subprocess
import sys
import unittest

import harness
import xml_main


class OptimizerBenchTest(unittest.TestCase):
    def test_it_prints_every_figure_and_the_states_have_moved(self):
        run = subprocess.run(
            [sys.executable, str(harness.ROOT / "bench/optimizer_bench.py")]
            + ["--device", "cpu", "--steps", "1"],
            capture_output=True,
            text=True,
            timeout=harness.HANGS_AFTER,
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        figures = {row["name"]: row for row in map(json.loads, run.stdout.splitlines())}
        self.assertEqual(
            sorted(figures),
            [
                "pytorch.exit_status",
                "pytorch.optimizer_equal",
                "pytorch.optimizer_first_step",
                "pytorch.optimizer_peak_saved",
                "pytorch.optimizer_peak_saved_in_backward",
                "pytorch.optimizer_state_dict_peak",
                "pytorch.optimizer_vs_bound",
                "pytorch.optimizer_vs_bound_in_backward",
            ],
        )
        self.assertTrue(figures["pytorch.exit_status"]["ok"], figures["pytorch.exit_status"])
        self.assertRegex(figures["pytorch.exit_status"]["detail"], r" \d{3,} chunks")
        self.assertTrue(figures["pytorch.optimizer_equal"]["ok"])
        for way in ("", "_in_backward"):
            row = figures["pytorch.optimizer_vs_bound" + way]
            self.assertGreater(row["value"], 0)
            self.assertRegex(row["detail"], r"a step moved [1-9][\d.]* MB in and [1-9]")
            self.assertIn("GPU", figures["pytorch.optimizer_peak_saved" + way]["skipped"])


if __name__ == "__main__":
    xml_main.main()
