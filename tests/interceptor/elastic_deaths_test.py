#!/usr/bin/python3
"""An elastic job, or its daemon, is killed at each step of what the engine does: in a certain call
of the driver. The ledger is right afterwards, and who is left goes on with the right words.
"""

import itertools
import json
import os
import re
import signal
import subprocess

from fakes import CONTEXT, HERE, MIB, PROGRAMS, ROOT, SMALL, FakeGpuTest, job, main
from harness import PATIENCE, Daemon, Job, eventually, guest

RAVENRUN = str(ROOT / "deploy/ravenrun")
TRAINER = str(HERE / "trainer")
BUDGET = CONTEXT + 64 * MIB
ROOMY = 512 * MIB
# What is away is mapped when a call names it, or all the time.
AWAY = ("", "mapped")
COPIES = ("cuMemcpyAsync:1", "cuMemcpyAsync:2")
# In the order of a job's life. The trainer calls neither cuMemcpyAsync nor cuMemMap: these are
# copies and remaps of parts, under a budget that does not hold all from the first step on.
BEFORE_HELLO = "cuDeviceGetCount:1"
STEPS = (
    BEFORE_HELLO,
    "cuDevicePrimaryCtxRetain:1",  # attached, holds nothing
    "cuMemAddressReserve:1",  # the engine begins
    "cuMemCreate:1",  # its first part, which the ledger has
    "cuMemCreate:12",
    "cuMemMap:1",
    "cuMemSetAccess:8",
    "cuLaunchKernel:30",
    COPIES[0],  # the first move
    "cuMemUnmap:1",
    "cuMemUnmap:9",
    COPIES[1],
    "cuMemFreeAsync:1",
    "cuLaunchKernel:150",
)


class ElasticDeathsTest(FakeGpuTest):
    def setUp(self):
        super().setUp()
        # The fake driver of a process that is killed does not give its memory back.
        del os.environ["RAVENSTORE_FAKE_CUDA_SHARED"]

    def start(self, daemon, point=None, number=signal.SIGKILL, steps=3, more=(), away=""):
        environment = dict(os.environ) | {
            "RAVENSTORE_LIB": str(PROGRAMS.library),
            "RAVENSTORE_ELASTIC_PART": str(4 * MIB),
            "RAVENSTORE_ELASTIC_AWAY": away,
        }
        if point is not None:
            environment["RAVENSTORE_FAKE_CUDA_SIGNAL"] = f"{point}:{int(number)}"
        if away and point in COPIES:
            # Where kernels may touch anything, something moves only when none runs.
            steps = 100
        words = ["--layers", "5", "--bytes", str(8 * MIB), "--steps", str(steps)]
        return subprocess.Popen(
            [RAVENRUN, "--mode", "elastic", "--host", "1GiB", "--report", "--socket", daemon.socket,
             TRAINER, *words, *more],
            env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def daemon(self, budget=BUDGET):
        return Daemon(PROGRAMS, [*SMALL, "--visible-memory", f"{budget}B"])

    def assert_right(self, trainer):
        output, said = trainer.communicate(timeout=PATIENCE)
        self.assertEqual(trainer.returncode, 0, (output, said))
        outcome = json.loads(output.splitlines()[-1])
        for figure in ("wrong_words", "counted", "wrong_samples", "torn", "code"):
            self.assertEqual(outcome[figure], 0, outcome)
        figures = r"moved ([\d.]+) GiB in, ([\d.]+) GiB out, ([\d.]+) GiB dropped"
        moved = map(float, re.search(figures, said).groups())
        return dict(zip(("in", "out", "dropped"), moved, strict=True))

    def await_stop(self, trainer):
        """Until the job has stopped itself; it must not have ended."""
        _, status = os.waitpid(trainer.pid, os.WUNTRACED)
        self.assertTrue(os.WIFSTOPPED(status), (status, trainer.stderr))

    @staticmethod
    def number(daemon, pid):
        return next((str(each["client"]) for each in daemon.jobs() if each["pid"] == pid), None)

    @staticmethod
    def parts(daemon, pid):
        return (daemon.held(pid) or {}).get("vmm")

    def test_a_job_that_is_killed_at_any_step_leaves_the_ledger_as_it_was(self):
        with self.daemon() as daemon:
            for point, away in itertools.product(STEPS, AWAY):
                with self.subTest(point=point, away=away):
                    trainer = self.start(daemon, point, away=away)
                    trainer.communicate(timeout=PATIENCE)
                    self.assertEqual(trainer.returncode, -signal.SIGKILL)
                    self.assertTrue(eventually(lambda: daemon.jobs() == []))
                    with Job([job("driver")], guest(PROGRAMS, daemon.socket)) as other:
                        self.assertEqual(other.ask("info")["free"], BUDGET - CONTEXT)
                        self.assertEqual(other.ask(f"device {BUDGET - CONTEXT}")["code"], 0)
                        other.quit()
            self.assert_right(self.start(daemon))

    def test_a_job_that_maps_by_itself_is_killed_and_leaves_the_ledger_as_it_was(self):
        # While a segment is made, mapped and unmapped.
        with self.daemon() as daemon:
            for point in ("cuMemCreate:7", "cuMemMap:9", "cuMemUnmap:2"):
                with self.subTest(point=point):
                    trainer = self.start(daemon, point, more=["--segments"])
                    trainer.communicate(timeout=PATIENCE)
                    self.assertEqual(trainer.returncode, -signal.SIGKILL)
                    self.assertTrue(eventually(lambda: daemon.jobs() == []))
                    with Job([job("driver")], guest(PROGRAMS, daemon.socket)) as other:
                        self.assertEqual(other.ask("info")["free"], BUDGET - CONTEXT)
                        other.quit()
            self.assert_right(self.start(daemon, more=["--segments"]))

    def test_a_job_whose_daemon_is_killed_at_any_step_goes_on(self):
        for point, away in itertools.product(STEPS, AWAY):
            with self.subTest(point=point, away=away), self.daemon() as daemon:
                trainer = self.start(daemon, point, signal.SIGSTOP, away=away)
                self.await_stop(trainer)
                daemon.kill()
                trainer.send_signal(signal.SIGCONT)
                self.assert_right(trainer)

    def test_the_next_daemon_takes_the_job_in_with_what_it_holds(self):
        for point in (BEFORE_HELLO, "cuMemCreate:12", "cuMemcpyAsync:5"):
            with self.subTest(point=point), self.daemon() as daemon:
                self.is_taken_in_after(daemon, point)

    def is_taken_in_after(self, daemon, point):
        trainer = self.start(daemon, point, signal.SIGSTOP, more=["--wait"])
        self.await_stop(trainer)
        daemon.kill()
        daemon.start()
        self.assertIsNone(self.parts(daemon, trainer.pid))
        trainer.send_signal(signal.SIGCONT)
        self.assertTrue(eventually(lambda: self.parts(daemon, trainer.pid)))
        self.assertLessEqual(self.parts(daemon, trainer.pid), BUDGET - CONTEXT)
        self.assert_right(trainer)
        self.assertTrue(eventually(lambda: daemon.jobs() == []))

    def paused_within(self, daemon, call, nth, steps=3):
        """A job that has to give up all that it holds, stopped at the `nth` such call for that.

        It is between two steps: no kernel runs, and no search for tables of addresses.
        """
        trainer = self.start(daemon, steps=steps, more=["--wait"])
        self.assertEqual(trainer.stdout.readline(), "waiting\n")
        trainer.stdin.write(f"{call} {nth} {int(signal.SIGSTOP)}\n")
        trainer.stdin.flush()
        self.assertEqual(trainer.stdout.readline(), "set\n")
        number = self.number(daemon, trainer.pid)
        self.assertEqual(daemon.ctl("sleep", "--job", number).returncode, 0)
        self.await_stop(trainer)
        return trainer

    def test_a_pause_ends_with_the_daemon(self):
        # Nothing had to move before. The pause drops the pages of freed memory first, each by two
        # unmaps and a release, without a copy. Then it copies weights, states and deltas to the
        # host. Each step uses them, so they come back.
        for call, nth in (("cuMemUnmap", 3), ("cuMemRelease", 2), ("cuMemcpyAsync", 1)):
            with self.subTest(call=call), self.daemon(ROOMY) as daemon:
                trainer = self.paused_within(daemon, call, nth, steps=30)
                daemon.kill()
                trainer.send_signal(signal.SIGCONT)
                moved = self.assert_right(trainer)
                self.assertGreater(moved["dropped"], 0, moved)
                # The engine may copy more before it sees that its daemon is gone.
                if call == "cuMemcpyAsync":
                    self.assertGreater(moved["out"], 0, moved)
                if moved["out"] > 0:
                    self.assertGreater(moved["in"], 0, moved)

    def test_a_job_that_is_killed_while_it_is_emptied_leaves_nothing(self):
        with self.daemon(ROOMY) as daemon:
            trainer = self.paused_within(daemon, "cuMemUnmap", 3)
            trainer.kill()
            trainer.communicate(timeout=PATIENCE)
            self.assertTrue(eventually(lambda: daemon.jobs() == []))
            with Job([job("driver")], guest(PROGRAMS, daemon.socket)) as other:
                self.assertEqual(other.ask("info")["free"], ROOMY - CONTEXT)
                other.quit()

    def test_an_emptied_job_gets_its_memory_back_when_its_daemon_is_gone(self):
        with self.daemon(ROOMY) as daemon:
            trainer = self.start(daemon, more=["--wait"])
            self.assertEqual(trainer.stdout.readline(), "waiting\n")
            number = self.number(daemon, trainer.pid)
            self.assertEqual(daemon.ctl("sleep", "--job", number).returncode, 0)
            self.assertTrue(eventually(lambda: self.parts(daemon, trainer.pid) == 0))
            daemon.kill()
            daemon.start()
            self.assertTrue(eventually(lambda: self.parts(daemon, trainer.pid)))
            self.assert_right(trainer)


if __name__ == "__main__":
    main()
