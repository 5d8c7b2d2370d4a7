#!/usr/bin/python3
"""Every message of the protocol has an attack in the suite; and two of its tests, for each run."""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path[:0] = [str(pathlib.Path(__file__).parent)]

import hostile  # noqa: E402
import hostile_test  # noqa: E402
import xml_main  # noqa: E402


class ProtocolTest(unittest.TestCase):
    def test_each_message_has_an_attack_and_none_is_left_of_an_old_protocol(self):
        self.assertEqual(sorted(hostile.messages(hostile_test.ROOT)), sorted(hostile.MESSAGES))
        for message, attack in hostile.MESSAGES.items():
            self.assertIn(attack, hostile.ATTACKS, message)


def load_tests(loader, *_):
    suite = loader.loadTestsFromTestCase(ProtocolTest)
    for name in ("others_are_served_under_job_queries_8", "a_load_leaves_no_thread"):
        suite.addTest(hostile_test.HostileTest("test_" + name))
    return suite


if __name__ == "__main__":
    xml_main.main()
