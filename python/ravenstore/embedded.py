"""A private daemon, where no daemon of the node is or another one is wanted.

Every call that attaches takes `embedded`:

- "auto", the default: the node's daemon where there is one, else a private one, which starts and
  says so in one line. The ranks of a job share it. A daemon that is there and refuses is an error,
  as is a socket that no daemon listens at, and one that $RAVENSTORE_SOCKET or `socket` names.
  $RAVENSTORE_EMBEDDED=0 forbids to start one.
- True: a private one of this process alone, also next to the node's.
- False: the node's.

A private daemon serves no other user. It ends with the process that it belongs to, also on SIGKILL:
that is the one that started it, or the launcher of the ranks. A child of fork() or of
multiprocessing uses its parent's, unless it asks for its own with True. Two of them on one GPU do
not know of each other. Each pins at most half of the host memory that was available when it
started, and no more than a quarter of the machine's.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import fcntl
import glob
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Literal

from ravenstore import _abi
from ravenstore._units import Duration, Size, bytes_of, nanoseconds_of, size_text
from ravenstore.errors import InvalidArgument, NotFound, TimedOut, Unavailable, check

_PROGRAM = "ravenstored"
_SOCKET_PATH_MAX = 107  # sockaddr_un
_ATTEMPT_PAUSE_S = 0.005
_STALE_AFTER_S = 60.0
_LOG_TAIL_BYTES = 8000
DEFAULT_SOCKET = "/run/ravenstore/ravenstore.sock"
Embedded = bool | Literal["auto"]
# Where children of this process find its private daemon.
_INHERITED = "RAVENSTORE_PRIVATE_SOCKET"
# How launchers say that there are several ranks, and which job it is: torchrun, Slurm's srun, Open
# MPI's and MPICH's mpirun.
_LAUNCHERS = (
    ("LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    ("SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"),
    ("MPI_LOCALNRANKS", "PMI_ID"),
)


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
    process: subprocess.Popen[bytes] | None
    """None if another rank of the job started it."""
    owner: int
    """The process whose object this is."""
    lock: int
    """The descriptor whose lock says that the folder is in use."""


_starting = threading.Lock()
_running: Daemon | None = None


def running() -> Daemon | None:
    """This process's private daemon if there is one."""
    daemon = _running
    if daemon is None or daemon.owner != os.getpid():
        return None
    return daemon if daemon.process is None or daemon.process.poll() is None else None


def default_socket() -> str:
    """Where the node's daemon serves."""
    return os.environ.get("RAVENSTORE_SOCKET") or DEFAULT_SOCKET


def check_choice(socket: str | os.PathLike[str] | None, embedded: Embedded) -> None:
    """Errors: InvalidArgument for what a call cannot have together."""
    if embedded not in (True, False, "auto"):
        raise InvalidArgument(f'embedded is True, False or "auto", not {embedded!r}')
    if embedded is True and socket is not None:
        raise InvalidArgument("socket= and embedded=True: one daemon or the other")


def socket_for(
    socket: str | os.PathLike[str] | None,
    embedded: Embedded,
    *,
    budget: Size | None = None,
    timeout: Duration = 30.0,
) -> str:
    """The socket of the daemon that a call with these arguments uses; starts a private one if that
    is what they ask for.

    budget: as for start().
    Errors: those of check_choice() and start().
    """
    check_choice(socket, embedded)
    if socket is not None:
        return os.fspath(socket)
    if embedded is True:
        return start(budget=budget, timeout=timeout).socket
    if not wants_private(embedded):
        return default_socket()
    path = private_socket()
    if path is None:
        path = start(budget=budget, timeout=timeout, for_job=True, says=True).socket
    return path


def wants_private(embedded: Embedded) -> bool:
    """Whether "auto" means a private daemon here: none of the node's is named or has a socket."""
    return (
        embedded == "auto"
        and os.environ.get("RAVENSTORE_EMBEDDED") != "0"
        and not os.environ.get("RAVENSTORE_SOCKET")
        and not os.path.lexists(DEFAULT_SOCKET)
    )


def private_socket() -> str | None:
    """That of this process's private daemon, else of its parent's; None where there is none."""
    current = running()
    if current is not None:
        return current.socket
    inherited = os.environ.get(_INHERITED)
    return inherited if inherited and os.path.exists(inherited) else None


def default_pool_bytes() -> int:
    """What a private daemon may pin at most if nothing else is said."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(64 << 20, min(machine // 4, available_host_bytes() // 2))


def available_host_bytes() -> int:
    """Host memory that is available to this process, by the machine and by its control groups."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) << 10
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/cgroup", encoding="utf-8") as lines:
            group = next(line[3:].strip() for line in lines if line.startswith("0::"))
        while group not in ("", "/"):
            folder = "/sys/fs/cgroup" + group
            with contextlib.suppress(OSError, ValueError):
                limit, used = (_number_in(f"{folder}/memory.{name}") for name in ("max", "current"))
                available = min(available, max(0, limit - used))
            group = os.path.dirname(group)
    return available


def _number_in(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())


def _announcement(pool: int, is_shared: bool) -> str:
    clients = "this job's ranks" if is_shared else "this process"
    return (
        f"ravenstore: no daemon at {DEFAULT_SOCKET}: a private one serves {clients}, with at most "
        f"{size_text(pool)} of host memory (RAVENSTORE_EMBEDDED=0 forbids it)"
    )


def start(
    *,
    backend: str = "auto",
    device_total: Size | None = None,
    pool_size: Size | None = None,
    budget: Size | None = None,
    flags: Sequence[str] = (),
    timeout: Duration = 30.0,
    for_job: bool = False,
    says: bool = False,
) -> Daemon:
    """This process's private daemon; starts it if there is none. Threads: any.

    backend: "cuda", "host" (devices simulated in main memory), or "auto": cuda where a GPU is.
    device_total: the size of the host backend's device. pool_size: host memory at most for what
        leaves the device. budget: device memory that this process will use, by which a daemon
        that starts chooses the size of its pages. flags: more of ravenstored's flags.
    for_job: the ranks of a job share it, with the options of the first, and children inherit it.
    says: one line on stderr if it starts.
    Errors: NotFound without the program; Unavailable, with its log, when it does not come up;
        TimedOut; InvalidArgument for options when it runs already, unless `for_job`.
    """
    global _running  # noqa: PLW0603 - one daemon a process
    with _starting:
        current = running()
        if current is not None:
            chosen = backend != "auto" or device_total is not None or pool_size is not None or flags
            if chosen and not for_job:
                raise InvalidArgument(
                    "this process's embedded daemon runs already: its options cannot change"
                )
            return current
        pool = default_pool_bytes() if pool_size is None else bytes_of(pool_size)
        words = _words(backend, device_total, pool, budget, flags)
        launched = _launcher() if for_job else None
        seconds = nanoseconds_of(timeout) / 1e9
        _running = _start(words, seconds) if launched is None else _join(words, launched, seconds)
        if for_job:
            os.environ[_INHERITED] = _running.socket
        if says and _running.process is not None:
            print(_announcement(pool, launched is not None), file=sys.stderr, flush=True)
        return _running


def _words(
    backend: str,
    device_total: Size | None,
    pool_bytes: int,
    budget: Size | None,
    flags: Sequence[str],
) -> list[str]:
    """The daemon's command, but for its socket and its parent."""
    words = [find_daemon(), "--backend", backend, "--pool-size", str(pool_bytes), *flags]
    if device_total is not None:
        words += ["--device-total", str(bytes_of(device_total))]
    if budget is not None:
        words += ["--usual-budget", str(bytes_of(budget))]
    return words


def _start(words: list[str], timeout: float) -> Daemon:
    """One of this process alone."""
    folder, lock = _new_folder()
    try:
        process = _spawn(words, folder, os.getpid(), time.monotonic() + timeout)
    except BaseException:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _daemon_in(folder, process, lock)


def _daemon_in(folder: str, process: subprocess.Popen[bytes] | None, lock: int) -> Daemon:
    return Daemon(f"{folder}/s", f"{folder}/log", process, os.getpid(), lock)


def _spawn(
    words: list[str], folder: str, parent: int, deadline: float
) -> subprocess.Popen[bytes] | None:
    """Starts the daemon; returns when it serves. None: another one serves there already."""
    socket, log = os.path.join(folder, "s"), os.path.join(folder, "log")
    with open(log, "ab") as out:
        process = subprocess.Popen(
            [*words, "--single-user", "--socket", socket, "--parent", str(parent)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # an interrupt from the terminal is for this process alone
        )
    try:
        return process if _await(process, socket, log, deadline) else None
    except BaseException:
        process.kill()
        process.wait()
        raise


# ---- One daemon for the ranks of a job


def _launcher() -> tuple[int, str] | None:
    """The process that launched this one as one of several ranks, and a name of its job that is the
    same in all of them; None if it is alone."""
    parent = os.getppid()
    for count, *names in _LAUNCHERS:
        ranks = os.environ.get(count, "")
        if ranks.isdigit() and int(ranks) > 1 and parent > 1:
            with contextlib.suppress(OSError, IndexError):
                with open(f"/proc/{parent}/stat", encoding="utf-8", errors="replace") as file:
                    began = file.read().rpartition(")")[2].split()[19]
                what = [str(parent), began, *(os.environ.get(name, "") for name in names)]
                return parent, hashlib.sha256("/".join(what).encode()).hexdigest()[:12]
    return None


def _join(words: list[str], launched: tuple[int, str], timeout: float) -> Daemon:
    """The daemon that this job's ranks share; the first of them starts it. One that dies while it
    does that is followed by the next."""
    launcher, job = launched
    deadline = time.monotonic() + timeout
    while True:
        folder = os.path.join(_base(), f"{_prefix()}job-{job}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)
        if status.st_uid != os.getuid() or status.st_mode & 0o77:
            raise Unavailable(f"{folder} belongs to another user, or others may use it: remove it")
        try:
            lock = _locked(os.path.join(folder, "lock"), fcntl.LOCK_SH, deadline)
        except FileNotFoundError:
            continue  # the last of earlier ranks removed it
        try:
            starting = _locked(os.path.join(folder, "starting"), fcntl.LOCK_EX, deadline)
            try:
                socket = os.path.join(folder, "s")
                process = None
                if not _answers(socket, deadline):
                    process = _spawn(words, folder, launcher, deadline)
                    if process is not None:
                        with open(os.path.join(folder, "pid"), "w", encoding="ascii") as file:
                            file.write(str(process.pid))
                return _daemon_in(folder, process, lock)
            finally:
                os.close(starting)
        except FileNotFoundError:
            os.close(lock)
        except BaseException:
            os.close(lock)
            raise


def _locked(path: str, kind: int, deadline: float) -> int:
    """A descriptor of the file, which is locked. Errors: FileNotFoundError if the file goes
    meanwhile; TimedOut."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimedOut(
                        f"another rank of this job holds {path}: its daemon did not come up in time"
                    ) from None
                time.sleep(_ATTEMPT_PAUSE_S)
        if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise FileNotFoundError(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _await(process: subprocess.Popen[bytes], socket: str, log: str, deadline: float) -> bool:
    """Returns once a daemon serves there: True if it is the process."""
    begun = time.monotonic()
    while True:
        ended = process.poll() is not None
        if _answers(socket, deadline):
            return not ended
        if ended or time.monotonic() > deadline:
            silent = f"silent for {time.monotonic() - begun:g} s"
            words = f"exit code {process.returncode}" if ended else silent
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


def _base() -> str:
    """The folder for private daemons' folders."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if not base or len(base) + len(_prefix()) + 24 > _SOCKET_PATH_MAX:
            continue
        if os.access(base, os.W_OK | os.X_OK):
            return base
    raise Unavailable("no folder for the embedded daemon's socket: is TMPDIR writable?")


def _new_folder() -> tuple[str, int]:
    """A private folder, and the descriptor that holds its lock. Sweeps those of dead processes."""
    base = _base()
    folder = tempfile.mkdtemp(prefix=_prefix(), dir=base)  # of mode 0700
    lock = os.open(os.path.join(folder, "lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _sweep(base)
    return folder, lock


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
    """The daemon ends when the process that it belongs to is gone; until then arrays may be in use.
    The folder goes now, with the last rank that has it. That rank ends the daemon of a launcher
    which goes on."""
    daemon = running()
    if daemon is None:
        return
    if daemon.process is not None:
        daemon.process.returncode = 0  # else subprocess warns that it still runs
    folder = os.path.dirname(daemon.socket)
    pid = os.path.join(folder, "pid")
    with contextlib.suppress(OSError, ValueError):
        fcntl.flock(daemon.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.exists(pid):
            os.kill(_number_in(pid), signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)
