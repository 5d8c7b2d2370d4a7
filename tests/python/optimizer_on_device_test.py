"""States of which a part stays on the device: the plain numbers, and as many bytes as asked for."""

import copy
import io
import itertools
import unittest.mock

import harness
import ravenstore
import torch
import xml_main
from ravenstore._chunks import Chunk

MIB = harness.MIB
CHUNK = 128 << 10


def model_of(layers=6):
    torch.manual_seed(4)
    return torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(layers)])


class OnDeviceTest(harness.StoreCase):
    def setUp(self):
        super().setUp()
        self.plain, self.moved = model_of(), model_of()
        self.reference = torch.optim.AdamW(self.plain.parameters(), lr=1e-2)
        self.optimizer = torch.optim.AdamW(self.moved.parameters(), lr=1e-2)

    def offload(self, **options):
        ravenstore.offload_optimizer(self.optimizer, self.store, chunk=CHUNK, **options)
        return self.optimizer._ravenstore

    def train(self, steps=2):
        for step in range(steps):
            for model, optimizer in ((self.plain, self.reference), (self.moved, self.optimizer)):
                x = torch.randn(8, 256, generator=torch.Generator().manual_seed(step))
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        self.assert_same()

    def assert_same(self):
        for p, q in zip(self.plain.parameters(), self.moved.parameters(), strict=True):
            self.assertTrue(torch.equal(p, q))
        saved, plain = self.optimizer.state_dict(), self.reference.state_dict()
        for number, state in plain["state"].items():
            for key, value in state.items():
                self.assertTrue(torch.equal(saved["state"][number][key], value), (number, key))

    def test_a_part_from_the_start(self):
        for way in (False, True, "auto"):
            with self.subTest(in_backward=way):
                self.setUp()
                states = self.offload(in_backward=way, on_device="1.5MiB")
                self.train(3)
                size = states.bytes_on_device() + states.bytes_in_store()
                self.assertAlmostEqual(states.bytes_on_device() / size, 0.5, delta=0.06)
                self.assertLess(self.store.stats().bytes_out, 3.2 * states.bytes_in_store())

    def test_all_of_them(self):
        states = self.offload(on_device="1GiB")
        self.train()
        self.assertEqual(states.bytes_in_store(), 0)
        self.assertEqual(self.store.stats().bytes_out, 0)

    def test_states_that_there_were_before(self):
        self.train(1)
        states = self.offload(on_device="1.5MiB")
        self.assertAlmostEqual(states.bytes_on_device() / MIB, 1.5, delta=0.2)
        self.train()

    def test_more_of_them_between_steps(self):
        states = self.offload(in_backward=True)
        self.train()
        kept = states.keep_on_device(MIB)
        self.assertEqual(kept, states.bytes_on_device())
        self.assertTrue(0.75 * MIB <= kept <= MIB, kept)
        self.train()
        size = states.bytes_in_store()
        self.assertEqual(states.keep_on_device(1 << 40), size)
        self.assertEqual(states.bytes_in_store(), 0)
        self.train()

    def test_they_are_spread_over_the_parameters(self):
        states = self.offload()
        self.train(1)
        states.keep_on_device(MIB)
        stays = [chunk.stays for chunk in states._chunks]
        self.assertIn(True, stays)
        self.assertNotIn((True, True), itertools.pairwise(stays), stays)

    def test_where_memory_ends_the_rest_goes_on_moving(self):
        states = self.offload()
        self.train(1)
        stay, calls = Chunk.stay, []

        def fails_at_the_third(chunk):
            calls.append(chunk)
            if len(calls) == 3:
                raise torch.OutOfMemoryError("none left")
            stay(chunk)

        with unittest.mock.patch.object(Chunk, "stay", fails_at_the_third):
            kept = states.keep_on_device(MIB)
        self.assertEqual(kept, sum(chunk.size for chunk in calls[:2]))
        self.train()

    def test_a_checkpoint_that_is_loaded_keeps_the_part(self):
        states = self.offload()
        self.train(1)
        states.keep_on_device(MIB)
        before = states.bytes_on_device()
        file = io.BytesIO()
        torch.save(self.optimizer.state_dict(), file)
        file.seek(0)
        plain = copy.deepcopy(self.reference.state_dict())
        self.train()
        self.optimizer.load_state_dict(torch.load(file))
        self.reference.load_state_dict(plain)
        self.assertAlmostEqual(states.bytes_on_device() / before, 1, delta=0.2)
        self.train()

    def test_master_weights(self):
        self.plain, self.moved = model_of().bfloat16(), model_of().bfloat16()
        for part in (0, "1.5MiB"):
            self.moved.load_state_dict(model_of().bfloat16().state_dict())
            optimizer = torch.optim.AdamW(self.moved.parameters(), lr=1e-2)
            ravenstore.offload_optimizer(
                optimizer, self.store, chunk=CHUNK, master_weights=True, on_device=part
            )
            for step in range(3):
                x = torch.randn(8, 256, generator=torch.Generator().manual_seed(step)).bfloat16()
                self.moved(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            if part:
                self.assertGreater(optimizer._ravenstore.bytes_on_device(), MIB)
                for p, q in zip(self.plain.parameters(), self.moved.parameters(), strict=True):
                    self.assertTrue(torch.equal(p, q))
            else:
                self.plain.load_state_dict(self.moved.state_dict())


if __name__ == "__main__":
    xml_main.main()
