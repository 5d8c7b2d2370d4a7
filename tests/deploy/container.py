"""A small Debian or Ubuntu, as the one that this runs on, that boots systemd in a container.

Its root folder is fetched once and kept in deploy's cache. A container runs on a layer over it
that is forgotten with the container, sees no network, and dies with the test.
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import timing

PACKAGES = ("dbus", "systemd", "systemd-sysv")
# Counts up where the same packages are to be prepared in another way.
RECIPE = 1
FETCH_SECONDS = 600
BOOT_SECONDS = 60
COMMAND_SECONDS = timing.HANGS_AFTER
# Nothing of the caller's environment is the container's business.
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
}
# Bazel's has no administrator's programs.
os.environ["PATH"] = os.environ.get("PATH", "/bin:/usr/bin") + ":/usr/sbin:/sbin"


def _words_of_failure(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "without a word"


def require_tools():
    """Skips where a container cannot be had, with the reason."""
    if os.geteuid():
        raise unittest.SkipTest("only root boots a container")
    for tool, package in (("systemd-nspawn", "systemd-container"), ("debootstrap", "debootstrap")):
        if not shutil.which(tool):
            raise unittest.SkipTest(f"there is no {tool} here (package {package})")
    probe = subprocess.run(
        ["unshare", "--mount", "--pid", "--net", "--fork", "mount", "-t", "proc", "proc", "/proc"],
        capture_output=True, text=True,
    )  # fmt: skip
    if probe.returncode:
        raise unittest.SkipTest(f"no namespaces here: {_words_of_failure(probe.stderr)}")


def _release():
    """(code name, [mirror]) of this machine's own system: what was built here runs there."""
    text = pathlib.Path("/etc/os-release").read_text()
    found = re.search(r"^VERSION_CODENAME=(\w+)$", text, re.M)
    if not found or not pathlib.Path("/usr/share/debootstrap/scripts", found[1]).exists():
        raise unittest.SkipTest("debootstrap does not know this system's release")
    asked = [
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI) $(CODENAME)",
        "Created-By: Packages",
    ]
    lines = subprocess.run(asked, capture_output=True, text=True).stdout.splitlines()
    mirrors = [uri for uri, _, name in (line.partition(" ") for line in lines) if name == found[1]]
    mirrors = [uri for uri in mirrors if uri.startswith(("http:", "https:"))]
    return found[1], mirrors[:1]


def root_folder(cache):
    """The root folder in `cache`, fetched if it is not there. The caller holds the cache's lock."""
    release, mirror = _release()
    recipe = repr((release, mirror, PACKAGES, RECIPE))
    root = cache / f"root-{release}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if root.exists():
        return root
    for old in cache.glob("root-*"):
        shutil.rmtree(old)
    # Renamed to `root` when it is complete.
    unfinished = cache / "root-unfinished"
    command = [
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        release,
        unfinished,
        *mirror,
    ]
    print(f"fetching a root folder: {' '.join(map(str, command))}", flush=True)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=FETCH_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise unittest.SkipTest(f"debootstrap took more than {FETCH_SECONDS} s") from None
    if done.returncode:
        raise unittest.SkipTest(f"debootstrap: {_words_of_failure(done.stdout)}")
    shutil.rmtree(unfinished / "var/cache/apt")
    unfinished.rename(root)
    return root


class Process:
    """A program in the container that is spoken to line by line."""

    def __init__(self, command):
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, bufsize=1,
        )  # fmt: skip

    def say(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def read_line(self, seconds=COMMAND_SECONDS):
        """Its next line; an empty string where it ended or said nothing for so long."""
        # A read has no bound of its own: what is overdue is killed, which ends the read.
        overdue = threading.Timer(seconds, self._process.kill)
        overdue.start()
        try:
            return self._process.stdout.readline().rstrip("\n")
        finally:
            overdue.cancel()

    def ask(self, line):
        self.say(line)
        return self.read_line()

    def end_input(self):
        self._process.stdin.close()

    def end(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class Container:
    """Boots with `mounts` ({path outside: path inside}, read-only) and waits until it is up."""

    def __init__(self, cache, mounts):
        cache.mkdir(parents=True, exist_ok=True)
        # One container at a time: those of one control group would meet in it.
        self._lock = os.open(cache / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._nspawn = None
        self._leader = None
        try:
            self._boot(root_folder(cache), mounts)
        except BaseException:
            self.stop()
            raise

    def _boot(self, root, mounts):
        begin = time.monotonic()
        folder = tempfile.TemporaryDirectory()
        log = pathlib.Path(folder.name, "log")
        with (
            folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
            log.open("w") as out,
        ):
            ready.bind(os.path.join(folder.name, "ready"))
            binds = [f"--bind-ro={outside}:{inside}" for outside, inside in mounts.items()]
            self._nspawn = subprocess.Popen(
                [
                    # Ends with the test, however that ends.
                    "setpriv", "--pdeathsig=TERM",
                    "systemd-nspawn", "--directory", root, "--volatile=overlay",
                    "--private-network", "--register=no", "--keep-unit", "--notify-ready=yes",
                    "--console=pipe", "--machine=ravenstore-test", *binds, "--boot",
                ],
                # Version 2 of control groups, whatever this machine uses.
                env=ENVIRONMENT | {
                    "NOTIFY_SOCKET": ready.getsockname(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
                },
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
            self._await_ready(ready, log)
        print(f"a container booted in {time.monotonic() - begin:.1f} s", flush=True)

    def _await_ready(self, ready, log):
        limit = timing.TimeLimit(BOOT_SECONDS)
        said = ""
        ready.settimeout(0.1)
        while "READY=1" not in said:
            try:
                said += ready.recv(4096).decode() + "\n"
            except TimeoutError:
                words = _words_of_failure(log.read_text())
                if self._nspawn.poll() is not None:
                    raise unittest.SkipTest(f"systemd-nspawn: {words}") from None
                if limit.is_over():
                    raise AssertionError(f"not up after {BOOT_SECONDS} s: {words}") from None
        self._leader = int(re.search(r"^X_NSPAWN_LEADER_PID=(\d+)$", said, re.M)[1])

    def _inside(self, command, user, variables):
        environment = ENVIRONMENT | {"HOME": "/root"} | variables
        words = [
            "nsenter",
            f"--target={self._leader}",
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--root",
        ]
        words += [
            "env",
            "-i",
            "-C",
            "/",
            *(f"{name}={value}" for name, value in environment.items()),
        ]
        if user != "root":
            words += ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        return words + [str(word) for word in command]

    def try_run(self, *command, user="root", **variables):
        """(exit code, standard output and error)"""
        done = subprocess.run(
            self._inside(command, user, variables), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_SECONDS,
        )  # fmt: skip
        return done.returncode, done.stdout

    def run(self, *command, user="root", **variables):
        """Standard output and error of a command that has to succeed."""
        code, words = self.try_run(*command, user=user, **variables)
        if code:
            raise AssertionError(f"{' '.join(map(str, command))}: exit code {code}\n{words}")
        return words

    def start(self, *command, user="root"):
        return Process(self._inside(command, user, {}))

    def write(self, path, text):
        subprocess.run(
            self._inside(["tee", path], "root", {}),
            input=text,
            stdout=subprocess.DEVNULL,
            text=True,
            check=True,
        )

    def stop(self):
        if self._nspawn:
            # Process 1 takes all others with it, and outlives a systemd-nspawn that is killed.
            with contextlib.suppress(ProcessLookupError):
                if self._leader:
                    os.kill(self._leader, signal.SIGKILL)
                else:
                    self._nspawn.terminate()
            self._nspawn.wait()
        os.close(self._lock)
