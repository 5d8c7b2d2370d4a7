"""How parameters are cut into pieces of chunks, and where their states are copied to."""

import random
import types
import unittest
import unittest.mock

import harness  # noqa: F401 - the package on sys.path
import torch
import xml_main
from ravenstore._chunks import OVERHEAD, Piece, Slot, cut_into_pieces

CHUNK = 512 << 10


class CutTest(unittest.TestCase):
    def pieces_of(self, counts, bytes_per_element):
        room, pieces = 0, []
        for count in counts:
            more, room = cut_into_pieces(torch.empty(count), bytes_per_element, CHUNK, room)
            self.assertEqual(more[0].begin, 0)
            self.assertEqual(more[-1].end, count)
            for one, other in zip(more, more[1:], strict=False):
                self.assertEqual(one.end, other.begin)
                self.assertEqual((one.end - one.begin) % 1024, 0)
            pieces += more
        return pieces

    def test_pieces_cover_every_parameter_and_all_chunks_but_the_last_are_full(self):
        choose = random.Random(3)
        for bytes_per_element in (4, 8, 12, 48):
            counts = [choose.choice((0, 1, 700, 5000, 70000, 300001)) for _ in range(60)]
            sizes = []
            for piece in self.pieces_of(counts, bytes_per_element):
                if piece.begins_chunk:
                    sizes.append(0)
                sizes[-1] += (piece.end - piece.begin) * bytes_per_element + OVERHEAD
            self.assertGreater(len(sizes), 5)
            self.assertLessEqual(max(sizes), CHUNK)
            # A run has at least 1024 elements.
            least = CHUNK - CHUNK // 16 - 1024 * bytes_per_element
            self.assertGreater(min(sizes[:-1]), least)

    def test_what_fits_is_not_cut(self):
        pieces = self.pieces_of([1000, 2000, 3000], 8)
        self.assertEqual([piece.whole for piece in pieces], [True] * 3)
        self.assertEqual([piece.begins_chunk for piece in pieces], [True, False, False])

    def test_what_is_not_contiguous_is_not_cut(self):
        param = torch.empty(700, 701).t()
        pieces, room = cut_into_pieces(param, 8, CHUNK, 3000)
        self.assertEqual([(piece.whole, piece.begins_chunk) for piece in pieces], [(True, True)])
        self.assertEqual(room, 0)


class MemoryForStatesTest(unittest.TestCase):
    def asked(self, shape, *, briefly=True, fails=False):
        """Whether memory for the state of a parameter on a GPU was to be pinned, try by try."""
        param = types.SimpleNamespace(shape=shape, device=torch.device("cuda"), numel=shape.numel)
        piece = Piece(param, 0, shape.numel(), begins_chunk=True)
        plain = torch.empty(shape, device="meta")
        piece.slots["m"] = Slot(0, plain.dtype, shape, plain.stride())
        calls = []

        def empty_strided(*_, pin_memory=False, **__):
            calls.append(pin_memory)
            if pin_memory and fails:
                raise RuntimeError("CUDA error: out of memory")
            return plain

        with unittest.mock.patch.object(torch, "empty_strided", empty_strided):
            self.assertIs(piece.empty_state("m", torch.device("cpu"), briefly=briefly), plain)
        return calls

    def test_what_goes_to_a_file_is_pinned_unless_it_is_large_or_cannot_be(self):
        small, large = torch.Size([8, 8]), torch.Size([1 << 13, 1 << 14])
        self.assertEqual(self.asked(small), [True])
        self.assertEqual(self.asked(small, fails=True), [True, False])
        self.assertEqual(self.asked(small, briefly=False), [False])
        self.assertEqual(self.asked(large), [False])


if __name__ == "__main__":
    xml_main.main()
