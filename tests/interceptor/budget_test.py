#!/usr/bin/python3
"""Budgets: the job sees a device of that size, everywhere, and gets the ordinary error past it."""

import contextlib
import os
import subprocess

from fakes import CONTEXT, HERE, JOBS, MIB, PROGRAMS, SMALL, FakeGpuTest, job, main
from harness import PATIENCE, Daemon, Job, eventually, guest

OUT_OF_MEMORY = 2


class BudgetTest(FakeGpuTest):
    def test_it_is_in_force_before_the_first_allocation_and_the_job_recovers(self):
        with Daemon(PROGRAMS, [*SMALL, "--visible-memory", "256MiB"]) as daemon:
            for name in JOBS:
                with (
                    self.subTest(name=name),
                    Job([job(name)], guest(PROGRAMS, daemon.socket)) as one,
                ):
                    info = one.ask("info")
                    self.assertEqual((info["total"], info["size"]), (256 * MIB, 256 * MIB))
                    self.assertEqual(info["free"], 256 * MIB - CONTEXT)
                    self.assertEqual(one.ask(f"device {200 * MIB}")["code"], 0)
                    self.assertEqual(one.ask(f"device {50 * MIB}")["code"], OUT_OF_MEMORY)
                    self.assertEqual(one.ask("info")["free"], 56 * MIB - CONTEXT)
                    one.ask("drop")
                    self.assertEqual(one.ask(f"device {50 * MIB}")["code"], 0)

    def test_an_administrator_changes_it_while_jobs_run(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([job("shared")], guest(PROGRAMS, daemon.socket)) as one,
            Job([job("driver")], guest(PROGRAMS, daemon.socket)) as other,
        ):
            self.assertEqual(one.ask("info")["total"], 1024 * MIB)
            daemon.limit("--user", str(os.getuid()), "--visible-memory", "100MiB")
            self.assertEqual(one.ask("info")["total"], 100 * MIB)
            self.assertEqual(one.ask(f"device {120 * MIB}")["code"], OUT_OF_MEMORY)
            number = next(j["client"] for j in daemon.jobs() if j["pid"] == other.pid)
            answer = daemon.limit("--client", str(number), "--visible-memory", "300MiB")
            self.assertEqual(answer["visible_memory_bytes"], 300 * MIB)
            self.assertEqual(other.ask("info")["total"], 300 * MIB)
            self.assertEqual(one.ask("info")["total"], 100 * MIB)
            # What it was granted beyond its tenant's it may use; nothing is left for the others.
            self.assertEqual(other.ask(f"device {120 * MIB}")["code"], 0)
            self.assertEqual(one.ask("info")["free"], 0)
            self.assertEqual(one.ask(f"device {MIB}")["code"], OUT_OF_MEMORY)

    def test_the_jobs_of_a_tenant_have_it_together(self):
        with (
            Daemon(PROGRAMS, [*SMALL, "--visible-memory", "512MiB"]) as daemon,
            Job([job("shared")], guest(PROGRAMS, daemon.socket)) as one,
            Job([job("proc_2")], guest(PROGRAMS, daemon.socket)) as other,
        ):
            self.assertEqual(one.ask(f"device {300 * MIB}")["code"], 0)
            left = (512 - 300) * MIB - 2 * CONTEXT
            seen = {"free": left, "total": 512 * MIB, "size": 512 * MIB}
            self.assertEqual(other.ask("info"), seen)
            self.assertEqual(other.ask(f"device {left + 1}")["code"], OUT_OF_MEMORY)
            self.assertEqual(other.ask(f"device {left}")["code"], 0)
            self.assertEqual(one.ask(f"device {MIB}")["code"], OUT_OF_MEMORY)
            other.ask("drop")
            self.assertEqual(one.ask(f"device {left}")["code"], 0)
            # What a killed job held is there again for the others.
            one.kill()
            self.assertTrue(eventually(lambda: other.ask("info")["free"] == 512 * MIB - CONTEXT))
            self.assertEqual(other.ask(f"device {512 * MIB - CONTEXT}")["code"], 0)

    def test_jobs_that_allocate_at_the_same_moment_get_all_of_it_and_no_more(self):
        with contextlib.ExitStack() as stack:
            daemon = stack.enter_context(Daemon(PROGRAMS, [*SMALL, "--visible-memory", "600MiB"]))
            jobs = [
                stack.enter_context(Job([job(name)], guest(PROGRAMS, daemon.socket)))
                for name in ("driver", "dlsym", "shared", "static")
            ]
            piece = MIB // 8
            for one in jobs:
                one.send(f"grab {piece}")
            got = sum(one.read()["count"] for one in jobs)
            self.assertEqual(got, (600 * MIB - 4 * CONTEXT) // piece)
            self.assertEqual(jobs[0].ask("info")["free"], 0)

    def test_what_jobs_held_before_a_daemon_started_counts_and_outlives_it(self):
        with contextlib.ExitStack() as stack:
            daemon = stack.enter_context(Daemon(PROGRAMS, [*SMALL, "--visible-memory", "512MiB"]))
            daemon.kill()
            one = stack.enter_context(Job([job("shared")], guest(PROGRAMS, daemon.socket)))
            other = stack.enter_context(Job([job("driver")], guest(PROGRAMS, daemon.socket)))
            one.ask(f"device {200 * MIB}")
            left = 512 * MIB - 2 * CONTEXT - 200 * MIB
            for _ in range(3):
                daemon.start()
                self.assertTrue(eventually(lambda: other.ask("info")["free"] == left))
                # Between two daemons the last one's word holds.
                daemon.kill()
                self.assertEqual(other.ask(f"device {left + 1}")["code"], OUT_OF_MEMORY)
                self.assertEqual(other.ask("info")["free"], left)

    def test_what_a_job_held_before_exec_counts_no_more(self):
        with (
            Daemon(PROGRAMS, [*SMALL, "--visible-memory", "512MiB"]) as daemon,
            Job([job("dlsym")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            one.ask(f"device {200 * MIB}")
            self.assertEqual(one.ask("exec"), {"ready": one.pid})
            self.assertTrue(eventually(lambda: one.ask("info")["free"] == 512 * MIB - CONTEXT))

    def test_a_job_that_closed_its_descriptors_still_counts_for_its_tenant(self):
        with (
            Daemon(PROGRAMS, [*SMALL, "--visible-memory", "512MiB"]) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
            Job([job("driver")], guest(PROGRAMS, daemon.socket)) as other,
        ):
            one.ask(f"device {100 * MIB}")
            one.ask("close")
            self.assertTrue(eventually(lambda: daemon.held(one.pid) is None))
            one.ask(f"device {100 * MIB}")
            self.assertEqual(other.ask("info")["free"], 312 * MIB - 2 * CONTEXT)
            one.kill()
            self.assertTrue(eventually(lambda: other.ask("info")["free"] == 512 * MIB - CONTEXT))

    def test_what_a_pool_keeps_counts_and_yet_refuses_no_process_of_the_same_job(self):
        with (
            Daemon(PROGRAMS, [*SMALL, "--visible-memory", "512MiB"]) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
            Job([job("driver")], guest(PROGRAMS, daemon.socket)) as other,
        ):
            left = 512 * MIB - 2 * CONTEXT
            one.ask("pool keep")
            for _ in range(3):
                # The second time it is there already.
                self.assertEqual(one.ask(f"pool take {300 * MIB}")["code"], 0)
                self.assertEqual(other.ask("info")["free"], left - 320 * MIB)
                self.assertEqual(one.ask(f"pool take {120 * MIB}")["code"], OUT_OF_MEMORY)
                self.assertEqual(other.ask("info")["free"], left - 320 * MIB)
                one.ask("pool give")
                self.assertEqual(other.ask("info")["free"], left - 320 * MIB)
            self.assertEqual(other.ask(f"device {100 * MIB}")["code"], OUT_OF_MEMORY)
            # What is only kept for later is given back before the job itself is refused.
            self.assertEqual(one.ask(f"device {200 * MIB}")["code"], 0)
            held = daemon.held(one.pid)
            self.assertEqual((held["device"], held["async"]), (200 * MIB, 0))
            self.assertEqual(held["pool"], 192 * MIB)
            self.assertEqual(one.ask(f"device {left - 200 * MIB}")["code"], 0)
            self.assertEqual(daemon.held(one.pid)["pool"], 0)
            self.assertEqual(other.ask("info")["free"], 0)

    def test_an_old_figure_of_a_pool_refuses_no_process(self):
        with (
            Daemon(PROGRAMS, [*SMALL, "--visible-memory", "256MiB"]) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            one.ask(f"pool take {150 * MIB}")
            one.ask("pool give")
            one.ask("pool shrink quietly")
            self.assertEqual(daemon.held(one.pid)["pool"], 160 * MIB)
            self.assertEqual(one.ask(f"device {200 * MIB}")["code"], 0)
            self.assertEqual(daemon.held(one.pid)["pool"], 0)
            self.assertEqual(one.ask(f"device {MIB * 9}")["code"], OUT_OF_MEMORY)

    def test_nvml_agrees(self):
        with (
            Daemon(PROGRAMS, [*SMALL, "--visible-memory", "256MiB"]) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            one.ask(f"device {100 * MIB}")
            for version in ("nvml 1", "nvml 2"):
                seen = one.ask(version)
                self.assertEqual(seen["total"], 256 * MIB)
                self.assertEqual(seen["free"], 156 * MIB - CONTEXT)
                self.assertEqual(seen["used"], 100 * MIB + CONTEXT)

    def test_a_job_may_ask_for_less_than_its_tenant_has(self):
        with Daemon(PROGRAMS, [*SMALL, "--visible-memory", "256MiB"]) as daemon:
            for asked, seen in ((100 * MIB, 100 * MIB), (500 * MIB, 256 * MIB)):
                environment = guest(PROGRAMS, daemon.socket, RAVENSTORE_BUDGET=asked)
                with Job([job("dlsym")], environment) as one:
                    self.assertEqual(one.ask("info")["total"], seen)

    def test_it_may_ask_in_any_unit(self):
        for asked, seen in (
            ("100MiB", 100 * MIB), ("0.25 GiB", 256 * MIB), ("512m", 512 * MIB),
            ("3072K", 3 * MIB), ("300MB", 300_000_000),
            ("104857600B", 100 * MIB), ("", 1024 * MIB), ("0", 1024 * MIB),
        ):  # fmt: skip
            with Job([job("driver")], guest(PROGRAMS, "/nowhere", RAVENSTORE_BUDGET=asked)) as one:
                self.assertEqual(one.ask("info")["total"], seen, asked)

    def test_what_is_no_size_is_said_to_be_none(self):
        for asked in ("much", "-1", "GiB", "1,5GiB", "1KK", "20 GiBs", "99999999TiB"):
            done = subprocess.run(
                [job("driver")],
                input="info\nquit\n",
                env=guest(PROGRAMS, "/nowhere", RAVENSTORE_BUDGET=asked),
                capture_output=True, text=True, timeout=PATIENCE, check=True,
            )  # fmt: skip
            self.assertEqual(done.stderr.count(f"RAVENSTORE_BUDGET={asked} is no size"), 1)
            self.assertIn(f'"total": {1024 * MIB}', done.stdout)


if __name__ == "__main__":
    main()
