#!/usr/bin/python3
"""The toy training under ravenrun --mode elastic, with less memory than it needs: each word is
right, nothing was taken from beneath running work, and parts did move.
"""

import itertools
import json
import os
import re
import signal
import subprocess

from fakes import CONTEXT, HERE, MIB, PROGRAMS, ROOT, SMALL, FakeGpuTest, main
from harness import PATIENCE, Daemon, eventually

RAVENRUN = str(ROOT / "deploy/ravenrun")
TRAINER = str(HERE / "trainer")
SWITCHES = ("--graph", "--opaque", "--packed", "--table")
STEPS = ("--layers", "5", "--bytes", str(8 * MIB), "--steps", "5")
FIGURES = re.compile(
    r"peak ([\d.]+) GiB; moved ([\d.]+) GiB in, ([\d.]+) GiB out, ([\d.]+) GiB dropped"
    r".*with a budget of ([\d.]+) GiB"
)
RECORDED = re.compile(r"(\d+) calls recorded in (\S+?)(?:, (\d+) of which may touch anything)?\n")
RAVENSIM = str(ROOT / "sim/ravensim")
GIB = 1 << 30
# Of a budget: the context, and the driver's pool for small allocations.
NOT_THE_ENGINES = CONTEXT + 32 * MIB


class ElasticTrainerTest(FakeGpuTest):
    @staticmethod
    def environment():
        environment = dict(os.environ) | {
            "RAVENSTORE_LIB": str(PROGRAMS.library),
            "RAVENSTORE_ELASTIC_PART": str(4 * MIB),
        }
        # What fails leaves its memory charged.
        del environment["RAVENSTORE_FAKE_CUDA_SHARED"]
        return environment

    def start(self, *words, budget=None, flags=(), host="1GiB", away=""):
        limit = [] if budget is None else ["--budget", f"{int(budget)}B"]
        return subprocess.Popen(
            [RAVENRUN, "--mode", "elastic", *limit, "--host", host, "--report", *flags, TRAINER,
             *words],
            env=self.environment() | {"RAVENSTORE_ELASTIC_AWAY": away},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def train(self, *words, **options):
        process = self.start(*words, **options)
        output, said = process.communicate(timeout=PATIENCE)
        outcome = json.loads(output)
        self.assertEqual(process.returncode, 0, (outcome, said))
        for figure in ("wrong_words", "counted", "wrong_samples", "torn", "code"):
            self.assertEqual(outcome[figure], 0, outcome)
        self.said = said
        found = FIGURES.search(said)
        self.assertIsNotNone(found, said)
        names = ("peak", "moved_in", "moved_out", "dropped", "enough")
        figures = (float(figure) * GIB for figure in found.groups())
        return dict(zip(names, figures, strict=True))

    def test_what_fits_does_not_move(self):
        figures = self.train(*STEPS)
        self.assertEqual((figures["moved_in"], figures["moved_out"]), (0, 0))

    def test_each_kind_of_launch_is_right_with_less_memory_than_it_needs(self):
        peak = self.train(*STEPS)["peak"]
        shares = ((0.8, ""), (0.5, ""), (0.5, "mapped"))
        for (share, away), streams, switch in itertools.product(shares, "12", (None, *SWITCHES)):
            words = ["--streams", streams] + ([switch] if switch else [])
            with self.subTest(share=share, words=words, away=away):
                budget = NOT_THE_ENGINES + int(peak * share)
                figures = self.train(*STEPS, *words, budget=budget, away=away)
                self.assertGreater(figures["dropped"] + figures["moved_out"], 0)

    def test_tables_that_a_kernel_made_name_what_may_have_left(self):
        peak = self.train(*STEPS)["peak"]
        for away, streams in itertools.product(("", "mapped"), "12"):
            with self.subTest(away=away, streams=streams):
                words = ["--made", "--streams", streams]
                budget = NOT_THE_ENGINES + int(peak * 0.5)
                figures = self.train(*STEPS, *words, budget=budget, away=away)
                self.assertGreater(figures["dropped"] + figures["moved_out"], 0)

    def test_a_job_that_is_to_keep_still_is_right_and_moves_nothing(self):
        peak = self.train(*STEPS)["peak"]
        os.environ["RAVENSTORE_ELASTIC_STILL"] = "1"
        figures = self.train(*STEPS, budget=NOT_THE_ENGINES + int(peak * 0.5))
        self.assertEqual((figures["moved_in"], figures["moved_out"]), (0, 0))
        self.assertRegex(self.said, r"in place [0-9.]*[1-9]")

    def bound(self, file, *words):
        """What ravensim says of the recording."""
        done = subprocess.run(
            [RAVENSIM, "bound", "--json", *words, file],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_recording_is_replayed_and_bounded(self):
        for streams, switch in (("1", None), ("2", "--packed"), ("1", "--opaque")):
            with self.subTest(streams=streams, switch=switch):
                file = f"{self.folder.name}/{streams}.trace"
                words = ["--streams", streams] + ([switch] if switch else [])
                peak = self.train(*STEPS, *words, flags=("--record", file))["peak"]
                calls, path, unknown = RECORDED.search(self.said).groups()
                self.assertEqual(path, file)
                self.assertGreater(int(calls), 100)
                whole = self.bound(file, "--budget", "100%")
                # As asked for: the engine rounds to 2 MiB.
                self.assertLessEqual(whole["footprint_bytes"], peak + GIB / 1000)
                self.assertGreater(whole["footprint_bytes"], peak * 0.6)
                self.assertGreater(whole["compute_s"], 0)
                narrow = self.bound(file, "--budget", "40%", "--up", "0.1", "--down", "0.1")
                self.assertGreater(narrow["bound_s"], whole["bound_s"])
                names = [call["name"] for call in whole["unknown_calls"]]
                self.assertEqual(names, ["opaque"] if switch == "--opaque" else [])
                counts = sum(call["calls"] for call in whole["unknown_calls"])
                self.assertEqual(counts, int(unknown or 0))
                replayed = subprocess.run(
                    [RAVENSIM, "run", "--json", "--budget", "100%", file],
                    capture_output=True, text=True, timeout=PATIENCE, check=False,
                )  # fmt: skip
                self.assertEqual(replayed.returncode, 0, replayed.stdout + replayed.stderr)

    def test_each_process_of_a_job_records_for_itself(self):
        file = f"{self.folder.name}/job.trace"
        script = f"{TRAINER} --steps 2; {TRAINER} --steps 2 & {TRAINER} --steps 2; wait"
        done = subprocess.run(
            [RAVENRUN, "--mode", "elastic", "--record", file, "sh", "-c", script],
            env=self.environment(), capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
        paths = [path for _, path, _ in RECORDED.findall(done.stderr)]
        self.assertEqual(len(set(paths)), 3, done.stderr)
        self.assertEqual(paths[0], file)
        for path in paths:
            self.assertRegex(path, re.escape(file) + r"(\.\d+)?$")
            self.assertGreater(self.bound(path)["footprint_bytes"], 0)
        named = f"{self.folder.name}/%p.trace"
        subprocess.run(
            [RAVENRUN, "--mode", "elastic", "--record", named, TRAINER, "--steps", "2"],
            env=self.environment(), capture_output=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
        made = [name for name in os.listdir(self.folder.name) if re.match(r"\d+\.trace$", name)]
        self.assertEqual(len(made), 1)

    def test_a_job_that_is_killed_leaves_a_recording_that_can_be_read(self):
        file = f"{self.folder.name}/job.trace"
        job = self.start(*STEPS[:-1], "100000", flags=("--record", file))
        self.assertTrue(eventually(lambda: os.path.exists(file) and os.path.getsize(file) > 20000))
        job.send_signal(signal.SIGKILL)
        job.communicate(timeout=PATIENCE)
        bound = self.bound(file)
        self.assertGreater(bound["footprint_bytes"], 0)
        self.assertGreater(bound["compute_s"], 0)

    def test_a_recording_that_cannot_be_written_is_said_first_and_the_job_runs(self):
        for file, why in (
            ("/nowhere/job.trace", "No such file or directory"),
            ("/nowhere/%p.trace", "no folder /nowhere that can be written"),
            ("/dev/null", "no regular file"),
        ):
            self.train(*STEPS, flags=("--record", file))
            first = self.said.splitlines()[0]
            self.assertEqual(
                first, f"ravenrun: nothing is recorded: {file}: {why}. The job runs without"
            )
            self.assertNotIn("calls recorded", self.said)

    def test_with_the_budget_that_the_report_names_nothing_stalls(self):
        peak = self.train(*STEPS)["peak"]
        budget = NOT_THE_ENGINES + int(peak * 0.5)
        for _ in range(5):
            # With more of it the job runs further ahead, and may want more at the same time.
            enough = int(self.train(*STEPS, budget=budget)["enough"])
            if "did not stall" in self.said:
                break
            self.assertGreaterEqual(enough, peak)
            self.assertLess(enough, peak * 2 + NOT_THE_ENGINES)
            budget = enough
        self.assertIn("it did not stall", self.said)

    def test_memory_that_it_maps_by_itself_is_right_with_half_of_what_it_needs(self):
        peak = self.train(*STEPS, "--segments")["peak"]
        for share, *words in ((0.5,), (0.8,), (0.5, "--graph"), (0.5, "--packed", "--opaque")):
            with self.subTest(share=share, words=words):
                budget = CONTEXT + int(peak * share)
                figures = self.train(*STEPS, "--segments", *words, budget=budget)
                self.assertGreater(figures["peak"], budget - CONTEXT)
        # Without the host's memory it does not fit.
        job = self.start(*STEPS, "--segments", budget=CONTEXT + peak // 2, host="1MiB")
        output, _ = job.communicate(timeout=PATIENCE)
        outcome = json.loads(output)
        self.assertEqual((job.returncode, outcome["call"]), (1, "cuMemCreate"))

    def pause_and_resume(self, steps, *flags):
        """A job that gives its memory up while it is paused, and ends well."""
        with Daemon(PROGRAMS, SMALL) as daemon:
            words = (*STEPS[:-1], str(steps), *flags)
            job = self.start(*words, flags=("--socket", daemon.socket))
            number = str(eventually(lambda: self.number_of_job(daemon)))
            self.assertTrue(eventually(lambda: self.parts_of_job(daemon) > 0))
            self.assertEqual(daemon.ctl("sleep", "--job", number).returncode, 0)
            self.assertTrue(eventually(lambda: self.parts_of_job(daemon) == 0))
            self.assertEqual(daemon.ctl("wake", "--job", number).returncode, 0)
            self.assertTrue(eventually(lambda: self.parts_of_job(daemon) > 0))
            output, said = job.communicate(timeout=PATIENCE)
        outcome = json.loads(output)
        self.assertEqual((job.returncode, outcome["wrong_words"], outcome["torn"]), (0, 0, 0), said)

    def test_memory_that_it_maps_by_itself_is_given_up_and_comes_back(self):
        self.pause_and_resume(60, "--sleep", "20", "--segments")

    def test_a_job_whose_daemon_lowers_its_budget_goes_on(self):
        steps = (*STEPS[:-1], "60")
        with Daemon(PROGRAMS, SMALL) as daemon:
            job = self.start(*steps, flags=("--socket", daemon.socket))
            number = str(eventually(lambda: self.number_of_job(daemon)))
            lowered = daemon.ctl("limits", "--client", number, "--visible-memory", "120MiB")
            self.assertEqual(lowered.returncode, 0, lowered.stderr)
            output, said = job.communicate(timeout=PATIENCE)
        outcome = json.loads(output)
        self.assertEqual((job.returncode, outcome["wrong_words"], outcome["torn"]), (0, 0, 0), said)

    def test_a_job_that_is_paused_gives_its_memory_up_and_goes_on(self):
        self.pause_and_resume(400)

    def test_two_jobs_share_what_their_user_may_hold(self):
        peak = int(self.train(*STEPS)["peak"])
        together = 2 * NOT_THE_ENGINES + int(1.2 * peak)
        flags = [*SMALL, "--visible-memory", f"{together >> 20}MiB"]
        with Daemon(PROGRAMS, flags) as daemon:
            socket = ("--socket", daemon.socket)
            steps = STEPS[:-1]
            one = self.start(*steps, "100000", flags=socket)
            self.assertTrue(eventually(lambda: self.parts_of_job(daemon) > 0.9 * peak))
            other = self.start(*steps, "100000", flags=socket)
            # Neither has all that it needs, and both go on.
            self.assertTrue(eventually(lambda: len(self.jobs(daemon)) == 2))
            numbers = [str(job["client"]) for job in self.jobs(daemon)]

            def moved():
                elastic = [self.explained(daemon, number)["elastic"] for number in numbers]
                return all(each and each[0]["moved_in_bytes"] > peak for each in elastic)

            self.assertTrue(eventually(moved))
            held = [sum(device["kinds"]["vmm"] for device in job["devices"]) for job in
                    self.jobs(daemon)]  # fmt: skip
            self.assertLessEqual(sum(held), together)
            one.kill()
            one.communicate(timeout=PATIENCE)
            # All is the other's.
            self.assertTrue(eventually(lambda: self.parts_of_job(daemon) > 0.9 * peak))
            other.kill()
            other.communicate(timeout=PATIENCE)

    def explained(self, daemon, number):
        answer = daemon.ctl("explain", "--job", number)
        return json.loads(answer.stdout) if answer.returncode == 0 else None

    def test_a_job_that_runs_is_explained(self):
        peak = self.train(*STEPS)["peak"]
        budget = NOT_THE_ENGINES + int(peak * 0.5)
        with Daemon(PROGRAMS, SMALL) as daemon:
            words = ("--streams", "2", "--opaque")
            job = self.start(
                *STEPS[:-1], "100000", *words, budget=budget, flags=("--socket", daemon.socket)
            )
            number = str(eventually(lambda: self.number_of_job(daemon)))

            def shows():
                said = self.explained(daemon, number)
                devices = said["elastic"] if said else []
                calls = [call["name"] for call in devices[0]["calls"]] if devices else []
                return said if "opaque" in calls and devices[0]["uses"] else None

            said = eventually(shows)
            self.assertIsNotNone(said)
            (device,) = said["elastic"]
            self.assertEqual(device["uuid"], said["job"]["devices"][0]["uuid"])
            self.assertLess(device["age_ns"], 60e9)
            self.assertLessEqual(device["limit_bytes"], budget)
            places = sum(device["on_device_bytes"].values()) + sum(device["on_host_bytes"].values())
            shown = sum(each["bytes"] for each in device["ranges"])
            self.assertEqual(len(device["ranges"]), device["ranges_live"])
            self.assertEqual(places, shown)
            self.assertTrue(any("opaque" in words for words in said["advice"]), said["advice"])
            job.kill()
            job.communicate(timeout=PATIENCE)
            self.assertTrue(eventually(lambda: self.explained(daemon, number) is None))

    def test_a_daemon_that_comes_later_explains_a_job_as_well(self):
        with Daemon(PROGRAMS, SMALL) as daemon:
            job = self.start(*STEPS[:-1], "100000", flags=("--socket", daemon.socket))
            eventually(lambda: self.number_of_job(daemon))
            daemon.kill()
            daemon.start()
            number = str(eventually(lambda: self.number_of_job(daemon)))
            said = eventually(lambda: (self.explained(daemon, number) or {}).get("elastic"))
            self.assertEqual(len(said), 1)
            job.kill()
            job.communicate(timeout=PATIENCE)

    def test_a_job_that_is_killed_leaves_nothing(self):
        job = self.start(*STEPS[:-1], "1000")
        self.assertTrue(eventually(lambda: b"raven" in self.threads_of(job.pid)))
        job.send_signal(signal.SIGKILL)
        job.communicate(timeout=PATIENCE)
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
