#!/usr/bin/python3
"""The private daemon: it comes up, is shared, and ends with its process whatever ends that."""

import os
import pathlib
import signal
import socket
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


# What a job does that says nothing of daemons.
ATTACH = """
import os, sys, ravenstore
from ravenstore import embedded
store = ravenstore.Store.connect(timeout=60)
with store.adopt(b"mine" * 1024) as tensor:
    tensor.put()
    with tensor.get() as view:
        assert bytes(view.memory()) == b"mine" * 1024
"""


class AutoTest(unittest.TestCase):
    """embedded="auto", the default. The node that runs this has no daemon at the default socket."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp"))
        self.environment = {
            "XDG_RUNTIME_DIR": "",
            "TMPDIR": self.folder,
            "RAVENSTORE_EMBEDDED": "",
            "RAVENSTORE_NO_GPU": "1",
        }
        if os.path.lexists("/run/ravenstore/ravenstore.sock"):
            self.skipTest("a daemon of the node is here")

    def run_python(self, text, **environment):
        return harness.run_python(text, **{**self.environment, **environment})

    def start_ranks(self, text, count, **environment):
        """Processes that a launcher, which is this one, starts at the same time."""
        variables = {
            **os.environ,
            **self.environment,
            "PYTHONPATH": str(harness.ROOT / "python"),
            "LOCAL_WORLD_SIZE": str(count),
            "TORCHELASTIC_RUN_ID": self.id(),
            **environment,
        }
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return [
            subprocess.Popen([sys.executable, "-c", text], env=variables, text=True, **pipes)
            for _ in range(count)
        ]

    def test_without_a_daemon_a_private_one_starts_and_says_so_once(self):
        run = self.run_python(
            ATTACH
            + """
ravenstore.Store.connect().close()
assert store.socket == embedded.running().socket
print(embedded.running().process.pid)
"""
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(
            run.stderr,
            r"^ravenstore: no daemon at /run/ravenstore/ravenstore.sock: a private one serves this "
            r"process, with at most \S+ \S+ of host memory \(RAVENSTORE_EMBEDDED=0 forbids it\)\n$",
        )
        self.assertTrue(harness.eventually(lambda: not alive(int(run.stdout))))
        self.assertEqual(os.listdir(self.folder), [])

    def test_it_may_be_forbidden(self):
        for words in ("RAVENSTORE_EMBEDDED", "RAVENSTORE_SOCKET", "embedded=False"):
            with self.subTest(words):
                text, variables = ATTACH, {}
                if words == "embedded=False":
                    text = ATTACH.replace("timeout=60", "embedded=False")
                else:
                    variables[words] = "0" if words.endswith("ED") else "/tmp/raven-nowhere"
                run = self.run_python(text, **variables)
                self.assertIn("ravenstore.errors.Unavailable", run.stderr)
                self.assertIn("Start it: ", run.stderr)
        self.assertEqual(os.listdir(self.folder), [])

    def test_what_else_is_no_answer(self):
        run = self.run_python(ATTACH.replace("timeout=60", "embedded='yes'"))
        self.assertIn("""embedded is True, False or "auto", not 'yes'""", run.stderr)

    def test_a_child_uses_its_parents(self):
        run = self.run_python(
            ATTACH
            + """
import subprocess
child = "import ravenstore; print(ravenstore.Store.connect().socket)"
for _ in range(2):
    said = subprocess.run([sys.executable, "-c", child], check=True, capture_output=True, text=True)
    assert (said.stdout.strip(), said.stderr) == (store.socket, ""), said
if os.fork() == 0:
    own = ravenstore.Store.connect()
    os._exit(0 if own.socket == store.socket else 1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""
        )
        self.assertEqual((run.returncode, run.stderr.count("\n")), (0, 1), run.stderr)

    def test_a_name_that_only_this_job_could_publish_is_not_found_in_words(self):
        run = self.run_python(ATTACH + "store.open('weights', fail_fast=True)")
        self.assertIn("ravenstore.errors.NotFound", run.stderr)
        self.assertIn("only its own processes publish there", run.stderr)

    def test_ranks_share_one_that_ends_with_the_last_of_them(self):
        say = "print(store.socket, flush=True); sys.stdin.readline(); store.close()"
        ranks = self.start_ranks(ATTACH + say, 8)
        sockets = {rank.stdout.readline() for rank in ranks}
        self.assertEqual(len(sockets), 1)
        folder = os.path.dirname(sockets.pop())
        daemon = int(pathlib.Path(folder, "pid").read_text())
        self.assertTrue(alive(daemon))
        said = ""
        for number, rank in enumerate(ranks):
            self.assertTrue(alive(daemon), f"{number} ranks ended")
            said += rank.communicate("\n")[1]
            self.assertEqual(rank.returncode, 0, said)
        self.assertEqual(said.count("a private one serves this job's ranks"), 1)
        self.assertEqual(said.count("\n"), 1, said)
        self.assertTrue(harness.eventually(lambda: not alive(daemon)))
        self.assertEqual(os.listdir(self.folder), [])

    def test_killed_ranks_are_followed_by_others(self):
        # The first is killed while it has the right to start the daemon.
        hang = """
import os, sys
from ravenstore import embedded
def spawn(*arguments):
    print("starts", flush=True)
    sys.stdin.read()
embedded._spawn = spawn
embedded.start(for_job=True)
"""
        (first,) = self.start_ranks(hang, 1, LOCAL_WORLD_SIZE="2")
        self.assertEqual(first.stdout.readline(), "starts\n")
        (second,) = self.start_ranks(ATTACH + "print('well')", 1, LOCAL_WORLD_SIZE="2")
        first.kill()
        first.communicate()
        said, errors = second.communicate()
        self.assertEqual((said, second.returncode), ("well\n", 0), errors)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_rank_that_comes_after_all_were_killed_has_the_same_one(self):
        # Their launcher goes on, and may start them again.
        say = "print(store.socket, flush=True); sys.stdin.read()"
        (first,) = self.start_ranks(ATTACH + say, 1, LOCAL_WORLD_SIZE="2")
        socket = first.stdout.readline()
        first.kill()
        first.communicate()
        (second,) = self.start_ranks(ATTACH + "print(store.socket)", 1, LOCAL_WORLD_SIZE="2")
        said, errors = second.communicate()
        self.assertEqual((said, errors), (socket, ""))
        self.assertEqual(os.listdir(self.folder), [])

    def test_another_users_folder_is_refused(self):
        text = """
import os
from ravenstore import embedded
folder = f"{embedded._base()}/{embedded._prefix()}job-{embedded._launcher()[1]}"
os.mkdir(folder)
os.chmod(folder, 0o777)
embedded.start(for_job=True)
"""
        run = self.run_python(text, LOCAL_WORLD_SIZE="2")
        self.assertIn("or others may use it: remove it", run.stderr)

    def test_a_socket_that_no_daemon_listens_at_is_an_error(self):
        # A node that has a daemon, which was killed: its jobs must not pin memory of their own.
        path = self.folder + "/node"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(path)
        change = f"from ravenstore import embedded\nembedded.DEFAULT_SOCKET = {path!r}\n"
        run = self.run_python(change + ATTACH)
        self.assertIn(f"ravenstore.errors.Unavailable: no daemon listens at '{path}'", run.stderr)
        self.assertEqual(os.listdir(self.folder), ["node"])

    def test_its_pool_is_bounded(self):
        from ravenstore import embedded

        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.assertLessEqual(embedded.default_pool_bytes(), machine // 4)
        self.assertLessEqual(embedded.available_host_bytes(), machine)


if __name__ == "__main__":
    xml_main.main()
