"""bench/finetune_bench.py without a GPU: every loop learns bit for bit what the plain one does."""

import json
import os
import subprocess
import sys
import unittest

import harness
import xml_main

NAMES = {
    *("8b_bf16", "8b_bf16_chunked", "8b_clip", "8b_clip_accumulate", "8b_fp32", "24gb"),
    *("14b_bf16", "14b_fp32_states", "largest", "first_step", "checkpoint", "lora_32k"),
    *("vs_torchao", "vs_deepspeed", "lora_32k_longest", "equal", "exit_status"),
}


class FinetuneBenchTest(unittest.TestCase):
    def test_it_prints_every_figure_and_the_loops_are_equal(self):
        done = subprocess.run(
            [sys.executable, str(harness.ROOT / "bench/finetune_bench.py")],
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
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


if __name__ == "__main__":
    xml_main.main()
