#!/usr/bin/python3
"""One user does what it likes; the others, and root's ravenctl, are served all the same.

How fast they are served is measured by bench/report --only hostile: here nothing is compared with
a clock that a busy machine could not keep.
"""

import dataclasses
import fcntl
import os
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(os.environ.get("RAVENSTORE_BIN", os.getcwd()))
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(ROOT / "tests/tidy")]

import hostile  # noqa: E402
import xml_main  # noqa: E402

SECONDS = 1.5
READY_SECONDS = 3  # then it is under way, if not complete
EXIT_PATIENCE = 2
# Others are at work on the machine: what takes longer than this is not served.
OPERATIONS_LEAST = 5
PATIENCE = 8
SOAKS = 2
SOAK_SECONDS = 20
SOAK_CLIENTS = 20
RESIDUE_MAX = 2 << 20
PENDING_RESIDUE_MAX = 8 << 20
CLIENTS_MAX = 512
# Of the 20,000 or so that it may have: what several users' connections and clients take.
DESCRIPTORS_MOST = 6000
GUARANTEE = hostile.SIZES.replace("[limits]", '[limits]\ndevice_guarantee = "32MiB"')


class HostileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        why = hostile.missing()
        if why:
            raise unittest.SkipTest(why)
        cls.stage = hostile.Stage(ROOT)
        cls.addClassCleanup(cls.stage.__exit__)

    def has_no_more_than(self, daemon, threads):
        """Those that close what users sent come with the load, and go after it."""
        few = hostile.eventually(lambda: daemon.threads() <= threads)
        self.assertTrue(few, f"{threads} before; now {daemon.thread_names()}")

    def ends(self, daemon):
        took = daemon.end()
        self.assertIsNotNone(took, "the daemon does not end")
        self.assertLess(took, EXIT_PATIENCE)
        self.assertEqual(daemon.process.returncode, 0, daemon.log()[-2000:])

    def serves(
        self, daemon, user=hostile.HONEST_USER, seconds=SECONDS, least=OPERATIONS_LEAST, flags=()
    ):
        flags = ["--least", str(least), "--patience", str(PATIENCE), *flags]
        result = hostile.Honest(daemon, seconds, user, flags=flags).result()
        self.assertEqual(result["failures"], 0, result)
        self.assertGreaterEqual(result["operations"], least, result)

    def is_present(self, daemon):
        keeper = hostile.present(daemon)
        self.addCleanup(keeper.process.communicate)
        self.addCleanup(keeper.process.kill)
        return keeper.process

    def survives(self, attack):
        """While it lasts others are served; behind it nothing is left."""
        attack = dataclasses.replace(attack, ready=min(attack.ready, READY_SECONDS))
        why = hostile.impossible(self.stage, attack)
        if why:
            self.skipTest(why)
        with hostile.Daemon(self.stage) as daemon:
            self.serves(daemon, seconds=0.5, least=1)
            present = self.is_present(daemon) if attack.name in hostile.TAKES_MEMORY else None
            before = daemon.holds_alone(clients=0 if present is None else 1)
            flags = ["--pinned"] if attack.name in hostile.TAKES_PINNED else []
            with hostile.Attackers(daemon, attack, 60):
                self.serves(daemon, flags=flags)
                self.assertIsNotNone(daemon.status(), "root's ravenctl is not served")
                self.assertLess(daemon.descriptors(), DESCRIPTORS_MOST)
            self.assertTrue(daemon.alive(), daemon.log()[-2000:])
            left = daemon.residue(before)
            self.assertEqual(left, hostile.NOTHING, "threads, descriptors or memory are left")
            if present is not None:
                present.kill()
                present.wait()
            self.serves(daemon, seconds=0.5, least=1)
            self.ends(daemon)

    def test_a_daemon_whose_log_is_not_read_serves_and_ends(self):
        unread, log = os.pipe()
        self.addCleanup(os.close, unread)
        fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, 4096)
        with hostile.Daemon(self.stage, log=log) as daemon:
            os.close(log)
            with hostile.Attackers(daemon, hostile.ATTACKS["attaches"], 2) as attackers:
                attached = sum(each["did"] for each in attackers.results())
            self.assertGreater(attached, 50)  # the pipe holds the words of some 25
            self.serves(daemon)
            self.ends(daemon)

    def test_a_lock_on_the_folder_does_not_prevent_a_start(self):
        daemon = hostile.Daemon(self.stage)
        with hostile.Attackers(daemon, hostile.Attack("hold_folder"), 60), daemon:
            self.serves(daemon)
            self.ends(daemon)

    def test_a_page_that_claims_all_memory_takes_nothing_that_is_guaranteed(self):
        with hostile.Daemon(self.stage, sizes=GUARANTEE) as daemon:
            keeper = hostile.Honest(daemon, 4, hostile.OTHER_USER, flags=["--keep"])
            self.assertEqual(keeper.process.stdout.readline(), "ready\n")
            with hostile.Attackers(daemon, hostile.ATTACKS["yield_again"], 60):
                kept = keeper.result()
            self.assertEqual(kept["there"], kept["put"])

    def test_one_user_has_most_of_the_clients_and_eight_others_their_part(self):
        with hostile.Daemon(self.stage) as daemon:
            greedy = hostile.Attack("hold_clients")
            with hostile.Attackers(daemon, greedy, 60) as first:
                self.assertEqual(len(daemon.clients()), CLIENTS_MAX * 7 // 8, first.attack)
                others = hostile.Attack(
                    "hold_clients", processes=8, users=8, user=hostile.ATTACKER + 1
                )
                with hostile.Attackers(daemon, others, 60):
                    held = {}
                    for client in daemon.clients():
                        held[client["uid"]] = held.get(client["uid"], 0) + 1
            expected = {hostile.ATTACKER + 1 + i: CLIENTS_MAX // 64 for i in range(8)}
            self.assertEqual(held, expected | {hostile.ATTACKER: CLIENTS_MAX * 7 // 8})

    def test_while_one_user_records_another_does_and_so_does_root(self):
        attack = hostile.ATTACKS["hold_recording"]
        with hostile.Daemon(self.stage) as daemon, hostile.Attackers(daemon, attack, 60):
            for user in (hostile.OTHER_USER, 0):
                folder = pathlib.Path(tempfile.mkdtemp(dir=self.stage.folder))
                os.chown(folder, user, user)
                words = ["record", str(folder / "trace"), "--seconds", "0.2"]
                answer = daemon.ctl(*words, user=user)
                self.assertEqual(answer.returncode, 0, answer.stderr)

    def test_at_the_limit_of_threads_no_client_waits_for_a_close(self):
        with hostile.Daemon(self.stage) as daemon:
            self.serves(daemon, seconds=0.5, least=1)
            usual = daemon.threads()
        attack = hostile.ATTACKS["linger_by_users"]
        with hostile.Daemon(self.stage, bounds=[f"--nproc={usual + 1}"]) as daemon:
            self.serves(daemon, seconds=0.5, least=1)  # its threads are there
            with hostile.Attackers(daemon, attack, 60):
                self.serves(daemon)
            self.ends(daemon)

    def test_at_the_limit_of_threads_the_first_copies_are_served(self):
        with hostile.Daemon(self.stage) as daemon:
            usual = daemon.idle_threads()
        with hostile.Daemon(self.stage, bounds=[f"--nproc={usual}"]) as daemon:
            self.serves(daemon, seconds=0.5, least=1)
            self.ends(daemon)

    def test_the_memory_that_pending_creates_took_comes_back(self):
        attack = dataclasses.replace(hostile.ATTACKS["pending_creates"], count=30000)
        with hostile.Daemon(self.stage) as daemon:
            self.serves(daemon, seconds=0.5, least=1)
            present = self.is_present(daemon)
            before = daemon.anonymous()
            with hostile.Attackers(daemon, attack, 60):
                self.serves(daemon)
            present.kill()
            left = hostile.trimmed(daemon, before + PENDING_RESIDUE_MAX)
            self.assertLessEqual(left - before, PENDING_RESIDUE_MAX)
            self.ends(daemon)

    def test_nothing_piles_up_from_soak_to_soak(self):
        with hostile.Daemon(self.stage) as daemon:
            threads = daemon.idle_threads()
            left = []
            for _ in range(SOAKS):
                hostile.soak(daemon, SOAK_CLIENTS, SOAK_SECONDS)
                left.append(hostile.trimmed(daemon, left[-1] + RESIDUE_MAX if left else 0))
            self.assertLessEqual(left[1] - left[0], RESIDUE_MAX, left)
            self.has_no_more_than(daemon, threads)
            self.ends(daemon)

    def test_a_load_leaves_no_thread(self):
        with hostile.Daemon(self.stage) as daemon:
            threads = daemon.idle_threads()
            hostile.soak(daemon, 8, 1)
            self.has_no_more_than(daemon, threads)


def _survival(attack):
    return lambda self: self.survives(attack)


for _name, _attack in hostile.ATTACKS.items():
    setattr(HostileTest, f"test_others_are_served_under_{_name}", _survival(_attack))


if __name__ == "__main__":
    xml_main.main()
