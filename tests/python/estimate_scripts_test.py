"""Scripts as people write them, captured whole; those that cannot be, and what to give instead."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import harness
import xml_main
from harness import MIB
from ravenstore import estimate

SCRIPTS = harness.ROOT / "tests/python/estimate_scripts"
PREAMBLE = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
def step():
    optimizer.zero_grad()
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


class ScriptCase(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(
            self.enterContext(tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp"))
        )
        # What scripts print, and save, is not this test's.
        self.enterContext(self.errors_to_file())
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)

    def errors_to_file(self):
        log = open(self.folder / "log", "w+")  # noqa: SIM115 - closed below
        kept = sys.stderr
        sys.stderr = log

        class Restore:
            def __enter__(self):
                return log

            def __exit__(self, *_):
                sys.stderr = kept
                log.close()

        return Restore()

    def script(self, text):
        path = self.folder / "train.py"
        path.write_text(text)
        return str(path)

    def printed(self):
        return (self.folder / "log").read_text()


class CapturedWholeTest(ScriptCase):
    """Least and most that its tensors take, in MiB: parameters, states and activations by hand."""

    def assertCaptured(self, name, least, most, *arguments, notes=()):
        path = SCRIPTS / f"{name}.py"
        for library in ("torchvision", "transformers"):
            if library in path.read_text() and importlib.util.find_spec(library) is None:
                self.skipTest(f"{library} is not installed")
        estimated = estimate.estimate_script([path, *arguments], seconds_max=280)
        self.assertEqual(estimated.source, "capture")
        self.assertGreater(estimated.used, least * MIB)
        self.assertLess(estimated.used, most * MIB)
        self.assertEqual(len(estimated.notes), len(notes), estimated.notes)
        for note, words in zip(estimated.notes, notes, strict=True):
            self.assertIn(words, note)

    def test_mnist_cnn(self):
        self.assertCaptured("mnist_cnn", 70, 200)

    def test_char_gpt(self):
        self.assertCaptured("char_gpt", 2500, 5000, notes=["torch.compile was left out"])

    def test_resnet_amp(self):
        self.assertCaptured("resnet_amp", 400, 900)

    def test_trainer_bert(self):
        self.assertCaptured("trainer_bert", 250, 500)

    def test_trainer_bert_in_bf16(self):
        self.assertCaptured("trainer_bert", 200, 450, "--bf16")

    def test_gpt2_accumulation(self):
        self.assertCaptured("gpt2_accumulation", 400, 900)

    def test_lstm_language_model(self):
        self.assertCaptured("lstm_language_model", 100, 300)

    def test_vae(self):
        self.assertCaptured("vae", 64, 120)

    def test_dcgan(self):
        self.assertCaptured("dcgan", 150, 400)

    def test_vit_schedule(self):
        self.assertCaptured("vit_schedule", 500, 1200)

    def test_unet(self):
        self.assertCaptured("unet", 250, 600)

    def test_lora(self):
        self.assertCaptured("lora", 120, 400)

    def test_checkpointed_seq2seq(self):
        self.assertCaptured("checkpointed_seq2seq", 250, 800)


class LifeTest(ScriptCase):
    def test_ends_in_the_third_step(self):
        path = self.script(
            PREAMBLE
            + "for number in range(100):\n"
            + "    try:\n        step()\n        print('step', number)\n"
            + "    except Exception:\n        print('caught')\n"
            + "print('over')\n"
        )
        estimated = estimate.estimate_script([path])
        self.assertEqual(self.printed().split(), ["step", "0", "step", "1"])
        # A weight and a bias, their gradients, two states; as much again while the step runs.
        small = 512 * (6 + 6) + 4 * 64 * 64 * (4 + 4)
        self.assertLess(estimated.used, 2 * 33554432 + 1048576 + small)  # cuBLAS's workspaces

    def test_says_that_there_were_fewer_steps(self):
        estimated = estimate.estimate_script([self.script(PREAMBLE + "step()\nstep()\n")])
        self.assertIn("ended by itself after 2 steps", estimated.notes[0])

    def test_has_its_arguments_and_its_own_folder(self):
        (self.folder / "beside.py").write_text("STEPS = 3\n")
        path = self.script(
            "import sys, beside\nassert sys.argv[1:] == ['--lr', '3'], sys.argv\n"
            "assert __name__ == '__main__' and __file__ == sys.argv[0]\n"
            + PREAMBLE
            + "for _ in range(beside.STEPS): step()\n"
        )
        estimate.estimate_script([sys.executable, "-u", path, "--lr", "3"])

    def test_a_module(self):
        package = self.folder / "package"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "train.py").write_text(PREAMBLE + "for _ in range(3): step()\n")
        self.assertGreater(estimate.estimate_script(["-m", "package.train"]).used, 0)

    def test_what_it_prints_ends_with_a_whole_line(self):
        # Else the answer on a terminal would be glued to it.
        for words, printed in (("end='done'", "loss\ndone\n"), ("end='done\\n'", "loss\ndone\n")):
            path = self.script(PREAMBLE + "step()\nstep()\nprint('loss'); print(" + words + ")\n")
            estimate.estimate_script([path])
            self.assertTrue(self.printed().endswith(printed), repr(self.printed()))

    def test_the_command_prints_the_estimate_alone(self):
        path = self.script(PREAMBLE + "print('hello')\nfor _ in range(3): step()\n")
        done = subprocess.run(
            [sys.executable, "-m", "ravenstore.estimate", path],
            env={**os.environ, "PYTHONPATH": str(harness.ROOT / "python")},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("hello", done.stdout)
        self.assertIn("of the GPU to be safe", done.stdout)
        self.assertIn("hello", done.stderr)


class RefusalsTest(ScriptCase):
    def assertRefused(self, words, text, **options):
        with self.assertRaisesRegex(estimate.CaptureRefused, words) as caught:
            estimate.estimate_script([self.script(text)], **options)
        self.assertNotIn("\n", str(caught.exception))

    def test_never_trains(self):
        self.assertRefused("ended without a step .* give a script that trains", "print(1)")

    def test_needs_the_network(self):
        for text in (
            "import urllib.request; urllib.request.urlopen('http://data.example/mnist.gz')",
            "import socket; socket.create_connection(('data.example', 80))",
            "class LocalEntryNotFoundError(Exception): pass\nraise LocalEntryNotFoundError",
        ):
            with self.subTest(text):
                self.assertRefused("needs the network.*give it data and weights that are on", text)

    def test_imports_what_is_missing(self):
        self.assertRefused("imports nosuch, which .* does not have: install it", "import nosuch.x")

    def test_has_a_kernel_of_its_own(self):
        self.assertRefused(
            "runs a kernel of its own .*: give the model itself",
            "import ctypes; ctypes.CDLL('libcuda.so.nosuch')",
        )
        (self.folder / "cupy").mkdir()
        (self.folder / "cupy/__init__.py").write_text("def zeros(n): raise RuntimeError('no')")
        self.assertRefused("runs a kernel of its own", "import cupy; cupy.zeros(3)")

    def test_begins_several_processes(self):
        self.assertRefused(
            "begins several processes .*: give it as one process on one GPU",
            "import torch\ntorch.distributed.init_process_group('nccl')",
        )

    def test_is_too_large(self):
        self.assertRefused(
            "too large to capture in 3.0 GiB of host memory: give more of it, or a smaller batch",
            "import torch; torch.ones(1 << 30).cuda()",
            memory_max="3GiB",
        )

    def test_takes_too_long(self):
        limit = harness.TimeLimit(60)
        self.assertRefused(
            "made no three steps in 5 seconds: give it less data",
            "import os, threading\nif os.fork() == 0: threading.Event().wait()\n"
            "threading.Event().wait()",
            seconds_max=5,
        )
        self.assertFalse(limit.is_over())

    def test_fails_by_itself(self):
        self.assertRefused("failed with KeyError: 'x': try whether it runs", "{}['x']")
        self.assertRefused(
            "ended by itself .2.: mend its arguments",
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\n"
            "p.parse_args()",
        )
        self.assertRefused("ended without a word", "import os; os.kill(os.getpid(), 9)")

    def test_a_python_without_pytorch(self):
        bare = self.folder / "python3"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        bare.chmod(0o755)
        with self.assertRaisesRegex(estimate.CaptureRefused, "has no torch: name the Python that"):
            estimate.estimate_script([str(bare), self.script("print(1)")])

    def test_is_no_script(self):
        for command, words in (
            (["nosuch.py"], "there is no nosuch.py: give the path"),
            (["train.sh"], "is no Python script: give a script.py"),
            (["python3.99", "train.py"], "there is no python3.99: name a Python"),
            (["-m"], "-m names no module"),
            ([], "nothing is no Python script"),
        ):
            with self.subTest(command), self.assertRaisesRegex(estimate.CaptureRefused, words):
                estimate.estimate_script(command)


if __name__ == "__main__":
    xml_main.main()
