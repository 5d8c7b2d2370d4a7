"""What bench/sleep_bench.py compares with, where there is no GPU."""

import os
import pathlib
import sys
import unittest
from unittest import mock

import harness
import xml_main
from harness import MIB
from ravenstore.compat.torch_memory_saver import FOLDER

sys.path.insert(0, str(harness.ROOT / "bench"))

import sleep_bench  # noqa: E402


def has_it(folder):
    return pathlib.Path(folder, "torch_memory_saver").exists()


class RivalTest(unittest.TestCase):
    def setUp(self):
        self.enterContext(mock.patch.object(sys, "path", list(sys.path)))
        self.enterContext(mock.patch.dict(sys.modules))
        sys.modules.pop("torch_memory_saver", None)

    def measured(self, socket=None):
        python = str(harness.ROOT / "python")
        variables = {"PYTHONPATH": python, "RAVENSTORE_SOCKET": socket or "/nowhere"}
        with mock.patch.dict(os.environ, variables):
            return sleep_bench.rival_seconds(32 * MIB, device="cpu")

    def test_its_pause_and_resume_are_timed(self):
        sys.path.insert(0, FOLDER)  # ours in the place of theirs, which needs a GPU
        with harness.daemon(device_total="256MiB") as socket:
            seconds, why = self.measured(socket)
        self.assertIsNone(why)
        self.assertEqual(len(seconds), 2)
        self.assertGreater(min(seconds), 0)

    def test_a_failure_is_said(self):
        sys.path.insert(0, FOLDER)
        seconds, why = self.measured()
        self.assertIsNone(seconds)
        self.assertIn("Unavailable", why)

    def test_without_it_it_is_skipped(self):
        sys.path[:] = [each for each in sys.path if not has_it(each)]
        self.assertEqual(self.measured(), (None, "torch_memory_saver is not installed"))


if __name__ == "__main__":
    xml_main.main()
