"""bench/finetune_bench.py without a GPU: every loop learns bit for bit what the plain one does."""

import importlib.util
import json
import os
import subprocess
import sys
import unittest

import harness
import xml_main

sys.path.insert(0, str(harness.ROOT / "bench"))

import finetune_bench  # noqa: E402

NAMES = {
    *("8b_bf16", "8b_bf16_chunked", "8b_clip", "8b_clip_accumulate", "8b_fp32", "24gb"),
    *("14b_bf16", "14b_fp32_states", "largest", "first_step", "checkpoint", "lora_32k"),
    *("vs_torchao", "vs_deepspeed", "lora_32k_longest", "equal", "exit_status"),
}


class FinetuneBenchTest(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("transformers"), "no transformers")
    def test_it_prints_every_figure_and_the_loops_are_equal(self):
        done = subprocess.run(
            [sys.executable, str(harness.ROOT / "bench/finetune_bench.py")],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "RAVENSTORE_EMBEDDED": ""},
            capture_output=True,
            text=True,
            timeout=10 * harness.HANGS_AFTER,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
        self.assertEqual({name.removeprefix("finetune.") for name in figures}, NAMES)
        self.assertTrue(figures["finetune.equal"]["ok"], figures["finetune.equal"])
        self.assertTrue(figures["finetune.exit_status"]["ok"], done.stderr)
        for name, row in figures.items():
            if name == "finetune.checkpoint":
                self.assertGreater(row["value"], 0)
            elif name not in ("finetune.equal", "finetune.exit_status"):
                self.assertTrue(row["skipped"], row)

    def test_the_longest_context_is_found_with_few_trials(self):
        tried = []

        def fits(tokens):
            tried.append(tokens)
            return tokens <= 100000

        self.assertEqual(finetune_bench.longest(fits, 0, 65536), (98304, 106496))
        self.assertEqual(tried, [65536, 131072, 98304, 114688, 106496])
        self.assertEqual(finetune_bench.longest(fits, 90112, 131072), (98304, 106496))

    def test_a_search_without_end_stops(self):
        found, too_long = finetune_bench.longest(lambda _: True, 0, 65536)
        self.assertEqual((found, too_long), (65536 << 5, None))

    def test_the_line_of_the_error_is_found_and_the_lack_of_memory(self):
        lack = "torch.OutOfMemoryError: CUDA out of memory."
        log = f"Traceback (most recent call last):\n  File x\n{lack}\nthe daemon ends\n"
        self.assertEqual(finetune_bench.last_error(log), lack)
        self.assertTrue(finetune_bench.DOES_NOT_FIT.search(lack))
        self.assertEqual(finetune_bench.last_error("it needs peft"), "it needs peft")

    def test_mfu_is_of_the_card_that_the_run_names(self):
        result = {"tflops": 494.5, "device_name": "NVIDIA H100 80GB HBM3"}
        self.assertEqual(finetune_bench.mfu(result), "MFU 50.0%")
        for name in ("NVIDIA H100 NVL", "NVIDIA GeForce RTX 4090 D"):
            self.assertEqual(finetune_bench.mfu({**result, "device_name": name}), "MFU unknown")
        self.assertEqual(finetune_bench.mfu({"tflops": 0.0}), "MFU unknown")


if __name__ == "__main__":
    xml_main.main()
