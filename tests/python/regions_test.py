#!/usr/bin/python3
"""Regions of PyTorch's memory that sleep, against the host backend."""

import contextlib
import os
import sys
import threading
from unittest import mock

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

    def test_within_none_memory_is_of_no_tag(self):
        tag = self.tag()
        with ravenstore.region(tag):
            first = torch.zeros(MIB)
            with ravenstore.region(None):
                outside = torch.ones(MIB)
            second = torch.zeros(MIB)
        self.assertEqual(ravenstore.tags()[tag].allocations, 2)
        ravenstore.sleep(tag)
        self.assertEqual(float(outside.sum()), MIB)
        ravenstore.wake(tag)
        self.assertEqual(float(first.sum() + second.sum()), 0)

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

    def test_of_several_tags_those_before_the_one_that_fails_sleep(self):
        tags = [f"{self.tag()}_{number}" for number in range(3)]
        tensors = [self.values(tag, seed=number) for number, tag in enumerate(tags)]
        ravenstore.stay(tensors[1])
        with self.assertRaises(ravenstore.WrongState):
            ravenstore.sleep(*tags)
        asleep = [ravenstore.tags()[tag].asleep for tag in tags]
        self.assertEqual(asleep, [True, False, False])
        ravenstore.stay(tensors[1], False)
        ravenstore.sleep(*tags[1:])
        failed = [None, None, ravenstore.Capturing("a stream is being captured")]
        with (
            mock.patch.object(regions, "synchronize", side_effect=failed),
            self.assertRaises(ravenstore.Capturing),
        ):
            ravenstore.wake(*tags)
        asleep = [ravenstore.tags()[tag].asleep for tag in tags]
        self.assertEqual(asleep, [False, False, True])
        ravenstore.wake(*tags)
        for number, tensor in enumerate(tensors):
            self.assertEqual(float(tensor[0]), number)

    def test_a_model_computes_while_it_wakes(self):
        tag = self.tag()
        torch.manual_seed(1)
        with ravenstore.region(tag):
            parts = [torch.nn.Linear(512, 512) for _ in range(8)]
            model = torch.nn.Sequential(*parts, torch.nn.BatchNorm1d(512)).eval()
        given = torch.randn(8, 512)
        want = model(given)
        for _ in range(3):
            ravenstore.sleep(tag)
            with self.assertRaisesRegex(ravenstore.WrongState, "asleep"):
                ravenstore.wait_for(parts[0].weight)
            ravenstore.wake(tag, in_order=True)
            with ravenstore.wait_in_forward(model):
                self.assertTrue(torch.equal(model(given), want))
            self.assertFalse(any(part._forward_pre_hooks for part in model.modules()))
            ravenstore.wait_for(parts[0].weight, parts[1].weight[1:])
        ravenstore.sleep(tag)
        ravenstore.wake(tag, in_order=True)
        ravenstore.wake(tag)
        self.assertTrue(torch.equal(model(given), want))
        with self.assertRaises(ravenstore.NotFound):
            ravenstore.wait_for(given)

    def test_operations_on_what_sleeps_are_detected(self):
        tag = self.tag()
        with ravenstore.region(tag):
            model = torch.nn.Linear(64, 32)
        given = torch.randn(4, 64)
        want = model(given)
        with ravenstore.detect_asleep():
            self.assertTrue(torch.equal(model(given), want))
            ravenstore.sleep(tag)
            transposed = model.weight.t()
            words = rf"aten.addmm.*shape \(32,\), whose tag '{tag}' is asleep"
            with self.assertRaisesRegex(ravenstore.WrongState, words):
                model(given)
            with self.assertRaisesRegex(ravenstore.WrongState, r"shape \(64, 32\)"):
                transposed.sum()
            with self.assertRaises(ravenstore.WrongState):
                model.bias.data.zero_()
            self.assertEqual(given.sum().shape, ())
            ravenstore.wake(tag)
            self.assertTrue(torch.equal(model(given), want))

    def test_a_sleeping_tensor_is_read(self):
        tag = self.tag()
        with ravenstore.region(tag):
            whole = torch.arange(3 * MIB, dtype=torch.int32)
            model = torch.nn.Linear(64, 32)
        want, weight = whole.clone(), model.weight.detach().clone()
        with self.assertRaisesRegex(ravenstore.WrongState, "is awake"):
            ravenstore.read_asleep(whole)
        ravenstore.sleep(tag)
        with ravenstore.region(tag + "_other"):
            copy = ravenstore.read_asleep(whole)
        self.assertNotIn(tag + "_other", [t for t, i in ravenstore.tags().items() if i.bytes])
        self.assertTrue(torch.equal(copy, want))
        part = ravenstore.read_asleep(whole[MIB : 2 * MIB])
        self.assertTrue(torch.equal(part, want[MIB : 2 * MIB]))
        self.assertTrue(torch.equal(ravenstore.read_asleep(model.weight), weight))
        with self.assertRaisesRegex(ravenstore.InvalidArgument, "contiguous"):
            ravenstore.read_asleep(model.weight.t())
        with self.assertRaises(ravenstore.NotFound):
            ravenstore.read_asleep(torch.zeros(10))
        self.assertTrue(ravenstore.tags()[tag].asleep)
        ravenstore.wake(tag)
        self.assertTrue(torch.equal(whole, want))

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


class Pool:
    """In the place of PyTorch's, which needs a GPU."""

    made = 0

    def __init__(self, _allocator):
        Pool.made += 1
        self.id = (0, Pool.made)
        self.uses = 1

    def use_count(self):
        return self.uses


class PoolsTest(harness.StoreCase):
    """Which of PyTorch's pools are asked for memory, and when."""

    def setUp(self):
        super().setUp()
        self.device, self.inside = 0, []
        self.enterContext(mock.patch.dict(os.environ, RAVENSTORE_SOCKET=self.socket))
        self.enterContext(mock.patch.object(regions, "_backend", "cuda"))
        self.enterContext(mock.patch.object(regions, "_allocator", mock.Mock()))
        for name, what in (
            ("MemPool", Pool),
            ("current_device", lambda: self.device),
            ("use_mem_pool", self.use),
            ("current_stream", lambda: mock.Mock(cuda_stream=0)),
            ("graph", self.capture),
        ):
            self.enterContext(mock.patch.object(torch.cuda, name, what))

    @contextlib.contextmanager
    def use(self, pool, device):
        self.inside.append((pool, device))
        try:
            yield
        finally:
            self.inside.remove((pool, device))

    @contextlib.contextmanager
    def capture(self, graph, pool, **options):
        self.captured = (graph, pool, options)
        yield

    def test_a_thread_is_in_one_pool_and_comes_back_to_the_outer_one(self):
        seen = []
        with ravenstore.region("outer"):
            seen += self.inside
            with ravenstore.region("inner"):
                self.assertEqual(len(self.inside), 1)
                seen += self.inside
                with ravenstore.region(None):
                    self.assertEqual(self.inside, [])
                    with ravenstore.region("outer"):
                        self.assertEqual(self.inside, seen[:1])
                self.assertEqual(self.inside, seen[1:])
            self.assertEqual(self.inside, seen[:1])
        self.assertEqual(self.inside, [])
        self.assertIsNot(seen[0][0], seen[1][0])
        with self.assertRaises(KeyError), ravenstore.region("outer"):
            self.assertEqual(self.inside, seen[:1])
            raise KeyError
        self.assertEqual(self.inside, [])

    def test_a_device_has_a_pool_of_its_own(self):
        with ravenstore.region("devices"):
            first = self.inside[0]
        self.device = 1
        with ravenstore.region("devices"):
            second = self.inside[0]
        self.assertEqual((first[1], second[1]), (0, 1))
        self.assertIsNot(first[0], second[0])

    def test_a_sleep_releases_what_is_free(self):
        with ravenstore.region("free"):
            before = self.inside[0][0]
        with mock.patch.object(regions, "synchronize"):
            ravenstore.sleep("free")
            ravenstore.wake("free")
        self.assertEqual(sys.getrefcount(before), 2, "PyTorch ends a pool that nothing refers to")
        with ravenstore.region("free"):
            self.assertIsNot(self.inside[0][0], before)

    def test_graphs_share_memory_only_if_they_say_so(self):
        with ravenstore.region("graphs"):
            tensors = self.inside[0][0]
        of_tag = regions._regions["graphs"]

        def captured(**options):
            with ravenstore.capture_graph("graph", "graphs", **options):
                pass
            pool = self.captured[1]
            next(each for each in of_tag.graph_pools.values() if each.id == pool).uses += 1
            return pool

        alone = [captured(), captured()]
        self.assertEqual(len({tensors.id, *alone}), 3)
        self.assertEqual(captured(pool=alone[1]), alone[1])
        shared = captured(pool=(7, 7), stream="side")
        self.assertEqual(self.captured[2], {"stream": "side"})
        self.assertNotIn(shared, [tensors.id, *alone, (7, 7)])
        self.assertEqual(captured(pool=(7, 7)), shared)
        self.assertEqual(captured(pool=shared), shared)
        for pool in of_tag.graph_pools.values():
            pool.uses = 1  # their graphs are gone
        self.assertNotIn(captured(), [tensors.id, *alone, shared])
        self.assertEqual(len(of_tag.graph_pools), 1)


if __name__ == "__main__":
    xml_main.main()
