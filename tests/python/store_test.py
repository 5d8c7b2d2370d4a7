#!/usr/bin/python3
"""The explicit interface against a daemon of the host backend."""

import ctypes
import datetime
import gc
import os
import signal
import threading
import traceback
import types
import unittest
import weakref
from unittest import mock

import harness
import ravenstore
import xml_main
from harness import MIB
from ravenstore import _arrays
from ravenstore import store as store_module


class VerbsTest(harness.StoreCase):
    def test_bytes_survive_a_stay_elsewhere(self):
        with self.store.create("1MiB", name="kept") as tensor:
            tensor.memory()[:] = bytes(range(256)) * 4096
            tensor.put()
            self.push_out(tensor)
            with tensor.get() as view:
                self.assertEqual(bytes(view.memory()), bytes(range(256)) * 4096)

    def test_handle_has_size_id_and_device(self):
        first, second = self.store.create_batch([4096, "8 KiB"])
        self.assertEqual((first.size, second.size), (4096, 8192))
        self.assertNotEqual(first.id, second.id)
        self.assertEqual(first.device, 0)
        self.assertTrue(first.ready())
        self.assertEqual(first.address, first._latest().address)

    def test_address_is_none_in_ravenspace(self):
        tensor = self.store.create(4096)
        tensor.put()
        self.assertIsNone(tensor.address)

    def test_batches_do_what_the_single_calls_do(self):
        tensors = self.store.create_batch([MIB] * 4)
        for i, tensor in enumerate(tensors):
            tensor.memory()[:] = bytes([i]) * MIB
        self.store.put_batch(tensors)
        self.push_out(tensors[0])
        with self.store.get_batch(tensors, read_only=True) as views:
            self.assertEqual([view.memory()[-1] for view in views], [0, 1, 2, 3])
        self.assertFalse(any(view.open for view in views))
        self.store.free_batch(tensors)
        self.assertTensors(0)

    def test_a_batch_is_all_or_none(self):
        with self.assertRaises(ravenstore.OutOfMemory):
            self.store.create_batch([8 * MIB, 64 * MIB], fail_fast=True)
        self.assertTensors(0)

    def test_get_into_copies_to_a_buffer(self):
        with self.store.adopt(b"abcd" * 1024) as tensor:
            tensor.put()
            target = bytearray(4096)
            tensor.get_into(target)
            self.assertEqual(bytes(target), b"abcd" * 1024)

    def test_get_into_refuses_too_small_and_read_only_targets(self):
        with self.store.adopt(bytes(4096)) as tensor:
            with self.assertRaisesRegex(ravenstore.InvalidArgument, "does not fit into 4095"):
                tensor.get_into(bytearray(4095))
            with self.assertRaisesRegex(ravenstore.InvalidArgument, "writable"):
                tensor.get_into(bytes(4096))

    def test_dropped_bytes_are_to_be_recomputed(self):
        tensor = self.store.create(4 * MIB)
        tensor.put(recompute=1e-9)
        self.push_out(tensor)
        with self.assertRaises(ravenstore.MustRecompute):
            tensor.get_into(bytearray(4 * MIB))
        with tensor.get() as view:
            self.assertTrue(view.must_recompute)
            view.memory()[:] = b"n" * 4 * MIB
        self.assertFalse(tensor.must_recompute())

    def test_a_read_only_view_may_be_rewritten_where_it_must(self):
        tensor = self.store.create(4 * MIB)
        tensor.put(recompute=1e-9)
        self.push_out(tensor)
        with tensor.get(read_only=True) as view:
            self.assertTrue(view.must_recompute)
        # The put at the end did not call the bytes unchanged, which would be refused.
        self.assertFalse(tensor.must_recompute())
        tensor.get(read_only=True).put(not_modified=True)

    def test_hints_are_checked(self):
        tensor = self.store.create(4096)
        with self.assertRaisesRegex(ravenstore.InvalidArgument, "priority"):
            tensor.put(priority=7)
        tensor.put(
            needed_in=datetime.timedelta(milliseconds=5),
            order=-3,
            priority=ravenstore.Priority.HIGH,
            not_modified=True,
        )

    def test_stats_are_plain_data(self):
        with self.store.create(MIB):
            stats = self.store.stats()
            self.assertEqual((stats.tensors, stats.device_budget), (1, 16 * MIB))
            with self.assertRaises(AttributeError):
                stats.tensors = 3

    def test_a_budget_above_the_devices_is_cut_with_a_warning(self):
        words = "device_budget is 1.0 TiB, and the daemon grants 64.0 MiB of each device"
        with (
            self.assertWarnsRegex(RuntimeWarning, words) as caught,
            self.connect(device_budget="1TiB") as store,
        ):
            self.assertEqual(store.stats().device_budget, 64 * MIB)
        self.assertEqual(caught.filename, harness.__file__)

    def test_step_trim_and_check_answer(self):
        self.store.step()
        self.store.trim()
        self.store.check()

    def test_overlapping_gets_each_need_their_put(self):
        tensor = self.store.adopt(bytes(4096))
        tensor.put()
        first, second = tensor.get(), tensor.get()
        first.put()
        self.assertEqual(second.memory()[0], 0)
        second.put()
        with self.assertRaisesRegex(ravenstore.WrongState, "Ravenspace"):
            tensor.put()

    def test_streams_of_the_host_backend_order_work(self):
        with ravenstore.HostStream() as stream:
            tensor = self.store.create(4096)
            address = tensor.address
            gate = threading.Event()

            def write():
                gate.wait(10)
                ctypes.memset(address, ord("w"), 4096)

            stream.run(write)
            tensor.put(stream=stream)
            gate.set()
            stream.synchronize()
            with tensor.get() as view:
                self.assertEqual(view.memory()[5], ord("w"))


class ErrorsTest(harness.StoreCase):
    def test_no_daemon_is_an_error_that_names_the_command(self):
        with self.assertRaises(ravenstore.Unavailable) as caught:
            ravenstore.Store.connect(socket="/tmp/raven-nowhere", timeout=1)
        self.assertIn("ravenstored --socket /tmp/raven-nowhere", str(caught.exception))
        with self.assertRaises(ConnectionError):
            ravenstore.Store.connect(socket="/tmp/raven-nowhere", timeout=1)

    def test_out_of_memory_is_also_pythons(self):
        with self.assertRaises(MemoryError) as caught:
            self.store.create("1GiB", fail_fast=True)
        self.assertEqual(caught.exception.code, 2)

    def test_what_only_the_program_itself_could_mend_need_not_be_waited_for(self):
        limit = harness.TimeLimit(20)
        with self.store.create("14MiB"), self.assertRaises(ravenstore.OutOfMemory):
            self.store.create("14MiB", fail_stuck=True, timeout=60)
        self.assertFalse(limit.is_over())

    def test_what_is_long_lived_may_be_said(self):
        with self.store.create("2MiB", long_lived=True) as tensor:
            tensor.put()
            self.assertEqual(len(tensor.get().memory()), 2 << 20)

    def test_a_wait_for_room_ends_in_time(self):
        with self.store.create("14MiB"), self.assertRaises(ravenstore.RavenstoreError) as caught:
            self.store.create("14MiB", timeout=0.05)
        self.assertIsInstance(caught.exception, ravenstore.TimedOut | ravenstore.OutOfMemory)

    def test_use_after_free_put_twice_and_closed_store_are_wrong_states(self):
        tensor = self.store.create(4096)
        view = tensor._latest()
        view.put()
        with self.assertRaisesRegex(ravenstore.WrongState, "put already"):
            view.put()
        tensor.free()
        with self.assertRaisesRegex(ravenstore.WrongState, "after its free"):
            tensor.get()
        other = self.connect()
        stranger = other.create(4096)
        with self.assertRaisesRegex(ravenstore.InvalidArgument, "another store"):
            self.store.get(stranger)
        other.close()
        for call in (stranger.get, other.step, lambda: other.create(1)):
            with self.assertRaisesRegex(ravenstore.WrongState, "closed"):
                call()

    def test_sizes_are_numbers_or_words(self):
        for size in ("12 parsecs", "-1", -1, 1.5, "", 1 << 64):
            with self.assertRaises(ravenstore.InvalidArgument):
                self.store.create(size)
        with self.assertRaises(ValueError):
            self.store.create(1, timeout=-1)

    def test_a_dead_daemon_is_lost(self):
        with harness.daemon() as socket:
            store = ravenstore.Store.connect(socket=socket, timeout=10)
            tensor = store.adopt(b"x" * 4096)
            tensor.put()
        with self.assertRaises((ravenstore.Lost, ravenstore.Unavailable)):
            store.create(4096)
        with self.assertRaises(ravenstore.Lost):
            tensor.get()
        tensor.free()
        store.close()

    def test_the_bodys_exception_is_not_hidden(self):
        with self.assertRaisesRegex(KeyError, "mine"), self.store.create(4096) as tensor:
            tensor.free()
            raise KeyError("mine")


class LifetimeTest(harness.StoreCase):
    def test_a_put_waits_for_the_last_array(self):
        tensor = self.store.adopt(b"a" * 4096)
        tensor.put()
        with tensor.get() as view:
            memory = view.memory()
            part = memory[10:20]
        self.assertEqual(view.arrays, 1)
        self.assertIsNotNone(tensor.address)  # still in Userspace
        del memory
        self.assertEqual(bytes(part), b"a" * 10)
        del part
        self.assertIsNone(tensor.address)

    def test_a_free_waits_for_the_last_array(self):
        tensor = self.store.adopt(b"a" * 4096)
        memory = tensor.memory()
        tensor.free()
        with self.assertRaises(ravenstore.WrongState):
            tensor.memory()
        self.assertEqual(self.store.stats().tensors, 1)
        self.assertEqual(bytes(memory[:3]), b"aaa")
        del memory
        self.assertTensors(0)

    def test_a_close_waits_for_the_last_array(self):
        store = self.connect()
        memory = store.adopt(b"a" * 4096).memory()
        store.close()
        self.assertEqual(bytes(memory[:3]), b"aaa")
        with self.assertRaises(ravenstore.WrongState):
            store.stats()
        with self.assertRaises(ravenstore.WrongState):
            memory.obj.exported._owner.get()
        del memory

    def test_a_handle_that_is_dropped_frees_its_tensor(self):
        gc.disable()  # it does not take the collector
        self.addCleanup(gc.enable)
        first, second = self.store.create_batch([4096, 4096])
        second.put()
        memory = first.memory()
        del first, second
        self.assertTensors(1)
        del memory
        self.assertTensors(0)

    def test_a_store_that_is_dropped_is_closed(self):
        store = self.connect()
        tensor = store.create(4096)
        reference = weakref.ref(store)
        del store
        self.assertIsNotNone(reference())  # its tensor needs it
        del tensor
        gc.collect()
        self.assertIsNone(reference())

    def test_read_only_views_give_read_only_memory(self):
        tensor = self.store.adopt(b"a" * 4096)
        tensor.put()
        with tensor.get(read_only=True) as view, self.assertRaises(TypeError):
            view.memory()[0] = 1

    def test_a_child_of_fork_gets_an_error_and_may_connect_again(self):
        tensor = self.store.adopt(b"a" * 4096)
        other = self.store.create(4096)
        memory = tensor.memory()
        child = os.fork()
        if child == 0:
            verdict = 1
            try:
                self._use_in_child(tensor, other)
                del memory, tensor, other
                verdict = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(verdict)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(bytes(memory[:3]), b"aaa")

    def _use_in_child(self, tensor, other):
        for call in (tensor.get, other.put, self.store.step, lambda: self.store.create(1)):
            try:
                call()
            except ravenstore.IsForked:
                continue
            raise AssertionError("the parent's store worked in its child")
        with self.connect() as store, store.adopt(b"b" * 4096) as own:
            assert own.memory()[0] == ord("b")

    def test_the_interpreter_ends_with_live_handles_and_arrays(self):
        text = """
import sys, threading
import ravenstore
store = ravenstore.Store.connect(socket=sys.argv[1])
tensors = [store.adopt(bytes(4096)) for _ in range(3)]
tensors[0].put()
view = tensors[0].get()
memory = tensors[1].memory()
capsule = tensors[2].__dlpack__()
cycle = [store, tensors]; cycle.append(cycle)
try:
    import torch
    kept = tensors[2].torch(torch.float32)
    torch.kept = kept  # lives until the modules go
except ImportError:
    pass
print("end")
"""
        run = harness.run_python(text, self.socket)
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "end\n", ""))

    def test_finalizers_allocate_nothing_at_the_interpreters_end(self):
        """See Tensor.__del__: what they allocate in the last collection may crash CPython 3.12."""
        tensors = [self.store.create(4096) for _ in range(50)]
        things = [*tensors, self.store, tensors[0]._latest()._export()]
        ending = types.SimpleNamespace(is_finalizing=lambda: True)
        with (
            mock.patch.object(store_module, "sys", ending),
            mock.patch.object(_arrays, "sys", ending),
        ):
            gc.collect()
            gc.disable()
            try:
                before = gc.get_count()[0]
                for thing in things:
                    type(thing).__del__(thing)
                made = gc.get_count()[0] - before
            finally:
                gc.enable()
        self.assertLess(made, 10)  # what counting itself makes
        self.assertTensors(50)

    def test_handles_that_were_never_made_end_quietly(self):
        for kind in (store_module.Tensor, store_module.Store):
            kind.__new__(kind).__del__()

    def test_late_puts_of_other_threads_do_not_meet_this_ones(self):
        tensor = self.store.adopt(bytes(4096))
        tensor.put()
        arrays = []
        for _ in range(400):
            with tensor.get() as view:
                arrays.append(view.memory())
        halves = [arrays[:200], arrays[200:]]
        del arrays, view
        threads = [threading.Thread(target=half.clear) for half in halves]
        for thread in threads:
            thread.start()
        for _ in range(400):
            tensor.get().put()
        for thread in threads:
            thread.join()
        self.assertEqual(tensor.arrays, 0)
        self.assertIsNone(tensor.address)

    def test_a_fork_while_another_thread_holds_the_lock_does_not_hang(self):
        tensor = self.store.adopt(bytes(4096))
        locked, done = threading.Event(), threading.Event()

        def hold():
            with _arrays.lock:
                locked.set()
                done.wait(20)

        thread = threading.Thread(target=hold)
        thread.start()
        locked.wait(20)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            tensor.free()
            os._exit(0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        done.set()
        thread.join()

    def test_a_wait_for_room_stops_no_other_thread(self):
        held = self.store.create("14MiB")
        waiting = threading.Thread(target=lambda: self.store.create("14MiB", timeout=10).free())
        waiting.start()
        # If the wait held the GIL, this free, which ends it, would come after its timeout.
        held.free()
        waiting.join(5)
        self.assertFalse(waiting.is_alive())


class DlpackTest(harness.StoreCase):
    def test_a_capsule_that_is_not_taken_is_released(self):
        tensor = self.store.adopt(b"a" * 4096)
        for version in (None, (1, 0)):
            capsule = tensor.__dlpack__(max_version=version)
            self.assertEqual(tensor.arrays, 1)
            del capsule
            self.assertEqual(tensor.arrays, 0)

    def test_a_store_adopts_another_ones_tensor(self):
        with self.connect() as other:
            source = other.adopt(b"s" * 8192)
            with self.store.adopt(source) as tensor:
                self.assertEqual(bytes(tensor.memory()), b"s" * 8192)
            self.assertEqual(source.arrays, 0)

    def test_another_device_and_a_copy_are_refused(self):
        tensor = self.store.adopt(b"a" * 4096)
        self.assertEqual(tensor.__dlpack_device__(), (1, 0))
        with self.assertRaises(BufferError):
            tensor.__dlpack__(dl_device=(2, 0))
        with self.assertRaises(BufferError):
            tensor.__dlpack__(copy=True)
        tensor.put()
        with self.assertRaises(ravenstore.WrongState):
            tensor.__dlpack__()

    def test_adopt_takes_buffers_and_refuses_what_has_no_memory(self):
        array = (ctypes.c_int * 3)(1, 2, 3)
        with self.store.adopt(array) as tensor:
            self.assertEqual(tensor.memory().cast("i").tolist(), [1, 2, 3])
        with self.assertRaisesRegex(ravenstore.InvalidArgument, "neither a buffer"):
            self.store.adopt(17)
        with self.assertRaisesRegex(ravenstore.InvalidArgument, "contiguous"):
            self.store.adopt(memoryview(bytes(8))[::2])

    def test_after_the_interpreters_end_deleters_call_no_python(self):
        text = """
import sys, ravenstore
from ravenstore import _arrays
tensor = ravenstore.Store.connect(socket=sys.argv[1]).adopt(bytes(4096))
capsule = tensor.__dlpack__()
before = _arrays._deleter
_arrays._outlive_python()
(managed, _), = _arrays._lent.values()
print(managed.deleter == _arrays._deleter != before)
"""
        run = harness.run_python(text, self.socket)
        self.assertEqual(run.stdout, "True\n", run.stderr)


class PackageTest(unittest.TestCase):
    def test_dir_has_what_is_public_and_nothing_else(self):
        names = set(dir(ravenstore))
        self.assertLessEqual({*ravenstore.__all__, "offload_optimizer", "embedded"}, names)
        self.assertFalse(names & {"Any", "TYPE_CHECKING", "_abi"})


class GateTest(unittest.TestCase):
    def test_an_array_that_ends_inside_of_close_does_not_lose_the_action(self):
        ran = []
        gate = _arrays.Gate()
        gate.enter()
        gate.close(lambda: ran.append(1))
        self.assertEqual(ran, [])
        gate.leave()
        gate.leave()
        self.assertEqual(ran, [1])


if __name__ == "__main__":
    xml_main.main()
