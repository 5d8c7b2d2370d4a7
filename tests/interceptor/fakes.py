"""The interceptor's tests run on fake libraries: their environment, and the matrix's programs."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path[:0] = [str(pathlib.Path(__file__).parent)]

from harness import Programs  # noqa: E402

ROOT = pathlib.Path(os.environ.get("RAVENSTORE_BIN", os.getcwd()))
HERE = ROOT / "tests/interceptor"
FAKES = ROOT / "tests/fake_cuda"
RAVENRUN = str(ROOT / "deploy/ravenrun")
PROGRAMS = Programs(ROOT)
JOBS = ("static", "shared", "driver", "dlsym", "proc_1", "proc_2", "per_thread", "entry")
MIB = 1 << 20
CONTEXT = 48 * MIB


def job(name):
    return str(HERE / f"job_{name}")


class RavenrunJob:
    """A job under ravenrun, which becomes it: takes commands, and answers each with a line."""

    def __init__(self, *words, folder=None):
        self.process = subprocess.Popen(
            [RAVENRUN, *words],
            env=dict(os.environ) | {"RAVENSTORE_LIB": str(PROGRAMS.library)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, bufsize=1, cwd=folder,
        )  # fmt: skip
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def says(self):
        """The next line of standard error."""
        return self.process.stderr.readline()

    def hears(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        return self.hears()


class FakeGpuTest(unittest.TestCase):
    """Every process of the test shares fake devices of 1 GiB."""

    memory = 1 << 30

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp")
        self.addCleanup(self.folder.cleanup)
        self.before = dict(os.environ)
        self.addCleanup(self.restore)
        os.environ |= {
            "LD_LIBRARY_PATH": str(FAKES),
            "RAVENSTORE_LIBCUDA": str(FAKES / "libcuda.so.1"),
            "RAVENSTORE_FAKE_CUDA_SHARED": self.folder.name + "/devices",
            "RAVENSTORE_FAKE_CUDA_MEMORY": str(self.memory),
            "RAVENSTORE_FAKE_CUDA_CONTEXT": str(CONTEXT),
        }

    def restore(self):
        os.environ.clear()
        os.environ |= self.before


# A daemon that needs little: the jobs' devices are not its own.
SMALL = ["--backend", "host", "--device-total", "64MiB", "--pool-size", "64MiB"]


def main():
    sys.path[:0] = [str(ROOT / "tests/tidy")]
    import xml_main  # noqa: PLC0415

    xml_main.main()
