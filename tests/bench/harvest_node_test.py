#!/usr/bin/python3
"""harvest_bench on simulated devices: what it measures on GPUs, and what faults do."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tidy"))
sys.dont_write_bytecode = True

import xml_main  # noqa: E402


class HarvestNodeTest(unittest.TestCase):
    def test_every_figure_has_a_value(self):
        done = subprocess.run(
            ["bench/harvest_bench", "--node", "host"],
            env=os.environ | {"RAVENSTORE_DAEMON": "daemon/ravenstored"},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = {each["name"]: each for each in map(json.loads, done.stdout.splitlines())}
        for name in (
            "giveback_clean_ms",
            "giveback_dirty_vs_bound",
            "client_wait_p99_ms_per_gib",
            "client_out_of_memory",
        ):
            self.assertIsNotNone(figures[f"harvest.{name}"]["value"], done.stdout)
        self.assertEqual(figures["harvest.client_out_of_memory"]["value"], 0)
        # A link is no faster than it is paced; some of the tensors may have left before.
        self.assertGreater(figures["harvest.giveback_dirty_vs_bound"]["value"], 0.5)

    def test_faults_bring_no_wrong_byte(self):
        done = subprocess.run(
            ["bench/harvest_bench", "--faults", "1000"], capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        (figure,) = map(json.loads, done.stdout.splitlines())
        self.assertEqual(figure["name"], "harvest.faults")
        self.assertGreaterEqual(figure["value"], 1000, done.stdout)


if __name__ == "__main__":
    xml_main.main()
