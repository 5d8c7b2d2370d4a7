#!/usr/bin/python3
"""Budgets: the job sees a device of that size, everywhere, and gets the ordinary error past it."""

import os

from fakes import CONTEXT, HERE, JOBS, MIB, PROGRAMS, SMALL, FakeGpuTest, job, main
from harness import Daemon, Job, guest

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


if __name__ == "__main__":
    main()
