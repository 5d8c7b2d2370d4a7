#!/usr/bin/python3
"""bench/cluster_real.py: faults that strike real processes do no harm, and harm would be seen."""

import itertools
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import unittest

# Through the links of Bazel's runfiles to the checkout itself.
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/tidy"), str(ROOT / "bench")]
sys.dont_write_bytecode = True

import cluster_plan  # noqa: E402
import xml_main  # noqa: E402

PROGRAM = ROOT / "bench/cluster_real.py"
# The build outputs: next to this test under Bazel, else where the program itself looks for them.
BUILT = os.getcwd() if "TEST_SRCDIR" in os.environ else os.environ.get("RAVENSTORE_BIN")
NOBODY = 65534
RUNS = 10
MIB = 1 << 20


def figure_of(*flags, before=(), **variables):
    """The figure, the exit code and what is said of the runs."""
    environment = os.environ | variables | ({"RAVENSTORE_BIN": BUILT} if BUILT else {})
    command = [*before, sys.executable, PROGRAM, *flags]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as program:
        said = ""
        for line in program.stderr:
            print(line, end="", flush=True)  # the seeds are known should it hang
            said += line
        figure = program.stdout.read()  # one line, which no pipe is too small for
    return json.loads(figure or "{}"), program.returncode, said


class PlanTest(unittest.TestCase):
    PLANS = [cluster_plan.plan(seed, lease=2) for seed in range(500)]

    def test_a_seed_gives_the_same_faults_again_and_another_others(self):
        self.assertEqual(cluster_plan.plan(7, lease=2), self.PLANS[7])
        self.assertEqual(len({str(plan.faults) for plan in self.PLANS}), 500)

    def test_faults_that_overlap_touch_different_parts(self):
        overlaps = 0
        for plan in self.PLANS:
            for one, other in itertools.combinations(plan.faults, 2):
                if one.begin <= other.end and other.begin <= one.end:
                    overlaps += 1
                    self.assertFalse(one.touches & other.touches, plan)
        self.assertGreater(overlaps, 100)

    def test_seeds_in_a_row_bring_all_kinds(self):
        kinds = list(cluster_plan.KINDS)
        for seed, plan in enumerate(self.PLANS):
            self.assertIn(kinds[seed % len(kinds)], [fault.kind for fault in plan.faults])

    def test_only_the_kinds_that_are_asked_for_strike(self):
        alone = cluster_plan.plan(1, lease=2, kinds=("kill",))
        self.assertEqual({fault.kind for fault in alone.faults}, {"kill"})

    def test_a_pause_is_of_twice_the_lease(self):
        pauses = [fault for plan in self.PLANS for fault in plan.faults if fault.kind == "pause"]
        self.assertGreater(len(pauses), 50)
        for pause in pauses:
            self.assertAlmostEqual(pause.end - pause.begin, 4)

    def test_three_nodes_or_four_and_two_to_four_faults(self):
        self.assertEqual({plan.nodes for plan in self.PLANS}, {"abc", "abcd"})
        self.assertEqual({plan.copies for plan in self.PLANS}, {1, 2})
        self.assertEqual({len(plan.faults) for plan in self.PLANS}, {2, 3, 4})


class BooksTest(unittest.TestCase):
    """Node a has memory of c; c may say that it has lent it to b."""

    def setUp(self):
        self.books = cluster_plan.Books(patience=4)

    def look(self, now, *, borrowed=64, lease=1.0, lent_a=64, lent_b=0):
        def others(**nodes):
            return {"nodes": [{"name": name} | known for name, known in nodes.items()]}

        def of_lender(mib):
            return {"borrowed_bytes": mib * MIB, "lease_left_s": lease}

        answers = {
            "a": others(c=of_lender(borrowed)),
            "b": others(c=of_lender(lent_b)),
            "c": others(a={"lent_bytes": lent_a * MIB}, b={"lent_bytes": lent_b * MIB}),
        }
        self.books.look(now, answers)
        return answers

    def test_what_is_lent_is_fine(self):
        for now in range(20):
            self.look(now)
            self.look(now, lent_a=128)
        self.assertEqual(self.books.violations, [])

    def test_what_one_counts_on_and_another_has_is_found_once(self):
        for now in range(10):
            self.look(now, lent_a=0, lent_b=64)
        self.assertEqual(
            self.books.violations,
            [f"a has {64 * MIB} bytes of c, which has lent it 0, since 5.0 s"],
        )

    def test_one_piece_too_many_is_found(self):
        for now in range(6):
            self.look(now, borrowed=128)
        self.assertEqual(len(self.books.violations), 1)

    def test_what_a_renewal_sets_right_in_time_is_fine(self):
        for now in range(20):
            self.look(now, lent_a=64 if now % 4 == 3 else 0)
        self.assertEqual(self.books.violations, [])

    def test_an_expired_lease_counts_on_nothing(self):
        for now in range(20):
            self.look(now, lease=0.0, lent_a=0, lent_b=64)
        self.assertEqual(self.books.violations, [])

    def test_a_node_that_does_not_answer_is_not_judged(self):
        answers = self.look(0, lent_a=0, lent_b=64)
        for now in range(1, 20):
            self.books.look(now, {name: answers[name] for name in "ab"})
        self.assertEqual(self.books.violations, [])


class SkippedTest(unittest.TestCase):
    def test_without_root_the_figure_is_skipped_with_the_reason(self):
        before = ()
        if os.geteuid() == 0:
            before = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
            if subprocess.run([*before, "test", "-r", PROGRAM]).returncode != 0:
                self.skipTest("who is not root cannot read the checkout")
            if subprocess.run([*before, sys.executable, "-c", ""]).returncode != 0:
                self.skipTest("who is not root cannot run this Python")
        figure, code, said = figure_of(before=before, HOME="/")
        self.assertEqual((code, figure["value"]), (0, None), said)
        self.assertEqual(figure["skipped"], "needs root: it makes network namespaces")


class RunTest(unittest.TestCase):
    def setUp(self):
        if not shutil.which("bash"):
            self.skipTest("there is no bash here")
        import cluster_real

        if BUILT:
            os.environ["RAVENSTORE_BIN"] = BUILT
        reason = cluster_real.why_not()
        if reason:
            self.skipTest(reason)

    def expect_nothing_left(self):
        names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        self.assertNotIn("rvf", names)

    # From other seeds each time; RAVENSTORE_FUZZ_SEED is the first.
    def test_faults_do_no_harm(self):
        seed = int(os.environ.get("RAVENSTORE_FUZZ_SEED") or random.SystemRandom().getrandbits(32))
        print(f"again: bench/cluster_real.py --runs {RUNS} --seed {seed}", flush=True)
        figure, code, said = figure_of("--runs", str(RUNS), "--seed", str(seed))
        self.assertEqual((figure["value"], code), (0, 0), f"{figure}\n{said}")
        self.assertEqual(said.count("no harm"), RUNS)
        self.assertGreater(figure["calls"], 100 * RUNS)
        self.expect_nothing_left()

    def test_wrong_bytes_and_late_calls_would_be_seen(self):
        flags = ("--kinds", "wanted", "--falsify", "20", "--bound", "0.000001")
        figure, code, said = figure_of(*flags)
        self.assertEqual(code, 1, said)
        self.assertGreaterEqual(figure["wrong_bytes"], 1, said)
        self.assertGreater(figure["late_calls"], 100, said)
        self.assertEqual((figure["lent_twice"], figure["crashes"]), (0, 0), said)
        self.assertIn("does not hold what was written", said)
        self.expect_nothing_left()


if __name__ == "__main__":
    xml_main.main()
