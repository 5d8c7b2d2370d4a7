#!/usr/bin/python3
"""bench/elastic_job.py at small sizes on the CPU: each program that this Python has the libraries
for runs, and does the same in each run and when it keeps less of its forward pass.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(os.environ.get("RAVENSTORE_BIN", os.getcwd()))
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests/tidy")]

import elastic_job  # noqa: E402
import elastic_models  # noqa: E402
import xml_main  # noqa: E402

LIBRARIES = {
    elastic_models.gpt2: "transformers",
    elastic_models.bert: "transformers",
    elastic_models.whisper: "transformers",
    elastic_models.vision: "torchvision",
}


class ElasticModelsTest(unittest.TestCase):
    def losses(self, model, recompute=False):
        options = types.SimpleNamespace(
            model=model, device="cpu", small=True, recompute=recompute, compile=False
        )
        job = elastic_job.Job(options)
        job.run(3, 0)
        return job.result()["losses"]

    def programs(self):
        for name, (make, *_) in elastic_models.PROGRAMS.items():
            library = LIBRARIES.get(make)
            # The four of our own are one program here.
            is_other = name.startswith("gpt-") and name != "gpt-large"
            if is_other or (library and importlib.util.find_spec(library) is None):
                continue
            with self.subTest(program=name):
                yield name

    def test_each_program_does_the_same_in_each_run(self):
        for name in self.programs():
            first, second = (self.losses(name) for _ in range(2))
            self.assertEqual(len(first), 3)
            self.assertEqual(first, second)

    def test_what_is_recomputed_is_the_same(self):
        for name in self.programs():
            if elastic_models.build(name, "cpu", small=True).recompute is not None:
                plain, recomputed = self.losses(name), self.losses(name, recompute=True)
                for one, other in zip(plain, recomputed, strict=True):
                    self.assertAlmostEqual(one, other, places=3)

    def test_the_order_is_another_in_each_step_and_the_same_in_each_run(self):
        program = elastic_models.build("shuffled", "cpu", small=True)
        orders = []
        program.module.step = lambda x, order: orders.append(tuple(order))
        for _ in range(3):
            program.loss()
        self.assertEqual(len(set(orders)), 3)
        self.assertEqual({tuple(sorted(order)) for order in orders}, {tuple(range(8))})

    def test_a_cache_grows_with_each_token(self):
        program = elastic_models.build("llama", "cpu", small=True)
        lengths = []
        layer = program.module.layers[0]
        layer.register_forward_hook(lambda _, given, made: lengths.append(made[1][0].shape[2]))
        program.loss()
        self.assertEqual(lengths, [8, 9, 10, 11])

    def test_a_job_waits_at_its_gate(self):
        job = [sys.executable, ROOT / "bench/elastic_job.py", "--device", "cpu", "--small"]
        job += ["--model", "shuffled", "--steps", "3", "--gate", "2", "--pause", "0.01"]
        done = subprocess.run(
            [*job, "--deterministic"], input="\n", capture_output=True, text=True, timeout=240,
            check=False,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0], "ready", done.stderr)
        result = json.loads(lines[1])
        self.assertEqual(len(result["seconds"]), 5)
        began, ended = result["span"]
        self.assertGreaterEqual(ended - began, 0.03 + sum(result["seconds"][2:]))


if __name__ == "__main__":
    xml_main.main()
