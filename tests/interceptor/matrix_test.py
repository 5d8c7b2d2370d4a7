#!/usr/bin/python3
"""Every way to the driver: each allocation is in the ledger, byte for byte, gone with the job."""

import json
import subprocess

from fakes import CONTEXT, HERE, JOBS, MIB, PROGRAMS, SMALL, FakeGpuTest, job, main
from harness import Daemon, Job, eventually, guest, wrong


class MatrixTest(FakeGpuTest):
    # More than the daemon leaves to others.
    memory = 3 << 30

    def test_every_way_is_counted_byte_for_byte_and_gone_after_exit_and_kill(self):
        with Daemon(PROGRAMS, SMALL) as daemon:
            for name in JOBS:
                for end in ("quit", "kill"):
                    with (
                        self.subTest(name=name, end=end),
                        Job([job(name)], guest(PROGRAMS, daemon.socket)) as one,
                    ):
                        held = one.ask("all")
                        self.assertEqual(wrong(held, daemon.held(one.pid)), {})
                        self.assertEqual(daemon.held(one.pid)["context"], CONTEXT)
                        if end == "quit":
                            self.assertEqual(wrong(one.ask("free"), daemon.held(one.pid)), {})
                            self.assertEqual(one.quit(), 0)
                        else:
                            one.kill()
                        pid = one.pid
                        self.assertTrue(eventually(lambda pid=pid: daemon.held(pid) is None))

    def test_clients_shows_jobs_next_to_api_clients(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([job("shared")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            one.ask("all")
            shown = daemon.clients()
            self.assertEqual(shown["clients"], [])
            (legacy,) = shown["legacy_jobs"]
            self.assertEqual((legacy["name"], legacy["mode"]), ("job_shared", "account"))
            device = legacy["devices"][0]
            self.assertEqual(device["used_bytes"], sum(device["kinds"].values()))
            text = subprocess.run(
                [PROGRAMS.ctl, "--socket", daemon.socket, "clients"],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            self.assertIn("1 legacy job", text)

    def test_both_modes_show_the_same_figures(self):
        self.compare_modes(installed=True)

    def test_the_store_serves_from_a_checkout_too(self):
        self.compare_modes(installed=False)

    def compare_modes(self, installed):
        flags = ["--backend", "cuda", "--pool-size", "64MiB"]
        with Daemon(PROGRAMS, flags) as daemon:
            held = {}
            for mode in ("account", "store"):
                environment = guest(PROGRAMS, daemon.socket, RAVENSTORE_MODE=mode)
                if mode == "store" and installed:
                    for path in (environment["LD_PRELOAD"], PROGRAMS.store):
                        subprocess.run(["cp", "-f", path, self.folder.name], check=True)
                    environment["LD_PRELOAD"] = self.folder.name + "/libravenstore_intercept.so"
                with Job([job("driver")], environment) as one:
                    one.ask("all")
                    held[mode] = daemon.held(one.pid)
                    device = daemon.jobs()[0]["devices"][0]
                    served = device["served_bytes"]
                    peers = [c for c in daemon.clients()["clients"] if c["pid"] == one.pid]
                    self.assertEqual(served, 3 * MIB + 17 if mode == "store" else 0)
                    self.assertEqual([c["tensors"] for c in peers], [1] if mode == "store" else [])
                    one.ask("free")
                    self.assertEqual(daemon.jobs()[0]["devices"][0]["served_bytes"], 0)
                    one.kill()
                self.assertTrue(eventually(lambda: not daemon.clients()["clients"]))
            self.assertEqual(held["account"], held["store"])

    def test_physical_memory_counts_while_handle_or_mapping_holds_it(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            for command, vmm in (
                ("vmm create", 4), ("vmm map", 4), ("vmm release", 4), ("vmm create", 8),
                ("vmm unmap", 4), ("vmm release", 0),
            ):  # fmt: skip
                one.ask(command)
                self.assertEqual(daemon.held(one.pid)["vmm"], vmm * MIB, command)

    def test_a_mapping_counts_where_another_was_just_unmapped(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            for command, vmm in (
                ("create", 4), ("map", 4), ("release", 4), ("create", 8), ("remap", 4),
                ("release", 4), ("unmap", 0),
            ):  # fmt: skip
                self.assertEqual(one.ask("vmm " + command), {"code": 0}, command)
                self.assertEqual(daemon.held(one.pid)["vmm"], vmm * MIB, command)

    def test_what_the_driver_does_not_unmap_still_counts(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            for command, code, vmm in (
                ("create", 0, 4), ("map-many", 0, 4), ("release", 0, 4), ("unmap-all", 1, 4),
                ("refuse", 0, 4), ("unmap-many", 999, 4), ("unmap-many", 0, 0),
            ):  # fmt: skip
                self.assertEqual(one.ask("vmm " + command), {"code": code}, command)
                self.assertEqual(daemon.held(one.pid)["vmm"], vmm * MIB, command)

    def test_memory_goes_with_its_context(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            one.ask("device 1048576")
            self.assertEqual(daemon.held(one.pid)["device"], MIB)
            one.ask("reset")
            self.assertEqual(sum(daemon.held(one.pid).values()), 0)

    def test_levels_are_counted_as_the_driver_makes_them(self):
        faces = [64 * 64, 32 * 32, 16 * 16, 8 * 8, 4 * 4, 2 * 2, 1]
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            expected = 0
            for command, texels in (
                ("face 2", sum(faces[:2])), ("face 0", faces[0]),
                # As many as there are.
                (f"face {2**32 - 1}", sum(faces)), ("cube 2", 6 * sum(faces[:2])),
            ):  # fmt: skip
                self.assertEqual(one.ask("mipmap " + command), {"code": 0})
                expected += texels * 8
                self.assertEqual(daemon.held(one.pid)["mipmap"], expected, command)

    def test_the_stores_memory_goes_with_the_context_it_was_asked_for_in(self):
        flags = ["--backend", "cuda", "--pool-size", "64MiB"]
        with Daemon(PROGRAMS, flags) as daemon:
            environment = guest(PROGRAMS, daemon.socket, RAVENSTORE_MODE="store")
            with Job([str(HERE / "prober")], environment) as one:

                def tensors():
                    return [c["tensors"] for c in daemon.clients()["clients"]]

                self.assertEqual(one.ask("own take"), {"code": 0})
                self.assertEqual(tensors(), [1])
                self.assertEqual(one.ask("own end"), {"code": 0})
                self.assertTrue(eventually(lambda: tensors() == [0]))
                self.assertEqual(daemon.held(one.pid)["device"], 0)

    def test_a_contexts_address_may_come_again_for_another_device(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            self.assertEqual(one.ask("contexts"), {"code": 0})
            held = [device["kinds"].get("device", 0) for device in daemon.jobs()[0]["devices"]]
            self.assertEqual(held, [0, 2 * MIB])

    def test_graphs_memory_is_counted_when_the_driver_takes_it(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            one.ask("graph make")
            self.assertEqual(daemon.held(one.pid)["graph"], 0)
            one.ask("graph launch")
            self.assertEqual(daemon.held(one.pid)["graph"], 6 * MIB)
            one.ask("graph trim")
            self.assertEqual(daemon.held(one.pid)["graph"], 0)

    def test_an_allocation_in_a_capture_is_the_graphs(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            self.assertEqual(one.ask("capture"), {"begin": 0, "alloc": 0, "free": 0, "end": 0})
            self.assertEqual(daemon.held(one.pid)["async"], 0)

    def test_what_a_default_pool_holds_is_counted_to_the_byte(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            for command, asked, reserved in (
                ("keep", 0, 0), (f"take {10 * MIB + 1}", 10 * MIB + 1, 32),
                (f"from {30 * MIB}", 40 * MIB + 1, 64), ("give", 30 * MIB, 64),
                ("context", 30 * MIB, 64), (f"trim {48 * MIB}", 30 * MIB, 32),
                ("give", 0, 32), ("stream", 0, 32), ("trim 0", 0, 0),
            ):  # fmt: skip
                self.assertEqual(one.ask("pool " + command), {"code": 0})
                held = daemon.held(one.pid)
                shown = held["async"], held["async"] + held["pool"]
                self.assertEqual(shown, (asked, reserved * MIB), command)
                self.assertEqual(one.ask("reserved")["bytes"], reserved * MIB, command)
            used = daemon.jobs()[0]["devices"][0]["used_bytes"]
            self.assertEqual(used, CONTEXT)

    def test_what_a_pool_releases_when_a_job_waits_is_counted_no_more(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            for wait in ("stream", "event", "context"):
                one.ask(f"pool take {MIB}")
                one.ask("pool give")
                self.assertEqual(daemon.held(one.pid)["pool"], 32 * MIB)
                one.ask("pool " + wait)
                self.assertEqual(daemon.held(one.pid)["pool"], 0, wait)

    def test_a_pools_memory_counts_on_the_pools_device(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            for command, held in ((f"elsewhere {MIB}", [0, MIB]), ("give", [0, 0])):
                self.assertEqual(one.ask("pool " + command), {"code": 0})
                kinds = [device["kinds"] for device in daemon.jobs()[0]["devices"]]
                shown = [k.get("async", 0) for k in kinds]
                self.assertEqual(shown + [0] * (2 - len(shown)), held, command)

    def test_a_streams_memory_counts_on_the_streams_device(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            self.assertEqual(one.ask(f"pool beside {MIB}"), {"code": 0})
            kinds = [device["kinds"] for device in daemon.jobs()[0]["devices"]]
            held = [(k.get("async", 0), k.get("pool", 0)) for k in kinds]
            self.assertEqual(held, [(0, 0), (MIB, 31 * MIB)])
            one.ask("pool give")
            one.ask("pool context")
            kinds = [device["kinds"] for device in daemon.jobs()[0]["devices"]]
            self.assertEqual([k.get("async", 0) + k.get("pool", 0) for k in kinds], [0, 0])

    def test_what_a_default_pool_holds_outlives_contexts(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            one.ask(f"pool take {MIB}")
            one.ask("reset")
            held = daemon.held(one.pid)
            self.assertEqual((held["async"], held["pool"]), (MIB, 31 * MIB))
            one.ask("pool give")
            one.ask("pool trim 0")
            self.assertEqual(sum(daemon.held(one.pid).values()), 0)

    def test_the_programs_own_pools_count_as_asked_and_are_never_looked_at(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            for command in (f"take {MIB}", "own", f"take {2 * MIB}", "give", "destroy"):
                one.ask("pool " + command)
            held = daemon.held(one.pid)
            self.assertEqual((held["async"], held["pool"]), (2 * MIB, 32 * MIB))
            # The fake ends a program that asks about a pool that is gone.
            one.ask("pool context")
            self.assertEqual(daemon.held(one.pid)["pool"], 0)

    def test_look_ups_give_the_hooks_and_know_the_caller(self):
        with Job([str(HERE / "prober")], guest(PROGRAMS)) as one:
            answer = one.ask("lookups")
            self.assertEqual(json.dumps(answer), json.dumps(dict.fromkeys(answer, True)))


if __name__ == "__main__":
    main()
