#!/usr/bin/python3
"""An interrupt at any time, such as a notebook's, leaves nothing locked and nothing wrong."""

import contextlib
import os
import random
import signal

import harness
import ravenstore
import torch
import xml_main
from harness import MIB

ROUNDS = int(os.environ.get("RAVENSTORE_INTERRUPTS", "40"))
SEED = 1


def interrupt(_signal, _frame):
    raise KeyboardInterrupt


@contextlib.contextmanager
def interrupted_after(seconds):
    """Raises KeyboardInterrupt in the body so long after its beginning, as an interrupted cell
    does; swallows it."""
    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


class InterruptsTest(harness.StoreCase):
    def setUp(self):
        super().setUp()
        os.environ["RAVENSTORE_SOCKET"] = self.socket
        self.addCleanup(os.environ.pop, "RAVENSTORE_SOCKET")
        self.random = random.Random(SEED)

    def rounds(self, body, check, most):
        """`body` is interrupted at a time within `most` seconds; then `check` is called."""
        for number in range(ROUNDS):
            with self.subTest(seed=SEED, round=number):
                with interrupted_after(self.random.uniform(0.0001, most)):
                    body()
                check()

    def of_a_store(self, body, most):
        """rounds() of body(store) with a store of its own, which is closed before the check: Python
        may skip a destructor that is interrupted, and the store's end ends what that left."""
        store = None

        def with_store():
            nonlocal store
            store = self.connect(device_budget="16MiB")
            body(store)

        def check():
            nonlocal store
            if store is not None:
                store.close()
            store = None
            with self.connect(device_budget="16MiB") as other, other.create(14 * MIB):
                pass

        self.rounds(with_store, check, most)

    def test_a_store(self):
        def body(store):
            tensors = []
            for _ in range(24):  # more than the device holds
                tensors.append(store.create(MIB))
                tensors[-1].memory()[:8] = b"abcdefgh"
                tensors[-1].put()
            for tensor in tensors:
                with tensor.get(read_only=True) as view:
                    self.assertEqual(bytes(view.memory()[:8]), b"abcdefgh")

        self.of_a_store(body, 0.03)

    def test_tensors_by_name(self):
        def body(store):
            with (
                store.publish("numbers", {"a": torch.arange(MIB)}),
                self.connect() as other,
                other.open("numbers") as numbers,
            ):
                self.assertEqual(int(numbers["a"][5]), 5)

        self.of_a_store(body, 0.05)

    def test_sleep_and_wake(self):
        with ravenstore.region("weights"):
            weights = torch.arange(2 * MIB, dtype=torch.float32)
        want = weights.clone()

        def body():
            for _ in range(5):
                ravenstore.sleep("weights")
                ravenstore.wake("weights")

        def check():
            if ravenstore.tags()["weights"].asleep:
                ravenstore.wake("weights")
            self.assertTrue(torch.equal(weights, want))

        self.rounds(body, check, 0.05)

    def test_what_autograd_saves(self):
        # The last case by its name: from here on PyTorch's memory is the store's.
        model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
        given = torch.randn(1024, 256)

        def step():
            with ravenstore.offload(device_budget="6MiB", min_bytes=MIB // 4):
                loss = model(given).square().mean()
            loss.backward()
            gradients = [parameter.grad.clone() for parameter in model.parameters()]
            model.zero_grad()
            return gradients

        want = step()

        def check():
            model.zero_grad()
            for got, wanted in zip(step(), want, strict=True):
                self.assertTrue(torch.equal(got, wanted))

        self.rounds(step, check, 0.03)


if __name__ == "__main__":
    xml_main.main()
