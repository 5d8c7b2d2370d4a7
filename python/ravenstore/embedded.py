"""A private daemon for this process, where no node's daemon is or another one is wanted.

    store = ravenstore.Store.connect(embedded=True)

starts one at the first use; later uses in the same process share it. It serves no other user, and
ends with this process, also on SIGKILL; a child of fork() gets one of its own. What it holds is in
nobody else's ledger: two of them on one GPU do not know of each other.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import fcntl
import glob
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence

from ravenstore import _abi
from ravenstore._units import Duration, Size, bytes_of, nanoseconds_of
from ravenstore.errors import InvalidArgument, NotFound, TimedOut, Unavailable, check

_PROGRAM = "ravenstored"
_SOCKET_PATH_MAX = 107  # sockaddr_un
_ATTEMPT_PAUSE_S = 0.005
_STALE_AFTER_S = 60.0
_LOG_TAIL_BYTES = 8000


def find_daemon() -> str:
    """The daemon's program: $RAVENSTORED, else the one in this package's folder (a wheel's), else
    the one on PATH or where deploy/install puts it. Errors: NotFound."""
    chosen = os.environ.get("RAVENSTORED")
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), _PROGRAM)
    found = chosen or (beside if os.access(beside, os.X_OK) else shutil.which(_PROGRAM))
    if found is None:
        found = shutil.which(_PROGRAM, path="/usr/local/sbin:/usr/local/bin")
    if found is None or not os.access(found, os.X_OK):
        where = (
            f"$RAVENSTORED is {chosen}"
            if chosen
            else f"no {_PROGRAM} beside the package or on PATH"
        )
        raise NotFound(
            f"{where}: no daemon to start. Install one (deploy/install, or a wheel made by "
            "deploy/wheel), or set RAVENSTORED to its path"
        )
    return found


@dataclasses.dataclass(frozen=True)
class Daemon:
    """A running private daemon."""

    socket: str
    """Where it serves; for Store.connect(socket=)."""
    log: str
    """The path of its log."""
    process: subprocess.Popen[bytes]
    owner: int
    """The process that it belongs to."""
    lock: int
    """The descriptor whose lock tells that the folder is in use."""


_starting = threading.Lock()
_running: Daemon | None = None


def running() -> Daemon | None:
    """This process's private daemon if there is one."""
    daemon = _running
    if daemon is None or daemon.owner != os.getpid() or daemon.process.poll() is not None:
        return None
    return daemon


def start(
    *,
    backend: str = "auto",
    device_total: Size | None = None,
    pool_size: Size | None = None,
    budget: Size | None = None,
    flags: Sequence[str] = (),
    timeout: Duration = 30.0,
) -> Daemon:
    """This process's private daemon; starts it if there is none. Threads: any.

    backend: "cuda", "host" (devices simulated in main memory), or "auto": cuda where a GPU is.
    device_total: the size of the host backend's device. pool_size: host memory at most for what
        leaves the device. budget: device memory that this process will use, by which a daemon
        that starts chooses the size of its pages. flags: more of ravenstored's flags.
    Errors: NotFound without the program; Unavailable, with its log, when it does not come up;
        TimedOut; InvalidArgument for options when it runs already.
    """
    global _running  # noqa: PLW0603 - one daemon a process
    with _starting:
        current = running()
        if current is not None:
            if backend != "auto" or device_total is not None or pool_size is not None or flags:
                raise InvalidArgument(
                    "this process's embedded daemon runs already: its options cannot change"
                )
            return current
        words = [find_daemon(), "--backend", backend, *flags]
        if device_total is not None:
            words += ["--device-total", str(bytes_of(device_total))]
        if pool_size is not None:
            words += ["--pool-size", str(bytes_of(pool_size))]
        if budget is not None:
            words += ["--usual-budget", str(bytes_of(budget))]
        _running = _start(words, nanoseconds_of(timeout) / 1e9)
        return _running


def _start(words: list[str], timeout: float) -> Daemon:
    folder, lock = _new_folder()
    socket, log = os.path.join(folder, "s"), os.path.join(folder, "log")
    try:
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [*words, "--single-user", "--socket", socket, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # an interrupt from the terminal is for this process alone
            )
        try:
            _await(process, socket, log, timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
    except BaseException:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Daemon(socket, log, process, os.getpid(), lock)


def _await(process: subprocess.Popen[bytes], socket: str, log: str, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        ended = process.poll() is not None
        if not ended and _answers(socket, deadline):
            return
        if ended or time.monotonic() > deadline:
            words = f"exit code {process.returncode}" if ended else f"silent for {timeout:g} s"
            kind = Unavailable if ended else TimedOut
            raise kind(f"the embedded daemon did not come up ({words}); its log:\n{_tail(log)}")
        time.sleep(_ATTEMPT_PAUSE_S)


def _answers(socket: str, deadline: float) -> bool:
    library = _abi.library()
    left = max(1, int((deadline - time.monotonic()) * 1e9))
    options = _abi.ConnectOptions(
        socket=os.fsencode(socket), name=b"embedded: start", timeout_ns=left
    )
    store = ctypes.c_void_p()
    try:
        check(library.ravenstore_connect(options, store))
    except (Unavailable, TimedOut):
        return False
    library.ravenstore_disconnect(store)
    return True


def _tail(log: str) -> str:
    try:
        with open(log, "rb") as file:
            return file.read()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip() or "(empty)"
    except OSError as error:
        return f"({error})"


def _prefix() -> str:
    return f"ravenstore-{os.getuid()}-"


def _new_folder() -> tuple[str, int]:
    """A private folder, and the descriptor that holds its lock. Sweeps those of dead processes."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if not base or len(base) + len(_prefix()) + 16 > _SOCKET_PATH_MAX:
            continue
        try:
            folder = tempfile.mkdtemp(prefix=_prefix(), dir=base)  # of mode 0700
        except OSError:
            continue
        lock = os.open(os.path.join(folder, "lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _sweep(base)
        return folder, lock
    raise Unavailable("no folder for the embedded daemon's socket: is TMPDIR writable?")


def _sweep(base: str) -> None:
    """Removes the folders of processes that were killed. A live one's lock is held."""
    for path in glob.glob(os.path.join(glob.escape(base), _prefix() + "*", "lock")):
        with contextlib.suppress(OSError):
            folder = os.path.dirname(path)
            status = os.lstat(folder)
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _STALE_AFTER_S:
                continue
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


@atexit.register
def _leave() -> None:
    """The daemon ends when the process is gone; until then arrays may be in use. The folder goes
    now."""
    daemon = running()
    if daemon is not None:
        daemon.process.returncode = 0  # else subprocess warns that it still runs
        shutil.rmtree(os.path.dirname(daemon.socket), ignore_errors=True)
