"""ravenstore.profile(): one file with what PyTorch computed, what moved, and what memory held."""

import dataclasses
import gzip
import json
import os
import tempfile
import time

import harness
import ravenstore
import torch
import xml_main
from harness import MIB
from ravenstore.profile import PROCESS, Sample, events_of

BUDGET = 48 * MIB


def mlp():
    torch.manual_seed(0)
    layers = (torch.nn.Linear(512, 512), torch.nn.GELU())
    return torch.nn.Sequential(*[layer for _ in range(8) for layer in layers])


def train(model, steps=2):
    """Saves 128 MiB a step."""
    for _ in range(steps):
        with ravenstore.offload(device_budget=BUDGET):
            loss = model(torch.ones(4096, 512)).square().mean()
        loss.backward()


class ProfileTest(harness.StoreCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.environ["RAVENSTORE_SOCKET"] = cls.socket
        train(mlp(), steps=1)

    def setUp(self):
        super().setUp()
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp"))

    def profiled(self, run, name="trace.json", **options):
        """The file's events after run() was profiled."""
        path = os.path.join(self.folder, name)
        with ravenstore.profile(path, **options):
            run()
        with (gzip.open if name.endswith(".gz") else open)(path, "rt") as file:
            return json.load(file)

    def test_has_a_track_of_each_kind_on_one_axis(self):
        begin = time.time_ns()
        trace = self.profiled(lambda: train(mlp()))
        end = time.time_ns()
        events, base = trace["traceEvents"], trace["baseTimeNanoseconds"]
        timed = [event for event in events if event["ph"] in "XC" and event.get("cat") != "Trace"]
        for event in timed:
            self.assertLessEqual(begin - 1e6, event["ts"] * 1e3 + base, event)
            self.assertLessEqual((event["ts"] + event.get("dur", 0)) * 1e3 + base, end + 1e6, event)
        names = {event["name"] for event in timed}
        self.assertLessEqual({"aten::addmm", "AddmmBackward0"}, names)
        tracks = {event["tid"] for event in events if event.get("cat") == PROCESS}
        self.assertEqual(tracks, {"transfers out", "transfers in", "stalls"})
        counters = {event["name"] for event in events if event["ph"] == "C"}
        wanted = {"memory on the device", "memory in host memory", "PyTorch's own memory, CPU"}
        self.assertLessEqual(wanted, counters)

    def test_bytes_of_transfers_are_those_that_explain_reports(self):
        before = ravenstore.explain()
        inside = []

        def run():
            train(mlp())
            inside.append(ravenstore.explain())

        events = self.profiled(run)["traceEvents"]
        after = ravenstore.explain()
        for track, name in (("transfers out", "bytes_out"), ("transfers in", "bytes_in")):
            blocks = [event for event in events if event["name"] == track and event["ph"] == "X"]
            moved = sum(event["args"]["bytes"] for event in blocks)
            # The last question is asked between the two.
            self.assertLessEqual(getattr(inside[0], name) - getattr(before, name), moved)
            self.assertLessEqual(moved, getattr(after, name) - getattr(before, name))
            self.assertGreater(moved, 64 * MIB)

    def test_memory_is_counted_by_kind_and_place(self):
        events = self.profiled(lambda: train(mlp()))["traceEvents"]
        device = [event["args"] for event in events if event["name"] == "memory on the device"]
        for held in device:
            self.assertEqual(set(held), {"used", "idle", "parked"})
            self.assertLessEqual(held["used"], BUDGET)
        self.assertGreater(max(held["used"] for held in device), 8 * MIB)
        self.assertGreater(max(held["parked"] for held in device), 8 * MIB)
        host = [event["args"] for event in events if event["name"] == "memory in host memory"]
        self.assertGreater(max(held["moved out"] for held in host), 64 * MIB)

    def test_stalls_do_not_overlap_and_add_up_to_what_was_waited(self):
        sample = Sample(
            at_ns=0, bytes_out=0, bytes_in=0, stall_ns=0, used=0, idle=0, parked=0, host=0
        )
        waits = ((2_000, 1_500), (4_000, 2_500), (6_000, 9_500))
        samples = [sample] + [
            dataclasses.replace(sample, at_ns=at, stall_ns=stall) for at, stall in waits
        ]
        stalls = [
            (event["ts"], event["dur"], event["args"]["waited_ns"])
            for event in events_of(samples)
            if event.get("cat") and event["name"] == "stalls"
        ]
        # The last is that of several threads.
        self.assertEqual(stalls, [(0.5, 1.5, 1500), (3.0, 1.0, 1000), (4.0, 2.0, 7000)])

    def test_an_explicit_store_is_profiled_without_pytorch(self):
        text = """
import json, sys, ravenstore
with ravenstore.Store.connect(device_budget="16MiB", timeout=10) as store:
    with ravenstore.profile(sys.argv[1], stores=[store]) as profile:
        first, second = store.create("12MiB"), None
        first.put()
        second = store.create("12MiB")
        second.put()
        first.get(blocking=True).put()
    assert "torch" not in sys.modules
    moved = {"transfers out": 0, "transfers in": 0}
    for event in json.load(open(sys.argv[1]))["traceEvents"]:
        if event["ph"] == "X" and event["name"] in moved:
            moved[event["name"]] += event["args"]["bytes"]
    # The part of the first tensor that had no room next to the second one.
    assert moved["transfers in"] == 8 << 20, moved
    assert moved["transfers out"] >= 12 << 20, moved
"""
        path = os.path.join(self.folder, "trace.json")
        run = harness.run_python(text, path)
        self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_is_written_after_an_exception_and_compressed_if_it_is_called_gz(self):
        def fail():
            train(mlp(), steps=1)
            raise KeyError("the program's")

        with self.assertRaises(KeyError):
            self.profiled(fail, "trace.json.gz", compute=False)
        with gzip.open(os.path.join(self.folder, "trace.json.gz"), "rt") as file:
            events = json.load(file)["traceEvents"]
        names = {event["name"] for event in events}
        self.assertIn("transfers out", names)
        self.assertNotIn("aten::addmm", names)

    def test_says_in_the_trace_that_the_daemon_died(self):
        text = """
import sys, ravenstore
from ravenstore import embedded
daemon = embedded.start(backend="host", device_total="64MiB", pool_size="64MiB")
store = ravenstore.Store.connect(embedded=True, timeout=5)
with ravenstore.profile(sys.argv[1], stores=[store]) as profile:
    daemon.process.kill()
    daemon.process.wait()
print([event["name"] for event in profile.events if event["ph"] == "i"])
"""
        run = harness.run_python(text, os.path.join(self.folder, "trace.json"))
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertRegex(run.stdout, r"(Lost|Unavailable): ")

    def test_too_short_an_interval_is_refused(self):
        with self.assertRaisesRegex(ravenstore.InvalidArgument, r"at least 0\.0001"):
            ravenstore.profile("trace.json", interval=0)


if __name__ == "__main__":
    xml_main.main()
