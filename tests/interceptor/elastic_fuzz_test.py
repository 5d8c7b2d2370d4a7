#!/usr/bin/python3
"""A job does random things under --mode elastic, with less memory than it needs, while its daemon
is asked for random things, dies and comes again: each word is right whatever meets whatever.

RAVENSTORE_TEST_SEED repeats what was drawn; what meets what is another each time.
"""

import contextlib
import json
import os
import random
import re
import subprocess

from fakes import CONTEXT, HERE, MIB, PROGRAMS, ROOT, SMALL, FakeGpuTest, main
from harness import Daemon

RAVENRUN = str(ROOT / "deploy/ravenrun")
JOB = str(HERE / "random_job")
SEED = int(os.environ.get("RAVENSTORE_TEST_SEED", "20261126"))
STEPS = 1500
# The context and the driver's own pool, and what the engine may have.
LEAST = CONTEXT + 32 * MIB + 24 * MIB


class Requests:
    """What administrators and other users ask a daemon for."""

    def __init__(self, daemon, seed):
        self.daemon = daemon
        self.random = random.Random(seed)
        self.counts = dict.fromkeys(("sleep", "wake", "limit", "explain", "restart"), 0)

    def job(self):
        jobs = [job for job in self.daemon.jobs() if job["mode"] == "elastic"]
        return str(jobs[0]["client"]) if jobs else None

    def make_one(self):
        kind = self.random.choices(list(self.counts), weights=(3, 4, 4, 2, 0.5))[0]
        if kind == "restart":
            self.daemon.kill()
            self.daemon.start()
        elif (job := self.job()) is None:  # the next daemon has not heard of it yet
            return
        elif kind == "limit":
            budget = LEAST + self.random.randrange(64) * MIB
            self.daemon.ctl("limits", "--client", job, "--visible-memory", f"{budget}B")
        elif kind == "explain":
            self.daemon.ctl("explain", "--job", job)
        else:
            self.daemon.ctl(kind, "--job", job)
        self.counts[kind] += 1


class ElasticFuzzTest(FakeGpuTest):
    def run_job(self, seed, *words, away=""):
        # What fails leaves its memory charged.
        environment = dict(os.environ) | {
            "RAVENSTORE_LIB": str(PROGRAMS.library),
            "RAVENSTORE_ELASTIC_PART": str(4 * MIB),
            "RAVENSTORE_ELASTIC_AWAY": away,
            "RAVENSTORE_FAKE_CUDA_KERNEL_NS": "50000",
        }
        del environment["RAVENSTORE_FAKE_CUDA_SHARED"]
        with Daemon(PROGRAMS, [*SMALL, "--visible-memory", f"{LEAST}B"]) as daemon:
            requests = Requests(daemon, seed)
            job = subprocess.Popen(
                [RAVENRUN, "--mode", "elastic", "--host", "1GiB", "--report", "--socket",
                 daemon.socket, JOB, "--steps", str(STEPS), "--seed", str(seed), *words],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            self.addCleanup(job.kill)
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    output, said = job.communicate(timeout=0.01)
                    break
                requests.make_one()
        what = f"seed {seed}, {words}, {requests.counts}: {output} {said}"
        print(what)
        self.assertEqual(job.returncode, 0, what)
        self.assertEqual(json.loads(output)["steps"], STEPS)
        self.assertGreater(float(re.search(r"moved ([\d.]+) GiB in", said).group(1)), 0, what)
        return requests.counts

    def test_each_word_is_right_whatever_meets_whatever(self):
        sums = {}
        for number, (words, away) in enumerate(
            (((), ""), ((), "mapped"), (("--opaque",), ""), (("--tables",), ""),
             (("--segments",), ""), (("--segments", "--opaque", "--tables"), ""))
        ):  # fmt: skip
            with self.subTest(words=words, away=away):
                for kind, count in self.run_job(SEED + number, *words, away=away).items():
                    sums[kind] = sums.get(kind, 0) + count
        self.assertNotIn(0, sums.values(), sums)


if __name__ == "__main__":
    main()
