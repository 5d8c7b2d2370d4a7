#!/usr/bin/python3
"""python -m ravenstore doctor names what is wrong here and what to do."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import types
import unittest

import harness
import xml_main
from ravenstore import doctor


def run_doctor(*arguments, **environment):
    """(exit code, {check: finding})."""
    done = subprocess.run(
        [sys.executable, "-m", "ravenstore", "doctor", "--json", *arguments],
        env={**os.environ, "PYTHONPATH": str(harness.ROOT / "python"), **environment},
        capture_output=True,
        text=True,
        timeout=harness.HANGS_AFTER,
    )
    answer = json.loads(done.stdout)
    assert answer["healthy"] == (done.returncode == 0)
    return done.returncode, {row["check"]: row for row in answer["findings"]}


class DoctorTest(unittest.TestCase):
    def test_all_is_well_with_a_daemon(self):
        with harness.daemon() as socket:
            code, found = run_doctor("--socket", socket)
        self.assertEqual(code, 0, found)
        self.assertIn("backend host", found["daemon"]["found"])
        self.assertIn("libravenstore.so, version 0.1.0", found["library"]["found"])
        self.assertEqual(found["budgets"]["found"], "device 64.0 MiB, host 256.0 MiB")
        self.assertIn("create, put and get of 64.0 KiB work", found["trial"]["found"])
        wanted = {"python", "pytorch", "native part", "backend", "locked memory"}
        self.assertLessEqual(wanted, set(found))

    def test_a_small_host_pool_is_a_warning(self):
        with harness.daemon(device_total="128MiB", pool_size="64MiB") as socket:
            code, found = run_doctor("--socket", socket)
        self.assertEqual((code, found["budgets"]["level"]), (0, "warn"))
        self.assertIn("host_pool.size", found["budgets"]["advice"])

    def test_no_daemon_is_a_failure_only_without_a_program_for_one(self):
        nowhere = {"RAVENSTORE_SOCKET": "/tmp/raven-nowhere"}
        code, found = run_doctor(**nowhere)
        self.assertEqual((code, found["daemon"]["level"]), (0, "warn"))
        self.assertEqual(found["trial"]["level"], "skip")
        self.assertIn("embedded=True", found["daemon"]["advice"])
        code, found = run_doctor(**nowhere, RAVENSTORED="/nowhere/ravenstored")
        self.assertEqual((code, found["daemon"]["level"]), (1, "fail"))
        self.assertIn("/tmp/raven-nowhere", found["daemon"]["found"])

    def test_no_library_is_a_failure(self):
        code, found = run_doctor(RAVENSTORE_LIBRARY="/nowhere/libravenstore.so")
        self.assertEqual((code, found["library"]["level"]), (1, "fail"))
        self.assertIn("RAVENSTORE_LIBRARY", found["library"]["advice"])

    def test_people_read_the_advice_below_what_was_found(self):
        text = "import sys, ravenstore.__main__ as m; sys.exit(m.main(['doctor']))"
        run = harness.run_python(text, RAVENSTORE_LIBRARY="/nowhere/libravenstore.so")
        self.assertRegex(run.stdout, r"fail  library .*\n +-> install it")
        self.assertTrue(run.stdout.endswith("Something has to be mended.\n"))

    def test_the_version_is_said(self):
        run = harness.run_python("import ravenstore.__main__ as m; m.main(['--version'])")
        self.assertRegex(run.stdout, r"^\d+\.\d+\.\d+\n$")

    def test_unknown_commands_get_a_list_of_the_known_ones(self):
        run = harness.run_python(
            "import sys, ravenstore.__main__ as m; sys.exit(m.main(['dcotor']))"
        )
        self.assertEqual(run.returncode, 2)
        self.assertIn("doctor", run.stderr)


class TorchCheckTest(unittest.TestCase):
    """A torch of the test's own in the place of a real one."""

    def look(self, init, **extra):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(folder + "/torch")
            with open(folder + "/torch/__init__.py", "w", encoding="utf-8") as out:
                out.write(init)
            code, found = run_doctor(
                PYTHONPATH=os.pathsep.join([folder, str(harness.ROOT / "python")]), **extra
            )
        return code, found

    def fake(self, version, gpus=False):
        return (
            "import types\nclass Tensor: pass\nversion = types.SimpleNamespace(cuda='13.0')\n"
            f"__version__ = {version!r}\n"
            f"cuda = types.SimpleNamespace(is_available=lambda: {gpus}, device_count=lambda: 1,\n"
            "    get_device_name=lambda i: 'GPU-X', is_initialized=lambda: False,\n"
            "    get_device_properties=lambda i: types.SimpleNamespace(total_memory=80 << 30))\n"
        )

    def test_one_that_cannot_be_imported_is_a_failure(self):
        code, found = self.look("raise ImportError('libcudnn is missing')")
        self.assertEqual((code, found["pytorch"]["level"]), (1, "fail"))
        self.assertIn("libcudnn is missing", found["pytorch"]["found"])

    def test_an_unknown_minor_is_a_warning(self):
        for version in ("2.9.0", "2.15.0+cu132"):
            self.assertEqual(self.look(self.fake(version))[1]["pytorch"]["level"], "ok")
        for version, advice in (
            ("2.8.0", "offload() needs PyTorch 2.9 or newer"),
            ("2.99.0a0+git1", "knows PyTorch up to 2.15"),
        ):
            found = self.look(self.fake(version))[1]
            for check in ("pytorch", "native part"):
                self.assertEqual(found[check]["level"], "warn")
                self.assertIn(advice, found[check]["advice"])

    def test_a_simulated_device_next_to_a_gpu_is_a_warning(self):
        with harness.daemon() as socket:
            found = self.look(self.fake("2.11.0", gpus=True), RAVENSTORE_SOCKET=socket)[1]
        self.assertEqual(found["backend"]["level"], "warn")
        self.assertIn("GPU-X (80.0 GiB)", found["backend"]["found"])


class LockedMemoryTest(unittest.TestCase):
    def level(self, memlock, gpus):
        cuda = types.SimpleNamespace(is_available=lambda: gpus)
        context = doctor.Context(memlock=memlock, torch=types.SimpleNamespace(cuda=cuda))
        return doctor.check_memlock(context).level

    def test_a_small_limit_matters_with_a_gpu(self):
        self.assertEqual(self.level(8 << 20, True), "warn")
        self.assertEqual(self.level(8 << 20, False), "ok")
        self.assertEqual(self.level(resource.RLIM_INFINITY, True), "ok")


if __name__ == "__main__":
    xml_main.main()
