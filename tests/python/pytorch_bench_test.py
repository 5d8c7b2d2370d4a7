"""bench/pytorch_bench.py: its searches and its curve, and a part of it where there is no GPU."""

import json
import math
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ET

import harness
import xml_main

sys.path.insert(0, str(harness.ROOT / "bench"))

import pytorch_curve  # noqa: E402
import pytorch_limits  # noqa: E402
import pytorch_plot  # noqa: E402

GIB = 1 << 30


def point(name, live_gib, times, kind="eager"):
    family = name.split(".", maxsplit=1)[0]
    live = int(live_gib * GIB)
    return pytorch_curve.Point(name, kind, family, times, times / 10, live, live)


class Said:
    """Stands for a Bench: remembers its figures."""

    def __init__(self):
        self.figures = {}

    def say(self, name, value, _unit, _target, ok, **more):
        self.figures[name] = (value, ok, more)

    def ratio(self, name, value, most, **more):
        self.say(name, value, "", "", value <= most, **more)

    def miss(self, *names):
        for name in names:
            self.say(name, None, "", "", None)


class SearchTest(unittest.TestCase):
    def test_the_least_ratio_at_which_something_fits(self):
        for workers in (1, 3):
            low, high, _ = pytorch_limits.search_least(lambda ratio: ratio >= 1.163, 20, workers)
            self.assertLess(low, 1.163)
            self.assertGreaterEqual(high, 1.163)
            self.assertLess(high - low, 0.0101)

    def test_what_fits_by_luck_below_something_that_does_not_is_not_the_least(self):
        # 1.1 is asked in the first round, together with 1.25.
        low, high, _ = pytorch_limits.search_least(lambda r: r == 1.1 or r >= 1.3, 20, 3)
        self.assertGreaterEqual(low, 1.25)
        self.assertGreaterEqual(high, 1.3)

    def test_a_search_for_the_least_ends_with_its_tries_and_where_nothing_is_known(self):
        self.assertEqual(pytorch_limits.search_least(lambda _: False, 4, 2)[1:], (None, 4))
        self.assertEqual(pytorch_limits.search_least(lambda _: None, 9, 3), (1.0, None, 3))

    def test_the_largest_number_for_each_slowdown(self):
        def slowdown(number):
            return math.inf if number > 90 else 1 + number / 200

        *_, last = pytorch_limits.search_largest(slowdown, 8, 1000, 30)
        self.assertEqual(last["best"]["1.1"], 20)
        self.assertGreaterEqual(last["best"]["1.5"], 86)
        self.assertIsNone(last["tried"][128])

    def test_a_search_for_the_largest_that_has_no_time_for_all_says_what_it_knows(self):
        found = list(pytorch_limits.search_largest(lambda number: 1 + number, 4, 64, 2))
        self.assertEqual(len(found), 2)
        self.assertEqual(found[-1]["best"], {"1.1": None, "1.5": None})


class CurveTest(unittest.TestCase):
    def test_between_two_budgets_of_ours_goes_a_line_and_between_rivals_a_step(self):
        ours = [point("ours.100", 20, 1.0), point("ours.50", 10, 2.0)]
        self.assertAlmostEqual(pytorch_curve.step_at(ours, 15 * GIB), 1.5)
        self.assertIsNone(pytorch_curve.step_at(ours, 9 * GIB))
        rivals = [point("checkpoint.1", 10, 1.3), point("checkpoint.2", 20, 1.1)]
        self.assertEqual(pytorch_curve.step_at(rivals, 15 * GIB), 1.3)

    def test_the_worst_ratio_is_that_at_the_rival_that_beats_ours_most(self):
        points = [point("plain", 20, 1.0), point("checkpoint.1", 12, 1.2)]
        points += [point("ours.100", 20, 1.01), point("ours.50", 10, 1.5)]
        said = Said()
        pytorch_curve.envelope_figure(said, points, "eager")
        value, ok, more = said.figures["curve_vs_envelope.eager"]
        # At 12 GiB ours takes 1.5 - 0.2 * 0.49.
        self.assertAlmostEqual(value, (1.5 - 0.2 * 0.49) / 1.2, places=3)
        self.assertFalse(ok)
        self.assertEqual((more["at"], more["ours_floor_gib"]), ("checkpoint.1", 10))

    def test_the_lowest_peak_is_that_of_the_points_that_are_fast_enough(self):
        points = [point("plain", 20, 1.0), point("ours_with_states.90", 15, 1.04)]
        points.append(point("ours_with_states.50", 10, 1.2))
        said = Said()
        pytorch_curve.peak_figure(said, points, "eager")
        self.assertEqual(said.figures["peak_at_plain_speed.eager"][:2], (0.75, True))

    def test_the_picture_has_every_point(self):
        points = [point("plain", 20, 1.0), point("ours.50", 10, 1.5, "compiled")]
        picture = ET.fromstring(pytorch_plot.draw(points, "a <title>"))
        titles = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}title")]
        self.assertEqual(sorted(titles), ["ours.50", "plain"])


class PartTest(unittest.TestCase):
    def run_part(self, *flags):
        run = subprocess.run(
            [sys.executable, str(harness.ROOT / "bench/pytorch_bench.py"), "--device", "cpu"]
            + list(flags),
            capture_output=True,
            text=True,
            timeout=harness.HANGS_AFTER,
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        return {row["name"]: row for row in map(json.loads, run.stdout.splitlines())}

    def test_losses_and_gradients_are_plains_where_half_of_what_is_saved_is_away(self):
        figures = self.run_part(
            "--part=check", "--jobs=gpt", "--shares=100,50", "--check-steps=2", "--kinds=eager"
        )
        half = figures["pytorch.correctness.gpt.eager.50"]
        self.assertTrue(half["ok"], half)
        self.assertGreater(half["moved_in"], 0)
        self.assertLess(half["kept_of_saved"], 0.6)
        self.assertTrue(figures["pytorch.correctness.gpt.eager.100"]["ok"])

    def test_what_the_limit_leaves_out_is_named_with_the_reason(self):
        figures = self.run_part("--part=smallest", "--models=gpt", "--limit=1")
        self.assertIn("limit of 1 s", figures["pytorch.smallest_budget.gpt"]["skipped"])


if __name__ == "__main__":
    xml_main.main()
