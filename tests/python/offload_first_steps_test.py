"""An optimizer's states get blocks of their own; what comes and goes gets used ones."""

import unittest

import harness  # noqa: F401 - the package's path
import offload_harness as offload
import torch
import xml_main
from offload_harness import MIB, OffloadCase, offloading, random
from ravenstore import _native


def scope():
    return offloading(device_budget=48 * MIB)


def created(work):
    """How many blocks `work` made."""
    before = _native.load().block_stats(0)["created"]
    work()
    return _native.load().block_stats(0)["created"] - before


@unittest.skipIf(offload.WAY != "allocator", "the blocks are PyTorch's")
class FirstStepsTest(OffloadCase):
    def setUp(self):
        with scope():
            pass
        self.addCleanup(self.forget)
        self.model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(3)])
        self.value = random(512, 512)
        for _ in range(2):
            self.backward()

    def forget(self):
        self.model = self.value = None

    def backward(self):
        self.model(self.value).square().mean().backward()

    def optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def test_the_first_step_makes_blocks_and_later_ones_do_not(self):
        optimizer = self.optimizer()
        for step in range(3):
            made = created(optimizer.step)
            self.assertEqual(made, 3 if step == 0 else 0, f"step {step}")
            self.backward()

    def test_states_that_are_there_make_a_first_step_like_any(self):
        before = self.optimizer()
        before.step()
        again = self.optimizer()
        again.load_state_dict(before.state_dict())
        self.assertEqual(created(again.step), 0)

    def test_without_a_scope_forward_passes_use_idle_blocks(self):
        self.assertEqual(created(self.backward), 0)

    def test_what_follows_a_first_step_that_failed_uses_idle_blocks(self):
        optimizer = self.optimizer()
        optimizer.register_step_pre_hook(lambda *_: self.fail("as it was to"))
        with self.assertRaises(AssertionError):
            optimizer.step()

        def train():
            with scope():
                loss = self.model(self.value).square().mean()
            loss.backward()

        train()
        self.assertEqual(created(train), 0)

    def test_a_closure_is_no_part_of_the_step(self):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def closure():
            self.backward()
            return 0.0

        self.assertEqual(created(lambda: optimizer.step(closure)), 0)


if __name__ == "__main__":
    xml_main.main()
