"""Models by name, and the command line: what is captured, and what is refused with what words."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import resource
import sys
import tempfile
import types
import unittest

import harness
import torch
import xml_main
from harness import MIB
from ravenstore import __main__ as package_main
from ravenstore import estimate
from ravenstore.estimate import __main__ as command
from ravenstore.estimate import _capture
from torch import nn

sys.path.insert(0, str(harness.ROOT / "bench"))
GIB = 1024 * MIB
NEEDS = {
    name: unittest.skipUnless(importlib.util.find_spec(name), f"{name} is not installed")
    for name in ("torchvision", "transformers")
}
INSTEAD = "give a torchvision name, a Hugging Face config.json"


class Net(nn.Module):
    """Takes images of 3 channels."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, images):
        return self.conv(images).mean((2, 3))


class Two(nn.Module):
    """Takes two tensors."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, one, other):
        return self.layer(one + other)


class Opaque(nn.Module):
    """Has no layer that says what it takes."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))


def no_module():
    return 7


def run(*arguments):
    """The command's exit code, output and errors."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = command.main(list(arguments))
    return code, out.getvalue(), errors.getvalue()


class ModelsTest(unittest.TestCase):
    @NEEDS["torchvision"]
    def test_torchvision(self):
        from torchvision import models

        estimated = estimate.estimate_model("resnet18", 8)
        parameters = sum(each.numel() for each in models.resnet18().parameters())
        # Weights, gradients and two states; activations of some 25 MiB an image.
        self.assertGreater(estimated.used, 16 * parameters + 8 * 20 * MIB)
        self.assertLess(estimated.used, 20 * parameters + 8 * 40 * MIB + 80 * MIB)
        half = estimate.estimate_model("resnet18", 8, precision="autocast")
        self.assertLess(half.used, estimated.used)

    @NEEDS["torchvision"]
    def test_every_kind_of_torchvision_model(self):
        for name in ("inception_v3", "googlenet", "vit_b_16", "fcn_resnet50", "r3d_18", "s3d"):
            self.assertGreater(estimate.estimate_model(name, 2, steps=1).used, 100 * MIB)

    @NEEDS["transformers"]
    def test_options_matter(self):
        from transformers import GPT2Config

        config = GPT2Config(n_layer=6, n_embd=256, n_head=4, vocab_size=1000)
        base = estimate.estimate_model(config, 8).used
        parameters = 4 * (1000 + 1024 + 6 * 12 * 256) * 256
        for options, less in (
            ({"optimizer": "sgd"}, 1.5 * parameters),
            ({"precision": "bf16"}, 0.4 * base),
            ({"checkpointing": True}, 0.3 * base),
            ({"inference": True}, 0.6 * base),
            ({"sequence": 128}, 0.4 * base),
        ):
            with self.subTest(options):
                self.assertLess(estimate.estimate_model(config, 8, **options).used, base - less)

    @NEEDS["transformers"]
    def test_hugging_face_kinds(self):
        import transformers

        small = {"num_hidden_layers": 1}
        for config in (
            transformers.BertConfig(**small),
            transformers.LlamaConfig(**small),
            transformers.MixtralConfig(**small, hidden_size=256, intermediate_size=512),
            transformers.ViTConfig(**small),
            transformers.DeiTConfig(**small),
            transformers.T5Config(num_layers=1),
            transformers.BartConfig(encoder_layers=1, decoder_layers=1),
            transformers.BertConfig(**small, architectures=["BertForSequenceClassification"]),
        ):
            with self.subTest(config.model_type):
                self.assertGreater(estimate.estimate_model(config, 2, steps=1).used, 50 * MIB)

    def test_functions_that_make_a_model(self):
        self.assertGreater(estimate.estimate_model(Net, 4).used, 4 * 3 * 224 * 224 * 4)
        embedding = estimate.estimate_model(lambda: nn.Embedding(100, 64), 4, sequence=32)
        self.assertGreater(embedding.used, 4 * 32 * 64 * 4)
        self.assertGreater(estimate.estimate_model(lambda: nn.Linear(7, 5), 4).used, 0)

    @NEEDS["transformers"]
    def test_gpt2_xl_takes_seconds_and_little_memory(self):
        from transformers import GPT2Config

        config = GPT2Config(n_layer=48, n_embd=1600, n_head=25)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        estimated = estimate.estimate_model(config, 4, sequence=1024, precision="autocast")
        self.assertLess(estimated.seconds, 60)
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 1 << 20)
        self.assertGreater(estimated.used, 16 * 1557e6)
        self.assertLess(estimated.total, 80 * GIB)


class RecordedTest(unittest.TestCase):
    """Compared with what an H100 was seen to hold in blocks of 2 MiB and more (bench/recorded)."""

    def peak(self, name):
        import elastic_job

        options = types.SimpleNamespace(
            model=name, device="cuda", small=False, recompute=False, compile=False
        )
        recorder = _capture.record(
            lambda: elastic_job.Job(options).step,
            steps=_capture.STEPS,
            gpu=estimate.GPU,
            total_memory=80 * GIB,
        )
        live = peak = 0
        for size, _ in recorder.events:
            live += size if abs(size) >= 2 * MIB else 0
            peak = max(peak, live)
        return peak

    def test_gpt(self):
        self.assertAlmostEqual(self.peak("gpt-large") / (25004 * MIB), 1, delta=0.001)

    @NEEDS["torchvision"]
    def test_resnet50(self):
        # And cuBLAS's two workspaces, which no call names.
        self.assertAlmostEqual(self.peak("resnet50") / ((1641 + 2 * 32) * MIB), 1, delta=0.005)


class RefusalsTest(unittest.TestCase):
    def assertRefused(self, words, model, batch=2, **options):
        with self.assertRaisesRegex(estimate.CaptureRefused, words) as caught:
            estimate.estimate_model(model, batch, **options)
        self.assertNotIn("\n", str(caught.exception))

    @NEEDS["torchvision"]
    def test_names(self):
        self.assertRefused(f"torchvision has no model 'resnet': {INSTEAD}", "resnet")
        self.assertRefused("trained on boxes: give a script", "fasterrcnn_resnet50_fpn")
        self.assertRefused(f"cannot be imported .*: {INSTEAD}", "nosuch:Net")
        self.assertRefused(f"cannot be imported .*: {INSTEAD}", "math:nosuch")
        self.assertRefused(f"is no function that makes a model: {INSTEAD}", "math:pi")
        self.assertRefused(f"a float is no model: {INSTEAD}", 3.5)

    def test_functions(self):
        self.assertRefused("no_module gave a int: it has to make a torch.nn.Module", no_module)
        self.assertRefused("Two does not take the inputs .*missing.*: give a script", Two)
        self.assertRefused("first layer does not say what it takes: give a script", Opaque)
        self.assertRefused("has nothing to train: ask for its inference", nn.ReLU)
        self.assertRefused("no switch for checkpointing: give a script", Net, checkpointing=True)

    @NEEDS["transformers"]
    def test_configurations(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="raven-")))
        path = folder / "config.json"
        for text, words in (
            (None, f"cannot be read .No such file or directory.: {INSTEAD}"),
            ("{", f"is no JSON: {INSTEAD}"),
            ("[]", f"has no model_type, as a Hugging Face config.json: {INSTEAD}"),
            ('{"hidden_size": 3}', f"has no model_type, as a Hugging Face config.json: {INSTEAD}"),
            ('{"model_type": "nosuch"}', f"knows no model_type 'nosuch': {INSTEAD}"),
            ('{"model_type": "wav2vec2"}', "no head to train a wav2vec2 with: name one in the"),
        ):
            with self.subTest(text):
                if text is not None:
                    path.write_text(text)
                self.assertRefused(words, str(path))

    def test_options(self):
        self.assertRefused("batch is 0: give at least 1", Net, batch=0)
        self.assertRefused("sequence is -1: give at least 1", Net, sequence=-1)
        self.assertRefused(
            "'lion' is no optimizer of these: give one of adamw", Net, optimizer="lion"
        )
        self.assertRefused("'fp8' is no precision: give one of fp32", Net, precision="fp8")


class CommandTest(unittest.TestCase):
    @NEEDS["torchvision"]
    def test_says_it_for_people_and_for_programs(self):
        code, out, errors = run("--batch", "2", "squeezenet1_1")
        self.assertEqual((code, errors), (0, ""))
        sizes = (
            r"^[\d.]+ [MG]iB of the GPU to be safe: .* [\d.]+ [MG]iB, and [\d.]+ MiB are the margin"
        )
        self.assertRegex(out, sizes)
        code, out, _ = run("--json", "--batch", "2", "squeezenet1_1")
        estimated = json.loads(out)
        self.assertEqual(estimated["total"], estimated["reserved"] + estimated["context"])
        self.assertEqual(estimated["source"], "capture")

    @NEEDS["transformers"]
    def test_takes_a_configuration(self):
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="raven-"))
        path = os.path.join(folder, "config.json")
        pathlib.Path(path).write_text(
            json.dumps(
                {
                    "model_type": "bert",
                    "num_hidden_layers": 1,
                    "hidden_size": 128,
                    "num_attention_heads": 2,
                    "architectures": ["BertForMaskedLM"],
                }
            )
        )
        self.assertEqual(run("--json", "--batch", "2", path)[0], 0)

    @NEEDS["torchvision"]
    def test_refuses_with_one_sentence(self):
        code, out, errors = run("nosuch")
        self.assertEqual((code, out), (2, ""))
        self.assertRegex(errors, r"^ravenstore: torchvision has no model 'nosuch': give [^\n]+\n$")
        self.assertRegex(run("resnet18", "3")[2], "takes no arguments.*leave out '3'")
        self.assertRegex(run("--gpu-memory", "x", "resnet18")[2], "is no size such as 12GiB")

    @NEEDS["torchvision"]
    def test_a_models_options_may_come_behind_it(self):
        before = run("--json", "--batch", "3", "resnet18")[1]
        behind = run("--batch", "3", "resnet18", "--json")[1]
        self.assertEqual(json.loads(before)["used"], json.loads(behind)["used"])

    def test_ranks_hold_their_gradients_twice_and_what_nccl_takes(self):
        def model():
            return torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(16)])

        for rung in estimate.RUNGS:
            alone, together = (
                estimate.estimate_model(model, 64, ranks=ranks, rung=rung) for ranks in (1, 2)
            )
            more = 4 * 16 * (1024 * 1024 + 1024)
            self.assertAlmostEqual((together.used - alone.used) / more, 1, places=2)
            self.assertGreater(together.context, alone.context)
            served = estimate.estimate_model(model, 64, ranks=2, inference=True, rung=rung)
            self.assertEqual(served.context, alone.context)
        with self.assertRaisesRegex(estimate.CaptureRefused, "ranks is 0: give at least 1"):
            estimate.estimate_model(model, 64, ranks=0)

    @NEEDS["torchvision"]
    def test_names_the_job_by_what_it_allocates(self):
        one, again, other = (estimate.estimate_model("resnet18", n).job for n in (2, 2, 3))
        self.assertRegex(one, "^[0-9a-f]{32}$")
        self.assertEqual(one, again)
        self.assertNotEqual(one, other)

    def test_is_a_command_of_the_package(self):
        self.assertEqual(package_main.COMMANDS["estimate"][0], command.__spec__.name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    xml_main.main()
