#!/usr/bin/python3
"""Sizes and budgets as people write them."""

import unittest

import harness
import xml_main
from ravenstore import InvalidArgument
from ravenstore._units import budget_of, bytes_of

MIB = harness.MIB


class UnitsTest(unittest.TestCase):
    def test_units_with_an_i_are_powers_of_1024_and_those_with_a_b_alone_of_1000(self):
        for text, size in (
            ("12GiB", 12 << 30), ("12GB", 12 * 10**9), ("12gb", 12 * 10**9), ("12G", 12 << 30),
            ("1.5 MB", 1_500_000), ("1.5MiB", 3 << 19), ("64KB", 64000), ("64k", 64 << 10),
            ("2TB", 2 * 10**12), ("2TiB", 2 << 40), ("640", 640), ("640B", 640), (" 1 KiB ", 1024),
            (7, 7), (0, 0),
        ):  # fmt: skip
            self.assertEqual(bytes_of(text), size, text)

    def test_what_is_no_size_is_refused(self):
        for size in ("", "GiB", "12 parsecs", "-1", "1,5GiB", "1iB", True, False, 1.5, None, [1]):
            with self.assertRaisesRegex(InvalidArgument, "is no size", msg=repr(size)):
                bytes_of(size)
        for size in (-1, 1 << 64, "16777216TiB"):
            with self.assertRaisesRegex(InvalidArgument, "at least 0 and below", msg=repr(size)):
                bytes_of(size)

    def test_a_budget_that_has_room_for_nothing_is_refused(self):
        for size in ("1KiB", 1, 2 * MIB - 1):
            with self.assertRaisesRegex(InvalidArgument, r"at least 2\.0 MiB.*12GiB", msg=size):
                budget_of(size)
        self.assertEqual([budget_of(size) for size in (0, "2MiB")], [0, 2 * MIB])


if __name__ == "__main__":
    xml_main.main()
