#!/usr/bin/python3
"""The toy training checks each word it makes: alone, counted by the interceptor, and when wrong."""

import itertools
import json
import os
import subprocess

from fakes import HERE, MIB, PROGRAMS, ROOT, SMALL, FakeGpuTest, main
from harness import Daemon

RAVENRUN = str(ROOT / "deploy/ravenrun")
TRAINER = str(HERE / "trainer")
SWITCHES = ("--graph", "--opaque", "--packed", "--table")
SMALL_STEPS = ("--layers", "4", "--bytes", str(MIB), "--steps", "3")
LARGE_STEPS = ("--layers", "4", "--bytes", str(16 * MIB), "--steps", "1")


class TrainerTest(FakeGpuTest):
    def train(self, *words, before=(), **variables):
        environment = dict(os.environ) | {"RAVENSTORE_LIB": str(PROGRAMS.library)}
        # What fails leaves its memory charged.
        del environment["RAVENSTORE_FAKE_CUDA_SHARED"]
        done = subprocess.run(
            [*before, TRAINER, *words],
            env=environment | {key: str(value) for key, value in variables.items()},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.assertEqual(done.stderr, "")
        return done.returncode, json.loads(done.stdout)

    def assert_right(self, outcome, steps):
        status, report = outcome
        self.assertEqual(status, 0, report)
        for figure in ("wrong_words", "counted", "wrong_samples", "torn", "code"):
            self.assertEqual(report[figure], 0, report)
        self.assertEqual(report["steps"], steps)
        self.assertEqual(report["call"], "")

    def test_each_way_to_launch_gives_the_right_words(self):
        for streams, *chosen in itertools.product("12", *((None, name) for name in SWITCHES)):
            words = [name for name in chosen if name is not None]
            with self.subTest(streams=streams, words=words):
                self.assert_right(self.train(*SMALL_STEPS, "--streams", streams, *words), 3)

    def test_memory_that_it_maps_by_itself_gives_the_right_words(self):
        self.assert_right(self.train("--segments", *SMALL_STEPS), 3)
        self.assert_right(self.train("--segments", "--graph", *SMALL_STEPS), 3)
        status, report = self.train("--segments", *SMALL_STEPS, "--lose", "12")
        self.assertEqual(status, 1)
        self.assertGreater(report["wrong_words"], 0)

    def test_parts_larger_than_32_mib_and_slow_kernels(self):
        outcome = self.train(
            "--layers", "3", "--bytes", str(40 * MIB + 24), "--steps", "2", "--streams", "2",
            RAVENSTORE_FAKE_CUDA_KERNEL_NS=100_000,
        )  # fmt: skip
        self.assert_right(outcome, 2)
        self.assertGreater(outcome[1]["peak_bytes"], 100 * MIB)
        self.assertGreater(outcome[1]["ms_per_step"], 1)

    def test_a_device_that_is_too_small_is_named(self):
        _, report = self.train(*LARGE_STEPS)
        self.assertGreater(report["peak_bytes"], 48 * MIB)
        status, report = self.train(
            *LARGE_STEPS,
            RAVENSTORE_FAKE_CUDA_MEMORY=report["peak_bytes"] // 2,
            RAVENSTORE_FAKE_CUDA_CONTEXT=0,
        )
        self.assertEqual(status, 1)
        self.assertEqual((report["call"], report["code"]), ("cuMemAllocAsync", 2))

    def test_a_copy_that_fails_is_named(self):
        status, report = self.train(
            *SMALL_STEPS, RAVENSTORE_FAKE_CUDA_FAIL="cuMemcpyDtoHAsync:3:700"
        )
        self.assertEqual(status, 1)
        self.assertEqual((report["call"], report["code"]), ("cuMemcpyDtoHAsync", 700))

    def test_a_kernel_that_is_lost_is_noticed(self):
        # A weight, a delta, the input, a temporary and the activation that comes of it.
        for nth in (1, 12, 13, 14, 15):
            with self.subTest(nth=nth):
                status, report = self.train(*SMALL_STEPS, "--lose", str(nth))
                self.assertEqual(status, 1)
                self.assertGreater(report["wrong_words"], 0)
                self.assertEqual(report["counted"], report["wrong_words"])
                self.assertGreater(report["wrong_samples"], 0)

    def test_the_interceptor_counts_it_and_changes_nothing(self):
        with Daemon(PROGRAMS, SMALL) as daemon:
            run = [RAVENRUN, "--mode", "account", "--socket", daemon.socket]
            for words in (["--streams", "2"], ["--graph"], ["--packed", "--table"]):
                with self.subTest(words=words):
                    self.assert_right(self.train(*SMALL_STEPS, *words, before=run), 3)
            status, report = self.train(*LARGE_STEPS, before=[*run, "--budget", "110MiB"])
            self.assertEqual((status, report["call"], report["code"]), (1, "cuMemAllocAsync", 2))


if __name__ == "__main__":
    main()
