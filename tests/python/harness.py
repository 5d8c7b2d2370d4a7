"""What the package's tests share: the package on sys.path, the programs, a host daemon."""

import contextlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).absolute().parents[2]
# Bazel runs tests in the root of the runfiles, which mirrors the tree; by hand it is the checkout.
HERE = pathlib.Path.cwd()
BUILT = HERE if (HERE / "client/libravenstore.so").exists() else ROOT / "bazel-bin"
# On another machine than the one that built them, all in one folder.
CARRIED = os.environ.get("RAVENSTORE_BIN")

sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / folder) for folder in ("python", "tests/tidy", "tests/timing")]

from timing import HANGS_AFTER, TimeLimit, eventually  # noqa: E402, F401

LIBRARY = str(pathlib.Path(CARRIED or BUILT / "client") / "libravenstore.so")
DAEMON = str(pathlib.Path(CARRIED or BUILT / "daemon") / "ravenstored")
os.environ["RAVENSTORE_LIBRARY"] = LIBRARY
os.environ["RAVENSTORED"] = DAEMON
NATIVE = BUILT / "python/_torch.so"
if NATIVE.exists():
    os.environ.setdefault("RAVENSTORE_NATIVE", str(NATIVE))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("RAVENSTORE_SOCKET", None)
# Tests say themselves when they want a private daemon.
os.environ["RAVENSTORE_EMBEDDED"] = "0"

MIB = 1 << 20


@contextlib.contextmanager
def daemon(*flags, device_total="64MiB", pool_size="256MiB"):
    """A daemon of the host backend; gives its socket. Killed at the end."""
    folder = tempfile.mkdtemp(prefix="raven-", dir="/tmp")
    socket = folder + "/s"
    host = [] if "--backend" in flags else ["--backend", "host", "--device-total", device_total]
    command = [
        DAEMON,
        *("--socket", socket, *host),
        *("--pool-size", pool_size),
        *flags,
    ]
    try:
        with open(folder + "/log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _await_socket(process, socket, folder)
            yield socket
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _await_socket(process, socket, folder):
    from ravenstore import Store, Unavailable

    while True:
        try:
            Store.connect(socket=socket, timeout=10).close()
            return
        except Unavailable:
            if process.poll() is not None:
                words = pathlib.Path(folder + "/log").read_text(errors="replace")
                raise RuntimeError("no daemon: " + words) from None
            os.sched_yield()


def run_python(text, *arguments, **environment):
    """Runs a program in a Python of its own; its CompletedProcess."""
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", text, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER,
    )


def write_safetensors(path, tensors):
    """PyTorch's, as the format has it: github.com/huggingface/safetensors."""
    import torch

    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        memory = bytes(tensor.contiguous().view(torch.uint8).numpy()) if tensor.numel() else b""
        header[name] = {
            "dtype": kinds[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(memory)],
        }
        data += memory
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class StoreCase(unittest.TestCase):
    """A daemon for the class, a store of 16 MiB on its device for each test."""

    @classmethod
    def setUpClass(cls):
        cls.socket = cls.enterClassContext(daemon())

    def setUp(self):
        self.store = self.enterContext(self.connect(device_budget="16MiB"))

    def connect(self, **options):
        from ravenstore import Store

        return Store.connect(socket=self.socket, timeout=10, **options)

    def push_out(self, tensor):
        """Fills the device, so that `tensor`, which is put, has to leave it."""
        with self.store.create(16 * MIB - tensor.size // 2):
            self.assertFalse(tensor.ready())

    def assertTensors(self, count):
        """A free does not wait: the daemon may hear of it after the question."""
        self.assertTrue(eventually(lambda: self.store.stats().tensors == count))
