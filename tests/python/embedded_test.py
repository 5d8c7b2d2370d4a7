#!/usr/bin/python3
"""The private daemon: it comes up, is shared, and ends with its process whatever ends that."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

import harness
import xml_main

START = """
import os, sys, ravenstore
from ravenstore import embedded
flags = dict(backend="host", device_total="64MiB", pool_size="64MiB", flags=["--page", "2MiB"])
daemon = embedded.start(**flags)
"""


def alive(pid):
    try:
        # A zombie is one that ended.
        return " Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


class EmbeddedTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp"))
        self.environment = {"XDG_RUNTIME_DIR": "", "TMPDIR": self.folder}

    def run_python(self, text, **environment):
        return harness.run_python(START + text, **{**self.environment, **environment})

    def left(self):
        return os.listdir(self.folder)

    def test_serves_this_process_until_its_end(self):
        run = self.run_python("""
with ravenstore.Store.connect(embedded=True) as store:
    with store.adopt(b"mine" * 1024) as tensor:
        tensor.put()
        with tensor.get() as view:
            assert bytes(view.memory()) == b"mine" * 1024
    assert store.socket == daemon.socket and store.backend == "host"
folder = os.path.dirname(daemon.socket)
assert os.stat(folder).st_mode & 0o777 == 0o700
assert embedded.start() is daemon is embedded.running()
print(daemon.process.pid)
""")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertTrue(harness.eventually(lambda: not alive(int(run.stdout))))
        self.assertEqual(self.left(), [])

    def test_ends_when_its_process_is_killed_and_the_next_one_sweeps_up(self):
        text = START + "print(daemon.process.pid, flush=True); sys.stdin.read()"
        with subprocess.Popen(
            [sys.executable, "-c", text],
            env={**os.environ, **self.environment, "PYTHONPATH": str(harness.ROOT / "python")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            daemon = int(process.stdout.readline())
            self.assertTrue(alive(daemon))
            process.send_signal(signal.SIGKILL)
        self.assertTrue(harness.eventually(lambda: not alive(daemon)))
        (left,) = self.left()
        os.utime(os.path.join(self.folder, left), (0, 0))
        self.assertEqual(self.run_python("").returncode, 0)
        self.assertEqual(self.left(), [])

    def test_a_live_process_is_not_swept_up(self):
        run = self.run_python("""
folder = os.path.dirname(daemon.socket)
os.utime(folder, (0, 0))
embedded._sweep(os.path.dirname(folder))
ravenstore.Store.connect(embedded=True).close()
""")
        self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_outlives_the_thread_that_started_it_and_children_that_end(self):
        run = self.run_python(
            """
child = os.fork()
if child == 0:
    sys.exit(0)  # by way of atexit
os.waitpid(child, 0)
with ravenstore.Store.connect(embedded=True) as store:
    store.create(4096).free()
""".replace("daemon = ", "")
        )
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        text = """
import threading
thread = threading.Thread(target=lambda: embedded.start(**flags))
thread.start(); thread.join()
for _ in range(20):
    ravenstore.Store.connect(embedded=True).close()
"""
        start = START.replace("daemon = embedded.start(**flags)", "")
        run = harness.run_python(start + text, **self.environment)
        self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_a_child_of_fork_gets_its_own_and_its_end_is_not_the_parents(self):
        run = self.run_python("""
child = os.fork()
if child == 0:
    assert embedded.running() is None
    own = embedded.start(**flags)
    assert own.socket != daemon.socket
    ravenstore.Store.connect(embedded=True).close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
ravenstore.Store.connect(embedded=True).close()
""")
        self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_ends_though_a_child_of_its_process_lives_on(self):
        run = self.run_python("""
done, hold = os.pipe()
if os.fork() == 0:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    import time
    while os.path.exists(f"/proc/{daemon.process.pid}"):
        os.sched_yield()
    os._exit(0)
print(daemon.process.pid)
""")
        self.assertTrue(harness.eventually(lambda: not alive(int(run.stdout))))

    def test_a_daemon_that_does_not_come_up_shows_its_log(self):
        run = harness.run_python(
            "from ravenstore import embedded\n"
            "embedded.start(backend='host', flags=['--page', '3B'])",
            **self.environment,
        )
        self.assertIn("ravenstore.errors.Unavailable: the embedded daemon did not come", run.stderr)
        self.assertRegex(run.stderr, r"its log:\n.*page")
        self.assertEqual(self.left(), [])

    def test_options_of_a_second_start_are_refused(self):
        run = self.run_python("embedded.start(**flags)")
        self.assertIn("InvalidArgument", run.stderr)

    def test_no_program_is_an_error_that_says_what_to_do(self):
        for variable in ("/nowhere/ravenstored", ""):
            run = harness.run_python(
                "import ravenstore; ravenstore.Store.connect(embedded=True)",
                **{**self.environment, "RAVENSTORED": variable, "PATH": "/nowhere"},
            )
            self.assertIn("ravenstore.errors.NotFound", run.stderr)
            self.assertIn("set RAVENSTORED to its path", run.stderr)

    def test_the_error_without_a_daemon_names_it(self):
        run = harness.run_python(
            "import ravenstore; ravenstore.Store.connect(socket='/tmp/raven-nowhere')"
        )
        self.assertIn("ravenstored --socket /tmp/raven-nowhere; or use a private", run.stderr)


if __name__ == "__main__":
    xml_main.main()
