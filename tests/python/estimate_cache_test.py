#!/usr/bin/python3
"""The models of allocators: the rules that PyTorch, the driver and the store publish."""

import time
import unittest

import harness  # noqa: F401 - the package's path
import xml_main
from ravenstore.estimate._cache import MIB, CudaCache, CudaMallocAsync, Peaks, StoreArena

KIB = 1024
GIB = 1024 * MIB


def allocations(*sizes):
    return [(size, number) for number, size in enumerate(sizes)]


class CudaCacheTest(unittest.TestCase):
    def reserved(self, events, **options):
        return CudaCache(**options).replay(events).reserved

    def test_rounds_to_512_bytes(self):
        self.assertEqual(CudaCache().replay(allocations(1, 513)).used, 512 + 1024)

    def test_small_ones_share_segments_of_2_mib(self):
        self.assertEqual(self.reserved(allocations(*[512] * 4096)), 2 * MIB)
        self.assertEqual(self.reserved(allocations(*[512] * 4097)), 4 * MIB)
        self.assertEqual(self.reserved(allocations(MIB, MIB, MIB)), 4 * MIB)

    def test_middling_ones_share_segments_of_20_mib(self):
        self.assertEqual(self.reserved(allocations(MIB + 1)), 20 * MIB)
        self.assertEqual(self.reserved(allocations(9 * MIB, 9 * MIB)), 20 * MIB)
        self.assertEqual(self.reserved(allocations(9 * MIB, 9 * MIB, 3 * MIB)), 40 * MIB)

    def test_large_ones_have_segments_in_units_of_2_mib(self):
        self.assertEqual(self.reserved(allocations(10 * MIB)), 10 * MIB)
        self.assertEqual(self.reserved(allocations(33 * MIB + 1)), 34 * MIB)

    def test_takes_the_best_fit(self):
        events = [
            *[(40 * MIB, 1), (30 * MIB, 2), (0, 1), (0, 2)],  # holes of 40 and of 30 MiB
            *[(28 * MIB, 3), (40 * MIB, 4)],
        ]
        self.assertEqual(self.reserved(events), 70 * MIB)

    def test_a_large_block_is_cut_only_if_more_than_1_mib_is_left(self):
        kept = CudaCache().replay([(20 * MIB, 1), (0, 1), (19 * MIB, 2)])
        self.assertEqual(kept, Peaks(used=20 * MIB, reserved=20 * MIB))
        events = [(20 * MIB, 1), (0, 1), (18 * MIB, 2), (2 * MIB, 3)]
        self.assertEqual(CudaCache().replay(events).reserved, 20 * MIB)

    def test_free_neighbours_merge(self):
        events = [*allocations(512 * KIB, 512 * KIB, MIB), (0, 0), (0, 1), (MIB, 4)]
        self.assertEqual(self.reserved(events), 2 * MIB)

    def test_small_and_large_do_not_share(self):
        self.assertEqual(self.reserved([(20 * MIB, 1), (0, 1), (512, 2)]), 22 * MIB)

    def test_streams_do_not_share(self):
        events = [(20 * MIB, 1, 0), (0, 1), (20 * MIB, 2, 7)]
        self.assertEqual(self.reserved(events), 40 * MIB)

    def test_fragments_hold_a_segment(self):
        events = [*allocations(8 * MIB, 8 * MIB, 4 * MIB), (0, 0), (0, 2), (12 * MIB, 3)]
        self.assertEqual(self.reserved(events), 32 * MIB)

    def test_gives_idle_segments_back_before_it_fails(self):
        events = [(60 * MIB, 1), (0, 1), (80 * MIB, 2)]
        self.assertEqual(self.reserved(events), 140 * MIB)
        self.assertEqual(CudaCache().replay(events, budget=100 * MIB).reserved, 80 * MIB)

    def test_says_where_the_budget_ended(self):
        peaks = CudaCache().replay(allocations(60 * MIB, 60 * MIB), budget=100 * MIB)
        self.assertEqual(peaks, Peaks(used=60 * MIB, reserved=60 * MIB, failed_at=1))

    def test_frees_of_what_it_never_saw_are_ignored(self):
        self.assertEqual(self.reserved([(0, 99), (-512, 98), (512, 1)]), 2 * MIB)


class ExpandableTest(unittest.TestCase):
    model = CudaCache(expandable=True)

    def test_grows_by_pages(self):
        self.assertEqual(self.model.replay(allocations(33 * MIB)).reserved, 40 * MIB)
        self.assertEqual(self.model.replay(allocations(512)).reserved, 2 * MIB)
        self.assertEqual(self.model.replay(allocations(*[15 * MIB] * 4)).reserved, 60 * MIB)

    def test_a_free_tail_grows_instead_of_lying_idle(self):
        events = [*allocations(20 * MIB, 20 * MIB), (0, 1), (40 * MIB, 2)]
        self.assertEqual(self.model.replay(events).reserved, 60 * MIB)
        self.assertEqual(CudaCache().replay(events).reserved, 80 * MIB)

    def test_pages_in_the_middle_are_released_and_mapped_again(self):
        events = [*allocations(20 * MIB, 20 * MIB, 20 * MIB), (0, 1), (40 * MIB, 3)]
        peaks = self.model.replay([*events, (0, 0), (20 * MIB, 4)], budget=80 * MIB)
        self.assertEqual(peaks, Peaks(used=80 * MIB, reserved=80 * MIB))

    def test_fails_as_a_whole(self):
        peaks = self.model.replay([*allocations(20 * MIB), (100 * MIB, 9)], budget=60 * MIB)
        self.assertEqual(peaks, Peaks(used=20 * MIB, reserved=20 * MIB, failed_at=1))


class OtherModelsTest(unittest.TestCase):
    def test_the_driver_takes_32_mib_at_a_time_for_all_streams(self):
        events = [(10 * MIB, 1, 0), (0, 1), (10 * MIB, 2, 5), (10 * MIB, 3, 0)]
        self.assertEqual(CudaMallocAsync().replay(events).reserved, 32 * MIB)

    def test_the_store_rounds_to_a_32nd(self):
        self.assertEqual(StoreArena(GIB).replay([(33 * MIB, 1)]).used, 33 * MIB)
        self.assertEqual(StoreArena(GIB).replay([(33 * MIB + 1, 1)]).used, 34 * MIB)

    def test_the_store_takes_slabs_of_a_64th(self):
        self.assertEqual(StoreArena(GIB).replay([(33 * MIB, 1)]).reserved, 48 * MIB)

    def test_the_stores_magazines_keep_a_size(self):
        again = [(64 * MIB, 1), (0, 1), (64 * MIB, 2)]
        self.assertEqual(StoreArena(GIB).replay(again).reserved, 64 * MIB)

    def test_the_stores_magazines_release_memory_beyond_what_was_needed(self):
        """Of 400 MiB that were needed, 32 MiB more may be idle: the rest makes room."""
        events = [(400 * MIB, 1), (0, 1), (390 * MIB, 2)]
        self.assertEqual(StoreArena(64 * GIB).replay(events).reserved, GIB)
        self.assertLess(StoreArena(4 * GIB).replay(events).reserved, 500 * MIB)

    def test_small_ones_stay_with_torch(self):
        self.assertEqual(StoreArena(GIB).replay([(512, 1)]), Peaks(used=512, reserved=2 * MIB))


class SpeedTest(unittest.TestCase):
    def test_a_hundred_thousand_events_take_about_a_second(self):
        events = []
        for number in range(50_000):
            events.append((1 + number * 7919 % (64 * MIB), number))
            if number >= 200:
                events.append((0, number - 200))
        for model in (CudaCache(), CudaCache(expandable=True), CudaMallocAsync()):
            begin = time.process_time()
            model.replay(events)
            self.assertLess(time.process_time() - begin, 5)


if __name__ == "__main__":
    xml_main.main()
