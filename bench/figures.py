"""What the measuring programs in Python share: where the built files are, and a figure's line."""

import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent


def built(target):
    """A built file's path: bazel-bin's, or $RAVENSTORE_BIN's, where all may be in one folder."""
    folder = pathlib.Path(os.environ.get("RAVENSTORE_BIN", ROOT / "bazel-bin"))
    path = folder / target
    return str(path if path.exists() else folder / path.name)


def use_package():
    """The checkout's package, with the library and the daemon that were built unless the
    environment names others."""
    sys.path.insert(0, str(ROOT / "python"))
    os.environ.setdefault("RAVENSTORE_LIBRARY", built("client/libravenstore.so"))
    os.environ.setdefault("RAVENSTORED", built("daemon/ravenstored"))


class OwnDaemon:
    """For this run alone, on the GPU. Owns: its process. Context: ends it."""

    def __init__(self, *flags, **options):
        """`options`: of subprocess.Popen. Raises RuntimeError if it does not start."""
        self.folder = tempfile.TemporaryDirectory()
        self.socket = os.path.join(self.folder.name, "s")
        command = [built("daemon/ravenstored"), "--backend", "cuda", "--socket", self.socket]
        self.process = subprocess.Popen([*command, *flags], **options)
        while not os.path.exists(self.socket) and self.process.poll() is None:
            time.sleep(0.05)
        if self.process.poll() is not None:
            raise RuntimeError(f"the daemon ended with {self.process.returncode}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def ctl(self, *words):
        """What ravenctl prints."""
        command = [built("client/ctl/ravenctl"), "--socket", self.socket, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()


def machine(device):
    """This machine in words; `device`: its GPU's name, or what there is instead."""
    processor = platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {device}"


def gpu_names():
    """Of this machine's GPUs. Not torch's answer: it would open a context on each."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=False)
    except OSError:
        return []
    return answer.stdout.strip().splitlines() if answer.returncode == 0 else []


def ravensim(command, trace, budget, up, down, compute=None, page=None):
    """The JSON that `ravensim COMMAND` prints for the trace, with a budget in bytes and a link in
    GB/s; `compute`: seconds that all of it computes, if not as recorded; `page`: bytes of one, if
    not of the budget. If it fails: None, and its message on stderr."""
    ask = [built("sim/ravensim"), command, str(trace), "--json", "--budget", str(budget)]
    ask += ["--up", str(up), "--down", str(down)]
    ask += [] if compute is None else ["--compute", str(compute)]
    ask += [] if page is None else ["--page", str(page)]
    answer = subprocess.run(ask, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        print(answer.stderr + answer.stdout, file=sys.stderr)
        return None
    return json.loads(answer.stdout)


# Of print_link_bounds: GB/s up, down, and both together.
LINK = re.compile(r"up ([\d.]+), down ([\d.]+), duplex ([\d.]+)")


def emit(name, value, unit, target, machine, *, at_least=False, bound=None, **more):
    """Prints one figure; `value` None: not measured, and `skipped` says why. `ok`, where it is
    given, goes before the comparison with `target`."""
    if "ok" not in more:
        known = value is not None and target is not None
        good = None if not known else value >= target if at_least else value <= target
        more = {"ok": good} | more
    row = {"name": name, "value": value, "unit": unit, "bound": bound, "target": target}
    print(json.dumps(row | {"machine": machine} | more), flush=True)
