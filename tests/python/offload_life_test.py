"""Memory of the store's that PyTorch uses as its own: forks, files, resizing, other libraries."""

import copy
import gc
import io
import os
import pickle

import harness  # noqa: F401 - the package's path
import offload_harness as offload
import torch
import xml_main
from offload_harness import MIB, OffloadCase, offloading, press, random
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    """Batches whose making allocates blocks that would be the store's in the parent."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return random(512, 1024, seed=index).exp()


def forked(function):
    """What `function` returns in a child of fork(), an int below 256."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            code = function()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class ForkTest(OffloadCase):
    def test_a_dataloaders_workers_inside_and_outside_of_a_scope(self):
        want = [random(512, 1024, seed=index).exp() for index in range(4)]
        with offloading():
            inside = [batch[0] for batch in DataLoader(Numbers(), num_workers=2)]
        outside = [batch[0] for batch in DataLoader(Numbers(), num_workers=2)]
        for got in (inside, outside):
            for one, other in zip(got, want, strict=True):
                self.assertTrue(torch.equal(one, other))

    def test_a_child_drops_the_parents_tensors_and_leaves_its_store_alone(self):
        with offloading():
            leaf = random(512, 1024, grad=True)
            value = leaf.exp()
            loss = value.sin().sum()
        tensors = [value, loss]

        def child():
            tensors.clear()
            gc.collect()
            return 7 if torch.ones(512, 1024).exp().sum() > 0 else 1

        self.assertEqual(forked(child), 7)
        loss.backward()
        self.assertTrue(torch.equal(leaf.grad, leaf.detach().exp().cos() * leaf.detach().exp()))

    def test_a_child_keeps_what_it_saves_under_the_parents_scope(self):
        with offloading():
            leaf = random(512, 1024, grad=True)

            def child():
                value = random(512, 1024, seed=3, grad=True)
                return 7 if value.exp().sin().sum().isfinite() else 1

            self.assertEqual(forked(child), 7)
            loss = leaf.exp().sum()
        loss.backward()
        self.assertTrue(torch.equal(leaf.grad, leaf.detach().exp()))


class LifeTest(OffloadCase):
    def setUp(self):
        with offloading():
            self.value = random(512, 1024)
            self.leaf = random(512, 1024, seed=2, grad=True)
            self.saved = self.leaf * self.value
        self.want = random(512, 1024)
        self.addCleanup(self.forget)

    def forget(self):
        self.value = self.leaf = self.saved = None

    def tearDown(self):
        self.saved.sum().backward()
        self.assertTrue(torch.equal(self.leaf.grad, self.want))
        self.forget()
        super().tearDown()

    def test_copies_and_files(self):
        for name, again in {
            "deepcopy": copy.deepcopy,
            "pickle": lambda value: pickle.loads(pickle.dumps(value)),
            "save": self.saved_and_loaded,
        }.items():
            with self.subTest(name):
                self.assertTrue(torch.equal(again(self.value), self.want))
                self.assertTrue(torch.equal(self.value, self.want))

    def saved_and_loaded(self, value):
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        return torch.load(file)

    def test_numpy_arrays_outlive_the_tensor(self):
        array = self.value.numpy()
        self.value = None
        with offloading():
            _, more = press()
        more.backward()
        self.assertTrue((array == self.want.numpy()).all())

    def test_shared_memory_takes_a_copy_and_the_save_stays_right(self):
        shared = self.value.clone().share_memory_()
        self.assertTrue(shared.is_shared())
        self.assertTrue(torch.equal(shared, self.want))
        self.value.share_memory_()
        self.assertTrue(torch.equal(self.value, self.want))

    def test_storages_are_resized(self):
        fresh = self.value.clone()
        storage = fresh.untyped_storage()
        storage.resize_(3 * MIB)
        self.assertEqual(storage.nbytes(), 3 * MIB)
        self.assertTrue(torch.equal(fresh, self.want))
        storage.resize_(0)
        self.assertEqual(storage.nbytes(), 0)
        storage.resize_(2 * MIB)
        fresh.copy_(self.want)
        self.assertTrue(torch.equal(fresh, self.want))

    def test_a_saved_tensors_storage_is_emptied_and_filled_again(self):
        """As FSDP does with what it gathers: the graph reads what it saved."""
        if offload.WAY != "allocator":
            self.skipTest("a storage of zero bytes stays one that torch holds")
        storage = self.value.untyped_storage()
        size = storage.nbytes()
        storage.resize_(0)
        with offloading():
            _, more = press()
        more.backward()
        storage.resize_(size)


if __name__ == "__main__":
    xml_main.main()
