#!/usr/bin/python3
"""Regions of PyTorch's memory that sleep, against the host backend."""

import os
import threading

import harness
import ravenstore
import torch
import xml_main
from harness import MIB
from ravenstore import regions


class RegionsTest(harness.StoreCase):
    def setUp(self):
        super().setUp()
        os.environ["RAVENSTORE_SOCKET"] = self.socket
        self.addCleanup(os.environ.pop, "RAVENSTORE_SOCKET")

    def tag(self):
        return self.id().rsplit(".", 1)[-1]

    def values(self, tag, count=MIB, seed=0):
        with ravenstore.region(tag):
            return torch.arange(seed, seed + count, dtype=torch.float32)

    def test_a_model_computes_the_same_after_sleeps(self):
        tag = self.tag()
        torch.manual_seed(1)
        with ravenstore.region(tag):
            model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 64))
        given = torch.randn(8, 512)
        want = model(given)
        addresses = [each.data_ptr() for each in model.parameters()]
        for _ in range(5):
            self.assertGreater(ravenstore.sleep(tag), 2 * MIB)
            self.assertTrue(ravenstore.tags()[tag].asleep)
            ravenstore.wake(tag)
            self.assertEqual([each.data_ptr() for each in model.parameters()], addresses)
            self.assertTrue(torch.equal(model(given), want))
        self.assertFalse(ravenstore.tags()[tag].asleep)
        self.assertGreaterEqual(ravenstore.tags()[tag].bytes, (512 + 64) * 1024 * 4)

    def test_only_what_is_asked_for_within_is_the_tags(self):
        tag = self.tag()
        within = self.values(tag)
        before = ravenstore.tags()[tag]
        outside = torch.ones(MIB)
        thread = threading.Thread(target=lambda: torch.ones(MIB))
        with ravenstore.region(tag):
            thread.start()
            thread.join()
        self.assertEqual(ravenstore.tags()[tag], before)
        ravenstore.sleep(tag)
        self.assertEqual(float(outside.sum()), MIB)
        ravenstore.wake(tag)
        self.assertEqual(float(within[-1]), MIB - 1)
        del within
        self.assertEqual(ravenstore.tags()[tag].allocations, 0)

    def test_an_inner_region_counts(self):
        outer, inner = self.tag(), self.tag() + "_inner"
        with ravenstore.region(outer):
            first = torch.zeros(MIB)
            with ravenstore.region(inner):
                second = torch.zeros(MIB)
            third = torch.zeros(MIB)
        self.assertEqual(ravenstore.tags()[outer].allocations, 2)
        self.assertEqual(ravenstore.tags()[inner].allocations, 1)
        ravenstore.sleep(outer, inner)
        ravenstore.wake(outer, inner)
        self.assertEqual(float(first.sum() + second.sum() + third.sum()), 0)

    def test_bytes_that_need_not_be_kept_are_not_copied(self):
        tag = self.tag()
        cache = self.values(tag, 8 * MIB)
        self.assertGreaterEqual(ravenstore.sleep(tag, keep="nothing"), 32 * MIB)
        ravenstore.wake(tag)
        cache.fill_(2)
        ravenstore.sleep(tag)
        ravenstore.wake(tag)
        self.assertEqual(float(cache.sum()), 16 * MIB)

    def test_unchanged_weights_are_right(self):
        tag = self.tag()
        weights = self.values(tag)
        ravenstore.sleep(tag)
        for _ in range(3):
            ravenstore.wake(tag)
            ravenstore.sleep(tag, unchanged=True)
        ravenstore.wake(tag, blocking=False)
        self.assertTrue(torch.equal(weights, torch.arange(MIB, dtype=torch.float32)))

    def test_misuse_is_named(self):
        tag = self.tag()
        self.assertRaises(ravenstore.InvalidArgument, ravenstore.region("").__enter__)
        with self.assertRaisesRegex(ravenstore.NotFound, "no region 'unknown'"):
            ravenstore.sleep("unknown")
        weights = self.values(tag)
        with self.assertRaisesRegex(ravenstore.InvalidArgument, "'bytes' or 'nothing'"):
            ravenstore.sleep(tag, keep="all")
        with self.assertRaisesRegex(ravenstore.InvalidArgument, "unchanged"):
            ravenstore.sleep(tag, keep="nothing", unchanged=True)
        ravenstore.wake(tag)  # it is awake
        ravenstore.sleep(tag)
        with self.assertRaisesRegex(ravenstore.WrongState, "asleep already"):
            ravenstore.sleep(tag)
        with self.assertRaisesRegex(ravenstore.WrongState, "asleep: wake it"):
            ravenstore.region(tag).__enter__()
        ravenstore.wake(tag)
        ravenstore.stay(weights)
        with self.assertRaisesRegex(ravenstore.WrongState, "kept in place"):
            ravenstore.sleep(tag)
        ravenstore.stay(weights, False)
        ravenstore.sleep(tag)
        ravenstore.wake(tag)
        with self.assertRaises(ravenstore.NotFound):
            ravenstore.stay(torch.zeros(10))
        self.assertEqual(float(weights[1]), 1)

    def test_without_room_it_says_so(self):
        tag = self.tag()
        with self.assertRaisesRegex(RuntimeError, "out of memory"), ravenstore.region(tag):
            torch.zeros(1 << 30)

    def test_a_child_has_no_tags(self):
        self.values(self.tag())
        child = os.fork()
        if child == 0:
            os._exit(0 if not regions.tags() else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


if __name__ == "__main__":
    xml_main.main()
