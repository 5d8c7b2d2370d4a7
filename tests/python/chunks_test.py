"""How parameters are cut into pieces of chunks."""

import random
import unittest

import harness  # noqa: F401 - the package on sys.path
import torch
import xml_main
from ravenstore._chunks import OVERHEAD, cut_into_pieces

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


if __name__ == "__main__":
    xml_main.main()
