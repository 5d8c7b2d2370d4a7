#!/usr/bin/python3
"""--mode=elastic, the interceptor's side: an engine that only writes down what it is asked stands
in for the real one, so that each call's words can be held against what the call names."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from fakes import CONTEXT, HERE, MIB, PROGRAMS, ROOT, SMALL, FakeGpuTest, main
from harness import PATIENCE, Daemon, Job, guest

RAVENRUN = str(ROOT / "deploy/ravenrun")
JOB = str(HERE / "elastic_job")
LARGE = 4 * MIB


class Record:
    """What the engine was asked, by what the allocations' numbers are for the job."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.seen = 0
        self.numbers = {}

    def lines(self):
        """The lines since the last look."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        new, self.seen = lines[self.seen :], len(lines)
        for line in lines:
            words = line.split()
            if words[0] == "allocate":
                self.numbers.setdefault(int(words[1]), len(self.numbers))
        return new

    def number(self, offset):
        """The allocation that holds the offset."""
        return self.numbers[max(begin for begin in self.numbers if begin <= int(offset))]

    def new(self):
        """("begin", unknown, {numbers}), ("end", enqueued), ("pin", number), ("follow", number) and
        others' words."""
        calls = []
        for line in self.lines():
            words = line.split()
            if words[0] == "begin":
                named = {self.number(word) for word in words[4:]}
                calls.append(("begin", int(words[3]), named))
            elif words[0] == "end":
                calls.append(("end", int(words[2])))
            elif words[0] in ("pin", "follow"):
                calls.append((words[0], self.number(words[1])))
            else:
                calls.append(tuple(words))
        return calls


class ElasticTest(FakeGpuTest):
    def setUp(self):
        super().setUp()
        for library in (PROGRAMS.library / "libravenstore_intercept.so", self.engine()):
            shutil.copy(library, self.folder.name)
        self.record = Record(self.folder.name + "/record")

    def engine(self):
        return HERE / "libravenstore_elastic.so"

    def environment(self, socket="/nowhere", **variables):
        variables = {"RAVENSTORE_MODE": "elastic", "RECORDER": self.record.path} | variables
        environment = guest(PROGRAMS, socket, **variables)
        environment["STUBS"] = str(HERE / "libtouches.so")
        environment["LD_PRELOAD"] = self.folder.name + "/libravenstore_intercept.so"
        return environment

    def job(self, *words, **variables):
        return Job([JOB, *words], self.environment(**variables))

    def take(self, one, count=4):
        """Makes `count` allocations, and drops what was recorded until then."""
        for number in range(count):
            self.assertEqual(one.ask(f"take plain {LARGE}"), {"code": 0, "at": number})
        self.record.new()

    def calls_of(self, one, command, code=0):
        self.assertEqual(one.ask(command), {"code": code}, command)
        return self.record.new()

    def test_large_allocations_are_the_engines_and_small_ones_the_drivers(self):
        for way in ("dlsym", "proc", "per_thread"):
            for kind, ordered in (
                ("plain", 0), ("pitch", 0), ("async", 1), ("default", 1), ("pool", 1),
            ):  # fmt: skip
                with self.subTest(way=way, kind=kind), self.job(way) as one:
                    one.ask(f"take {kind} {2 * MIB - 4096}")
                    self.assertEqual(self.record.new(), [])
                    one.ask(f"take {kind} {LARGE}")
                    opened, allocated = self.record.new()
                    self.assertEqual(opened[0], "open")
                    self.assertEqual(int(allocated[4]), ordered)
                    self.assertGreaterEqual(int(allocated[2]), LARGE)
                    # Whose stream a call without one means depends on how it was found.
                    own = {"per_thread": "0x2"}.get(way, "(nil)")
                    if kind == "default":
                        self.assertEqual(allocated[3], own)
                    back = kind if kind in ("async", "default") else "plain"
                    self.assertEqual(one.ask(f"give {back} 1"), {"code": 0})
                    ((word, _, stream, in_order),) = self.record.new()
                    self.assertEqual((word, int(in_order)), ("free", int(back != "plain")))
                    if kind == "default":
                        self.assertEqual(stream, own)
                    self.assertEqual(one.ask("give plain 0"), {"code": 0})
                    self.assertEqual(self.record.new(), [])

    def test_what_the_engine_serves_is_reported_as_the_default_pools(self):
        for way in ("dlsym", "proc"):
            with self.subTest(way=way), self.job(way) as one:
                one.ask(f"take async {MIB}")
                used = one.ask("used anew")["now"]
                self.assertGreaterEqual(used, MIB)
                for _ in range(2):
                    one.ask(f"take async {LARGE}")
                both = used + 2 * LARGE
                self.assertEqual(one.ask("used asked"), {"now": both, "most": both})
                one.ask("give async 1")
                self.assertEqual(one.ask("used asked"), {"now": used + LARGE, "most": both})
                self.assertEqual(one.ask("used anew")["most"], used + LARGE)

    def test_managed_memory_is_the_drivers(self):
        with self.job() as one:
            self.assertEqual(one.ask(f"take managed {LARGE}")["code"], 0)
            self.assertEqual(self.record.new(), [])

    def test_what_is_allocated_in_a_capture_is_the_graphs(self):
        with self.job() as one:
            self.assertEqual(one.ask("captured"), {"alloc": 0, "free": 0})
            self.assertEqual(self.record.new(), [])

    def test_kernels_are_reported_with_the_memory_of_their_parameters(self):
        for way in ("dlsym", "proc", "per_thread"):
            with self.subTest(way=way), self.job(way) as one:
                self.take(one)
                for how in ("params", "ex", "cooperative", "struct", "extra"):
                    calls = self.calls_of(one, f"launch {how} 2 0 3")
                    self.assertEqual(calls, [("begin", 0, {0, 2, 3}), ("end", 1)], how)
                self.assertEqual(
                    self.calls_of(one, "launch fill 1"), [("begin", 0, {1}), ("end", 1)]
                )
                self.assertEqual(self.calls_of(one, "launch empty"), [])

    def test_a_kernel_without_parameter_information_may_touch_anything(self):
        with self.job() as one:
            self.take(one)
            self.assertEqual(
                self.calls_of(one, "launch opaque 1"), [("begin", 1, set()), ("end", 1)]
            )

    def test_a_kernel_of_nccls_may_touch_anything(self):
        with self.job() as one:
            self.take(one)
            self.assertEqual(self.calls_of(one, "launch nccl 1"), [("begin", 1, set()), ("end", 1)])

    def test_an_identity_is_a_kernels_and_its_shapes_and_not_its_addresses(self):
        with self.job() as one:
            self.take(one)
            identities = []
            for command in (
                "launch params 0 1 2", "launch params 3 2 1", "launch wide 0 1 2", "launch fill 0",
                "copy dtod 0 1 64", "copy dtod 2 3 64", "copy dtod 0 1 128", "copy set 0 0 64",
            ):  # fmt: skip
                self.assertEqual(one.ask(command), {"code": 0})
                begin, end = (line.split() for line in self.record.lines())
                self.assertEqual(begin[1], end[1])
                identities.append(begin[1])
            self.assertEqual(identities[0], identities[1])
            self.assertEqual(identities[4], identities[5])
            self.assertEqual(len(set(identities)), len(identities) - 2)

    def test_what_code_runs_is_reported_with_the_words_that_are_addresses(self):
        with self.job(RECORDER_CODE="1") as one:
            self.take(one, 2)
            self.assertEqual(one.ask("take plain 4096"), {"code": 0, "at": 2})

            def code(command):
                """(code, pattern, how many words name other memory)"""
                self.assertEqual(one.ask(command), {"code": 0})
                calls = [line.split() for line in self.record.lines()]
                ((_, *words),) = [words for words in calls if words[0] == "code"]
                return tuple(int(word) for word in words)

            ours = code("launch fill 0")
            self.assertNotEqual(ours[0], 0)
            self.assertEqual(ours[2], 0)
            self.assertEqual(code("launch fill 1"), ours)
            # It names memory of the driver's alone: where a table may be.
            other = code("launch fill 2")
            self.assertEqual((other[0], other[2]), (ours[0], 1))
            self.assertNotEqual(other[1], ours[1])
            self.assertNotEqual(code("launch params 0 1 2")[0], ours[0])
            self.assertEqual(code("copy dtod 0 1 64")[0], 0)
            # Another function may get its name.
            one.ask("unload")
            self.assertNotEqual(code("launch fill 0")[0], ours[0])

    def test_a_graph_is_code_with_all_that_its_kernels_name(self):
        with self.job(RECORDER_CODE="1") as one:
            self.take(one, 3)
            self.assertEqual(one.ask("take plain 4096"), {"code": 0, "at": 3})
            one.ask("graph kernels 0 1 2 3")
            calls = [line.split() for line in self.record.lines()]
            ((_, code, _, others),) = [words for words in calls if words[0] == "code"]
            self.assertNotEqual(int(code), 0)
            self.assertEqual(int(others), 1)

    def test_functions_that_were_unloaded_are_asked_for_again(self):
        with self.job() as one:
            self.take(one)
            one.ask("launch params 0 1 2")
            one.ask("unload")
            self.record.new()
            self.assertEqual(self.calls_of(one, "launch fill 3"), [("begin", 0, {3}), ("end", 1)])
            self.assertEqual(
                self.calls_of(one, "launch params 0 1 2"), [("begin", 0, {0, 1, 2}), ("end", 1)]
            )

    def test_the_stream_is_the_calls(self):
        for way, default in (("dlsym", "(nil)"), ("proc", "(nil)"), ("per_thread", "0x2")):
            with self.job(way) as one:
                self.take(one)
                one.ask("launch_default fill 0")
                self.assertEqual(self.record.lines()[0].split()[2], default)
                one.ask("copy htod_default 0 0 64")
                self.assertEqual(self.record.lines()[0].split()[2], default)
                one.ask("launch fill 0")
                self.assertNotIn(self.record.lines()[0].split()[2], ("(nil)", "0x2"))

    def test_the_call_comes_between_begin_and_end_also_where_it_fails(self):
        for call, command, names in (
            ("cuLaunchKernel", "launch params 0 1 2", {0, 1, 2}),
            ("cuMemcpyAsync", "copy any 0 1 64", {0, 1}),
        ):
            with self.job(RECORDER_FAILS=call) as one:
                self.take(one)
                # The engine made it fail in its begin.
                calls = self.calls_of(one, command, code=701)
                self.assertEqual(calls, [("begin", 0, names), ("end", 0)], call)

    def test_copies_and_sets_are_reported(self):
        with self.job() as one:
            self.take(one)
            for how, names in (
                ("htod", {2}), ("htod_async", {2}), ("dtoh", {2}), ("dtod", {2, 1}),
                ("any", {2, 1}), ("any_host", {2}), ("set", {2}),
            ):  # fmt: skip
                calls = self.calls_of(one, f"copy {how} 2 1 4096")
                self.assertEqual(calls, [("begin", 0, names), ("end", 1)], how)

    def test_every_function_of_the_table_lists_what_it_names(self):
        table = pathlib.Path("interceptor/touches.def").read_text()
        both = set(re.findall(r"^TOUCH\((\w+)", table, re.M))
        ones = set(re.findall(r"^TOUCH_ONE\((\w+)", table, re.M))
        self.assertGreater(len(both), 40)
        with self.job() as one:
            self.take(one, 2)
            self.assertEqual(one.ask("touches"), {"count": 2 * len(both) + len(ones)})
        calls = {}
        for words in self.record.new():
            if words[0] == "call":
                calls[symbol := words[1]] = set()
            elif words[0] == "begin":
                self.assertEqual(words[1], 0, symbol)
                calls[symbol] |= {("named", number) for number in words[2]}
            elif words[0] == "pin":
                calls[symbol].add(("pinned", words[1]))
            elif words[0] == "reach":
                calls[symbol].add(("reached",))
        # From one address to another; all others name the first alone.
        twice = r"cuMemcpy(_|Async|DtoD|Peer|2D|3D|Batch|$)"
        for symbol, names in calls.items():
            if symbol.startswith("cuGraph"):
                self.assertEqual(names, {("reached",)}, symbol)
                continue
            kind = "named" if re.match(r"cuMem(cpy|set)", symbol) else "pinned"
            expected = {(kind, 0)} | ({(kind, 1)} if re.match(twice, symbol) else set())
            self.assertEqual(names, expected, symbol)

    def test_a_descriptor_that_hides_its_address_pins_it(self):
        with self.job() as one:
            self.take(one)
            self.assertEqual(self.calls_of(one, "descriptor hidden"), [("pin", 0), ("end", 1)][:1])
            self.assertEqual(self.calls_of(one, "descriptor plain"), [])

    def test_tables_of_addresses_pin_what_they_name(self):
        with self.job() as one:
            self.take(one)
            for how in ("htod", "htod_async", "any_host"):
                calls = self.calls_of(one, f"table {how} 0 1 2")
                followed = [("follow", 1), ("follow", 2)]
                self.assertEqual(calls, [("begin", 0, {0}), ("end", 1), *followed], how)
            # From now on a kernel that names nothing may touch what was pinned.
            self.assertEqual(self.calls_of(one, "launch empty"), [("begin", 0, set()), ("end", 1)])
            for how in ("odd", "large"):
                calls = self.calls_of(one, f"table {how} 0 1 2")
                self.assertEqual(calls, [("begin", 0, {0}), ("end", 1)], how)

    def test_a_graph_touches_what_its_nodes_name_when_it_is_launched(self):
        for way in ("dlsym", "proc", "per_thread"):
            with self.subTest(way=way), self.job(way) as one:
                self.take(one, 5)
                self.assertEqual(one.ask("graph kernels 0 1 2 3"), {"codes": [0] * 7})
                self.assertEqual(self.record.new(), [("begin", 0, {0, 1, 2, 3}), ("end", 1)])
                # What is enqueued after the capture is reported again.
                self.assertEqual(
                    self.calls_of(one, "launch fill 4"), [("begin", 0, {4}), ("end", 1)]
                )

    def test_a_graph_with_a_node_that_cannot_be_read_may_touch_anything(self):
        with self.job() as one:
            self.take(one)
            self.assertEqual(one.ask("graph copy 0 1 2 3"), {"codes": [0] * 7})
            # The driver looks at a copy's addresses when it is captured.
            (reach, (word, unknown, _), end) = self.record.new()
            self.assertEqual((reach, word, unknown, end), (("reach",), "begin", 1, ("end", 1)))

    def test_an_illegal_address_is_reported(self):
        with self.job(RECORDER_FAILS="cuLaunchKernel", RECORDER_RESULT="700") as one:
            self.take(one, 1)
            self.assertEqual(one.ask("launch fill 0"), {"code": 700})
            calls = self.record.new()
            self.assertEqual(calls, [("begin", 0, {0}), ("end", 0), ("illegal",)])

    def test_an_address_is_the_devices_and_its_range_the_allocations(self):
        # The second is on the host.
        with self.job(RAVENSTORE_BUDGET=f"{CONTEXT + 6 * MIB}B") as one:
            self.take(one, 2)
            for number in range(2):
                self.assertEqual(
                    one.ask(f"pointer x {number}"),
                    {
                        "type": 2, "managed": 0, "device": 0, "begin": 1, "bytes": LARGE,
                        "base": 1, "range": LARGE,
                    },
                )  # fmt: skip

    def test_what_only_the_driver_knows_of_an_address_is_asked_while_it_is_mapped(self):
        with self.job() as one:
            self.take(one, 2)
            self.assertEqual(one.ask("unusual x 1"), {"codes": [801, 801]})
            self.assertEqual(self.record.new(), [("begin", 0, {1}), ("end", 0)] * 2)

    def test_streams_and_contexts_end_for_the_engine_first(self):
        with self.job() as one:
            self.take(one, 2)
            one.ask("stream")
            self.assertEqual(self.record.new()[0][0], "stream_gone")
            self.assertEqual(one.ask("reset"), {"code": 0})
            calls = self.record.new()
            self.assertEqual([words[0] for words in calls], ["free", "free", "close"])
            # The next allocation opens the engine again.
            self.assertEqual(one.ask(f"take plain {LARGE}")["code"], 0)
            self.assertEqual([words[0] for words in self.record.new()], ["open", "allocate"])

    def test_only_what_the_engine_takes_is_held_and_what_is_live_is_not_free(self):
        with (
            Daemon(PROGRAMS, [*SMALL, "--visible-memory", "128MiB"]) as daemon,
            Job([JOB], self.environment(daemon.socket)) as one,
        ):
            self.assertEqual(daemon.jobs()[0]["mode"], "elastic")
            budget = 128 * MIB - CONTEXT
            self.assertEqual(one.ask("info"), {"free": budget, "total": 128 * MIB})
            self.assertEqual(one.ask(f"take plain {60 * MIB}")["code"], 0)
            self.assertEqual(int(self.record.lines()[0].split()[2]), budget)
            self.assertEqual(one.ask("info")["free"], budget - 60 * MIB)
            # More than there is: the host lends it, and the job is not notified of that.
            self.assertEqual(one.ask(f"take plain {60 * MIB}")["code"], 0)
            self.assertEqual(one.ask("info"), {"free": 0, "total": 128 * MIB})
            held = daemon.held(one.pid)
            self.assertEqual((held["vmm"], held["device"]), (60 * MIB, 0))
            self.assertEqual(one.ask("give plain 0"), {"code": 0})
            self.assertEqual(daemon.held(one.pid)["vmm"], 0)
            self.assertEqual(one.ask("info")["free"], budget - 60 * MIB)

    def test_the_engine_makes_room_for_what_the_driver_serves(self):
        budget = f"{CONTEXT + 64 * MIB}B"
        with self.job(RAVENSTORE_BUDGET=budget, RECORDER_YIELDS=1) as one:
            self.assertEqual(one.ask(f"take plain {64 * MIB}")["code"], 0)
            self.record.new()
            self.assertEqual(one.ask(f"take plain {MIB}")["code"], 0)
            self.assertEqual(self.record.new(), [("limit", str(63 * MIB))])

    def test_settings_reach_the_engine(self):
        with self.job(
            RAVENSTORE_ELASTIC_HOST="3GiB", RAVENSTORE_ELASTIC_PART="8MiB",
            RAVENSTORE_BUDGET=f"{CONTEXT + 100 * MIB}B", RAVENSTORE_ELASTIC_AWAY="mapped",
        ) as one:  # fmt: skip
            one.ask(f"take plain {LARGE}")
            (opened, _) = self.record.new()
            sizes = (100 * MIB, 3 << 30, 8 * MIB)
            self.assertEqual(opened, ("open", "0", *map(str, sizes), "1"))

    def test_a_child_of_fork_has_none_of_it(self):
        with self.job() as one:
            self.take(one, 1)
            self.assertEqual(one.ask("fork"), {"child": 7})
            calls = self.record.new()
            self.assertEqual(calls[0], ("forget",))
            self.assertEqual([words for words in calls if words[0] in ("free", "close")], [])
            self.assertEqual(self.calls_of(one, "launch fill 0"), [("begin", 0, {0}), ("end", 1)])

    def test_without_an_engine_the_driver_serves_and_one_line_says_so(self):
        folder = pathlib.Path(self.folder.name)
        for refuses in (True, False):
            if not refuses:
                (folder / "libravenstore_elastic.so").unlink()
            variables = {"RECORDER_REFUSES": "1"} if refuses else {}
            done = subprocess.run(
                [JOB],
                input=f"take plain {LARGE}\ntake async {LARGE}\nlaunch fill 0\nquit\n",
                env=self.environment(RAVENSTORE_INTERCEPT_LOG="stderr", **variables),
                capture_output=True, text=True, timeout=PATIENCE, check=True,
            )  # fmt: skip
            self.assertEqual(done.stderr.count("the driver serves"), 1, done.stderr)
            self.assertEqual(done.stdout.count('"code": 0'), 3)
            self.assertEqual(self.record.new(), [])

    def test_other_modes_are_handed_nothing_of_it(self):
        for mode, ours in (("account", False), ("store", False), ("elastic", True)):
            for way in ("dlsym", "proc", "per_thread"):
                with self.job(way, RAVENSTORE_MODE=mode) as one:
                    for symbol in ("cuLaunchKernel", "cuMemcpyAsync", "cuPointerGetAttribute"):
                        self.assertEqual(one.ask(f"owner {symbol}"), {"ours": ours}, symbol)
                    self.assertEqual(one.ask("owner cuMemAlloc_v2"), {"ours": True})

    def test_what_a_launch_costs(self):
        costs = {}
        for mode in ("plain", "account", "elastic"):
            environment = self.environment(RAVENSTORE_MODE=mode)
            del environment["RECORDER"]
            if mode == "plain":
                del environment["LD_PRELOAD"]
            with Job([JOB], environment) as one:
                one.ask(f"take plain {LARGE}")
                one.ask("loop x 2000")
                costs[mode] = min(one.ask("loop x 20000")["ns"] for _ in range(3))
                self.assertGreater(costs[mode], 0)
        print("nanoseconds of a launch, without an engine's own work:", costs)

    def ravenrun(self, *words, **variables):
        return subprocess.run(
            [RAVENRUN, *words],
            input="quit\n",
            env=os.environ | {"RAVENSTORE_LIB": self.folder.name} | variables,
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip

    def shown(self, *words, **variables):
        names = ("RAVENSTORE_MODE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        more = ("RAVENSTORE_ELASTIC_HOST", "RAVENSTORE_ELASTIC_REPORT")
        script = "; ".join(f'echo "${{{name}-none}}"' for name in names + more)
        done = self.ravenrun(*words, "sh", "-c", script, **variables)
        self.assertEqual(done.stderr, "")
        return dict(zip(names + more, done.stdout.splitlines(), strict=True))

    def test_ravenrun_sets_what_the_mode_needs(self):
        shown = self.shown("--mode=elastic", "--host", "1.5GiB", "--report")
        self.assertEqual(
            shown,
            {
                "RAVENSTORE_MODE": "elastic",
                "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync",
                "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync",
                "RAVENSTORE_ELASTIC_HOST": str(3 << 29),
                "RAVENSTORE_ELASTIC_REPORT": "1",
            },
        )
        for mode in ("account", "store"):
            shown = self.shown(f"--mode={mode}")
            self.assertEqual(shown.pop("RAVENSTORE_MODE"), mode)
            self.assertEqual(set(shown.values()), {"none"})

    def test_ravenrun_leaves_an_allocator_that_was_chosen(self):
        old, new = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
        ours = "backend:cudaMallocAsync"
        for given, expected in (
            ({old: "backend:native"}, {old: "backend:native", new: "none"}),
            ({new: "a:1,backend:native"}, {old: "none", new: "a:1,backend:native"}),
            ({old: "a:1"}, {old: f"a:1,{ours}", new: f"a:1,{ours}"}),
            ({new: "b:2"}, {old: f"b:2,{ours}", new: f"b:2,{ours}"}),
            ({old: "a:1", new: "b:2"}, {old: f"a:1,{ours}", new: f"b:2,{ours}"}),
        ):
            shown = self.shown("--mode=elastic", **given)
            self.assertEqual({name: shown[name] for name in (old, new)}, expected, given)

    def test_ravenrun_records_in_elastic_mode(self):
        file = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "job.trace"
        self.assertEqual(self.shown("--record", file)["RAVENSTORE_MODE"], "elastic")
        self.assertTrue(file.exists())

    def test_ravenrun_refuses_what_does_not_fit_together(self):
        for words, says in (
            (("--host=1GiB",), "--host is for --mode elastic"),
            (("--mode=account", "--report"), "--report is for --mode elastic"),
            (("--mode=store", "--record=x"), "--record is for --mode elastic"),
            (("--mode=elastic", "--record="), "--record wants a file"),
            (("--mode=elastic", "--host=much"), "--host is a size"),
            (("--mode=elastic", "--report=x"), "takes no value"),
            (("--mode=quick",), "account, store or elastic"),
        ):
            done = self.ravenrun(*words, "true")
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(says, done.stderr)
        # The mode may come from the environment, and in any order.
        done = self.ravenrun("--host=1GiB", "true", RAVENSTORE_MODE="elastic")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        done = self.ravenrun("--report", "--mode=elastic", "true")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_report_is_a_line_at_exit(self):
        done = subprocess.run(
            [RAVENRUN, "--mode=elastic", "--report", JOB],
            input=f"take plain {1024 * MIB // 4}\nlaunch fill 0\nquit\n",
            env=os.environ | {"RAVENSTORE_LIB": self.folder.name},
            capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
        self.assertRegex(
            done.stderr,
            r"^ravenrun: elastic\[\d+\], device 0: peak 0\.250 GiB; .*of 1 uses[,;] .*"
            r"it did not stall, nor would it with a budget of 0\.\d+ GiB\n$",
        )


if __name__ == "__main__":
    main()
