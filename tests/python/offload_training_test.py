"""Training steps under a scope are those without: checkpointing, autocast, threads."""

import contextlib
import threading

import harness  # noqa: F401 - the package's path
import offload_harness as offload
import ravenstore
import torch
import xml_main
from offload_harness import MIB, OffloadCase, bits, offloading, press, random
from torch.utils.checkpoint import checkpoint

# Its steps use 28 MiB at the same time, in blocks of a half and of a whole page. If two threads
# allocate, their places differ from run to run: one of 16 runs with 38 MiB found no room.
offload.BUDGET = 48 * MIB


def layers(count=6):
    torch.manual_seed(0)
    blocks = [(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(count)]
    return torch.nn.Sequential(*[torch.nn.Sequential(*block) for block in blocks])


def plainly(model, value):
    return model(value)


def checkpointed(model, value, reentrant=False):
    value = value.clone().requires_grad_()
    for layer in model:
        value = checkpoint(layer, value, use_reentrant=reentrant)
    return value


def checkpointed_reentrantly(model, value):
    return checkpointed(model, value, reentrant=True)


def in_bfloat16(model, value):
    with torch.autocast("cpu", torch.bfloat16):
        return model(value).float()


def checkpointed_in_bfloat16(model, value):
    with torch.autocast("cpu", torch.bfloat16):
        return checkpointed(model, value).float()


def train(scope, forward=plainly, *, model=None, inside=False, parts=1, steps=3):
    """The losses and at last the parameters; `parts` batches are accumulated for each step."""
    model = model or layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    out = []
    for number in range(steps * parts):
        value = random(1024, 512, seed=number)
        with scope():
            loss = forward(model, value).square().mean()
            if inside:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        if not inside:
            loss.backward()
            if number % parts == parts - 1:
                optimizer.step()
                optimizer.zero_grad()
        out.append(bits(loss))
    return out + [bits(parameter) for parameter in model.parameters()]


WAYS = (plainly, checkpointed, checkpointed_reentrantly, in_bfloat16, checkpointed_in_bfloat16)
# Before the allocator is in place: without a scope the budget has no room for them.
PLAIN = {forward: train(contextlib.nullcontext, forward) for forward in WAYS}
ACCUMULATED = train(contextlib.nullcontext, parts=3)
OF_TWO = train(contextlib.nullcontext, model=layers(2))


class TrainingTest(OffloadCase):
    def test_steps_are_the_same(self):
        for forward in WAYS:
            with self.subTest(forward.__name__):
                self.assertEqualBits(train(offloading, forward), PLAIN[forward])
        if offload.WAY == "allocator":  # with copies the budget has room for what is saved alone
            self.assertGreater(offload.moved_back(), 0)

    def test_an_optimizer_steps_inside_of_the_scope(self):
        self.assertEqualBits(train(offloading, inside=True), PLAIN[plainly])

    def test_accumulation(self):
        self.assertEqualBits(train(offloading, parts=3), ACCUMULATED)

    def test_the_inputs_that_checkpointing_saves_move(self):
        def run(scope):
            leaf = random(512, 1024, grad=True)
            with scope():
                value = leaf.sin()
                value = checkpoint(lambda one: one.exp().sin(), value, use_reentrant=False)
                loss = value.sum()
                if scope is offloading:
                    _, more = press()
                    loss = loss + 0 * more
            loss.backward()
            return [bits(leaf.grad)]

        plain = run(contextlib.nullcontext)
        with offloading():
            before = ravenstore.explain()
        self.assertEqualBits(run(offloading), plain)
        now = ravenstore.explain()
        # The pressure's 27, checkpoint's input, and what recomputing saves outside of the scope.
        self.assertGreaterEqual(now.taken.bytes - before.taken.bytes, 28 * 2 * MIB)
        if offload.WAY != "copy":  # there torch keeps as much as was seen to fit before
            self.assertGreater(now.bytes_in, before.bytes_in)

    def test_a_scope_in_each_of_two_threads(self):
        models = [layers(2), layers(2)]
        results = {}

        def work(number):
            results[number] = train(offloading, model=models[number])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for number in range(2):
            self.assertEqualBits(results[number], OF_TWO)

    def test_a_scope_is_its_own_threads(self):
        with offloading():
            before = ravenstore.explain().saved

            def work():
                random(512, 1024, grad=True).exp().sum().backward()

            thread = threading.Thread(target=work)
            thread.start()
            thread.join(60)
            self.assertEqual(ravenstore.explain().saved, before)

    def test_a_decorated_function_is_a_scope(self):
        @offloading()
        def loss_of(leaf):
            return leaf.exp().sum()

        leaf = random(512, 1024, grad=True)
        with offloading():
            before = ravenstore.explain().saved.tensors
        loss_of(leaf).backward()
        self.assertEqual(ravenstore.explain().saved.tensors - before, 1)
        self.assertTrue(torch.equal(leaf.grad, leaf.detach().exp()))


if __name__ == "__main__":
    xml_main.main()
