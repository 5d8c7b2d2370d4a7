"""Torch tensors of a store's bytes, and a store's tensors of torch's, against the host backend."""

import gc
import threading

import harness
import numpy
import ravenstore
import torch
import xml_main
from harness import MIB


class TorchViewTest(harness.StoreCase):
    def test_shows_the_bytes_without_a_copy(self):
        with self.store.create(MIB) as tensor:
            for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
                values = tensor.torch(dtype, (16, 32))
                self.assertEqual((values.dtype, values.shape), (dtype, (16, 32)))
                self.assertEqual(values.data_ptr(), tensor.address)
            self.assertEqual(tensor.torch().dtype, torch.uint8)
            self.assertEqual(tensor.torch(torch.float64).shape, (MIB // 8,))

    def test_values_survive_a_stay_elsewhere(self):
        want = torch.arange(MIB // 4, dtype=torch.float32)
        tensor = self.store.create(MIB)
        tensor.torch(torch.float32).copy_(want)
        tensor.put()
        self.push_out(tensor)
        with tensor.get() as view:
            self.assertTrue(torch.equal(view.torch(torch.float32), want))

    def test_a_shape_that_needs_more_bytes_is_refused(self):
        with self.store.create(4096) as tensor:
            with self.assertRaisesRegex(ravenstore.InvalidArgument, r"\(33, 32\) .* needs 4224"):
                tensor.torch(torch.float32, (33, 32))
            with self.assertRaises(ravenstore.InvalidArgument):
                tensor.torch(torch.float32, (-1,))
            self.assertEqual(tensor.torch(torch.float32, ()).dim(), 0)

    def test_what_autograd_saved_of_it_keeps_the_bytes(self):
        tensor = self.store.adopt(torch.full((1024,), 3.0))
        tensor.put()
        weight = torch.ones(1024, requires_grad=True)
        with tensor.get() as view:
            loss = (view.torch(torch.float32) * weight).sum()
        # The graph needs the values: the put waits for it.
        self.assertEqual(tensor.arrays, 1)
        loss.backward()
        self.assertTrue(torch.equal(weight.grad, torch.full((1024,), 3.0)))
        del loss
        gc.collect()
        self.assertEqual(tensor.arrays, 0)
        self.assertIsNone(tensor.address)

    def test_a_tensor_that_outlives_handle_and_store_stays_valid(self):
        store = self.connect()
        tensor = store.adopt(torch.full((1024,), 3.0))
        values = tensor.torch(torch.float32)
        tensor.free()
        store.close()
        del tensor, store
        self.assertTrue(torch.equal(values, torch.full((1024,), 3.0)))
        del values

    def test_the_last_view_may_die_on_another_thread(self):
        tensor = self.store.adopt(torch.zeros(1024))
        values = [tensor.torch(torch.float32)]
        tensor.put()
        worker = threading.Thread(target=values.clear)
        worker.start()
        worker.join(10)
        self.assertIsNone(tensor.address)

    def test_an_exception_passes_while_views_are_dropped(self):
        """The interpreter drops what is on its stack with the exception set."""

        def fails():
            raise ValueError("mine")

        tensor = self.store.adopt(torch.zeros(1024))
        for run in (
            lambda: torch.add(tensor.torch(torch.float32), fails()),
            lambda: [tensor.torch(), tensor.torch(), fails()],
            lambda: [numpy.from_dlpack(tensor), fails()],
            lambda: [tensor.__dlpack__(), fails()],
        ):
            with self.assertRaisesRegex(ValueError, "mine") as caught:
                run()
            caught.exception.__traceback__ = None
            self.assertEqual(tensor.arrays, 0)
        tensor.put()


class AdoptTest(harness.StoreCase):
    def test_takes_the_bytes_of_a_tensor(self):
        source = torch.arange(1000, dtype=torch.int32)
        with self.store.adopt(source) as tensor:
            self.assertEqual(tensor.size, 4000)
            self.assertTrue(torch.equal(tensor.torch(torch.int32), source))
            source.zero_()
            self.assertEqual(tensor.torch(torch.int32)[-1], 999)

    def test_takes_one_that_requires_a_gradient_or_has_no_numpy_type(self):
        for source in (
            torch.ones(64, requires_grad=True),
            torch.ones(64, dtype=torch.bfloat16),
            torch.ones(64).to(torch.float8_e4m3fn),
        ):
            with self.store.adopt(source) as tensor:
                self.assertTrue(torch.equal(tensor.torch(source.dtype), source.detach()))

    def test_refuses_what_is_not_plain_contiguous_memory(self):
        for source in (
            torch.zeros(8, 8).t(),
            torch.zeros(4, dtype=torch.complex64).conj(),
            torch.zeros(4).to_sparse(),
            torch.zeros(4, device="meta"),
        ):
            with self.assertRaises(ravenstore.InvalidArgument):
                self.store.adopt(source)
        self.assertTensors(0)

    def test_get_into_fills_a_tensor(self):
        target = torch.zeros(1024)
        with self.store.adopt(torch.full((1024,), 2.5)) as tensor:
            tensor.put()
            self.push_out(tensor)
            tensor.get_into(target)
        self.assertTrue(torch.equal(target, torch.full((1024,), 2.5)))


class NumpyTest(harness.StoreCase):
    def test_numpy_takes_and_gives_arrays(self):
        source = numpy.arange(1024, dtype=numpy.int16)
        with self.store.adopt(source) as tensor:
            shown = numpy.from_dlpack(tensor).view(numpy.int16)
            self.assertTrue((shown == source).all())
            again = numpy.frombuffer(tensor.memory(), numpy.int16)
            again[0] = 77
            self.assertEqual(shown[0], 77)
            self.assertEqual(tensor.arrays, 2)
            del shown, again
            self.assertEqual(tensor.arrays, 0)

    def test_read_only_memory_is_taken(self):
        source = numpy.frombuffer(b"12345678", numpy.uint8)
        with self.store.adopt(source) as tensor:
            self.assertEqual(bytes(tensor.memory()), b"12345678")


if __name__ == "__main__":
    xml_main.main()
