#!/usr/bin/python3
"""The explicit interface on the CUDA backend, on the fake driver: what differs from the host's."""

import contextlib
import ctypes
import os
import unittest

import harness
import ravenstore
import xml_main
from ravenstore import _cuda

MIB = harness.MIB
NOT_READY = 600  # CUDA_ERROR_NOT_READY

DRIVER = os.environ["RAVENSTORE_LIBCUDA"] = str(harness.BUILT / "tests/fake_cuda/libfakecuda.so")
os.environ["RAVENSTORE_FAKE_CUDA_MEMORY"] = str(4 << 30)


class CudaStoreTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        flags = ("--backend", "cuda", "--device-budget", "64MiB")
        cls.socket = cls.enterClassContext(harness.daemon(*flags))
        cls.cuda = ctypes.CDLL(DRIVER)

    def setUp(self):
        self.store = self.enterContext(ravenstore.Store.connect(socket=self.socket, timeout=10))

    def stream(self):
        handle = ctypes.c_void_p()
        with _cuda._primary_context(0):
            self.assertEqual(self.cuda.cuStreamCreate(ctypes.byref(handle), 1), 0)
        return handle

    @contextlib.contextmanager
    def held(self, stream):
        """`stream` is in the midst of a copy while inside."""
        source = self.store.create(4096)
        self.cuda.FakeCudaHoldCopies(1)
        try:
            self.store.adopt(source, stream=stream.value)
            self.assertEqual(self.query(stream), NOT_READY)
            yield
        finally:
            self.cuda.FakeCudaHoldCopies(0)
            _cuda.synchronize(0, stream.value)

    def query(self, stream):
        with _cuda._primary_context(0):
            return self.cuda.cuStreamQuery(stream)

    def test_bytes_go_out_and_come_back(self):
        self.assertEqual(self.store.backend, "cuda")
        want = os.urandom(MIB)
        tensor = self.store.adopt(want)
        tensor.put()
        with self.store.create(64 * MIB - MIB // 2):
            self.assertFalse(tensor.ready())
        got = bytearray(MIB)
        tensor.get_into(got)
        self.assertEqual(bytes(got), want)

    def test_memory_of_a_gpu_is_no_memoryview(self):
        with self.store.create(4096) as tensor:
            self.assertEqual(tensor.__dlpack_device__(), (2, 0))
            with self.assertRaisesRegex(ravenstore.Unsupported, "on a GPU"):
                tensor.memory()

    def test_streams_of_the_other_backend_are_refused(self):
        tensor = self.store.create(4096)
        with (
            ravenstore.HostStream() as stream,
            self.assertRaisesRegex(ravenstore.InvalidArgument, "cuda backend"),
        ):
            tensor.put(stream=stream)

    def test_a_consumers_stream_waits_for_the_views(self):
        first, then = self.stream(), self.stream()
        tensor = self.store.create(4096)
        tensor.put(stream=first.value)
        view = tensor.get(stream=first.value)
        with self.held(first):
            capsule = view.__dlpack__(stream=then.value)
            self.assertEqual(self.query(then), NOT_READY)
        _cuda.synchronize(0, then.value)
        self.assertEqual(self.query(then), 0)
        del capsule
        view.put(stream=first.value)

    def test_the_same_stream_and_none_wait_for_nothing(self):
        first, other = self.stream(), self.stream()
        tensor = self.store.create(4096)
        tensor.put(stream=first.value)
        view = tensor.get(stream=first.value)
        with self.held(first):
            for stream in (first.value, -1):
                view.__dlpack__(stream=stream)
            self.assertEqual(self.query(other), 0)

    def test_a_copy_to_the_host_is_there_when_the_call_returns(self):
        stream = self.stream()
        tensor = self.store.adopt(b"z" * MIB, stream=stream.value)
        got = bytearray(MIB)
        tensor.get_into(got, stream=stream.value)
        self.assertEqual(bytes(got), b"z" * MIB)

    def test_device_memory_is_adopted_by_way_of_dlpack(self):
        source = self.store.adopt(b"d" * MIB)
        copy = self.store.adopt(source)
        self.assertEqual(source.arrays, 0)
        got = bytearray(MIB)
        copy.get_into(got)
        self.assertEqual(bytes(got), b"d" * MIB)

    def test_an_error_of_the_driver_has_its_name(self):
        with self.assertRaisesRegex(ravenstore.DeviceError, "cuDeviceGet failed with CUDA's error"):
            _cuda.synchronize(77, 0)


if __name__ == "__main__":
    xml_main.main()
