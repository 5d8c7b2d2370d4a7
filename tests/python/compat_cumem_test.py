#!/usr/bin/python3
"""The interface of vLLM's CuMemAllocator, as vLLM's worker calls it, on the host backend."""

import os
import sys
import types
from unittest import mock

import harness
import ravenstore
import torch
import xml_main
from harness import MIB
from ravenstore.compat import cumem
from ravenstore.compat.cumem import CuMemAllocator


class CuMemAllocatorTest(harness.StoreCase):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, RAVENSTORE_SOCKET=self.socket))
        self.enterContext(mock.patch.object(CuMemAllocator, "timeout", 10))
        self.allocator = CuMemAllocator.get_instance()
        self.addCleanup(self.allocator.wake_up)

    def make(self, tag, value, count=MIB):
        with self.allocator.use_memory_pool(tag=tag):
            return torch.full((count,), value, dtype=torch.float32)

    def asleep(self):
        return {
            name.removeprefix("vllm:"): tag.asleep
            for name, tag in ravenstore.tags().items()
            if name.startswith("vllm:") and tag.bytes
        }

    def test_there_is_one(self):
        self.assertIs(self.allocator, CuMemAllocator.get_instance())

    def test_level_1_keeps_the_weights_and_drops_the_cache(self):
        weights = self.make("weights", 2.0)
        cache = self.make("kv_cache", 3.0, 4 * MIB)
        addresses = [weights.data_ptr(), cache.data_ptr()]
        usage = self.allocator.get_current_usage()
        self.assertGreaterEqual(usage, 20 * MIB)
        self.allocator.sleep(offload_tags=("weights",))
        self.assertEqual(self.asleep(), {"weights": True, "kv_cache": True})
        self.assertEqual(self.allocator.get_current_usage(), usage)
        self.allocator.sleep(offload_tags=("weights",))  # no error, as they sleep
        self.allocator.wake_up(tags=["weights"])
        self.assertEqual(self.asleep(), {"weights": False, "kv_cache": True})
        self.assertEqual(float(weights.mean()), 2)
        self.allocator.wake_up(tags=["kv_cache"])
        self.assertEqual([weights.data_ptr(), cache.data_ptr()], addresses)
        cache.zero_()
        self.assertEqual(float(cache.sum()), 0)

    def test_level_2_drops_all_and_the_weights_are_loaded_in_place(self):
        weights = self.make("weights", 2.0)
        buffer = self.make("weights", 5.0)
        saved = buffer.clone()
        self.allocator.sleep(offload_tags=())
        self.allocator.wake_up()
        weights.copy_(torch.full((MIB,), 4.0))
        buffer.copy_(saved)
        self.assertEqual(float(weights.mean() + buffer.mean()), 9)

    def test_without_tags_the_default_one_is_kept(self):
        with self.allocator.use_memory_pool():
            default = torch.full((MIB,), 7.0)
        other = self.make("other", 1.0)
        self.allocator.sleep()
        self.assertTrue(self.asleep()["default"])
        self.allocator.wake_up()
        self.assertEqual(float(default.mean()), 7)
        self.allocator.sleep("other")
        self.allocator.wake_up()
        other.zero_()

    def test_tags_are_discarded_alone(self):
        weights = self.make("weights", 2.0)
        cache = self.make("kv_cache", 3.0)
        self.allocator.discard("kv_cache")
        self.assertEqual(self.asleep(), {"weights": False, "kv_cache": True})
        self.assertEqual(float(weights.mean()), 2)
        self.allocator.discard(("kv_cache", "unknown"))
        self.allocator.wake_up()
        cache.zero_()

    def test_an_inner_pool_counts(self):
        with self.allocator.use_memory_pool("weights"):
            first = torch.ones(MIB)
            with self.allocator.reuse_memory_pool("graphs"):
                second = torch.ones(MIB)
        self.allocator.discard("graphs")
        self.assertEqual(float(first.sum()), MIB)
        self.allocator.wake_up()
        second.zero_()

    def test_a_wake_without_room_raises_and_may_be_tried_again(self):
        weights = self.make("weights", 2.0, 4 * MIB)
        cache = self.make("kv_cache", 3.0, 2 * MIB)
        self.allocator.sleep(("weights", "kv_cache"))
        with ravenstore.Store.connect(socket=self.socket) as other:
            with (
                other.create(52 * MIB),
                mock.patch.object(CuMemAllocator, "timeout", 0.05),
                self.assertRaises(RuntimeError) as raised,
            ):
                self.allocator.wake_up()
            self.assertIsInstance(raised.exception.__cause__, ravenstore.RavenstoreError)
            self.assertEqual(self.asleep(), {"weights": True, "kv_cache": True})
            self.allocator.wake_up()
        self.assertEqual(float(weights.mean() + cache.mean()), 5)

    def test_a_sleep_without_room_for_the_bytes_raises_and_they_stay(self):
        weights = self.make("weights", 2.0)
        failed = ravenstore.TimedOut("no room for copies")
        with (
            mock.patch.object(cumem.regions, "sleep", side_effect=failed),
            self.assertRaisesRegex(RuntimeError, "no room for copies"),
        ):
            self.allocator.sleep("weights")
        self.assertEqual(float(weights.mean()), 2)

    def test_what_vllm_ends_with(self):
        self.allocator.release_pools()
        self.allocator.close()


class Theirs:
    """The part of vLLM's class that install() reads."""

    instance = None

    @staticmethod
    def get_instance():
        raise AssertionError("cumem allocator is not available")


class InstallTest(harness.StoreCase):
    def setUp(self):
        super().setUp()
        self.theirs = type("CuMemAllocator", (Theirs,), {})
        self.module = types.ModuleType("vllm.device_allocator.cumem")
        self.module.CuMemAllocator = self.theirs
        self.module.cumem_available = False
        packages = {name: types.ModuleType(name) for name in ("vllm", "vllm.device_allocator")}
        modules = {**packages, self.module.__name__: self.module}
        self.enterContext(mock.patch.dict(sys.modules, modules))

    def test_vllm_uses_it_however_it_is_imported(self):
        cumem.install()
        cumem.install()
        self.assertIs(self.module.CuMemAllocator, CuMemAllocator)
        self.assertIs(self.theirs.get_instance(), CuMemAllocator.get_instance())
        self.assertTrue(self.module.cumem_available)

    def test_after_the_engine_is_made_it_is_too_late(self):
        self.theirs.instance = object()
        with self.assertRaisesRegex(RuntimeError, "in use"):
            cumem.install()

    def test_the_plugin_does_it_if_it_is_named(self):
        for plugins in ("", "another", "ravenstores"):
            with mock.patch.dict(os.environ, VLLM_PLUGINS=plugins):
                cumem.plugin()
            self.assertIs(self.module.CuMemAllocator, self.theirs)
        with mock.patch.dict(os.environ, VLLM_PLUGINS="another,ravenstore"):
            cumem.plugin()
        self.assertIs(self.module.CuMemAllocator, CuMemAllocator)

    def test_without_vllm_it_says_so(self):
        with (
            mock.patch.dict(sys.modules, {"vllm.device_allocator.cumem": None}),
            self.assertRaises(ImportError),
        ):
            cumem.install()


if __name__ == "__main__":
    xml_main.main()
