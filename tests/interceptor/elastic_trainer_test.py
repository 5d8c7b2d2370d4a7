#!/usr/bin/python3
"""The toy training under ravenrun --mode elastic, with less memory than it needs: each word is right,
nothing was taken from beneath running work, and parts did move.
"""

import itertools
import json
import os
import re
import signal
import subprocess

from fakes import CONTEXT, HERE, MIB, PROGRAMS, ROOT, SMALL, FakeGpuTest, main
from harness import Daemon, eventually

RAVENRUN = str(ROOT / "deploy/ravenrun")
TRAINER = str(HERE / "trainer")
SWITCHES = ("--graph", "--opaque", "--packed", "--table")
STEPS = ("--layers", "5", "--bytes", str(8 * MIB), "--steps", "5")
FIGURES = re.compile(
    r"peak ([\d.]+) GiB; moved ([\d.]+) GiB in, ([\d.]+) GiB out, ([\d.]+) GiB dropped"
)
GIB = 1 << 30
# Of a budget: the context, and the driver's pool for small allocations.
NOT_THE_ENGINES = CONTEXT + 32 * MIB


class ElasticTrainerTest(FakeGpuTest):
    def start(self, *words, budget=None, flags=()):
        environment = dict(os.environ) | {
            "RAVENSTORE_LIB": str(PROGRAMS.library),
            "RAVENSTORE_ELASTIC_PART": str(4 * MIB),
        }
        # What fails leaves its memory charged.
        del environment["RAVENSTORE_FAKE_CUDA_SHARED"]
        limit = [] if budget is None else ["--budget", f"{budget}B"]
        return subprocess.Popen(
            [RAVENRUN, "--mode", "elastic", *limit, "--host", "1GiB", "--report", *flags, TRAINER,
             *words],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def train(self, *words, **options):
        process = self.start(*words, **options)
        told, said = process.communicate(timeout=120)
        outcome = json.loads(told)
        self.assertEqual(process.returncode, 0, (outcome, said))
        for figure in ("wrong_words", "counted", "wrong_samples", "torn", "code"):
            self.assertEqual(outcome[figure], 0, outcome)
        found = FIGURES.search(said)
        self.assertIsNotNone(found, said)
        return dict(zip(("peak", "moved_in", "moved_out", "dropped"),
                        (float(figure) * GIB for figure in found.groups()), strict=True))  # fmt: skip

    def test_what_fits_does_not_move(self):
        figures = self.train(*STEPS)
        self.assertEqual((figures["moved_in"], figures["moved_out"]), (0, 0))

    def test_each_kind_of_launch_is_right_with_less_memory_than_it_needs(self):
        peak = self.train(*STEPS)["peak"]
        for share, streams, switch in itertools.product((0.8, 0.5), "12", (None, *SWITCHES)):
            words = ["--streams", streams] + ([switch] if switch else [])
            with self.subTest(share=share, words=words):
                budget = NOT_THE_ENGINES + int(peak * share)
                figures = self.train(*STEPS, *words, budget=budget)
                self.assertGreater(figures["dropped"] + figures["moved_out"], 0)

    def test_a_job_whose_daemon_lowers_its_budget_goes_on(self):
        steps = (*STEPS[:-1], "60")
        with Daemon(PROGRAMS, SMALL) as daemon:
            job = self.start(*steps, flags=("--socket", daemon.socket))
            number = str(eventually(lambda: self.number_of_job(daemon)))
            lowered = daemon.ctl("limits", "--client", number, "--visible-memory", "120MiB")
            self.assertEqual(lowered.returncode, 0, lowered.stderr)
            told, said = job.communicate(timeout=120)
        outcome = json.loads(told)
        self.assertEqual((job.returncode, outcome["wrong_words"], outcome["torn"]), (0, 0, 0), said)

    def test_a_job_that_is_paused_gives_its_memory_up_and_goes_on(self):
        with Daemon(PROGRAMS, SMALL) as daemon:
            job = self.start(*STEPS[:-1], "400", flags=("--socket", daemon.socket))
            number = str(eventually(lambda: self.number_of_job(daemon)))
            self.assertTrue(eventually(lambda: self.parts_of_job(daemon) > 0))
            self.assertEqual(daemon.ctl("pause", number).returncode, 0)
            self.assertTrue(eventually(lambda: self.parts_of_job(daemon) == 0))
            self.assertEqual(daemon.ctl("resume", number).returncode, 0)
            self.assertTrue(eventually(lambda: self.parts_of_job(daemon) > 0))
            told, said = job.communicate(timeout=120)
        outcome = json.loads(told)
        self.assertEqual((job.returncode, outcome["wrong_words"], outcome["torn"]), (0, 0, 0), said)

    def test_a_job_that_is_killed_leaves_nothing(self):
        job = self.start(*STEPS[:-1], "1000")
        self.assertTrue(eventually(lambda: b"raven" in self.threads_of(job.pid)))
        job.send_signal(signal.SIGKILL)
        job.communicate(timeout=60)
        self.assertEqual(job.returncode, -signal.SIGKILL)

    @staticmethod
    def jobs(daemon):
        jobs = json.loads(daemon.ctl("clients", "--json").stdout)["legacy_jobs"]
        return [job for job in jobs if job["mode"] == "elastic"]

    def number_of_job(self, daemon):
        return next((job["client"] for job in self.jobs(daemon)), None)

    def parts_of_job(self, daemon):
        """Bytes of the device that its engine holds."""
        devices = [device for job in self.jobs(daemon) for device in job["devices"]]
        return sum(device["kinds"]["vmm"] for device in devices)

    @staticmethod
    def threads_of(pid):
        names = b""
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/comm", "rb") as comm:
                names += comm.read()
        return names


if __name__ == "__main__":
    main()
