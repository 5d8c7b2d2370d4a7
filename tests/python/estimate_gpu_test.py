"""Compares captures with a GPU's figures, and the model of PyTorch's allocator with the real one.

It needs a GPU and is skipped without. Each job is measured in a process of its own:

    estimate_gpu_test.py --measure NAME

Every job's figures are printed, measured and captured: MiB used, reserved and outside the
allocator.
"""

import json
import os
import subprocess
import sys
import unittest

import harness  # noqa: F401 - the package's path
import torch
import xml_main
from harness import MIB
from ravenstore import estimate
from ravenstore.estimate import _capture, _models, _overheads
from ravenstore.estimate._cache import CudaCache

# Name: (model, how it is trained).
CNNS = {
    "resnet50": ("resnet50", {"batch": 32, "optimizer": "momentum"}),
    "resnet50 autocast": ("resnet50", {"batch": 64, "precision": "autocast"}),
    "vgg16": ("vgg16", {"batch": 16, "optimizer": "sgd"}),
    "densenet121": ("densenet121", {"batch": 16}),
    "mobilenet_v3_large": ("mobilenet_v3_large", {"batch": 32}),
    "efficientnet_b0": ("efficientnet_b0", {"batch": 32, "precision": "autocast"}),
}
TRANSFORMERS = {
    "vit_b_16": ("vit_b_16", {"batch": 32}),
    "swin_t autocast": ("swin_t", {"batch": 32, "precision": "autocast"}),
    "gpt2": ("GPT2Config", {"batch": 4, "sequence": 1024}),
    "gpt2 autocast": ("GPT2Config", {"batch": 8, "sequence": 1024, "precision": "autocast"}),
    "gpt2 bf16 checkpointing": (
        "GPT2Config",
        {"batch": 8, "sequence": 1024, "precision": "bf16", "checkpointing": True},
    ),
    "bert": ("BertConfig", {"batch": 16, "sequence": 512}),
    "bert inference": ("BertConfig", {"batch": 32, "sequence": 512, "inference": True}),
    "t5": ("T5Config", {"batch": 8, "sequence": 512, "precision": "bf16"}),
}
OTHERS = {"lstm": ("lstm", {"batch": 32, "sequence": 256})}
JOBS = {**CNNS, **TRANSFORMERS, **OTHERS}


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(10000, 512)
        self.lstm = torch.nn.LSTM(512, 512, 2, dropout=0.1, batch_first=True)
        self.out = torch.nn.Linear(512, 10000)

    def forward(self, tokens):
        return self.out(self.lstm(self.embedding(tokens))[0])


def build_of(name):
    """What builds the job, for a GPU that is there or not."""
    model, options = JOBS[name]
    if model.endswith("Config"):
        import transformers

        model = getattr(transformers, model)()
    training = _models.Training(**options)
    return _models.step_of(
        _models.subject_of(Recurrent if model == "lstm" else model, training), training
    )


def recorded_events():
    """The allocations and frees that PyTorch's allocator saw."""
    numbers, events = {}, []
    for number, entry in enumerate(torch.cuda.memory._snapshot()["device_traces"][0]):
        if entry["action"] == "alloc":
            numbers[entry["addr"]] = number
            events.append((entry["size"], number, entry["stream"]))
        elif entry["action"] == "free_completed" and entry["addr"] in numbers:
            events.append((-entry["size"], numbers.pop(entry["addr"])))
    return events


def measure(name):
    torch.cuda.init()
    free, _ = torch.cuda.mem_get_info()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=1 << 21)
    step = build_of(name)()
    for _ in range(_capture.STEPS):
        step()
    torch.cuda.synchronize()
    replayed = CudaCache().replay(recorded_events())
    reserved = torch.cuda.memory_reserved()
    free, total = torch.cuda.mem_get_info()
    return {
        "gpu": torch.cuda.get_device_name(),
        "used": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "outside": total - free - reserved,
        "replayed_used": replayed.used,
        "replayed_reserved": replayed.reserved,
    }


@unittest.skipUnless(torch.cuda.is_available(), "no GPU")
class CaptureOnGpuTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.measured = {}
        for name in JOBS:
            done = subprocess.run(
                [sys.executable, os.path.abspath(__file__), "--measure", name],
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                raise RuntimeError(f"{name}: {done.stderr}")
            cls.measured[name] = json.loads(done.stdout.splitlines()[-1])

    def assertNear(self, name, captured, measured, share):
        self.assertLessEqual(abs(captured / measured - 1), share, f"{name}: {captured / measured}")

    def test_reserved(self):
        rows = []
        for name in JOBS:
            real = self.measured[name]
            estimated = estimate.capture(build_of(name), gpu=real["gpu"])
            rows.append((name, real, estimated))
            sizes = (
                *(real["used"], estimated.used, real["reserved"], estimated.reserved),
                *(real["outside"], estimated.context),
            )
            print(name.ljust(24), *(f"{size / MIB:8.0f}" for size in sizes), file=sys.stderr)
        for name, real, estimated in rows:
            with self.subTest(name):
                share = 0.05 if name in TRANSFORMERS else 0.10
                self.assertNear(name, estimated.reserved, real["reserved"], share)

    def test_context(self):
        for name, real in self.measured.items():
            with self.subTest(name):
                self.assertNear(name, _overheads.of(real["gpu"]).context, real["outside"], 0.25)

    def test_the_model_of_the_allocator(self):
        for name, real in self.measured.items():
            with self.subTest(name):
                self.assertNear(name, real["replayed_used"], real["used"], 0.002)
                # Which of several blocks of one size is taken goes by address, which a replay
                # does not know.
                self.assertNear(name, real["replayed_reserved"], real["reserved"], 0.1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        xml_main.main()
