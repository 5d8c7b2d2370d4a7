#!/usr/bin/python3
"""bench/elastic_bench.py from end to end on the fake driver: the toy training stands in for
PyTorch, the rest is what runs on a GPU node. And what it reckons of a recording of a real program.
"""

import contextlib
import importlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import types
import unittest.mock

sys.dont_write_bytecode = True
ROOT = pathlib.Path(os.environ.get("RAVENSTORE_BIN", os.getcwd()))
sys.path[:0] = [str(ROOT / "tests/interceptor"), str(ROOT / "bench")]

from fakes import HERE, MIB, PROGRAMS, FakeGpuTest, main  # noqa: E402

BENCH = ROOT / "bench/elastic_bench.py"
TRACE = ROOT / "tests/bench/recorded/resnet50.trace"
BINARIES = (
    "bench/elastic_replay", "bench/launch_loop", "bench/print_link_bounds", "bench/remap_kernels",
    "client/ctl/ravenctl", "daemon/ravenstored", "elastic/libravenstore_elastic.so",
    "interceptor/libravenstore_intercept.so",
)  # fmt: skip

# In the place of a Python that runs bench/elastic_job.py or elastic_idle.py. $WRONG: an elastic
# job's result differs; $FAILS: one of its options with which it fails.
JOB = """
import argparse, ctypes, json, os, subprocess, sys, time

def idle():
    cuda = ctypes.CDLL("libcuda.so.1")
    context, ranges = ctypes.c_void_p(), [ctypes.c_uint64() for _ in range(20)]
    failed = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    failed = failed or cuda.cuCtxSetCurrent(context)
    for each in ranges:
        failed = failed or cuda.cuMemAlloc_v2(ctypes.byref(each), ctypes.c_size_t(4 << 20))
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.monotonic()
        for each in ranges[: 20 if line == "check\\n" else 2]:
            failed = failed or cuda.cuMemsetD8_v2(each, 1, ctypes.c_size_t(4 << 20))
        took = (time.monotonic() - began) * 1e3
        print(failed if line == "check\\n" else took, flush=True)

if sys.argv[1] == "-c":
    sys.exit(1)
if sys.argv[1].endswith("elastic_idle.py"):
    idle()
    sys.exit()
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--gate", type=int, default=0)
parser.add_argument("--pause", type=float, default=0)
options, rest = parser.parse_known_args(sys.argv[2:])
if os.environ.get("FAILS", "none") in rest:
    sys.exit("as it was asked to")
if options.gate:
    print("ready", flush=True)
    sys.stdin.readline()
began = time.monotonic()
words = {"--steps": options.steps, "--layers": 3, "--bytes": 4 << 20,
         "--sleep": int(options.pause * 1e3)}
done = subprocess.run([os.environ["TRAINER"], *(str(w) for p in words.items() for w in p)],
                      stdout=subprocess.PIPE, text=True)
result = json.loads(done.stdout)
wrong = result["wrong_words"] + bool("WRONG" in os.environ and "RAVENSTORE_MODE" in os.environ)
print(json.dumps({
    "losses": [wrong] * options.steps, "seconds": [result["ms_per_step"] / 1e3] * options.steps,
    "peak": result["peak_bytes"], "span": [began, time.monotonic()],
}))
sys.exit(done.returncode)
"""
# Replaces the compiled samples; "own" prints something else in each run.
SAMPLES = """#!/bin/sh
case $1 in
  --list) echo "$SAMPLES" ;;
  own) echo $$ ;;
  *) "$TRAINER" --layers 3 --bytes 4194304 --steps 2 | sed 's/"ms_per_step": [0-9.]*,//' ;;
esac
"""


class ElasticBenchTest(FakeGpuTest):
    memory = 4 << 30  # a daemon leaves some of it alone

    def setUp(self):
        super().setUp()
        del os.environ["RAVENSTORE_FAKE_CUDA_SHARED"]
        self.place = pathlib.Path(self.folder.name)
        os.environ |= {
            "RAVENSTORE_BIN": str(ROOT), "RAVENSTORE_LIB": str(PROGRAMS.library),
            "RAVENSTORE_ELASTIC_PART": str(2 * MIB), "TRAINER": str(HERE / "trainer"),
            "SAMPLES": "one two",
        }  # fmt: skip
        self.job = self.program("job", f"#!{sys.executable}{JOB}")
        self.samples = self.program("samples", SAMPLES)

    def program(self, name, text):
        path = self.place / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def flags(self, *more):
        return ["--python", self.job, "--samples", self.samples, "--scale", "0.05",
                "--programs", "gpt-large,bert", "--shares", "80", *more]  # fmt: skip

    def measure(self, *words):
        """({name: figure}, what it said)."""
        done = subprocess.run(
            [sys.executable, BENCH, "--gpu-name", "fake", *self.flags(*words)],
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = [json.loads(line) for line in done.stdout.splitlines()]
        return {figure["name"]: figure for figure in figures}, done.stderr

    def test_each_part_measures_its_figures(self):
        figures, said = self.measure(
            "bound",
            "launch",
            "remap",
            "idle",
            "jobs",
            "guess",
            "losses",
            "table",
            "samples",
            "cache",
        )
        expected = {
            *(f"elastic.{name}" for name in (
                "slowdown_80", "launch_loop_slowdown", "remap_kernel_slowdown",
                "two_jobs_vs_serial", "two_idle_jobs_vs_serial", "wrong_guess", "samples",
                "vs_bound_worst", "empty_ms", "return_ms",
            )),
            "elastic.table.bert_80", "elastic.table.bert_80_native", "elastic.table.bert_80_still",
            "elastic.table.gpt-large_80_still",
        }  # fmt: skip
        for name in expected:
            self.assertGreater(figures[name]["value"] or 0, 0, (name, said))
        for program in ("gpt-large", "bert"):
            self.assertEqual(figures[f"elastic.same_losses.{program}"]["value"], 1)
        self.assertEqual(figures["elastic.samples"]["value"], 1, said)
        self.assertIn("; 0 tensors wrong", figures["elastic.empty_ms"]["detail"])
        self.assertIn("right results", figures["elastic.wrong_guess"]["detail"])
        # Not among the shares that were named.
        self.assertEqual(figures["elastic.slowdown_90"]["skipped"], "not had")
        self.assertRegex(figures["elastic.vs_bound_worst"]["detail"], "of 2 rows, 2 programs")
        self.assertRegex(said, r"\nbert +80( +[0-9.]+){7} +- +[0-9.]+\n")

    def test_parts_run_in_the_order_in_which_they_are_named(self):
        names = list(self.measure("remap", "launch")[0])
        ordered = [names.index(f"elastic.{name}") for name in
                   ("remap_kernel_slowdown", "launch_loop_slowdown")]  # fmt: skip
        self.assertEqual(ordered, sorted(ordered))

    def test_results_that_differ_are_seen(self):
        os.environ |= {"WRONG": "1", "SAMPLES": "one own"}
        figures, _ = self.measure("guess", "losses", "samples")
        self.assertIs(figures["elastic.wrong_guess"]["ok"], False)
        self.assertEqual(figures["elastic.same_losses.bert"]["value"], 0)
        self.assertEqual(figures["elastic.samples"]["value"], 0.5)
        self.assertIn("not as plain: own", figures["elastic.samples"]["detail"])

    def test_a_job_that_fails_costs_its_figures_alone(self):
        os.environ["FAILS"] = "bert"
        figures, _ = self.measure("table", "launch")
        self.assertEqual(figures["elastic.table.bert_80"]["skipped"], "the job failed")
        self.assertIs(figures["elastic.table.bert_80"]["ok"], False)
        self.assertGreater(figures["elastic.launch_loop_slowdown"]["value"], 0)

    def test_for_what_no_time_is_left_is_skipped(self):
        figures, _ = self.measure("bound", "launch", "--limit", "1")
        for name in ("resident_slowdown", "launch_loop_slowdown"):
            figure = figures[f"elastic.{name}"]
            self.assertEqual((figure["skipped"], figure["ok"]), ("no time left", None))

    def test_what_does_not_end_in_time_is_ended(self):
        runs = importlib.import_module("elastic_runs")
        job = self.program("job", '#!/bin/sh\necho $$ >"$PLACE"\nexec sleep 1000\n')
        os.environ["PLACE"] = f"{self.place}/pid"
        with unittest.mock.patch.object(runs, "LEAST", 0):
            for gate in (0, 3):
                within = runs.Runs(python=job, limit=0.5)
                with self.assertRaises(runs.OutOfTime):
                    within.together([runs.Spec("gpt-large")], gate)
                pid = int(pathlib.Path(os.environ["PLACE"]).read_text())
                self.assertRaises(ProcessLookupError, os.kill, pid, 0)

    def test_without_a_gpu_the_replay_alone_is_measured(self):
        done = subprocess.run(
            [sys.executable, BENCH], capture_output=True, text=True, check=True, timeout=120
        )
        figures = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertGreater(figures[0]["value"], 1)
        self.assertEqual({figure["skipped"] for figure in figures[1:]}, {"needs a GPU"})

    def test_on_a_node_it_needs_one_folder(self):
        folder = self.place / "bin"
        folder.mkdir()
        for binary in BINARIES:
            (folder / pathlib.Path(binary).name).symlink_to((ROOT / binary).resolve())
        self.program("nvidia-smi", "#!/bin/sh\necho Some GPU, 580\n")
        del os.environ["RAVENSTORE_LIB"]
        os.environ |= {
            "OUT": f"{self.place}/out", "PATH": f"{self.place}:{os.environ['PATH']}",
        }  # fmt: skip
        done = subprocess.run(
            [ROOT / "bench/gpu_elastic", folder, "bound", *self.flags()],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Some GPU, 580", done.stdout.splitlines()[0])
        out = self.place / "out"
        names = [json.loads(line)["name"] for line in (out / "elastic.json").open()]
        self.assertEqual(names[:1], ["elastic.slowdown_80"])
        self.assertIn("of_bound", (out / "elastic.log").read_text())
        with tarfile.open(out / "traces.tgz") as traces:
            self.assertIn("./gpt-large.trace", traces.getnames())
        self.assertNotIn("missing", done.stderr)


class RecordingTest(unittest.TestCase):
    """ResNet-50, whose plain step took 24 ms: known numbers in, known numbers out."""

    STEP = 0.024

    def setUp(self):
        environment = unittest.mock.patch.dict(os.environ, {"RAVENSTORE_BIN": str(ROOT)})
        environment.start()
        self.addCleanup(environment.stop)
        self.module = importlib.import_module("elastic_bench")
        runs = importlib.import_module("elastic_runs")
        peak = 1800 * MIB
        self.plain = runs.Result([], [9, 9, *[self.STEP] * 4], peak, [0, 1])
        resident = runs.Result([], [9, 9, *[0.025] * 4], peak, [0, 1], 1900 * MIB, 2400 * MIB)
        self.measured = self.module.Measured(self.plain, resident, TRACE)
        options = types.SimpleNamespace(
            record="", scale=1, small=False, python="", limit=None, gpu_name="",
            programs="resnet50", shares=[100, 80, 50],
        )  # fmt: skip
        self.bench = self.module.Bench(options, "")
        self.bench.link = ["--link", "50,50,100"]
        self.bench.measured = lambda program: self.measured
        elastic = runs.Result([], [9, 9, *[0.06] * 4], peak, [0, 1])
        unrecorded = runs.Result([], [9, 9, *[0.0245] * 4], peak, [0, 1])
        self.bench.runs.job = lambda spec: elastic if spec.budget else unrecorded

    def test_budgets_are_of_plains_peak_and_what_else_the_process_holds(self):
        self.assertEqual(self.measured.resident.outside_pages, 500 * MIB)
        self.assertEqual(self.measured.budget(100), 2400 * MIB)
        self.assertEqual(self.measured.budget(50), 1500 * MIB)
        self.assertEqual(self.measured.device(50), 1000 * MIB)

    def test_a_step_is_held_against_plain_and_the_bound_of_the_recording(self):
        rows = {share: self.bench.run_share("resnet50", share) for share in (100, 80, 50)}
        self.assertEqual([rows[share].step for share in (100, 80, 50)], [0.0245, 0.06, 0.06])
        self.assertEqual(rows[100].stall, 0)
        self.assertAlmostEqual(rows[100].of_bound, 0.0245 / self.STEP)
        # 13 ms for what must go and come, at 50 GB/s each way.
        self.assertGreater(rows[50].stall, 0.001)
        self.assertLess(rows[50].stall, 0.02)
        self.assertAlmostEqual(rows[50].of_bound, 0.06 / (self.STEP + rows[50].stall))
        for row in (rows[80], rows[50]):
            self.assertGreater(row.replayed_still, row.plain)
            self.assertGreater(row.replayed_demand, row.plain + row.stall)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.module.emit_worst(self.bench)
        worst = json.loads(printed.getvalue())
        self.assertAlmostEqual(worst["value"], max(row.of_bound for row in rows.values()))
        self.assertRegex(worst["detail"], "resnet50 at (80|50)%; of 3 rows, 1 programs")

    def test_a_budget_below_the_largest_step_has_a_row(self):
        done = subprocess.run(
            [ROOT / "bench/elastic_replay", "--json", "--budget", str(64 * MIB), TRACE],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        (row,) = json.loads(done.stdout)
        self.assertEqual(
            set(row),
            {"trace", "percent", "budget", "steps", "of_bound", "compute", "bound", "learned",
             "oracle", "in_place", "demand"},
        )  # fmt: skip
        self.assertIsNone(row["bound"])
        self.assertIsNone(row["demand"])
        for plan in ("learned", "oracle", "in_place"):
            self.assertGreater(row[plan], 2 * row["compute"])

    def test_a_slower_link_stalls_longer(self):
        fast = self.bench.run_share("resnet50", 50).stall
        self.module.Bench.replayed.cache_clear()
        self.bench.link = ["--link", "25,25,50"]
        self.assertGreater(self.bench.run_share("resnet50", 50).stall, 1.5 * fast)

    def test_a_recorded_step_is_drawn(self):
        done = subprocess.run(
            [sys.executable, ROOT / "bench/elastic_plot.py", TRACE, "--title", "A < B"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        self.assertIn("A &lt; B", done.stdout)
        self.assertIn("named by the kernel", done.stdout)
        curves = re.findall(r'd="M60\.0 [0-9.]+((?:H[0-9.]+V[0-9.]+){100,})H884\.0', done.stdout)
        self.assertEqual(len(curves), 2)


if __name__ == "__main__":
    main()
