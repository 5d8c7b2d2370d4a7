"""The examples run as they stand, tiny, on the host backend."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import harness
import xml_main

FOLDER = harness.ROOT / "examples/python"
TINY = (
    *("--layers", "4", "--width", "128", "--heads", "4", "--length", "256"),
    *("--batch", "8", "--vocabulary", "512"),
)
STEPS = ("--steps", "2")
LLAMA = (*TINY, "--kv-heads", "2", "--inner", "512", "--budget", "40MiB")


def run(name, *arguments, first="", device_total="1GiB"):
    """The example, which finds modules in the folder `first` first."""
    path = str(FOLDER / name)
    with harness.daemon(device_total=device_total, pool_size="1GiB") as socket:
        return subprocess.run(
            [sys.executable, path, "--device", "cpu", *arguments],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, [first, str(harness.ROOT / "python")])),
                "RAVENSTORE_SOCKET": socket,
                "HF_HUB_OFFLINE": "1",
            },
            capture_output=True,
            text=True,
            timeout=harness.HANGS_AFTER,
        )


class ExamplesTest(unittest.TestCase):
    def assertTrains(self, name, *arguments):
        done = run(name, *STEPS, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"step 2: loss \d+\.\d+\npeak: \d+\.\d MiB")
        self.assertRegex(done.stdout, r"taken into the store's care: [1-9]\d* tensors")
        return re.search(r"moved: .* out, (.*) back", done.stdout)[1]

    def require(self, module):
        if importlib.util.find_spec(module) is None:
            self.skipTest(f"needs {module}, which this Python has not")

    def test_lora_llama_finishes_with_the_one_line(self):
        self.assertNotEqual(self.assertTrains("lora_llama.py", *LLAMA), "0 B")

    def test_lora_llama_runs_out_of_the_same_memory_without_it(self):
        done = run("lora_llama.py", *STEPS, *LLAMA, "--without")
        self.assertEqual(done.returncode, 1)
        self.assertIn("out of memory within 40MiB: ", done.stderr)
        self.assertNotIn("step 1", done.stdout)

    def test_gpt2(self):
        self.require("transformers")
        self.assertTrains("gpt2.py", *TINY, "--budget", "96MiB")

    def test_bert(self):
        self.require("transformers")
        self.assertTrains("bert.py", *TINY, "--budget", "96MiB")

    def test_whisper_small(self):
        self.require("transformers")
        words = (*TINY, "--frames", "256", "--budget", "96MiB")
        self.assertTrains("whisper_small.py", *words)

    def test_resnet50(self):
        self.require("torchvision")
        words = ("--pixels", "64", "--batch", "16", "--budget", "512MiB")
        self.assertTrains("resnet50.py", *words)

    def assertGenerates(self, **options):
        words = ("--layers", "2", "--width", "64", "--heads", "4", "--inner", "128")
        words += ("--vocabulary", "64", "--prompt", "8", "--answer", "16")
        done = run("generate_and_train.py", *STEPS, *words, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[-1], "the generator follows the trainer")
        size = r"(?!0\.0\b)\d+\.\d"
        for phase in (
            rf"step 2: reward 0\.\d+\n  generating: generator {size}, cache \d+\.\d MiB",
            rf"\n  training: trainer {size} MiB",
            rf"\n  handing over: generator {size}, trainer {size} MiB",
        ):
            self.assertRegex(done.stdout, phase)

    def test_generate_and_train(self):
        self.require("transformers")
        self.assertGenerates()

    def test_generate_and_train_with_its_own_model(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        pathlib.Path(folder, "transformers.py").write_text("raise ImportError('not today')\n")
        self.assertGenerates(first=folder)

    def test_models_in_turn(self):
        # Room for one and a half of three.
        done = run("models_in_turn.py", "--layers", "4", "--width", "512", device_total="6MiB")
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = "".join(rf"request {i}: model {i % 3}, \d+\.\d ms\n" for i in range(12))
        self.assertRegex(done.stdout, rf"{answers}3 models of 4\.\d MiB each answered right\n")

    def test_an_example_that_lacks_a_package_says_which(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        pathlib.Path(folder, "transformers.py").write_text("raise ImportError('not today')\n")
        done = run("gpt2.py", first=folder)
        self.assertEqual(done.returncode, 1)
        words = "this example needs transformers: pip install transformers (not today)"
        self.assertIn(words, done.stderr)


if __name__ == "__main__":
    xml_main.main()
