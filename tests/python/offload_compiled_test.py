"""Models that torch.compile compiles, block by block and as a whole: the same bits, and words about
what a whole-graph region cannot do.

The backend is "aot_eager": it cuts forward and backward passes as "inductor" does, which takes some
20 s and a C++ compiler on a CPU."""

import contextlib
import re

import harness  # noqa: F401 - the package's path
import offload_harness as offload
import ravenstore
import torch
import xml_main
from offload_harness import MIB, OffloadCase, bits, in_child, offloading
from ravenstore._demo_model import Gpt, Shape, batches

SHAPE = Shape(layers=4, width=128, heads=4, length=256, batch=8, vocabulary=256)
BACKEND = "aot_eager"
NOTHING_OVERLAPS = re.compile(
    r"nothing of it can leave while it runs.*Compile block by block instead \(torch.compile on each"
    r" layer\)"
)


def compiled(whole):
    torch.manual_seed(0)
    model = Gpt(SHAPE)
    for module in [model] if whole else model.blocks:
        module.compile(backend=BACKEND)
    return model


def train(model, scope):
    """Two steps' losses and gradients."""
    out = []
    for tokens in batches(SHAPE, 2, torch.device("cpu")):
        with scope():
            loss = model(tokens)
        loss.backward()
        out += [bits(loss), *(bits(parameter.grad) for parameter in model.parameters())]
        model.zero_grad()
    return out


def both(whole, budget):
    """Plain and offloaded results of the same compiled model, and the explanation."""
    offload.start_daemon(device_total="192MiB")
    model = compiled(whole)
    plain = train(model, contextlib.nullcontext)
    ours = train(model, lambda: offloading(device_budget=budget))
    return plain, ours, ravenstore.explain()


def without_room():
    """The error's notes, and the explanation."""
    offload.start_daemon(device_total="192MiB")
    model = compiled(whole=True)
    try:
        train(model, lambda: offloading(device_budget=24 * MIB))
    except torch.OutOfMemoryError as error:
        return str(error), getattr(error, "__notes__", []), ravenstore.explain()
    raise AssertionError("what is saved at once fits nowhere")


class CompiledTest(OffloadCase):
    @classmethod
    def setUpClass(cls):
        # Each child has a daemon of its own. What the compiler imports is there before they fork.
        compiled_sin = torch.compile(torch.sin, backend=BACKEND)
        compiled_sin(torch.ones(2, requires_grad=True)).sum().backward()

    def test_block_by_block_it_is_the_same_and_moves(self):
        plain, ours, explained = in_child(lambda: both(False, 32 * MIB))
        self.assertEqualBits(ours, plain)
        self.assertTrue(explained.moved)
        self.assertNotRegex(str(explained), "compiled as a whole")

    def test_as_a_whole_it_is_the_same_and_explained(self):
        plain, ours, explained = in_child(lambda: both(True, 160 * MIB))
        self.assertEqualBits(ours, plain)
        advice = [words for words in explained.advice if "compiled as a whole" in words]
        self.assertEqual(len(advice), 1, explained.advice)
        self.assertRegex(advice[0], r"one region that is compiled as a whole saves \d+\.\d MiB")
        self.assertRegex(advice[0], NOTHING_OVERLAPS)

    def test_as_a_whole_without_room_it_says_what_to_do(self):
        message, notes, explained = in_child(without_room)
        self.assertRegex(message, r"^CPU out of memory\.")
        self.assertEqual(
            [words for words in explained.advice if NOTHING_OVERLAPS.search(words)],
            list(explained.advice[:1]),
        )
        if offload.WAY == "allocator":  # copies find room in forward, and none in backward
            self.assertRegex("".join(notes), NOTHING_OVERLAPS)


if __name__ == "__main__":
    xml_main.main()
