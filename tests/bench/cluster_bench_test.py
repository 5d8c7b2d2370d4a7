#!/usr/bin/python3
"""The cluster's programs: every figure is there. How good they are is not judged here."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tidy"))
sys.dont_write_bytecode = True

import xml_main  # noqa: E402

# All but vs_redis, which needs a program that may not be there.
MEASURED = (
    "remote_vs_stream",
    "remote_vs_stream_1mib",
    "idle_cost",
    "idle_cost_pair",
    "idle_cost_create_free",
    "node_loss_ms",
    "node_loss_copies_2_ms",
)


def figures_of(*command, **variables):
    """({name: figure}, exit code, standard error) of a program that prints figures."""
    done = subprocess.run(
        command,
        env=os.environ | {"RAVENSTORE_DAEMON": "daemon/ravenstored"} | variables,
        capture_output=True,
        text=True,
    )
    figures = {each["name"]: each for each in map(json.loads, done.stdout.splitlines())}
    return figures, done.returncode, done.stderr


class ClusterBenchTest(unittest.TestCase):
    def test_every_figure_has_a_value_and_what_is_missing_its_reason(self):
        with tempfile.TemporaryDirectory() as empty:
            figures, code, said = figures_of("bench/cluster_bench", "--scale", "0.01", PATH=empty)
        self.assertEqual(code, 0, said)
        for name in MEASURED:
            figure = figures[f"cluster.{name}"]
            self.assertIsNotNone(figure["value"], figure)
            self.assertIsNotNone(figure["target"], figure)
            self.assertGreater(figure["value"], 0, figure)
        redis = figures["cluster.vs_redis"]
        self.assertEqual(redis["skipped"], "no redis-server in PATH")
        self.assertEqual(redis["target"], 1.8)

    def test_simulated_faults_are_counted(self):
        figures, code, said = figures_of("bench/cluster_faults", "--runs", "5")
        self.assertEqual(code, 0, said)
        counts = figures["cluster.faults_simulated"]
        self.assertEqual((counts["runs"], counts["wrong_bytes"]), (5, 0))
        self.assertGreater(counts["operations"], 0)

    def test_a_simulated_cluster_has_every_figure(self):
        command = ("bench/cluster_load", "--nodes", "10", "--minutes", "2")
        figures, code, said = figures_of(*command)
        self.assertEqual(code, 0, said)
        for name in ("occupancy", "missed_recalls", "messages", "directory_bytes", "minutes"):
            figure = figures[f"cluster.sim_{name}"]
            self.assertIsNotNone(figure["value"], figure)
            self.assertIsNotNone(figure["target"], figure)
        self.assertIn("of 10 nodes", figures["cluster.sim_messages"]["detail"])
        self.assertEqual(figures["cluster.sim_violations"]["value"], 0, said)
        self.assertIn("10 nodes for 120 s", said)


if __name__ == "__main__":
    xml_main.main()
