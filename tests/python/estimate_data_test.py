"""bench/estimator: the jobs that are drawn, their measured rows, the fit, and the packing."""

import collections
import importlib.util
import json
import pathlib
import sys
import tempfile
import time
import unittest

import harness

sys.path[:0] = [str(harness.ROOT / "bench"), str(harness.ROOT / "bench/estimator")]

import jobs  # noqa: E402
import measure  # noqa: E402
import packing  # noqa: E402

GIB = 1 << 30
NO_SCIPY = importlib.util.find_spec("scipy") is None


class Jobs(unittest.TestCase):
    def test_a_number_is_the_same_job_everywhere(self):
        self.assertEqual(jobs.draw(7), jobs.draw(7))
        result = json.loads(json.dumps(jobs.draw(7).asdict()))
        self.assertEqual(jobs.Job(**result).key(), jobs.draw(7).key())

    def test_three_in_a_row_train_one_architecture(self):
        drawn = [jobs.draw(seed) for seed in range(9)]
        architectures = [job.architecture_key() for job in drawn]
        self.assertEqual(len(set(architectures)), 3)
        self.assertEqual(len({job.key() for job in drawn}), 9)

    def test_each_drawn_job_makes_its_steps(self):
        """With a batch that this machine bears; one of each family."""
        for family, draw in jobs.models.DRAWN.items():
            rng = jobs.random.Random(1)
            architecture = draw(rng)
            while architecture.get("picture", 32) > 32 or architecture.get("length", 64) > 64:
                architecture = draw(rng)
            for checkpointed in {False, family in jobs.models.CHECKPOINTED}:
                job = jobs.Job(family, architecture, 2, checkpointed=checkpointed)
                jobs.Made(job, "cpu").step()


class Answering:
    """Stands for a worker: answers from a script of rows."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []

    def __call__(self, _gpu, _events):
        return self

    def measure(self, job):
        self.asked.append(job["batch"])
        return dict(self.answers[job["batch"]])

    def end(self):
        pass


class Measure(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "rows"
        self.jobs = [jobs.Job("mlp", {}, batch) for batch in (1, 2, 3)]

    def measured(self, answers, workers, deadline=float("inf")):
        worker, measure.Worker = measure.Worker, Answering(answers)
        try:
            homeless = measure.measure_all(self.jobs, self.file, [0], workers, deadline, None)
        finally:
            worker, measure.Worker = measure.Worker, worker
        return worker.asked, homeless

    def test_a_job_without_room_is_left_for_later_where_others_are_there(self):
        answers = {1: {"used": 1}, 2: {"error": "no room"}, 3: {"used": 3}}
        asked, homeless = self.measured(answers, 2)
        self.assertEqual(sorted(asked), [1, 2, 3])
        self.assertEqual([job.batch for job in homeless], [2])
        rows = [json.loads(line) for line in self.file.read_text().splitlines()]
        self.assertEqual(sorted(row["batch"] for row in rows), [1, 3])
        self.assertEqual({row["key"] for row in rows}, {self.jobs[i].key() for i in (0, 2)})

    def test_alone_it_is_written_down_as_such(self):
        _, homeless = self.measured(dict.fromkeys((1, 2, 3), {"error": "no room"}), 1)
        self.assertFalse(homeless)
        self.assertEqual(self.file.read_text().count("no room"), 3)

    def test_after_the_deadline_no_job_is_begun(self):
        asked, _ = self.measured({}, 2, deadline=time.monotonic() - 1)
        self.assertFalse(asked)


@unittest.skipIf(NO_SCIPY, "no scipy")
class Fit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import fit
        import rows

        cls.fit, cls.rows = fit, rows
        cls.measured = rows.read("h100.jsonl.xz")

    def test_a_row_describes_its_job_as_it_describes_itself_now(self):
        by_family = collections.defaultdict(list)
        for row in self.measured:
            by_family[row.job.family].append(row)
        for rows in by_family.values():
            for row in rows[:3]:
                self.assertEqual(row.description, self.rows.describe(row.job), row.job)

    def test_no_architecture_is_on_both_sides_of_a_fold(self):
        held_ever = []
        for inside, outside in self.fit.folds(self.measured):
            here = {row.job.architecture_key() for row in inside}
            held = {row.job.architecture_key() for row in outside}
            self.assertFalse(here & held)
            held_ever += outside
        self.assertEqual(len(held_ever), len(self.measured))

    def test_coefficients_that_made_the_data_are_found(self):
        import dataclasses

        formula = self.fit._formula
        true = {"linear": 1.5, "activation": 0.7, "ends": 1.2, "parameters": 0.3, "fixed": 50.0}
        by_way = {"training": {"fp32": dict.fromkeys(formula.PEAKS, true)}}
        rows = [
            row for row in self.fit.of_way(self.measured, "training", "fp32")
            if row.job.family == "mlp"
        ]  # fmt: skip
        made = [
            dataclasses.replace(
                row, used=int(formula.predicted(row.description, row.way, by_way, "used"))
            )
            for row in rows
        ]
        found = self.fit.fit_one(made, "training", "fp32", "used", {})
        by_way["training"]["fp32"] = {"used": found}
        for row in made:
            said = formula.predicted(row.description, row.way, by_way, "used")
            self.assertLess(abs(said / row.used - 1), 0.05, row.job)

    def test_the_margin_is_what_one_of_a_hundred_needed_more(self):
        self.assertEqual(self.fit._needed([n / 1000 for n in range(1000)]), 0.990)
        self.assertEqual(self.fit._needed([0.1, 0.3, 0.2]), 0.3)

    def test_the_packages_coefficients_are_these_rows(self):
        """A change that adds rows must also rewrite the package's file."""
        result = self.fit._formula.fitted()
        self.assertEqual(result["jobs"], len(self.measured))
        fitted = self.fit.fit(self.measured)
        for row in self.measured:
            ours, now = (self.fit.predicted(of, row) for of in (result["coefficients"], fitted))
            self.assertLess(abs(ours / now - 1), 1e-3, row.job)


def job(said, actual=None, work=100.0, compute=0.1):
    return packing.Job(said * GIB, (actual or said) * GIB, work, compute)


class Packing(unittest.TestCase):
    def test_as_many_as_fit_run_concurrently(self):
        jobs = [job(10) for _ in range(2 * packing.GPUS)]
        self.assertAlmostEqual(packing.simulate(jobs, 20 * GIB).makespan, 100, places=3)
        jobs = [job(11) for _ in range(2 * packing.GPUS)]
        self.assertAlmostEqual(packing.simulate(jobs, 20 * GIB).makespan, 200, places=3)

    def test_no_job_passes_the_head_of_the_queue(self):
        running = [job(15) for _ in range(packing.GPUS)]
        waiting = [job(15), job(1)]
        result = packing.simulate([*running, *waiting], 20 * GIB)
        self.assertAlmostEqual(result.makespan, 200, places=3)

    def test_jobs_that_compute_more_than_a_gpu_can_slow_each_other(self):
        jobs = [job(1, compute=0.7) for _ in range(2 * packing.GPUS)]
        self.assertAlmostEqual(packing.simulate(jobs, 20 * GIB).makespan, 140, places=3)

    def test_the_cap_keeps_a_third_away(self):
        jobs = [job(1, compute=0.7) for _ in range(3 * packing.GPUS)]
        self.assertAlmostEqual(packing.simulate(jobs, 20 * GIB).makespan, 240, places=3)

    def test_a_job_that_outgrows_its_room_is_killed_and_runs_again_alone(self):
        jobs = [job(10, actual=12) for _ in range(2 * packing.GPUS)]
        result = packing.simulate(jobs, 20 * GIB)
        self.assertEqual(result.kills, packing.GPUS)
        self.assertAlmostEqual(result.makespan, 200, places=3)

    def test_elastic_jobs_are_not_killed(self):
        jobs = [job(10, actual=12) for _ in range(2 * packing.GPUS)]
        result = packing.simulate(jobs, 20 * GIB, elastic=True)
        self.assertEqual((result.kills, result.moved), (0, 2 * packing.GPUS))

    def test_what_is_known_of_a_running_job_makes_room(self):
        jobs = [job(15, actual=9) for _ in range(2 * packing.GPUS)]
        self.assertAlmostEqual(packing.simulate(jobs, 20 * GIB).makespan, 200, places=3)
        result = packing.simulate([job(11, actual=9) for _ in jobs], 20 * GIB, corrected=True)
        self.assertLess(result.makespan, 110)


if __name__ == "__main__":
    unittest.main()
