"""When the daemon dies, when there is no room anywhere, and when the process ends with all in use:
words, never a hang, never a wrong byte. Each in a process of its own."""

import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import harness
import xml_main

WAY = os.environ.get("OFFLOAD_WAY", "allocator")

PRELUDE = """
import gc, os, signal, sys
sys.path.insert(0, {tests!r})
import harness, ravenstore, torch
import offload_harness as offload
from offload_harness import MIB, offloading, press, random
from ravenstore import embedded

def die():
    daemon = embedded.running()
    os.kill(daemon.process.pid, signal.SIGKILL)
    daemon.process.wait()

def lost(function):
    try:
        function()
    except ravenstore.Lost as error:
        assert "go back to a checkpoint" in str(error), error
        return True
    raise AssertionError("no error")
"""


# Imports PyTorch once. For each line of standard input a fork of it, which had no scope yet, runs
# a text as the rest of this script, until the interpreter's end.
SERVER = (
    PRELUDE
    + """
import json
gc.collect()
gc.freeze()
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
signal.alarm({seconds})
os.environ.update(request["environment"])
for number, path in enumerate((os.devnull, request["out"], request["err"])):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
exec(request["text"])
"""
)
Done = collections.namedtuple("Done", "returncode stdout stderr")


class Server:
    """What runs texts after the prelude."""

    def __init__(self):
        tests = os.path.dirname(os.path.abspath(__file__))
        path = os.pathsep.join([str(harness.ROOT / "python"), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER.format(tests=tests, seconds=harness.HANGS_AFTER)],
            env={**os.environ, "PYTHONPATH": path, "OFFLOAD_WAY": WAY},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, text, environment):
        with tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp") as folder:
            out, err = pathlib.Path(folder, "out"), pathlib.Path(folder, "err")
            request = {"text": text, "environment": environment, "out": str(out), "err": str(err)}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            return Done(code, out.read_text(), err.read_text())

    def end(self):
        self._process.communicate()


SERVER_IN_USE = []


def setUpModule():
    SERVER_IN_USE.append(Server())


def tearDownModule():
    SERVER_IN_USE.pop().end()


def run(text, **environment):
    """Runs `text` after the prelude, with `environment` added; its exit code and output."""
    return SERVER_IN_USE[0].run(text, environment)


class FaultCase(unittest.TestCase):
    def assertRuns(self, text, **environment):
        done = run(text, **environment)
        self.assertEqual((done.returncode, done.stdout), (0, "done\n"), done.stderr[-3000:])
        return done


class DeadDaemonTest(FaultCase):
    def test_between_forward_and_backward_is_a_lost_error(self):
        self.assertRuns("""
offload.start_daemon()
leaf = random(512, 1024, grad=True)
with offloading():
    loss = leaf.sin().exp().sum()
    ballast, more = press()
die()
lost((loss + more).backward)
# New tensors still can be made, and plain training goes on.
fresh = random(1024, 1024, grad=True)
fresh.exp().sum().backward()
assert torch.equal(fresh.grad, fresh.detach().exp())
print("done")
""")

    def test_in_forward_is_an_error_at_the_latest_in_backward(self):
        self.assertRuns("""
offload.start_daemon()
leaf = random(512, 1024, grad=True)
def step():
    with offloading():
        value = leaf.sin()
        for _ in range(30):
            value = value.sin()
        die()
        for _ in range(30):
            value = value.sin()
        loss = value.sum()
    loss.backward()
lost(step)
assert torch.equal(torch.ones(MIB).exp(), torch.full((MIB,), 1.0).exp())
print("done")
""")

    def test_in_backward_is_a_lost_error(self):
        self.assertRuns("""
class Dying(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value * 1
    @staticmethod
    def backward(ctx, gradient):
        die()
        return gradient
offload.start_daemon()
leaf = value = random(512, 1024, grad=True)
with offloading():
    # Saves more than the device's budget, so that some of it is away whatever came back ahead.
    for _ in range(28):
        value = value.sin()
    loss = Dying.apply(value).exp().sum()
lost(loss.backward)
print("done")
""")

    def test_the_next_scope_says_that_the_store_is_lost_or_works(self):
        self.assertRuns("""
offload.start_daemon()
leaf = random(512, 1024, grad=True)
with offloading():
    loss = leaf.sin().exp().sum()
loss.backward()
die()
try:
    with ravenstore.offload():
        leaf.grad = None
        loss = leaf.exp().sum()
    loss.backward()
    assert torch.equal(leaf.grad, leaf.detach().exp())
except ravenstore.RavenstoreError as error:
    assert "the daemon is gone" in str(error), error
try:
    ravenstore.explain()
except (ravenstore.Lost, ravenstore.Unavailable) as error:
    print("done")
""")

    def test_graphs_of_a_dead_daemon_are_dropped_without_words(self):
        done = self.assertRuns("""
offload.start_daemon()
leaf = random(512, 1024, grad=True)
with offloading():
    loss = leaf.sin().exp().sum()
    ballast, more = press()
die()
del loss, more
gc.collect()
print("done")
""")
        self.assertNotIn("Traceback", done.stderr)


class NoRoomTest(FaultCase):
    def test_with_the_host_pool_full_it_is_said_and_can_be_retried(self):
        self.assertRuns("""
offload.start_daemon(device_total="32MiB", pool_size="64MiB")
leaf = random(512, 1024, grad=True)
def step(layers):
    leaf.grad = None
    with offloading(timeout=2, device_budget="16MiB"):
        value = leaf
        for _ in range(layers):
            value = value.sin()
        loss = value.sum()
    loss.backward()
    return leaf.grad
small = step(4)
try:
    step(60)
except (torch.OutOfMemoryError, ravenstore.OutOfMemory, ravenstore.TimedOut) as error:
    words = str(error)
    assert "no room" in words or "room" in words, words
else:
    raise AssertionError("120 MiB were saved in 96 at most")
gc.collect()
assert torch.equal(step(4), small)
print("done")
""")

    def test_the_allocator_cannot_be_had_twice_nor_budgets_changed(self):
        self.assertRuns("""
offload.start_daemon()
with offloading():
    pass
try:
    with offloading(device_budget="8MiB"):
        raise AssertionError("changed")
except ravenstore.InvalidArgument as error:
    assert "device_budget" in str(error), error
try:
    ravenstore.offload(way="magic")
except ravenstore.InvalidArgument as error:
    print("done")
""")

    def test_a_budget_above_the_devices_is_cut_with_one_warning(self):
        done = self.assertRuns("""
offload.start_daemon()
for _ in range(2):
    with offloading(device_budget="1TiB"):
        pass
print("done")
""")
        words = "device_budget is 1.0 TiB, and the daemon grants 64.0 MiB of each device"
        self.assertEqual(done.stderr.count(words), 1, done.stderr)

    def test_without_a_daemon_the_command_is_said(self):
        self.assertRuns("""
try:
    with ravenstore.offload(socket="/tmp/no-such-socket-of-ravenstore"):
        pass
except ravenstore.Unavailable as error:
    assert "ravenstored --socket" in str(error), error
    print("done")
""")


class HiddenNativePartTest(FaultCase):
    """RAVENSTORE_NATIVE names the native part; a path where there is none hides the package's."""

    def setUp(self):
        if WAY == "python":
            self.skipTest("the native part is hidden already")

    def test_the_allocator_is_refused_with_what_to_do(self):
        self.assertRuns(
            """
offload.start_daemon()
try:
    with ravenstore.offload(embedded=True, way="allocator"):
        raise AssertionError("there is no native part")
except ravenstore.Unsupported as error:
    words = str(error)
    assert f"no native part for PyTorch {torch.__version__}" in words, words
    assert "/nowhere/_torch.so" in words, words
    assert "`pip install ./python` from a checkout builds it" in words, words
# Nothing is attached yet: the next scope may choose.
with ravenstore.offload(embedded=True, way="copy"):
    pass
print("done")
""",
            RAVENSTORE_NATIVE="/nowhere/_torch.so",
        )

    def test_how_to_start_a_daemon_is_said_once(self):
        self.assertRuns(
            """
try:
    with ravenstore.offload(socket="/tmp/no-such-socket-of-ravenstore"):
        pass
except ravenstore.Unavailable as error:
    assert str(error).count("Start it: ravenstored --socket") == 1, error
    print("done")
""",
            RAVENSTORE_NATIVE="/nowhere/_torch.so",
        )

    def test_copies_are_made_by_python_with_one_warning(self):
        for way in (None, "copy"):
            done = self.assertRuns(
                f"""
offload.start_daemon()
leaf = random(512, 1024, grad=True)
for _ in range(3):
    with ravenstore.offload("32MiB", embedded=True, way={way!r}):
        loss = leaf.exp().sum()
    loss.backward()
assert torch.equal(leaf.grad, 3 * leaf.detach().exp())
assert ravenstore.explain().way == "copy (Python)"
print("done")
""",
                RAVENSTORE_NATIVE="/nowhere/_torch.so",
            )
            self.assertEqual(done.stderr.count("RuntimeWarning: "), 1, done.stderr)
            self.assertIn("makes copies of what autograd saves: this ravenstore has", done.stderr)

    def test_an_older_pytorch_is_refused_and_an_unknown_newer_one_gets_copies(self):
        done = self.assertRuns(
            """
torch.__version__ = "2.8.0"
for way in (None, "copy"):
    try:
        with ravenstore.offload(embedded=True, way=way):
            raise AssertionError("it is not supported")
    except ravenstore.Unsupported as error:
        wanted = "ravenstore.offload() needs PyTorch 2.9 or newer, and this is 2.8.0"
        assert str(error) == wanted, error
torch.__version__ = "2.99.0"
offload.start_daemon()
leaf = random(512, 1024, grad=True)
for _ in range(2):
    with ravenstore.offload("32MiB", embedded=True):
        loss = leaf.exp().sum()
    loss.backward()
assert torch.equal(leaf.grad, 2 * leaf.detach().exp())
assert ravenstore.explain().way == "copy (Python)"
print("done")
""",
            RAVENSTORE_NATIVE="",
        )
        self.assertEqual(done.stderr.count("RuntimeWarning: "), 1, done.stderr)
        self.assertRegex(done.stderr, r"no native part for PyTorch 2\.99\.0 .*knows PyTorch up to")
        self.assertNotIn("pip install ./python", done.stderr)


class EndTest(FaultCase):
    def test_the_interpreter_ends_with_live_graphs(self):
        done = self.assertRuns("""
offload.start_daemon()
leaf = random(512, 1024, grad=True)
with offloading():
    loss = leaf.sin().exp().sum()
    ballast, more = press()
seen = []
class Showing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return value * 2
    @staticmethod
    def backward(ctx, gradient):
        seen.append(ctx.saved_tensors[0])
        return gradient
with offloading():
    shown = Showing.apply(leaf.exp()).sum()
shown.backward()
leaf.cycle = [leaf, loss, seen]
print("done")
""")
        self.assertEqual(done.stderr, "")

    def test_the_interpreter_ends_inside_of_a_scope(self):
        done = run("""
offload.start_daemon()
leaf = random(512, 1024, grad=True)
offloading().__enter__()
loss = leaf.sin().exp().sum()
print("done")
sys.exit(3)
""")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (3, "done\n", ""))


if __name__ == "__main__":
    xml_main.main()
