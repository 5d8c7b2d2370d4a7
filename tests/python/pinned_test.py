"""Pinned tensors from the node's pool, against the host backend."""

import collections
import ctypes
import gc
import os
import subprocess
import sys
import threading

import harness
import ravenstore
import torch
import torch.utils.data
import torch.utils.data._utils.pin_memory as of_torch
import xml_main
from harness import MIB


class PinnedCase(harness.StoreCase):
    def pinned(self, *arguments, **options):
        return ravenstore.pinned_empty(*arguments, store=self.store, **options)

    def assertPinnedBytes(self, count):
        """A free does not wait: the daemon may hear of it after the question."""
        self.assertTrue(harness.eventually(lambda: self.store.stats().pinned_bytes == count))


class PinnedEmptyTest(PinnedCase):
    def test_has_shape_and_type_and_holds_values(self):
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
            values = self.pinned((3, 5, 7), dtype)
            self.assertEqual((values.shape, values.dtype), ((3, 5, 7), dtype))
            self.assertTrue(values.is_contiguous())
            self.assertEqual(values.data_ptr() % 4096, 0)
            want = torch.randint(0, 2, (3, 5, 7)).to(dtype)
            self.assertTrue(torch.equal(values.copy_(want), want))
        self.assertEqual(self.pinned(5).dtype, torch.get_default_dtype())

    def test_takes_its_size_to_the_page_and_no_power_of_two(self):
        values = self.pinned(5 * MIB // 4 + 1, torch.float32)
        self.assertEqual(values.numel(), 5 * MIB // 4 + 1)
        self.assertPinnedBytes(5 * MIB + 4096)
        self.assertLessEqual(self.store.stats().pinned_locked, 6 * MIB)

    def test_is_freed_with_the_last_view_of_it(self):
        values = self.pinned((4, MIB), torch.uint8)
        row = values[2]
        del values
        gc.collect()
        self.assertPinnedBytes(4 * MIB)
        row.fill_(9)
        self.assertEqual(int(row.sum()), 9 * MIB)
        del row
        gc.collect()
        self.assertPinnedBytes(0)

    def test_what_was_freed_is_warm_for_another_process_of_the_user(self):
        other = self.connect()
        del_me = self.pinned(32 * MIB, torch.uint8)
        address_of_first = del_me.data_ptr()
        del del_me
        gc.collect()
        self.assertPinnedBytes(0)
        again = ravenstore.pinned_empty(32 * MIB, torch.uint8, store=other)
        self.assertNotEqual(again.data_ptr(), 0)
        self.assertNotEqual(address_of_first, 0)
        self.assertEqual(other.stats().pinned_locked, 32 * MIB)
        del again
        other.close()

    def test_keeps_its_block_when_the_store_is_closed(self):
        store = self.connect()
        values = ravenstore.pinned_empty(MIB, torch.uint8, store=store)
        store.close()
        values.fill_(7)
        self.assertEqual(int(values.sum()), 7 * MIB)

    def test_empty_shapes_take_nothing_and_negative_ones_are_refused(self):
        self.assertEqual(self.pinned((0, 4)).shape, (0, 4))
        self.assertEqual(self.store.stats().pinned_bytes, 0)
        with self.assertRaises(ravenstore.InvalidArgument):
            self.pinned((-1, 4))

    def test_exhaustion_is_an_error_that_names_the_holders(self):
        held = self.pinned(150 * MIB, torch.uint8)
        words = r"^pinned memory is exhausted: no room for 150\.0 MiB .*holds 150\.0 MiB pinned"
        with self.assertRaisesRegex(ravenstore.OutOfMemory, words):
            self.pinned(150 * MIB, torch.uint8)
        with self.assertRaises(MemoryError):
            self.pinned(150 * MIB, torch.uint8)
        del held

    def test_a_block_waits_for_every_stream_of_its_process(self):
        gate = threading.Event()
        with ravenstore.HostStream() as stream:
            values = self.pinned(150 * MIB, torch.uint8)
            stream.run(gate.wait)
            del values
            gc.collect()
            other = self.connect()
            with self.assertRaises(ravenstore.OutOfMemory):
                ravenstore.pinned_empty(150 * MIB, torch.uint8, store=other, timeout=0.05)
            gate.set()
            again = ravenstore.pinned_empty(150 * MIB, torch.uint8, store=other)
            self.assertEqual(again.numel(), 150 * MIB)
            del again
            other.close()

    def test_without_a_store_it_takes_the_processes_own(self):
        text = (
            "import ravenstore, torch\n"
            "a = ravenstore.pinned_empty((2, 3), torch.float64)\n"
            "b = ravenstore.pinned_empty(7)\n"
            "a.fill_(1); b.fill_(2)\n"
            "print(float(a.sum() + b.sum()))\n"
        )
        done = harness.run_python(text, RAVENSTORE_SOCKET=self.socket)
        self.assertEqual((done.returncode, done.stdout), (0, "20.0\n"), done.stderr)

    def test_two_processes_hand_a_block_over_without_tearing_it(self):
        """Rank 0 copies from its block on a stream that is held and drops it; rank 1 takes all
        memory that there is as soon as it may, and overwrites it."""
        text = (
            "import sys, ravenstore, torch\n"
            "store = ravenstore.Store.connect(socket=sys.argv[1], timeout=30)\n"
            "take = lambda **o: ravenstore.pinned_empty(150 << 20, torch.uint8, store=store, **o)\n"
            "print('ready', flush=True)\n"
            "sys.stdin.readline()\n"
            "try:\n"
            "    take(timeout=0.05)\n"
            "except ravenstore.OutOfMemory:\n"
            "    print('full', flush=True)\n"
            "take().fill_(255)\n"
            "print('done', flush=True)\n"
        )
        path = os.pathsep.join([str(harness.ROOT / "python"), os.environ.get("PYTHONPATH", "")])
        rank1 = subprocess.Popen(
            [sys.executable, "-c", text, self.socket],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(rank1.wait)
        self.addCleanup(rank1.kill)
        self.addCleanup(rank1.stdout.close)
        self.assertEqual(rank1.stdout.readline(), "ready\n")
        values = self.pinned(150 * MIB, torch.uint8).fill_(3)
        copied = torch.zeros(150 * MIB, dtype=torch.uint8)
        gate = threading.Event()
        with ravenstore.HostStream() as stream:
            source = torch.frombuffer(
                (ctypes.c_uint8 * values.numel()).from_address(values.data_ptr()), dtype=torch.uint8
            )

            def copy():
                gate.wait()
                copied.copy_(source)

            stream.run(copy)
            del values
            gc.collect()
            rank1.stdin.write("go\n")
            rank1.stdin.flush()
            self.assertEqual(rank1.stdout.readline(), "full\n")
            gate.set()
            self.assertEqual(rank1.stdout.readline(), "done\n")
            stream.synchronize()
        self.assertTrue(bool((copied == 3).all()))
        rank1.stdin.close()


class PinMemoryTest(PinnedCase):
    Point = collections.namedtuple("Point", "x y")

    def pin(self, batch):
        return ravenstore.pin_memory(batch, store=self.store)

    def test_copies_every_tensor_of_a_batch_and_keeps_its_structure(self):
        batch = {
            "x": torch.arange(10.0),
            "y": [torch.ones(2), (torch.zeros(3), "text")],
            "p": self.Point(torch.ones(1), 5),
        }
        pinned = self.pin(batch)
        self.assertTrue(torch.equal(pinned["x"], batch["x"]))
        self.assertIsInstance(pinned["y"], list)
        self.assertIsInstance(pinned["y"][1], tuple)
        self.assertEqual(pinned["y"][1][1], "text")
        self.assertIsInstance(pinned["p"], self.Point)
        self.assertPinnedBytes(4 * 4096)
        self.assertNotEqual(pinned["x"].data_ptr(), batch["x"].data_ptr())

    def test_keeps_strides_where_they_leave_no_gap(self):
        image = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)
        pinned = self.pin(image)
        self.assertEqual(pinned.stride(), image.stride())
        self.assertTrue(torch.equal(pinned, image))
        gaps = torch.rand(8, 8)[:, ::2]
        self.assertTrue(self.pin(gaps).is_contiguous())
        self.assertTrue(torch.equal(self.pin(gaps), gaps))

    def test_what_pins_itself_does_so(self):
        class Own:
            def pin_memory(self):
                return "own"

        self.assertEqual(self.pin([Own()]), ["own"])


class PatchDataLoaderTest(PinnedCase):
    def test_a_loader_inside_takes_pinned_memory_from_the_pool(self):
        data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4), torch.arange(16))
        loader = torch.utils.data.DataLoader(data, batch_size=4)
        with ravenstore.patch_dataloader(self.store):
            batches = iter(loader)
            batches._pin_memory = True  # PyTorch leaves it off where there is no accelerator
            rows, labels = next(batches)
            self.assertPinnedBytes(2 * 4096)
            self.assertTrue(torch.equal(rows, torch.arange(16.0).reshape(4, 4)))
            self.assertTrue(torch.equal(labels, torch.arange(4)))
            del rows, labels
            gc.collect()
            self.assertPinnedBytes(0)
        self.assertIs(of_torch.pin_memory.__module__, of_torch.__name__)

    def test_containers_and_text_pass_as_they_do_in_pytorch(self):
        with ravenstore.patch_dataloader(self.store):
            pinned = of_torch.pin_memory({"a": torch.ones(3), "b": ("x", torch.zeros(2))})
            self.assertTrue(torch.equal(pinned["a"], torch.ones(3)))
            self.assertEqual(pinned["b"][0], "x")
            self.assertPinnedBytes(2 * 4096)


if __name__ == "__main__":
    xml_main.main()
