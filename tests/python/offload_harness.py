"""What the tests of ravenstore.offload() share: one daemon, one budget, and a comparison with plain
PyTorch, bit for bit.

A process has one way for its whole life, so each test file runs once for each way:
$OFFLOAD_WAY is "allocator" (the default), "copy", or "python" for the copies of a PyTorch that the
native part was not compiled for.
"""

import contextlib
import gc
import importlib
import os
import pickle
import traceback
import unittest
import warnings

import harness
import ravenstore
import torch
from ravenstore import embedded

MIB = harness.MIB
WAY = os.environ.get("OFFLOAD_WAY", "allocator")
BUDGET = 32 * MIB

if WAY == "python":
    os.environ.pop("RAVENSTORE_NATIVE", None)  # a checkout has none in its package
    warnings.filterwarnings("ignore", "ravenstore.offload.. makes copies", RuntimeWarning)
WAY_IN_USE = {"python": "copy (Python)"}.get(WAY, WAY)

torch.set_num_threads(1)


def start_daemon(device_total="64MiB", pool_size="512MiB", flags=()):
    """This process's private daemon of the host backend; the one there is, if any."""
    return embedded.running() or embedded.start(
        backend="host", device_total=device_total, pool_size=pool_size, flags=flags
    )


def offloading(**options):
    """The scope under test."""
    start = {
        "device_budget": BUDGET,
        "embedded": True,
        "timeout": 10,
        "way": None if WAY == "python" else WAY,
    }
    return ravenstore.offload(**{**start, **options})


def random(*shape, dtype=torch.float32, seed=0, grad=False):
    """The same values for the same arguments."""
    source = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=source, dtype=torch.float32)
    return values.to(dtype).requires_grad_(grad)


def press():
    """A graph that saves 56 MiB and so drives out what was saved before; a leaf and its loss."""
    leaf = random(MIB // 2, seed=99, grad=True)
    value = leaf
    for _ in range(28):
        value = value.sin()
    return leaf, value.sum()


def bits(tensor):
    """What is equal where every bit is."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg().contiguous().cpu()
    return tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).clone()


def results(loss, leaves):
    """What of a step is compared."""
    return [bits(loss)] + [None if leaf.grad is None else bits(leaf.grad) for leaf in leaves]


def pressed_plainly():
    leaf, loss = press()
    loss.backward()
    return results(loss, [leaf])


# Before the allocator is in place: the budget has no room for it without a scope.
PRESSED = pressed_plainly()


def moved_back():
    """Bytes that came back to the device since the process began."""
    try:
        return ravenstore.explain().bytes_in
    except ravenstore.WrongState:
        return 0


def parked():
    """Bytes that the store keeps for graphs: none once they are gone."""
    gc.collect()
    # After an error PyTorch's engine holds what was ready to run until its next backward pass.
    torch.ones(1, requires_grad=True).exp().sum().backward()
    explained = ravenstore.explain()
    if explained.way != "allocator":
        return explained.live_bytes
    from ravenstore import _native

    return _native.load().block_stats(0)["parked"]


def attached():
    """Whether this process has had a scope."""
    return importlib.import_module("ravenstore.offload")._here().native is not None


class Child:
    """A child of fork() that runs `function`. It may have another budget: a process has one for its
    whole life. Made before the parent's first scope."""

    def __init__(self, function):
        self._results, send = os.pipe()
        assert not attached(), "the child would use its parent's allocator"
        self._pid = os.fork()
        if self._pid == 0:
            self._run(function, send)
        os.close(send)

    @staticmethod
    def _run(function, send):
        code = 1
        try:
            result = pickle.dumps(function())
            with open(send, "wb") as out:
                out.write(result)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def wait(self):
        """(exit code, what the function returned or None)"""
        with open(self._results, "rb") as results:
            written = results.read()
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return code, pickle.loads(written) if code == 0 else None


def in_child(function):
    """What `function` returns in a child."""
    code, result = Child(function).wait()
    if code != 0:
        raise AssertionError(f"the child ended with {code}; its words are above")
    return result


class OffloadCase(unittest.TestCase):
    """Tests within one process, with one daemon; no test leaves anything in the store."""

    @classmethod
    def setUpClass(cls):
        start_daemon()

    def tearDown(self):
        with contextlib.suppress(ravenstore.WrongState):
            self.assertEqual(parked(), 0)
            self.assertEqual(ravenstore.explain().way, WAY_IN_USE)

    def plain(self, scene):
        """The loss and the gradients of `scene() -> (leaves, loss function)`."""
        torch.manual_seed(0)
        leaves, function = scene()
        loss = function()
        loss.backward()
        return results(loss, leaves)

    def offloaded(self, scene, pressed=True, **options):
        """The same under a scope."""
        torch.manual_seed(0)
        leaves, function = scene()
        with offloading(**options):
            losses = [function()]
            if pressed:
                ballast, more = press()
                losses.append(more)
        torch.autograd.backward(losses)
        if pressed:
            self.assertEqualBits(results(more, [ballast]), PRESSED)
        return results(losses[0], leaves)

    def assertSame(self, scene, *, pressed=True, **options):
        """`scene` under a scope is what it is without. Pressed: what it saved had to move."""
        plain = self.plain(scene)
        before = moved_back()
        ours = self.offloaded(scene, pressed, **options)
        self.assertEqualBits(ours, plain)
        moved = moved_back() - before
        self.assertEqual(moved > 0, pressed, f"{moved} bytes came back")

    def assertEqualBits(self, ours, plain):
        self.assertEqual(len(ours), len(plain))
        for at, (mine, theirs) in enumerate(zip(ours, plain, strict=True)):
            if mine is None or theirs is None:
                self.assertEqual(mine, theirs, f"gradient {at}")
                continue
            self.assertEqual(mine[:2], theirs[:2], f"result {at}")
            self.assertTrue(torch.equal(mine[2], theirs[2]), f"result {at} differs")
