"""prepare: one call, the plain numbers, within the budget or refused in words."""

import gc
import importlib.util
import json
import os
import re
import subprocess
import sys
import unittest.mock

import harness
import ravenstore
import torch
import xml_main
from ravenstore import InvalidArgument, OutOfMemory
from ravenstore._precision import Precision
from ravenstore._sizes import pass_bytes, sizes_of
from ravenstore.plan import _saved_budget, _small_bytes

MIB = harness.MIB

# A training of its own process: offload()'s budget holds for a process's life. Weights 12 MiB.
PROGRAM = """
import json, sys
import torch, ravenstore
given = json.loads(sys.argv[1])

def made():
    torch.manual_seed(2)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(12)])
    model[5].weight = model[2].weight
    model.register_buffer("view", model[0].weight.detach()[3:5])
    return model

def train(model, optimizer, clip=False):
    for step in range(3):
        x = torch.randn(256, 512, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()

def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)

plain = made()
train(plain, adamw(plain), given["clip"])
if given["first"]:
    with ravenstore.prepare(**given["options"]) as plan:
        moved = made()
        optimizer = adamw(moved)
        plan.take(moved, optimizer)
        train(moved, optimizer, given["clip"])
        words = plan.explain()
else:
    moved = made()
    optimizer = adamw(moved)
    params, before = list(moved.parameters()), moved[0].weight.data_ptr()
    plan = ravenstore.prepare(moved, optimizer, **given["options"])
    assert all(p is q for p, q in zip(params, moved.parameters(), strict=True))
    assert moved[0].weight.data_ptr() != before
    train(moved, optimizer, given["clip"])
    words = plan.explain()
    plan.close()
same = [torch.equal(p, q) for p, q in zip(plain.parameters(), moved.parameters(), strict=True)]
print(json.dumps({
    "same": all(same),
    "tied": moved[5].weight is moved[2].weight,
    "view": moved.view.data_ptr() == moved[0].weight[3:5].data_ptr(),
    "words": words,
    "peak": ravenstore.explain().used_bytes_peak,
}))
"""


def sizes_in(words, part):
    """(bytes, where) of a plan's part, as printed."""
    row = re.search(rf"^{part}  +(\S+ \S+)  +(\S+)", words, re.MULTILINE)
    return row[1], row[2]


class TrainingTest(harness.StoreCase):
    def run_it(self, clip=False, first=False, **options):
        given = {"clip": clip, "first": first, "options": {"socket": self.socket, **options}}
        done = harness.run_python(PROGRAM, json.dumps(given), RAVENSTORE_LIBRARY=harness.LIBRARY)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertTrue(report["same"], report["words"])
        self.assertTrue(report["tied"] and report["view"])
        return report, done.stderr

    def test_a_training_that_does_not_fit_is_the_plain_one(self):
        report, printed = self.run_it(device_budget="40MiB")
        words = report["words"]
        self.assertIn("ravenstore.prepare: 40.0 MiB of host, by the daemon at", printed)
        self.assertEqual(sizes_in(words, "weights"), ("11.0 MiB", "device"))
        self.assertEqual(sizes_in(words, "optimizer states"), ("22.0 MiB", "host"))
        self.assertIn("updates in the backward pass: nothing used a gradient", words)
        self.assertRegex(words, r"measured: \d+\.\d+ s a step")
        self.assertRegex(words, r"optimizer states: \d+\.\d MiB out, \d+\.\d MiB back a step")
        self.assertLess(report["peak"], 40 * MIB)

    def test_clipped_and_made_before_the_model(self):
        report, printed = self.run_it(clip=True, first=True, device_budget="40MiB")
        self.assertEqual(printed.count("ravenstore.prepare:"), 1)
        self.assertIn("updates after the backward pass: gradients are used", report["words"])

    def test_what_fits_stays(self):
        report, _ = self.run_it(device_budget="60MiB", states="stay")
        self.assertEqual(sizes_in(report["words"], "optimizer states"), ("22.0 MiB", "device"))
        self.assertNotIn("updates", report["words"])


def model_of(width=512, layers=4, dtype=torch.float32):
    torch.manual_seed(2)
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)]).to(dtype)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


class DecisionTest(harness.StoreCase):
    """In this process, without offload()."""

    def prepare(self, model, optimizer, **options):
        given = {"socket": self.socket, "saved": False, "report": False, **options}
        self.addCleanup(gc.collect)
        plan = ravenstore.prepare(model, optimizer, **given)
        self.addCleanup(plan.close)
        return plan

    def part(self, plan, name):
        (found,) = [part for part in plan.parts if part.name == name]
        return found

    def test_states_stay_where_they_fit_twice(self):
        # Weights and gradients 4 MiB each, states 8.
        for budget, where in (("25MiB", "device"), ("23MiB", "host"), ("16MiB", "host")):
            model = model_of()
            plan = self.prepare(model, adamw(model), device_budget=budget)
            self.assertEqual(self.part(plan, "optimizer states").where, where, budget)

    def test_the_caller_may_decide(self):
        model = model_of()
        optimizer = adamw(model)
        plan = self.prepare(model, optimizer, device_budget="32MiB", states="away")
        self.assertEqual(self.part(plan, "optimizer states").where, "host")
        self.assertTrue(hasattr(optimizer, "_ravenstore"))
        self.assertRegex(str(plan), r"states +8\.0 MiB +host +\d+\.\d+ s of transfers a step")

    def test_auto_is_what_the_daemon_lets_this_user_have(self):
        model = model_of()
        plan = self.prepare(model, adamw(model))
        with self.connect() as store:
            self.assertEqual(plan.device_budget, store.stats().device_budget)

    def test_a_budget_above_the_devices_is_cut_with_a_warning(self):
        model = model_of()
        with self.assertWarnsRegex(RuntimeWarning, r"1\.0 TiB, and the daemon grants 64\.0 MiB"):
            plan = self.prepare(model, adamw(model), device_budget="1TiB")
        self.assertEqual(plan.device_budget, 64 * MIB)

    def test_an_optimizer_that_is_not_moved_says_so(self):
        model = model_of()
        plan = self.prepare(model, torch.optim.Adagrad(model.parameters()), device_budget="32MiB")
        self.assertIn("torch.optim.adagrad.Adagrad, which is not moved", str(plan))
        with self.assertRaisesRegex(TypeError, "not torch.optim.adagrad.Adagrad"):
            model = model_of()
            optimizer = torch.optim.Adagrad(model.parameters())
            self.prepare(model, optimizer, device_budget="32MiB", states="away")

    def refused(self, words, error=OutOfMemory, model=None, make=adamw, **options):
        model = model if model is not None else model_of()
        optimizer = make(model)
        with self.assertRaisesRegex(error, words):
            self.prepare(model, optimizer, **options)
        self.assertFalse(hasattr(optimizer, "_ravenstore"))

    def test_an_optimizer_is_known_by_its_class_and_not_by_its_name(self):
        model = model_of()
        other = type("AdamW", (torch.optim.RMSprop,), {})
        plan = self.prepare(model, other(model.parameters()), device_budget="32MiB")
        self.assertIn("AdamW, which is not moved, nor counted", str(plan))
        for options in ({"states": "away"}, {"float32_states": True}):
            with self.assertRaisesRegex(TypeError, "leave them out, or call offload_optimizer"):
                self.prepare(model, other(model.parameters()), **options)

    def test_what_cannot_fit_is_refused_with_what_would(self):
        fits = r"does not fit 9\.0 MiB: weights take 4\.0 MiB, gradients 4\.0 MiB.*device_budget='"
        self.refused(fits + r".*in_backward=True would.*bfloat16 would", device_budget="9MiB")
        with self.assertRaises(OutOfMemory) as caught:
            self.prepare(model_of(), adamw(model_of()), device_budget="9MiB")
        advised = re.search(r"device_budget='([^']+)' would", caught.exception.message)[1]
        for options in ({"device_budget": advised}, {"device_budget": "9MiB", "in_backward": True}):
            model = model_of()
            self.prepare(model, adamw(model), **options)

    def test_what_host_memory_cannot_take_stays_on_the_device_or_is_refused(self):
        words = r"states take 8\.0 MiB of host memory, the daemon gives 4\.0 MiB, and the device"
        self.refused(words, device_budget="13MiB", host_budget="4MiB", states="away")
        model = model_of()
        optimizer = adamw(model)
        plan = self.prepare(
            model, optimizer, device_budget="24MiB", host_budget="4MiB", states="away"
        )
        self.assertRegex(self.part(plan, "optimizer states").note, r"4\.5 MiB stay on the device")
        model(torch.ones(4, 512)).sum().backward()
        optimizer.step()
        states = optimizer._ravenstore
        self.assertGreater(states.bytes_on_device(), 4 * MIB)
        self.assertLessEqual(states.bytes_in_store(), 4 * MIB)

    def test_states_that_stay_come_out_of_pytorchs_budget_once(self):
        model = model_of()
        options = {"device_budget": "24MiB", "host_budget": "4MiB", "states": "away"}
        with (
            unittest.mock.patch("ravenstore.plan._open_scope", return_value=None) as opened,
            unittest.mock.patch("ravenstore.plan._native.load"),
        ):
            plan = self.prepare(model, adamw(model), saved=True, **options)
        self.assertEqual(opened.call_args.args[1], plan._own_bytes)

    def test_small_blocks_of_a_gpu_are_not_in_the_stores_budget(self):
        model = model_of()
        sizes = sizes_of(model, adamw(model), Precision())
        small = sum(p.numel() * 4 for p in model.parameters() if p.dim() == 1)
        for backend, stay, copies in (("cuda", False, 2), ("cuda", True, 4), ("host", True, 0)):
            self.assertEqual(_small_bytes(backend, sizes, stay), copies * small)
        with unittest.mock.patch("ravenstore.plan._native.load"):
            plan = unittest.mock.Mock(_own_bytes=9 * MIB)
            self.assertEqual(_saved_budget(plan, MIB, small), 9 * MIB - small)

    def test_what_no_step_uses_is_filled_with_states(self):
        for tokens, kept in ((None, 3), (64, 3.6)):
            model = model_of()
            optimizer = adamw(model)
            plan = self.prepare(
                model, optimizer, device_budget="24MiB", states="away", tokens=tokens
            )
            before = plan.transfer_seconds
            with unittest.mock.patch("ravenstore.plan._unused_bytes", return_value=4 * MIB):
                for step in range(3):
                    self.assertEqual(optimizer._ravenstore.bytes_on_device() > 0, step == 2)
                    model(torch.ones(4, 512)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
            on_device = optimizer._ravenstore.bytes_on_device()
            self.assertAlmostEqual(on_device / MIB, kept, delta=0.26)
            self.assertIn(f"stay on the device: {on_device / MIB:.1f} MiB", plan.explain())
            self.assertLess(plan.transfer_seconds, 0.7 * before)

    def test_what_autograd_saves_moves_unless_it_is_known_to_fit(self):
        shape = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 512}
        for tokens, more, moves in (
            (None, {}, True),
            (64, {}, False),
            (64, {"num_experts": 8}, True),
            (4096, {}, True),
        ):
            model = model_of()
            model.config = type("Config", (), {**shape, **more})()
            model.is_gradient_checkpointing = True
            with unittest.mock.patch("ravenstore.plan._open_scope", return_value=None) as opened:
                plan = self.prepare(
                    model, adamw(model), device_budget="32MiB", tokens=tokens, saved="auto"
                )
            self.assertEqual(opened.called, moves, (tokens, more))
            if not moves:
                saved = self.part(plan, "saved for backward")
                self.assertEqual((saved.bytes, saved.note), (4 * 512 * 64 * 4, "it fits"))

    def test_a_pass_saves_what_has_the_models_bits_and_not_an_adapters(self):
        model = model_of().bfloat16()
        model.adapter = torch.nn.Parameter(torch.zeros(8, dtype=torch.float32))
        shape = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 512}
        model.config = type("Config", (), shape)()
        model.is_gradient_checkpointing = True
        saved, layer = pass_bytes(model, 64)
        self.assertEqual((saved, layer), (4 * 512 * 64 * 2, 21 * 512 * 64 * 2))
        for p in model.parameters():
            p.requires_grad_(p is model.adapter)
        saved, with_adapters = pass_bytes(model, 64)
        self.assertEqual(saved, 4 * 512 * 64 * 2)
        self.assertEqual(with_adapters, 64 * 512 * (12 + 8 + 24 + 14))
        model.adapter.data = model.adapter.data.bfloat16()
        self.assertEqual(pass_bytes(model, 64)[1], layer)

    def test_the_longest_context_of_adapters_is_about_what_a_gpu_found(self):
        # An H100 of 79.2 GiB trains 8B parameters with 98,304 tokens and not with 106,496.
        class Shape:
            num_hidden_layers, hidden_size, intermediate_size = 32, 4096, 14336

        model = torch.nn.Linear(64, 64, dtype=torch.bfloat16).requires_grad_(False)
        model.adapter = torch.nn.Parameter(torch.zeros(8, dtype=torch.float32))
        model.config, model.is_gradient_checkpointing = Shape(), True
        in_gib = [(16.06e9 + sum(pass_bytes(model, tokens))) / 2**30 for tokens in (98304, 106496)]
        self.assertLess(in_gib[0], 78.5)
        self.assertGreater(in_gib[1], 77.0)

    def test_arguments_that_make_no_sense(self):
        model = model_of()
        self.refused("on meta", InvalidArgument, model=model_of().to("meta"))
        with self.assertRaisesRegex(InvalidArgument, "or neither"):
            self.prepare(model, None)
        with self.assertRaisesRegex(InvalidArgument, 'states is "auto"'):
            self.prepare(model, adamw(model), states="gone")
        with self.assertRaisesRegex(InvalidArgument, "in_backward is True"):
            self.prepare(model, adamw(model), in_backward=1.5)
        plan = self.prepare(model, adamw(model), device_budget="32MiB")
        with self.assertRaisesRegex(InvalidArgument, "has a model already"):
            plan.take(model, adamw(model))

    def test_before_any_step_nothing_is_measured(self):
        model = model_of()
        plan = self.prepare(model, adamw(model), device_budget="32MiB")
        self.assertIn("measured: nothing yet", plan.explain())


class LossTest(harness.StoreCase):
    def test_the_loss_in_chunks_is_named_and_restored(self):
        try:
            import transformers
        except ImportError as error:
            self.skipTest(f"needs transformers: {error}")
        if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
            self.skipTest("this PyTorch has no loss in chunks")
        shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **heads))
        head = type(model.lm_head)
        for chunks, words in ((True, "in chunks +by PyTorch"), (False, "whole: switched off")):
            plan = ravenstore.prepare(
                model,
                adamw(model),
                socket=self.socket,
                device_budget="32MiB",
                saved=False,
                report=False,
                loss_chunks=chunks,
            )
            with plan:
                self.assertRegex(str(plan), words)
                self.assertEqual(type(model.lm_head) is head, not chunks)
            self.assertIs(type(model.lm_head), head)


class PrivateDaemonTest(harness.unittest.TestCase):
    def test_without_a_daemon_a_private_one_starts_and_says_so(self):
        program = """
import torch, ravenstore
from ravenstore import embedded
model = torch.nn.Linear(2048, 2048)
opt = torch.optim.AdamW(model.parameters())
options = dict(device_budget="60MiB", host_budget="300MiB", states="away")
plan = ravenstore.prepare(model, opt, **options)
model(torch.ones(2, 2048)).sum().backward()
opt.step()
assert embedded.running() is not None
"""
        done = harness.run_python(
            program, RAVENSTORE_LIBRARY=harness.LIBRARY, RAVENSTORE_EMBEDDED=""
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        words = "by a private daemon of this job (host memory: 300.0 MiB)"
        self.assertIn(words, done.stderr)

    def test_a_child_prepares_with_its_parents(self):
        program = """
import os, subprocess, sys, torch, ravenstore
model = torch.nn.Linear(64, 64)
opt = torch.optim.AdamW(model.parameters())
ravenstore.prepare(model, opt, device_budget="60MiB", host_budget="300MiB")
if len(sys.argv) == 1:
    child = [sys.executable, "-c", os.environ["PROGRAM"], "child"]
    subprocess.run(child, check=True)
"""
        done = harness.run_python(program, PROGRAM=program, RAVENSTORE_EMBEDDED="")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("by a private daemon of this job"), 1, done.stderr)
        self.assertIn("by this job's private daemon", done.stderr)


class AgainTest(harness.StoreCase):
    def test_a_second_plan_of_a_process_has_the_budget_of_the_first(self):
        options = {"socket": self.socket, "report": False}
        budgets = []
        for budget in ("32MiB", "40MiB"):
            model = model_of()
            with ravenstore.prepare(model, adamw(model), device_budget=budget, **options):
                model(torch.ones(4, 512)).sum().backward()
                budgets.append(ravenstore.explain().device_budget)
        self.assertEqual(budgets[0], budgets[1])

    def test_an_optimizer_that_an_earlier_plan_moved(self):
        model = model_of()
        optimizer = adamw(model)
        options = {"socket": self.socket, "report": False, "saved": False, "states": "away"}
        for _ in range(2):
            with ravenstore.prepare(model, optimizer, device_budget="32MiB", **options) as plan:
                model(torch.ones(4, 512)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            (states,) = [part for part in plan.parts if part.name == "optimizer states"]
            self.assertEqual(states.where, "host")

    def test_an_optimizer_that_accelerate_wraps(self):
        class Wraps(torch.optim.Optimizer):
            """As accelerate's AcceleratedOptimizer."""

            def __init__(self, optimizer):
                self.optimizer = optimizer

        model = model_of()
        inner = adamw(model)
        options = {"socket": self.socket, "report": False, "saved": False}
        plan = ravenstore.prepare(
            model, Wraps(inner), device_budget="32MiB", states="away", **options
        )
        self.addCleanup(plan.close)
        self.assertTrue(hasattr(inner, "_ravenstore"))


class ExampleTest(harness.unittest.TestCase):
    def test_the_example_learns_the_same_as_without_the_call(self):
        if importlib.util.find_spec("transformers") is None:
            self.skipTest("needs transformers, which this Python has not")
        reports = []
        for words in (("--plain",), ("--budget", "30MiB", "--host-budget", "300MiB")):
            done = subprocess.run(
                [
                    *(sys.executable, str(harness.ROOT / "examples/python/finetune.py")),
                    *("--size", "tiny", "--tokens", "256", "--sequence", "64", "--steps", "2"),
                    *("--device", "cpu", "--whole-loss", *words),
                ],
                env={
                    **os.environ,
                    "PYTHONPATH": str(harness.ROOT / "python"),
                    "RAVENSTORE_EMBEDDED": "",
                },
                capture_output=True,
                text=True,
                timeout=harness.HANGS_AFTER,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            reports.append(json.loads(done.stdout.splitlines()[-1]))
        self.assertRegex(done.stderr, r"optimizer states +12\.9 MiB +host")
        self.assertEqual(reports[0]["losses"], reports[1]["losses"])


if __name__ == "__main__":
    xml_main.main()
