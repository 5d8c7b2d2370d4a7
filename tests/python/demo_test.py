"""The demo and the benchmark measure what they print, and draw it."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import harness
import xml_main
from ravenstore._plot import MIB, Curve, draw_png, draw_text
from ravenstore._progress import progress


def run_module(module, *arguments, **environment):
    """In a folder of its own, since `-m` imports from the current one first."""
    with tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp") as folder:
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, "PYTHONPATH": str(harness.ROOT / "python"), **environment},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=harness.HANGS_AFTER,
        )


class DemoTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp"))

    def demo(self, *arguments):
        plot = ("--plot", os.path.join(self.folder, "plot.png"))
        words = ("--size", "tiny", "--steps", "1", "--device", "cpu", *plot, *arguments)
        return run_module("ravenstore", "demo", *words)

    def test_the_same_losses_come_of_less_memory_and_bytes_that_moved(self):
        run = self.demo("--json", "--traces", os.path.join(self.folder, "traces"))
        self.assertEqual(run.returncode, 0, run.stderr)
        report = json.loads(run.stdout)
        self.assertTrue(report["losses_equal"])
        self.assertEqual(report["plain"]["losses"], report["store"]["losses"])
        self.assertLess(report["plain"]["losses"][-1], report["plain"]["losses"][0])
        self.assertEqual(report["way"], "allocator")
        # 108 MiB are saved in the store, and 80 may stay.
        self.assertAlmostEqual(report["budget_bytes"], 0.6 * report["plain"]["peak_bytes"], delta=1)
        self.assertLess(report["store"]["peak_bytes"], 0.8 * report["plain"]["peak_bytes"])
        self.assertLessEqual(report["store"]["used_bytes"], report["store"]["peak_bytes"])
        in_store = report["store"]["peak_bytes"] - report["store"]["outside_bytes"]
        self.assertLessEqual(in_store, report["budget_bytes"])
        self.assertEqual(report["plain"]["used_bytes"], report["plain"]["peak_bytes"])
        self.assertGreater(report["bytes_in"], 4 * 28 * MIB)
        for name in ("plain.json", "with-the-store.json"):
            with open(os.path.join(self.folder, "traces", name)) as file:
                self.assertIn("aten::addmm", {e["name"] for e in json.load(file)["traceEvents"]})

    def test_people_get_a_table_and_a_plot(self):
        run = self.demo()
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stdout, r"peak on the device +\d+\.\d MiB +\d+\.\d MiB\n")
        self.assertRegex(run.stdout, r"losses of 4 steps +equal bit for bit\n")
        words = r"The budget is for tensors of 1\.0 MiB or more.*\n.*are \d+\.\d MiB of the peak"
        self.assertRegex(run.stdout, words)
        if not pathlib.Path(self.folder, "plot.png").exists():
            self.assertIn("* plain\n", run.stdout)

    def test_a_budget_that_cannot_do_says_by_how_much_at_least(self):
        run = self.demo("--budget", "8MiB")
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.stderr, r"too small for this by at least \d+\.\d MiB, and later")

    def test_a_budget_that_is_none_is_reported(self):
        run = self.demo("--budget", "x%")
        self.assertEqual(run.returncode, 1)
        self.assertIn("no budget such as 60% or 12GiB", run.stderr)


class BenchmarkTest(unittest.TestCase):
    def test_measures_calls_hooks_and_the_link(self):
        with harness.daemon(device_total="64MiB") as socket:
            run = run_module(
                "ravenstore",
                "bench",
                *("--socket", socket, "--rounds", "50", "--seconds", "0.1"),
                *("--budget", "16MiB", "--json"),
            )
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        report = json.loads(run.stdout)
        self.assertEqual(report["backend"], "host")
        values = {figure["name"]: figure["value"] for figure in report["figures"]}
        wanted = {"create and free", "get and put, resident", "moved in", "moved out"}
        self.assertLessEqual(wanted | {"pack", "unpack", "pack and unpack"}, set(values))
        for name, value in values.items():
            self.assertGreater(value, 0, name)
        self.assertGreaterEqual(values["pack and unpack"], values["pack"])

    def test_without_a_daemon_it_says_so(self):
        run = run_module("ravenstore", "bench", "--socket", "/tmp/raven-nowhere")
        self.assertEqual(run.returncode, 1)
        self.assertIn("Unavailable: ", run.stderr)


class PlotTest(unittest.TestCase):
    curves = (
        Curve("flat", [(0.0, 4 * MIB), (8.0, 4 * MIB)]),
        Curve("peak", [(0.0, 0), (2.0, 8 * MIB), (4.0, 2 * MIB), (6.0, 0)]),
    )

    def test_text_shows_each_curve_over_the_same_axes(self):
        self.assertEqual(
            draw_text(self.curves, "title", columns=8, rows=5).splitlines(),
            [
                "title",
                "   8.0 MiB |  oo    ",
                "           |        ",
                "           |********",
                "           |    oo  ",
                "         0 |oo    o ",
                "           +--------",
                "            0   8 ms",
                "           * flat",
                "           o peak",
            ],
        )

    def test_without_matplotlib_there_is_no_picture(self):
        with mock.patch.dict(sys.modules, matplotlib=None):
            self.assertFalse(draw_png("/tmp/raven-nowhere/x.png", self.curves, "title"))

    def test_progress_passes_every_item_and_is_silent_but_at_a_terminal(self):
        class Terminal(io.StringIO):
            def isatty(self):
                return True

        for out, expected in ((io.StringIO(), ""), (Terminal(), "\rwork: 2/2\n")):
            with (
                contextlib.redirect_stderr(out),
                mock.patch.dict(sys.modules, tqdm=None),
            ):
                self.assertEqual(list(progress(["a", "b"], "work")), ["a", "b"])
            self.assertTrue(out.getvalue().endswith(expected))
            self.assertEqual(bool(out.getvalue()), bool(expected))


if __name__ == "__main__":
    xml_main.main()
