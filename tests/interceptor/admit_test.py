#!/usr/bin/python3
"""ravenrun --admit: jobs are admitted by what they will take, wait for it, and are remembered."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

from fakes import CONTEXT, MIB, PROGRAMS, RAVENRUN, FakeGpuTest, RavenrunJob, job, main
from harness import PATIENCE, Daemon, eventually

ADMITTED = re.compile(r"ravenrun: admitted to (\S+) with [\d.]+ MiB \([\d.]+ MiB by (\w+)\)")
OUTGROWN = "the job has outgrown the"
# Prints an estimate as the package does, after what a script may print.
PACKAGE = """
import json, sys
if "--hopeless" in sys.argv:
    sys.exit("give its size: the script never trains")
print("a line of the script's")
print(json.dumps({"used": 90 << 20, "reserved": 100 << 20, "context": 48 << 20,
                  "total": 148 << 20, "margin": 15 << 20, "source": "capture",
                  "notes": sys.argv[1:], "job": "0123456789abcdef" * 2}))
"""


class RunningJob(RavenrunJob):
    """A job that takes commands; its standard error reports its admission."""

    def __init__(self, *words, socket, command=None, folder=None):
        command = command or [job("driver")]
        super().__init__(*words, "--socket", socket, *command, folder=folder)

    def source(self):
        """The source of the estimate by which it was admitted."""
        line = self.says()
        found = ADMITTED.match(line)
        assert found, line
        return found.group(2)

    def ready(self):
        return self.hears()["ready"]

    def quit(self):
        self.process.stdin.write("quit\n")
        return self.process.wait(PATIENCE)


class WithDaemon(FakeGpuTest):
    memory = 1 << 30

    def setUp(self):
        super().setUp()
        history = pathlib.Path(self.folder.name, "history")
        history.mkdir()
        config = pathlib.Path(self.folder.name, "config.toml")
        config.write_text(
            f'[limits]\ndevice_reserve = "64MiB"\n[history]\npath = "{history}"\n'
            "[admission]\nmax_slowdown = 0\n"
        )
        flags = ["--config", str(config), "--backend", "cuda", "--pool-size", "64MiB"]
        # Of the two; by its number.
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        self.daemon = Daemon(PROGRAMS, flags)
        self.enterContext(self.daemon)

    def start(self, *words, **options):
        return self.enterContext(RunningJob(*words, socket=self.daemon.socket, **options))

    def run_once(self, size):
        """A run that allocates `size` in addition to its context."""
        first = self.start()
        first.ready()
        self.assertEqual(first.ask(f"device {size}")["code"], 0)
        first.quit()

    def jobs(self):
        return json.loads(self.daemon.ctl("jobs").stdout)["jobs"]

    def commands(self):
        return json.loads(self.daemon.ctl("estimates").stdout)["commands"]

    def refused(self, *words):
        done = self.start(*words).process
        _, text = done.communicate(timeout=PATIENCE)
        self.assertEqual(done.returncode, 1, text)
        return text


class AdmitTest(WithDaemon):
    def test_the_second_run_is_admitted_by_what_the_first_took(self):
        self.run_once(300 * MIB)
        self.assertTrue(eventually(self.commands))
        second = self.start("--admit")
        self.assertEqual(second.source(), "history")
        second.ready()
        took = 300 * MIB + CONTEXT
        self.assertEqual(second.ask("info")["total"], took + took // 20)
        self.assertEqual(second.ask(f"device {300 * MIB}")["code"], 0)
        (shown,) = self.jobs()
        self.assertEqual(shown["peak"], took)
        self.assertEqual(shown["estimate"]["source"], "history")
        self.assertEqual(shown["estimate"]["bytes"], took)
        self.assertEqual(shown["estimate"]["error"], 0)
        second.quit()
        self.assertTrue(eventually(lambda: self.commands()[0]["runs"] == 2))
        (estimate,) = self.commands()[0]["estimates"]
        self.assertEqual((estimate["bytes"], estimate["actual"]), (took, took))
        page = pathlib.Path(self.folder.name, "page.html")
        self.assertEqual(self.daemon.ctl("estimates", "--html", str(page)).returncode, 0)
        self.assertIn("<circle", page.read_text())

    def test_what_is_remembered_outlives_the_daemon(self):
        self.run_once(100 * MIB)
        self.assertTrue(eventually(self.commands))
        before = self.commands()
        self.daemon.kill(signal.SIGTERM)
        self.daemon.start()
        self.assertEqual(self.commands(), before)

    def test_a_command_of_which_nothing_is_known_does_not_run(self):
        self.assertIn("no earlier run of this command is known", self.refused("--admit"))

    def test_a_job_that_never_fits_does_not_run_and_says_why(self):
        self.assertIn("the largest of its devices has 1.0 GiB", self.refused("--admit=2GiB"))
        self.daemon.limit("--user", str(os.getuid()), "--visible-memory", "512MiB")
        self.assertIn("may have 512.0 MiB", self.refused("--admit=600MiB"))

    def test_jobs_wait_until_there_is_room_and_are_shown(self):
        first = self.start("--admit=700MiB")
        self.assertEqual(first.source(), "given")
        first.ready()
        second = self.start("--admit=600MiB")
        self.assertEqual(second.says(), "ravenrun: waits for 600.0 MiB as number 1: for memory\n")
        waiting = [each for each in self.jobs() if each["waiting"]]
        self.assertEqual([each["waits_for"] for each in waiting], ["for memory"])
        late = self.start("--wait=1s", "--admit=600MiB")
        self.assertIn("as number 2", late.says())
        self.assertIn("no turn within the time", late.says())
        self.assertEqual(late.process.wait(PATIENCE), 1)
        first.quit()
        self.assertEqual(second.source(), "given")
        self.assertTrue(second.ready())

    def test_a_job_comes_to_another_device_that_has_room(self):
        del os.environ["CUDA_VISIBLE_DEVICES"]
        admitted = []
        for _ in range(2):
            started = self.start("--admit=700MiB")
            admitted.append(ADMITTED.match(started.says()).group(1))
            self.assertTrue(started.ready())
        self.assertEqual(len(set(admitted)), 2)
        self.assertIn("waits for", self.start("--admit=700MiB").says())

    def test_a_job_that_outgrows_its_estimate_is_warned_and_the_next_run_knows(self):
        first = self.start("--admit=300MiB")
        first.source()
        first.ready()
        self.assertNotEqual(first.ask(f"device {400 * MIB}")["code"], 0)
        line = first.says()
        self.assertIn(OUTGROWN, line)
        self.assertIn("300.0 MiB by given", line)
        self.assertIn("--mode elastic", line)
        first.quit()
        self.assertTrue(eventually(self.commands))
        second = self.start("--admit")
        self.assertEqual(second.source(), "history")
        second.ready()
        self.assertEqual(second.ask(f"device {400 * MIB}")["code"], 0)

    def test_an_elastic_job_that_outgrows_its_estimate_goes_on(self):
        first = self.start("--mode=elastic", "--admit=300MiB")
        first.source()
        first.ready()
        self.assertEqual(first.ask(f"device {400 * MIB}")["code"], 0)
        first.quit()
        self.assertTrue(eventually(self.commands))
        self.assertGreaterEqual(self.commands()[0]["peak"], 400 * MIB)

    def test_what_comes_of_a_job_is_within_its_reservation(self):
        shell = ["sh", "-c", f"{job('driver')}; true"]
        first = self.start("--admit=600MiB", command=shell)
        first.source()
        child = first.ready()
        self.assertEqual(first.ask(f"device {100 * MIB}")["code"], 0)
        (shown,) = self.jobs()
        self.assertEqual((shown["pid"], shown["estimate"]["source"]), (child, "given"))
        self.assertNotEqual(child, first.process.pid)
        self.assertEqual(self.start("--admit=424MiB").says()[:18], "ravenrun: waits fo")
        self.assertEqual(self.start("--admit=300MiB").says()[:18], "ravenrun: waits fo")

    def test_without_a_daemon_it_runs_immediately(self):
        self.daemon.kill()
        first = self.start("--admit=300MiB")
        self.assertIn("the job runs without being admitted", first.says())
        self.assertTrue(first.ready())

    def test_when_the_daemon_dies_waiting_jobs_go_on(self):
        first = self.start("--admit=700MiB")
        first.source()
        first.ready()
        second = self.start("--admit=600MiB")
        second.says()
        self.daemon.kill()
        self.assertIn("the daemon is gone", second.says())
        self.assertTrue(second.ready())

    def test_wrong_words_are_refused(self):
        for words, reason in (
            (["--admit=soon"], "is a size such as"),
            (["--admit=0"], "is a size such as"),
            (["--budget=1GiB", "--admit"], "--admit chooses the budget"),
            (["--check", "--admit"], "--admit is not for --check"),
        ):
            done = subprocess.run(
                [RAVENRUN, *words, "true"], capture_output=True, text=True, check=False
            )
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(reason, done.stderr)


class EstimateTest(WithDaemon):
    """ravenctl estimate, and --admit=capture, by a package that prints its arguments."""

    def setUp(self):
        super().setUp()
        package = pathlib.Path(self.folder.name, "ravenstore", "estimate")
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(PACKAGE)
        os.environ["PYTHONPATH"] = self.folder.name

    def estimate(self, *command):
        return self.daemon.ctl("estimate", "--", *command)

    def test_a_script_is_reckoned_by_the_package_of_its_own_python(self):
        done = self.estimate(sys.executable, "-u", "train.py", "--steps", "5")
        estimate = json.loads(done.stdout)
        self.assertEqual(estimate["source"], "capture")
        self.assertEqual(estimate["model"], "0123456789abcdef" * 2)
        self.assertEqual((estimate["bytes"], estimate["margin"]), (148 * MIB, 15 * MIB))
        self.assertEqual(estimate["notes"], ["--json", "train.py", "--steps", "5"])

    def test_what_cannot_be_reckoned_says_what_to_give(self):
        self.assertIn("only a Python script", self.estimate("./program").stderr)
        done = self.estimate(sys.executable, "train.py", "--hopeless")
        self.assertEqual(done.returncode, 1)
        self.assertIn("give its size", done.stderr)

    def test_only_capture_captures(self):
        script = pathlib.Path(self.folder.name, "train.py")
        script.write_text("print('ran')\n")
        command = [sys.executable, str(script)]
        text = self.enterContext(
            RunningJob("--admit", socket=self.daemon.socket, command=command)
        ).process.communicate(timeout=PATIENCE)
        self.assertNotIn("ran", text[0])
        captured = self.start("--admit=capture", command=command)
        self.assertIn("its script runs up to the third step", captured.says())
        self.assertEqual(captured.source(), "capture")
        self.assertEqual(captured.process.stdout.readline(), "ran\n")


if __name__ == "__main__":
    main()
