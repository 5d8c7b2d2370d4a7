"""Daemons and legacy jobs of a test's own, for the interceptor's tests and its run on a GPU."""

import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).absolute().parents[1] / "timing")]

from timing import HANGS_AFTER, eventually  # noqa: E402

PATIENCE = HANGS_AFTER  # with a program of the test's own


class Programs:
    """Where the programs lie: one folder, or Bazel's."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)

        def find(name, place):
            near = folder / name
            return str(near if near.exists() else folder / place / name)

        self.daemon = find("ravenstored", "daemon")
        self.ctl = find("ravenctl", "client/ctl")
        self.library = pathlib.Path(find("libravenstore_intercept.so", "interceptor")).parent
        self.store = find("libravenstore.so", "client")


class Daemon:
    """A ravenstored, started on entry; its socket stays where it is when it is started again."""

    def __init__(self, programs, flags=(), environment=None):
        self.programs = programs
        self.flags = list(flags)
        self.environment = environment
        self.folder = tempfile.mkdtemp(prefix="raven-", dir="/tmp")
        self.socket = self.folder + "/s"
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self):
        with open(self.folder + "/log", "ab") as log:
            self.process = subprocess.Popen(
                [self.programs.daemon, "--socket", self.socket, *self.flags],
                env=self.environment,
                stderr=log,
                stdout=log,
            )
        serves = eventually(lambda: self.process.poll() is not None or self.answers())
        if not serves or self.process.poll() is not None:
            raise RuntimeError("no daemon: " + self.log())

    def answers(self):
        return self.ctl("status").returncode == 0

    def log(self):
        return pathlib.Path(self.folder + "/log").read_text(errors="replace")

    def kill(self, number=signal.SIGKILL):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
        if self.process is not None:
            self.process.wait()

    def ctl(self, *words):
        return subprocess.run(
            [self.programs.ctl, "--socket", self.socket, "--json", *words],
            capture_output=True,
            text=True,
            check=False,
        )

    def clients(self):
        answer = self.ctl("clients")
        return json.loads(answer.stdout) if answer.returncode == 0 else {}

    def jobs(self):
        return self.clients().get("legacy_jobs", [])

    def held(self, pid):
        """The bytes of the process by kind, summed over devices; None: no such job."""
        for job in self.jobs():
            if job["pid"] == pid:
                kinds = {}
                for device in job["devices"]:
                    for kind, count in device["kinds"].items():
                        kinds[kind] = kinds.get(kind, 0) + count
                return kinds
        return None

    def limit(self, *words):
        answer = self.ctl("limits", *words)
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)


class Job:
    """A program that takes commands, a line each, and answers each with a line of JSON."""

    def __init__(self, command, environment):
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self.read()["ready"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()

    def has_answered(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def read(self):
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(f"the job ended: {self.process.wait()}")
            with contextlib.suppress(ValueError):
                return json.loads(line)

    def send(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def ask(self, command):
        self.send(command)
        return self.read()

    def quit(self):
        with contextlib.suppress(OSError):
            self.process.stdin.write("quit\n")
            self.process.stdin.flush()
        return self.process.wait(PATIENCE)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def guest(programs, socket=None, **variables):
    """The environment of a job under the interceptor."""
    environment = dict(os.environ)
    environment["LD_PRELOAD"] = str(programs.library / "libravenstore_intercept.so")
    if socket is not None:
        environment["RAVENSTORE_SOCKET"] = socket
    return environment | {key: str(value) for key, value in variables.items()}


def wrong(expected, held):
    """What differs between what a job says it holds and the ledger, contexts left out."""
    held = held or {}
    kinds = set(expected) | set(held)
    return {
        kind: (expected.get(kind, 0), held.get(kind, 0))
        for kind in kinds - {"context"}
        if expected.get(kind, 0) != held.get(kind, 0)
    }
