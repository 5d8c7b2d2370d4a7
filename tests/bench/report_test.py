#!/usr/bin/python3
"""bench/report where a program crashes or does not build: bench/gpu_node goes by its exit code."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

# Through the links of Bazel's runfiles to the checkout itself.
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/tidy"))
sys.dont_write_bytecode = True

import xml_main  # noqa: E402

FIGURE = {
    "name": "planner.x", "value": 1.0, "unit": "x", "bound": None, "target": 2, "ok": True,
    "machine": "",
}  # fmt: skip


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.program("ravenstored", "")

    def program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def report(self, script=ROOT / "bench/report", only="planner", flags=(), **variables):
        """(exit code, {name: figure}, standard error) of an area."""
        environment = {k: v for k, v in os.environ.items() if k != "RAVENSTORE_BIN"}
        done = subprocess.run(
            [sys.executable, script, "--only", only, "--json", *flags],
            env=environment | variables,
            capture_output=True,
            text=True,
        )
        figures = [json.loads(line) for line in done.stdout.splitlines()]
        return done.returncode, {each["name"]: each for each in figures}, done.stderr

    def test_exits_with_0_when_it_ran(self):
        # In one folder, or in folders like bazel-bin's.
        for name in ("planner_bench", "bench/planner_bench"):
            program = self.program(name, f"echo '{json.dumps(FIGURE)}'")
            code, figures, said = self.report(RAVENSTORE_BIN=str(self.folder))
            self.assertEqual((code, figures["planner.x"]), (0, FIGURE), said)
            program.unlink()

    def test_a_program_that_crashed_is_reported_and_exits_with_1(self):
        self.program(
            "planner_bench", f"echo '{json.dumps(FIGURE)}'; printf '{{\"na'; kill -ABRT $$"
        )
        code, figures, said = self.report(RAVENSTORE_BIN=str(self.folder))
        self.assertEqual(code, 1, said)
        self.assertIn("planner.x", figures)
        self.assertIn("planner_bench ended with -6", said)

    def test_a_training_step_is_compared_by_the_pair_in_the_middle(self):
        self.program("nvidia-smi", "echo Some GPU, 580")
        self.program(
            "ravenstored", 'for socket; do :; done; touch "$socket"; exec tail -f /dev/null'
        )
        self.program("store_bench", "")
        runs = self.folder / "runs"
        train_gpt = self.program(
            "train_gpt",
            f"""echo >>{runs}
            case $(wc -l <{runs}) in 1 | 6) step=3 ;; 2 | 7) step=2.5 ;; *) step=2.125 ;; esac
            echo '{{"step_s": 2}}'
            echo "{{\\"step_s\\": $step}}\"""",
        )
        code, figures, said = self.report(
            only="store",
            flags=["--train-gpt", str(train_gpt)],
            RAVENSTORE_BIN=str(self.folder),
            PATH=f"{self.folder}:{os.environ['PATH']}",
        )
        self.assertEqual(code, 0, said)
        figure = figures["store.all_resident_slowdown"]
        self.assertEqual((figure["value"], figure["bound"], figure["ok"]), (1.0625, 2000, False))
        self.assertIn("1.062, 1.062, 1.062, 1.250, 1.500", figure["detail"])

    def test_recordings_are_unpacked_and_the_validation_set_is_passed_on(self):
        given = self.folder / "given"
        self.program(
            "planner_bench",
            f"""printf '%s ' "$@" >{given}
            for folder; do :; done
            case "$*" in *--recordings*) ls "$folder" >>{given} ;; esac""",
        )
        for flags in ([], ["--validation"]):
            code, _, said = self.report(flags=flags, RAVENSTORE_BIN=str(self.folder))
            self.assertEqual(code, 0, said)
            self.assertEqual("--validation" in given.read_text(), bool(flags))
            for name in ("gpt-large", "pytorch-gpt-50", "pytorch-gpt2-eager", "resnet50"):
                self.assertIn(f"{name}.trace\n", given.read_text())

    def cluster(self, faults, exit_code=0, planted="[ RUN      ]\n[       OK ]\n" * 10):
        """The cluster's figures where the benches print one each, and the others what is given."""
        for name in ("transport_bench", "cluster_bench", "cluster_load"):
            figure = FIGURE | {"name": f"cluster.{name}"}
            self.program(name, f"echo '{json.dumps(figure)}'")
        self.program("cluster_planted_test", f"echo '{planted}'")
        self.program("cluster_faults", f"echo \"$@\" >&2; printf '{faults}'; exit {exit_code}")
        return self.report(
            only="cluster", flags=["--scale", "0.05"], RAVENSTORE_BIN=str(self.folder)
        )

    COUNTS = {
        "name": "cluster.faults_simulated", "runs": 500, "seed": 1, "wrong_bytes": 0,
        "late_calls": 0, "lent_twice": 0, "served_late": 0, "operations": 7, "pieces_lost": 3,
    }  # fmt: skip

    def test_the_clusters_figures_are_all_there_with_their_targets(self):
        code, figures, said = self.cluster(json.dumps(self.COUNTS) + "\\n")
        self.assertEqual(code, 0, said)
        self.assertIn("--runs 500\n", said)
        for name in ("transport_bench", "cluster_bench", "cluster_load"):
            self.assertIn(f"cluster.{name}", figures)
        for what in ("wrong_bytes", "late_calls", "lent_twice", "served_late"):
            figure = figures[f"cluster.faults_simulated_{what}"]
            self.assertEqual((figure["value"], figure["target"], figure["ok"]), (0, 0, True))
            self.assertIn("500 runs from seed 1; 7 operations", figure["detail"])
        self.assertTrue(figures["cluster.planted_found"]["ok"])
        self.assertIn("is missing", figures["cluster.faults_real"]["skipped"])

    def test_a_simulated_fault_that_did_harm_falls_short_and_is_no_crash(self):
        counts = self.COUNTS | {"lent_twice": 2}
        code, figures, said = self.cluster(json.dumps(counts) + "\\n", 1)
        self.assertEqual(code, 0, said)
        figure = figures["cluster.faults_simulated_lent_twice"]
        self.assertEqual((figure["value"], figure["ok"]), (2, False))
        self.assertTrue(figures["cluster.faults_simulated_wrong_bytes"]["ok"])

    def test_a_simulation_of_faults_that_ends_without_a_word_is_a_crash(self):
        code, figures, said = self.cluster("", 1)
        self.assertEqual(code, 1, said)
        self.assertIn("cluster_faults printed nothing", said)
        self.assertNotIn("cluster.faults_simulated_lent_twice", figures)
        self.assertIn("cluster.planted_found", figures)

    def test_a_planted_bug_that_is_not_found_falls_short(self):
        planted = "[ RUN      ] A\n[       OK ] A\n[ RUN      ] B\n[  FAILED  ] B"
        code, figures, said = self.cluster(json.dumps(self.COUNTS) + "\\n", planted=planted)
        self.assertEqual(code, 0, said)
        figure = figures["cluster.planted_found"]
        self.assertEqual((figure["value"], figure["target"], figure["ok"]), (1, 10, False))

    def test_what_is_missing_is_skipped_with_the_reason(self):
        code, figures, said = self.report(RAVENSTORE_BIN=str(self.folder))
        self.assertEqual(code, 0, said)
        self.assertRegex(figures["planner_bench"]["skipped"], "planner_bench is missing")

    def test_what_does_not_build_is_skipped_with_the_reason(self):
        script = self.program("tree/bench/report", "")
        script.write_text((ROOT / "bench/report").read_text())
        self.program("tree/deploy/bazel", "echo ERROR: no such header >&2; exit 1")
        code, figures, said = self.report(script)
        self.assertEqual(code, 0, said)
        reason = figures["planner_bench"]["skipped"]
        self.assertEqual(reason, "//bench:planner_bench does not build: no such header")


if __name__ == "__main__":
    xml_main.main()
