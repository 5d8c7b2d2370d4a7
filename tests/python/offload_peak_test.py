"""The smaller the budget, the fewer bytes are held on the device, and the bits stay the same."""

import contextlib
import unittest

import harness  # noqa: F401 - the package's path
import offload_harness as offload
import ravenstore
import torch
import xml_main
from offload_harness import MIB, OffloadCase, bits, in_child, offloading
from ravenstore._demo_model import Gpt, Shape, batches
from ravenstore.offload import _attached

SHAPE = Shape(layers=5, width=128, heads=4, length=256, batch=8, vocabulary=256)
AMPLE = 160 * MIB
PERCENTS = range(100, 20, -10)


def train(scope, sample=lambda: None):
    """Losses and gradients of two steps; `sample` is called some 30 times in each."""
    torch.manual_seed(0)
    model = Gpt(SHAPE)
    for block in model.blocks:
        for module in (block.qkv, block.up, block.down):
            module.register_forward_hook(lambda *_: sample())
            module.register_full_backward_hook(lambda *_: sample())
    out = []
    for tokens in batches(SHAPE, 2, torch.device("cpu")):
        with scope():
            loss = model(tokens)
        loss.backward()
        out += [bits(loss), *(bits(parameter.grad) for parameter in model.parameters())]
        model.zero_grad()
    return out


def under(budget):
    """Results, the most bytes seen on the device, and the explanation with what all would need."""
    offload.start_daemon(device_total="192MiB")

    def scope():
        return offloading(device_budget=budget)

    with scope():
        native = _attached()
    held = []
    out = train(scope, lambda: held.append(native.store_stats()["device_bytes"]))
    explained = ravenstore.explain()
    needed = (native.block_stats(0) or {"needed_peak": explained.live_bytes_peak})["needed_peak"]
    return out, max(held), explained, needed


def peak_of_mlp(rows, scope):
    """The peak bytes of its step with `rows` rows: without offload(), and as measured here."""
    offload.start_daemon(device_total="192MiB")
    with offloading(device_budget=AMPLE):
        native = _attached()
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers)
    for _ in range(2):
        with scope():
            loss = model(torch.randn(rows, 512)).square().mean()
        loss.backward()
        model.zero_grad()
    return ravenstore.max_memory_plain(), native.block_stats(0)["used_peak"]


class PlainPeakTest(OffloadCase):
    @classmethod
    def setUpClass(cls):
        pass  # each child has a daemon of its own

    @unittest.skipUnless(offload.WAY == "allocator", "copies have no blocks")
    def test_a_line_through_it_gives_the_batch_that_fits(self):
        def within():
            return offloading(device_budget=AMPLE)

        for rows in (512, 1024, 2048, 3072, 4096):
            with self.subTest(rows):
                explained, plain = in_child(
                    lambda rows=rows: peak_of_mlp(rows, contextlib.nullcontext)
                )
                self.assertEqual(explained, plain, "nothing was saved in the store's care")
                ours, used = in_child(lambda rows=rows: peak_of_mlp(rows, within))
                self.assertEqual(ours, plain)
                self.assertLess(used, plain)

    @unittest.skipIf(offload.WAY == "allocator", "the allocator tells it")
    def test_copies_say_that_it_is_not_known(self):
        def ask():
            offload.start_daemon()
            with offloading():
                pass
            try:
                ravenstore.max_memory_plain()
            except ravenstore.Unsupported as error:
                return str(error)

        self.assertIn("with offload()'s allocator alone", in_child(ask))


class PeakTest(OffloadCase):
    @classmethod
    def setUpClass(cls):
        pass  # each child has a daemon of its own

    def test_it_never_rises_as_the_budget_falls(self):
        plain = in_child(lambda: train(contextlib.nullcontext))
        ours, _, ample, needed = in_child(lambda: under(AMPLE))
        self.assertEqualBits(ours, plain)
        self.assertFalse(ample.moved)
        before = AMPLE  # with all of it there, what is freed late makes some difference
        for percent in PERCENTS:
            budget = needed - ample.live_bytes_peak * (100 - percent) // 100
            ours, held, explained, _ = in_child(lambda budget=budget: under(budget))
            with self.subTest(percent, budget=budget):
                self.assertEqualBits(ours, plain)
                self.assertLessEqual(held, min(before, budget))
                self.assertTrue(explained.moved or percent == PERCENTS[0])
            before = held


if __name__ == "__main__":
    xml_main.main()
