#!/usr/bin/python3
"""ravenrun --wait: jobs take a device in turns, say where they stand, and end as ever meanwhile."""

import pathlib
import re
import signal
import subprocess
import sys

from fakes import MIB, PROGRAMS, RAVENRUN, FakeGpuTest, RavenrunJob, job, main
from harness import PATIENCE, Daemon, eventually

PLACE = re.compile(r"ravenstore\[\d+\]: waits for [\d.]+ GiB of device 0 as number (\d+)\n")
# Ends with 7 at a KeyboardInterrupt, as programs of Python's get it from their signal handler. Any
# result of the call that waits is fine.
PYTHON = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
try:
    assert driver.cuInit(0) == 0
    result = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
except KeyboardInterrupt:
    sys.exit(7)
sys.exit(result)
"""


class WaitingJob(RavenrunJob):
    """A job that may not be ready for long: its standard error reports its places."""

    def __init__(self, socket, *command, wait="--wait", budget="700MiB", mode="account"):
        words = ["--mode", mode, *([wait] if wait else []), "--socket", socket]
        words += ["--budget", budget] if budget else []
        super().__init__(*words, *(command or [job("driver")]))

    def place(self):
        line = self.says()
        found = PLACE.fullmatch(line)
        assert found, line
        return int(found.group(1))

    def ready(self):
        return self.hears()["ready"] == self.pid

    def end(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


class WaitTest(FakeGpuTest):
    memory = 1 << 30

    def setUp(self):
        super().setUp()
        config = pathlib.Path(self.folder.name, "config.toml")
        config.write_text('[limits]\ndevice_reserve = "64MiB"\n')
        flags = ["--config", str(config), "--backend", "cuda", "--pool-size", "64MiB"]
        self.daemon = Daemon(PROGRAMS, flags)
        self.enterContext(self.daemon)

    def start(self, *command, **options):
        return self.enterContext(WaitingJob(self.daemon.socket, *command, **options))

    def waiting(self):
        return {each["pid"]: each["waiting"] for each in self.daemon.jobs()}

    def test_jobs_have_their_turns_in_the_order_of_their_arrival(self):
        first = self.start()
        self.assertTrue(first.ready())
        second = self.start()
        self.assertEqual(second.place(), 1)
        third = self.start(mode="elastic")
        self.assertEqual(third.place(), 2)
        # One that would fit is behind those that came before it.
        fourth = self.start(budget="200MiB", mode="store")
        self.assertEqual(fourth.place(), 3)
        self.assertEqual(self.waiting(), {first.pid: 0, second.pid: 1, third.pid: 2, fourth.pid: 3})
        text = subprocess.run(
            [PROGRAMS.ctl, "--socket", self.daemon.socket, "clients"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        self.assertIn("waits for 700.0 MiB as number 1", text)
        first.end()
        self.assertTrue(second.ready())
        self.assertEqual((third.place(), fourth.place()), (1, 2))
        second.end()
        self.assertTrue(third.ready())
        self.assertTrue(fourth.ready())
        self.assertEqual(third.ask(f"device {400 * MIB}")["code"], 0)

    def test_a_job_that_dies_or_ends_while_it_waits_leaves_its_place(self):
        first = self.start()
        self.assertTrue(first.ready())
        jobs = []
        for number in (1, 2, 3):
            jobs.append(self.start())
            self.assertEqual(jobs[-1].place(), number)
        self.assertEqual(jobs[0].end(signal.SIGKILL), -signal.SIGKILL)
        self.assertEqual((jobs[1].place(), jobs[2].place()), (1, 2))
        self.assertEqual(jobs[1].end(signal.SIGTERM), -signal.SIGTERM)
        self.assertEqual(jobs[2].place(), 1)
        self.assertEqual(jobs[2].end(signal.SIGINT), -signal.SIGINT)
        self.assertTrue(eventually(lambda: self.waiting() == {first.pid: 0}))

    def test_a_program_that_handles_signals_learns_of_them(self):
        first = self.start()
        self.assertTrue(first.ready())
        python = self.start(sys.executable, "-c", PYTHON)
        self.assertEqual(python.place(), 1)
        self.assertEqual(python.end(signal.SIGINT), 7)
        self.assertIn("was told to end while it waited", python.says())

    def test_a_job_that_does_not_wait_is_not_held_and_counts_by_what_it_uses(self):
        first = self.start(wait=None)
        self.assertTrue(first.ready())
        self.assertEqual(first.ask(f"device {400 * MIB}")["code"], 0)
        second = self.start()
        self.assertEqual(second.place(), 1)
        self.assertTrue(self.start(wait=None).ready())
        first.ask("drop")
        self.assertTrue(second.ready())

    def test_without_a_budget_it_waits_for_the_whole_device(self):
        first = self.start(budget="10MiB")
        self.assertTrue(first.ready())
        second = self.start(budget=None)
        self.assertEqual(second.place(), 1)
        first.end()
        self.assertTrue(second.ready())

    def test_a_time_bounds_it_and_then_there_is_no_memory(self):
        first = self.start()
        self.assertTrue(first.ready())
        python = self.start(sys.executable, "-c", PYTHON, wait="--wait=1s")
        self.assertEqual(python.place(), 1)
        self.assertIn("no turn within 1 s", python.says())
        self.assertEqual(python.process.wait(PATIENCE), 2)

    def test_when_the_daemon_dies_jobs_go_on(self):
        first = self.start()
        self.assertTrue(first.ready())
        second = self.start()
        self.assertEqual(second.place(), 1)
        self.daemon.kill()
        self.assertIn("the daemon is gone: the job goes on without waiting", second.says())
        self.assertTrue(second.ready())
        third = self.start()
        self.assertIn("no daemon", third.says())
        self.assertTrue(third.ready())
        # With the next one it is as with one that never knew them: they count by what they use.
        self.assertEqual(first.ask(f"device {400 * MIB}")["code"], 0)
        self.daemon.start()
        self.assertTrue(eventually(lambda: first.pid in self.waiting()))
        fourth = self.start()
        self.assertEqual(fourth.place(), 1)
        first.end()
        self.assertTrue(fourth.ready())

    def test_ravenrun_refuses_what_is_no_time(self):
        for word in ("--wait=", "--wait=0", "--wait=soon", "--wait=-1", "--wait=1d"):
            done = subprocess.run(
                [RAVENRUN, word, "true"], capture_output=True, text=True, check=False
            )
            self.assertEqual(done.returncode, 2, word)
            self.assertIn("is a time such as", done.stderr)


if __name__ == "__main__":
    main()
