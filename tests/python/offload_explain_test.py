"""explain(): every byte that autograd saved is in one of its lines, and the lines stay the same."""

import os
import pathlib
import tempfile
import unittest
import xml.etree.ElementTree
from unittest import mock

import harness  # noqa: F401 - the package's path
import offload_harness as offload
import ravenstore
import torch
import xml_main
from offload_harness import MIB, OffloadCase, in_child, offloading, random
from ravenstore._page import page
from ravenstore.offload import Explanation, Tally, _attached
from torch.testing._internal.two_tensor import TwoTensor

REASONS = {"parameter", "small", "empty", "other device", "not plain memory", "subclass"}
if offload.WAY == "allocator":
    REASONS.add("not the store's memory")
EXPLAINED = Explanation(
    way="allocator",
    why="PyTorch's large blocks are the store's",
    backend="cuda",
    device_budget=12 << 30,
    saved=Tally(10, 30 * MIB),
    shared=Tally(1, MIB),
    kept={"parameter": Tally(4, 8 * MIB), "small": Tally(2, 2048)},
    taken=Tally(3, 21 * MIB - 2048),
    live_bytes=0,
    live_bytes_peak=20 * MIB,
    bytes_out=5 * MIB,
    bytes_in=4 * MIB,
    stall_seconds=0.0125,
    used_bytes=6 * MIB,
    used_bytes_peak=7 * MIB,
    plain_bytes_peak=9 * MIB,
    advice=("do this", "do that"),
)
FOREIGN = random(512, 1024)  # before the first scope


def parameter(leaf):
    return torch.nn.functional.linear(leaf.exp(), torch.nn.Parameter(random(1024, 1024, seed=7)))


def small(leaf):
    return leaf[:8, :8].exp().sin()


def empty(leaf):
    return leaf.exp()[:0] * leaf.sin()[:0]


def other_device(_):
    return random(512, 1024, grad=True).to("meta").exp().sin()


def not_plain(leaf):
    mask = (random(512, 512, seed=3) > 2).float().to_sparse()
    return torch.sparse.mm(mask, leaf.sin())


def subclass(_):
    value = TwoTensor(random(512, 1024), random(512, 1024, seed=5)).requires_grad_()
    return (value * value.exp()).sin()


def foreign(leaf):
    return leaf * FOREIGN


def shared(leaf):
    first, second = leaf.sin().chunk(2)
    return first * second * first


def total(explained):
    parts = [explained.shared, explained.taken, *explained.kept.values()]
    return Tally(sum(part.tensors for part in parts), sum(part.bytes for part in parts))


def without_room():
    """What was saved, and the parts' sum, once a save found no room."""
    offload.start_daemon(device_total="16MiB", pool_size="64MiB")
    value = random(512, 1024, grad=True)
    try:
        with offloading(device_budget=16 * MIB, timeout=1):
            for _ in range(60):
                value = value.sin()
    except torch.OutOfMemoryError:
        explained = ravenstore.explain()
        return explained.saved, total(explained)
    raise AssertionError("120 MiB in 80")


class ExplainTest(OffloadCase):
    @classmethod
    def setUpClass(cls):
        cls.without_room = in_child(without_room)
        super().setUpClass()

    def test_the_parts_add_up_and_every_reason_is_there(self):
        leaf = random(512, 1024, grad=True)
        with offloading():
            for scene in (parameter, small, empty, other_device, not_plain, subclass, foreign):
                scene(leaf)
            with offloading(min_bytes=4 * MIB):  # counts of its own, and explained together
                leaf.cos().exp()
            shared(leaf)
        explained = ravenstore.explain()
        self.assertEqual(set(explained.kept), REASONS)
        self.assertEqual(total(explained), explained.saved)
        self.assertGreater(explained.shared.bytes, 0)
        self.assertGreater(explained.taken.bytes, 0)
        for reason, tally in explained.kept.items():
            self.assertGreater(tally.tensors, 0, reason)
            self.assertIn(f"left alone, {reason}: {tally}", str(explained))

    def test_views_of_one_storage_add_up(self):
        with offloading():
            before = ravenstore.explain()
            leaf = random(512, 3072, grad=True)
            parts = [part.contiguous().sin() for part in leaf.exp().chunk(3, dim=1)]
            rows = [row.sin() for row in leaf.cos().chunk(4)]
        explained = ravenstore.explain()
        self.assertEqual(total(explained), explained.saved)
        # exp's result, three parts of it, the leaf that cos saves, four views of cos's result.
        self.assertEqual(explained.saved.bytes - before.saved.bytes, 4 * 6 * MIB)
        del parts, rows

    def test_the_parts_add_up_after_a_save_that_found_no_room(self):
        self.assertEqual(*self.without_room)

    def test_a_forked_childs_saves_are_counted_in_its_scope_alone(self):
        from ravenstore.offload import _here

        leaf = random(512, 1024, grad=True)
        with offloading():
            leaf.exp()
            scope = next(iter(_here().scopes.values()))
            before = scope.stats()
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    random(512, 1024, grad=True).exp().sum()
                    kept = scope.stats()["kept"]["a forked child"]
                    code = 7 if kept == (1, 2 * MIB) else 2
                finally:
                    os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        self.assertEqual(scope.stats()["kept"], before["kept"])

    @unittest.skipUnless(offload.WAY == "allocator", "copies have no blocks")
    def test_of_several_devices_the_one_with_the_most_in_use_is_reported_and_judged(self):
        with offloading():
            native = _attached()
        first = native.block_stats(0)
        second = {**first, "used": 3 * MIB, "used_peak": offload.BUDGET}
        self.assertEqual(ravenstore.explain().advice, ())
        with (
            mock.patch.object(torch.cuda, "device_count", return_value=2),
            mock.patch.object(native, "block_stats", [first, second].__getitem__),
        ):
            explained = ravenstore.explain()
        self.assertEqual(
            (explained.used_bytes, explained.used_bytes_peak), (3 * MIB, offload.BUDGET)
        )
        self.assertRegex(explained.advice[0], "peak of 32.0 MiB is what the program holds at once")

    def test_the_page_has_every_figure_a_budget_line_and_no_open_tag(self):
        text = page(EXPLAINED)
        for word in (
            "device budget 12.0 GiB",
            "9.0 MiB",
            "7.0 MiB",
            "0.013 s",
            "do that",
            "&#x27;s",
        ):
            self.assertIn(word, text)
        self.assertEqual(text.count("<rect"), 3 + 4)
        self.assertNotIn("http", text)
        # HTML of this form is XML but for two tags that have no end.
        root = xml.etree.ElementTree.fromstring(
            text.replace("<!doctype html>", "").replace('<meta charset="utf-8">', "")
        )
        self.assertEqual(len(root.findall(".//h2")), 4)

    def test_a_page_is_written_where_it_is_asked_for(self):
        with offloading():
            random(512, 1024, grad=True).exp().sin().sum().backward()
        with tempfile.TemporaryDirectory() as folder:
            explained = ravenstore.explain(html=f"{folder}/page.html")
            self.assertEqual(pathlib.Path(folder, "page.html").read_text(), page(explained))
            with self.assertRaises(FileNotFoundError):
                ravenstore.explain(html=f"{folder}/none/page.html")

    def test_the_text_is_stable(self):
        explained = EXPLAINED
        self.assertEqual(
            str(explained),
            "way: allocator (PyTorch's large blocks are the store's); backend cuda, device budget "
            "12.0 GiB\n"
            "saved by autograd: 10 tensors, 30.0 MiB\n"
            "  taken into the store's care: 3 tensors, 21.0 MiB; at once at most 20.0 MiB\n"
            "  saved before under another tensor: 1 tensors, 1.0 MiB\n"
            "  left alone, parameter: 4 tensors, 8.0 MiB\n"
            "  left alone, small: 2 tensors, 2.0 KiB\n"
            "moved: 5.0 MiB out, 4.0 MiB back, 0.013 s waited\n"
            "in use: 6.0 MiB now, 7.0 MiB peak; without offload() 9.0 MiB (max_memory_plain)\n"
            "advice: do this\n"
            "advice: do that",
        )
        self.assertTrue(explained.moved)


if __name__ == "__main__":
    xml_main.main()
