#!/usr/bin/python3
"""timing.py: a limit is longer on a busy machine."""

import pathlib
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).absolute().parents[2]
sys.path[:0] = [str(ROOT / "tests/timing"), str(ROOT / "tests/tidy")]

import timing  # noqa: E402
import xml_main  # noqa: E402


class TimingTest(unittest.TestCase):
    def test_an_idle_machine_stretches_nothing(self):
        self.assertEqual(timing.stretch_of("0.20 0.40 0.90 1/345 6789\n", 2), 1)

    def test_threads_that_want_a_core_stretch_by_their_number_of_a_core(self):
        self.assertEqual(timing.stretch_of("6.00 0.40 0.90 1/345 6789\n", 2), 3)
        self.assertEqual(timing.stretch_of("0.20 0.40 0.90 8/345 6789\n", 2), 4)

    def test_the_stretch_has_bounds(self):
        self.assertEqual(timing.stretch_of("1e6 1 1 1/2 3", None), 32)
        self.assertGreaterEqual(timing.stretch(), 1)

    def test_what_comes_is_seen_even_with_the_last_look(self):
        looks = iter([0, "here"])
        self.assertEqual(timing.eventually(lambda: next(looks), 0), "here")

    def test_what_never_comes_ends_not_before_the_limit(self):
        begin = time.monotonic()
        self.assertEqual(timing.eventually(lambda: 0, 0.15), 0)
        self.assertGreaterEqual(time.monotonic() - begin, 0.15)


if __name__ == "__main__":
    xml_main.main()
