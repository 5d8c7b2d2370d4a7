"""The smaller the budget, the fewer bytes are held on the device, and the bits stay the same."""

import contextlib

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
    told = ravenstore.explain()
    needed = (native.block_stats(0) or {"needed_peak": told.live_bytes_peak})["needed_peak"]
    return out, max(held), told, needed


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
            ours, held, told, _ = in_child(lambda budget=budget: under(budget))
            with self.subTest(percent, budget=budget):
                self.assertEqualBits(ours, plain)
                self.assertLessEqual(held, min(before, budget))
                self.assertTrue(told.moved or percent == PERCENTS[0])
            before = held


if __name__ == "__main__":
    xml_main.main()
