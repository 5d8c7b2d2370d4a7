#!/usr/bin/python3
"""Sixteen threads, a million calls, a daemon that dies: no crash, no leak, an exact ledger."""

import json
import os

from fakes import PROGRAMS, SMALL, FakeGpuTest, job, main
from harness import Daemon, Job, eventually, guest, wrong

CALLS = 1_000_000


class RobustnessTest(FakeGpuTest):
    memory = 1 << 34

    def test_a_million_calls_while_the_daemon_is_killed_and_restarted(self):
        with (
            Daemon(PROGRAMS, [*SMALL, "--visible-memory", "8GiB"]) as daemon,
            Job([job("driver")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            files = len(os.listdir(f"/proc/{one.pid}/fd"))
            before = one.ask("info")["free"]
            one.send(f"storm {CALLS}")
            deaths = 0
            while not one.has_answered():
                self.assertTrue(eventually(lambda: daemon.held(one.pid) or one.has_answered()))
                daemon.kill()
                deaths += not one.has_answered()
                daemon.start()
            print(f"{CALLS} calls, {deaths} deaths of the daemon meanwhile")
            self.assertGreater(deaths, 1)
            kept = one.read()["kept"]
            self.assertGreater(kept, 0)

            def plain():
                held = daemon.held(one.pid)
                return held and held["device"] + held["async"]

            def pool():
                return daemon.held(one.pid)["pool"]

            self.assertTrue(eventually(lambda: plain() == kept), (plain(), kept))
            used = daemon.jobs()[0]["devices"][0]["used_bytes"]
            self.assertEqual(used - kept, daemon.held(one.pid)["context"] + pool())
            # Of the tenant's sum as well nothing was lost.
            self.assertTrue(eventually(lambda: before - one.ask("info")["free"] == kept + pool()))
            one.ask("calm")
            self.assertEqual((plain(), pool()), (0, 0))
            self.assertEqual(one.ask("info")["free"], before)
            self.assertEqual(len(os.listdir(f"/proc/{one.pid}/fd")), files)

    def test_the_next_daemon_knows_everything_immediately(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([job("shared")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            held = one.ask("all")
            daemon.kill()
            self.assertEqual(one.ask("device 12345")["code"], 0)
            held["device"] += 12345
            daemon.start()
            self.assertTrue(eventually(lambda: daemon.held(one.pid)))
            self.assertEqual(wrong(held, daemon.held(one.pid)), {}, json.dumps(daemon.jobs()))

    def test_a_job_older_than_the_daemon_is_taken_in(self):
        with Daemon(PROGRAMS, SMALL) as daemon:
            daemon.kill()
            with Job([job("shared")], guest(PROGRAMS, daemon.socket)) as one:
                held = one.ask("all")
                daemon.start()
                self.assertTrue(eventually(lambda: daemon.held(one.pid)))
                self.assertEqual(wrong(held, daemon.held(one.pid)), {})


if __name__ == "__main__":
    main()
