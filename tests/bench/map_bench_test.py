#!/usr/bin/python3
"""map_bench on the host backend and on the fake driver: each figure is measured or skipped."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tidy"))
sys.dont_write_bytecode = True

import xml_main  # noqa: E402

ON_HOST = {
    "fill_ms_per_gib", "handed_over_ms_per_gib", "map_us_per_gib", "unmap_us_per_gib",
    "map_latency_us", "map_latency_p99_us",
}  # fmt: skip
OF_PROGRAM = {
    "map_latency_busy_us", "map_latency_busy_p99_us", "malloc_loop_slowdown",
    "malloc_loop_back_to_back", "kernel_slowdown_mapping",
}  # fmt: skip
PEER = {"map_peer_us_per_gib"}


def measured(backend, **variables):
    """({name: figure} with a value, {name: reason} of those that were skipped)."""
    done = subprocess.run(
        ["bench/map_bench", "--backend", backend, "--scale", "0.02"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    names = [each["name"].removeprefix("store.") for each in figures]
    if len(set(names)) != len(names):
        raise AssertionError(f"a figure was printed twice: {names}")
    with_value = {n: e for n, e in zip(names, figures, strict=True) if e["value"] is not None}
    skipped = {n: e["skipped"] for n, e in zip(names, figures, strict=True) if e["value"] is None}
    return with_value, skipped


class MapBenchTest(unittest.TestCase):
    def test_the_host_backend_has_every_figure_without_a_gpu(self):
        figures, skipped = measured("host")
        self.assertEqual(set(figures), ON_HOST)
        self.assertEqual(set(skipped), OF_PROGRAM | PEER)
        for name, each in figures.items():
            self.assertGreater(each["value"], 0, name)
            self.assertGreater(each["bound"], 0, name)
            self.assertIsNone(each["target"], name)

    def test_the_driver_has_every_figure(self):
        figures, skipped = measured("cuda", LD_LIBRARY_PATH="tests/fake_cuda")
        self.assertEqual(set(figures) | set(skipped), ON_HOST | OF_PROGRAM | PEER)
        self.assertLessEqual(set(skipped), PEER)
        for name, each in figures.items():
            self.assertGreater(each["value"], 0, name)
            self.assertGreater(each["bound"], 0, name)
            self.assertEqual(each["target"] is None, name == "malloc_loop_back_to_back", name)

    def test_without_a_driver_every_figure_is_skipped_with_the_reason(self):
        figures, skipped = measured("cuda", RAVENSTORE_LIBCUDA="/missing/libcuda.so.1")
        self.assertEqual(figures, {})
        self.assertEqual(set(skipped), ON_HOST | OF_PROGRAM | PEER)
        self.assertIn("/missing/libcuda.so.1", skipped["map_us_per_gib"])


if __name__ == "__main__":
    xml_main.main()
