#!/usr/bin/python3
"""The store holds all of a device, and a job that needs some of it never sees that."""

import ctypes
import json
import os
import pathlib

from fakes import MIB, PROGRAMS, FakeGpuTest, job, main
from harness import Daemon, Job, eventually, guest


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("device", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("timeout_ns", ctypes.c_uint64),
    ]


class Filler:
    """An API client of this process: tensors that it put, or keeps in use."""

    def __init__(self, socket):
        os.environ["RAVENSTORE_SOCKET"] = socket
        self.library = ctypes.CDLL(PROGRAMS.store)
        self.store = ctypes.c_void_p()
        assert self.library.ravenstore_connect(None, ctypes.byref(self.store)) == 0
        self.tensors = []

    def fill(self, count, put):
        for _ in range(count):
            options = Options(ctypes.sizeof(Options), 0, 1, None, 0)
            tensor = ctypes.c_void_p()
            make = self.library.ravenstore_create
            bytes_each = ctypes.c_uint64(32 * MIB)
            if make(self.store, bytes_each, ctypes.byref(options), ctypes.byref(tensor)) != 0:
                return
            if put:
                assert self.library.ravenstore_put(self.store, tensor, None, None) == 0
            self.tensors.append(tensor)

    def leave(self):
        self.library.ravenstore_disconnect(self.store)


class ReclaimTest(FakeGpuTest):
    def daemon(self):
        config = pathlib.Path(self.folder.name, "config.toml")
        config.write_text('[limits]\ndevice_reserve = "64MiB"\n[host_pool]\nahead = "600MiB"\n')
        flags = ["--backend", "cuda", "--pool-size", "1GiB"]
        return Daemon(PROGRAMS, ["--config", str(config), *flags])

    def held_by_store(self, daemon):
        return sum(client["device_bytes"] for client in daemon.clients()["clients"])

    def test_a_job_gets_what_the_store_holds_and_the_store_gets_it_back(self):
        with self.daemon() as daemon, Job([job("shared")], guest(PROGRAMS, daemon.socket)) as one:
            filler = Filler(daemon.socket)
            filler.fill(100, put=True)
            full = self.held_by_store(daemon)
            self.assertGreater(full, 700 * MIB)
            self.assertEqual(one.ask(f"device {300 * MIB}")["code"], 0)
            self.assertEqual(one.ask(f"device {200 * MIB}")["code"], 0)
            self.assertLess(self.held_by_store(daemon), full - 400 * MIB)
            one.ask("drop")
            one.ask("drop")
            # Once they are free, the store may have them again.
            self.assertTrue(eventually(lambda: self.capacity(daemon) > 850 * MIB))

            def full_again():
                filler.fill(1, put=True)
                return self.held_by_store(daemon) > full - 200 * MIB

            self.assertTrue(eventually(full_again))
            filler.leave()

    def capacity(self, daemon):
        tiers = json.loads(daemon.ctl("status").stdout)["tiers"]
        return next(t["capacity_bytes"] for t in tiers if t["name"] == "device 0")

    def test_what_is_in_use_stays_and_the_job_gets_its_error_in_time(self):
        with self.daemon() as daemon, Job([job("driver")], guest(PROGRAMS, daemon.socket)) as one:
            filler = Filler(daemon.socket)
            filler.fill(100, put=False)
            full = self.held_by_store(daemon)
            self.assertEqual(one.ask(f"device {300 * MIB}")["code"], 2)
            self.assertEqual(self.held_by_store(daemon), full)
            filler.leave()


if __name__ == "__main__":
    main()
