"""python -m ravenstore doctor: what was found here, what stands in the way, what to do about it.

It checks this Python; `ravenctl doctor` reports more about the machine and the daemon.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import sys
from collections.abc import Callable
from typing import Any, Literal

import ravenstore
from ravenstore import _abi, _native, embedded
from ravenstore._units import size_text
from ravenstore.embedded import DEFAULT_SOCKET

# "skip": what it needs is missing, which another finding reports.
Level = Literal["ok", "warn", "fail", "skip"]

_MEMLOCK_BYTES = 64 << 20
_TRIAL_BYTES = 1 << 16

# By the names that the daemon asks for.
CLUSTER_LIBRARIES = {
    "libcurl.so.4": "discovery of nodes",
    "libucp.so.0": 'cluster.transport = "ucx"',
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One check's verdict."""

    level: Level
    check: str
    """What was looked at, in one or two words."""
    found: str
    advice: str = ""
    """What to do; empty when all is well."""


@dataclasses.dataclass
class Context:
    """What the checks look at, and what earlier ones found out for later ones."""

    socket: str | None = None
    timeout: float = 5.0
    environment: dict[str, str] = dataclasses.field(default_factory=lambda: dict(os.environ))
    memlock: int = dataclasses.field(
        default_factory=lambda: resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    )
    store: ravenstore.Store | None = None
    torch: Any = None


def check_python(_: Context) -> Finding:
    """The interpreter."""
    version = platform.python_version()
    where = f"CPython {version} ({sys.executable})"
    if platform.system() != "Linux":
        return Finding("fail", "python", f"{where} on {platform.system()}", "use Linux")
    return Finding("ok", "python", where)


def check_library(_: Context) -> Finding:
    """libravenstore.so is there, whole, and of this package's version."""
    try:
        library = _abi.library()
    except ravenstore.LibraryNotFound as error:
        advice = "install it with deploy/install or pip install ./python, or set RAVENSTORE_LIBRARY"
        return Finding("fail", "library", str(error), advice)
    version = library.ravenstore_version().decode()
    found = f"{library._name}, version {version}"
    if version != ravenstore.__version__:
        advice = f"this package is version {ravenstore.__version__}: install both from one checkout"
        return Finding("fail", "library", found, advice)
    return Finding("ok", "library", found)


def _wanted_socket(context: Context) -> str:
    return context.socket or context.environment.get("RAVENSTORE_SOCKET") or DEFAULT_SOCKET


def check_daemon(context: Context) -> Finding:
    """A daemon answers; connects context.store to it."""
    socket = _wanted_socket(context)
    try:
        context.store = ravenstore.Store.connect(
            socket=socket, name="doctor", timeout=context.timeout, embedded=False
        )
    except ravenstore.LibraryNotFound:
        return Finding("skip", "daemon", "not asked without the library")
    except ravenstore.Unavailable as error:
        try:
            program = embedded.find_daemon()
        except ravenstore.NotFound:
            return Finding("fail", "daemon", f"{error}", "start the node's daemon (deploy/install)")
        found = f"none serves at {socket}"
        if context.socket is None and embedded.wants_private("auto"):
            return Finding("ok", "daemon", f"{found}: jobs start a private one, {program}")
        advice = f"start the node's daemon, or pass embedded=True, which starts {program}"
        return Finding("warn", "daemon", found, advice)
    except ravenstore.PermissionDenied as error:
        advice = "join the socket's group, or set RAVENSTORE_DAEMON_USER to the daemon's user"
        return Finding("fail", "daemon", str(error), advice)
    except ravenstore.RavenstoreError as error:
        return Finding("fail", "daemon", str(error), "ravenctl doctor tells more")
    return Finding("ok", "daemon", f"answers at {socket}, backend {context.store.backend}")


def check_backend(context: Context) -> Finding:
    """The daemon uses the GPUs that this process has."""
    if context.store is None:
        return Finding("skip", "backend", "not asked without a daemon")
    gpus = _gpus(context)
    if context.store.backend == "host":
        found = "host: devices are simulated in main memory"
        if gpus:
            advice = "start the daemon with --backend cuda; its log says why it does not by itself"
            return Finding("warn", "backend", f"{found}, and there are GPUs: {gpus}", advice)
        return Finding("ok", "backend", found)
    return Finding("ok", "backend", f"cuda; devices here: {gpus or 'PyTorch was not asked'}")


def _gpus(context: Context) -> str:
    if context.torch is None or not context.torch.cuda.is_available():
        return ""
    cuda = context.torch.cuda
    names = [
        f"{cuda.get_device_name(i)} ({size_text(cuda.get_device_properties(i).total_memory)})"
        for i in range(cuda.device_count())
    ]
    return ", ".join(names)


def check_budgets(context: Context) -> Finding:
    """What this user may have is something."""
    if context.store is None:
        return Finding("skip", "budgets", "not asked without a daemon")
    stats = context.store.stats()
    device, host = stats.device_budget, stats.host_budget
    found = f"device {size_text(device)}, host {size_text(host)}"
    if host < device:
        advice = (
            "raise host_pool.size or `ravenctl limits --host-budget`, or less can leave the device"
        )
        return Finding("warn", "budgets", found, advice)
    return Finding("ok", "budgets", found)


def check_trial(context: Context) -> Finding:
    """A tensor is created, put, got and freed, and has its bytes."""
    if context.store is None:
        return Finding("skip", "trial", "not made without a daemon")
    want = os.urandom(_TRIAL_BYTES)
    got = bytearray(_TRIAL_BYTES)
    try:
        with context.store.adopt(want, timeout=context.timeout) as tensor:
            tensor.put()
            tensor.get_into(got, timeout=context.timeout)
    except ravenstore.RavenstoreError as error:
        return Finding(
            "fail", "trial", str(error), "ravenctl doctor and ravenctl clients tell more"
        )
    if bytes(got) != want:
        return Finding("fail", "trial", "other bytes came back", "report this as a bug")
    return Finding("ok", "trial", f"create, put and get of {size_text(_TRIAL_BYTES)} work")


def check_torch(context: Context) -> Finding:
    """PyTorch can be imported and is one of those that are guaranteed; sets context.torch."""
    if importlib.util.find_spec("torch") is None:
        advice = "install PyTorch to offload a model; Store works without it"
        return Finding("warn", "pytorch", "not installed", advice)
    try:
        context.torch = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        return Finding("fail", "pytorch", f"cannot be imported: {error}", "install it anew")
    torch = context.torch
    cuda = "no CUDA" if torch.version.cuda is None else f"CUDA {torch.version.cuda}"
    usable = ", usable here" if torch.cuda.is_available() else ", no GPU usable here"
    found = f"{torch.__version__} ({cuda}{usable})"
    if not _native.is_known(torch.__version__):
        return Finding("warn", "pytorch", found, _native.how_to_get(torch.__version__))
    return Finding("ok", "pytorch", found)


def check_native(context: Context) -> Finding:
    """The native part is there and fits the PyTorch."""
    if context.torch is None:
        return Finding("skip", "native part", "not needed without PyTorch")
    try:
        torch = context.torch
        module = _native.find(torch.__version__, torch.version.cuda is not None)
    except ModuleNotFoundError:
        advice = _native.how_to_get(context.torch.__version__)
        found = (
            "only for PyTorch " + ", ".join(_native.minors()) if _native.minors() else "not there"
        )
        return Finding("warn", "native part", found, advice)
    except (ImportError, OSError) as error:
        advice = "it was built for another PyTorch or Python: pip install ./python again"
        return Finding("fail", "native part", f"cannot be loaded: {error}", advice)
    return Finding("ok", "native part", str(module.__file__))


def check_cluster(_: Context) -> Finding:
    """What the daemon opens at run time, and needs in a cluster only."""
    missing = []
    for name, use in CLUSTER_LIBRARIES.items():
        try:
            ctypes.CDLL(name)
        except OSError:
            missing.append(f"{name} ({use})")
    found = f"missing: {', '.join(missing)}" if missing else ", ".join(CLUSTER_LIBRARIES)
    return Finding("ok", "for clusters", found)


def check_memlock(context: Context) -> Finding:
    """What this process, and an embedded daemon, may pin."""
    if context.memlock == resource.RLIM_INFINITY:
        return Finding("ok", "locked memory", "unlimited")
    found = f"RLIMIT_MEMLOCK is {size_text(context.memlock)}"
    pins = context.torch is not None and context.torch.cuda.is_available()
    if pins and context.memlock < _MEMLOCK_BYTES:
        advice = "ulimit -l unlimited, or memlock in /etc/security/limits.conf, if pinning fails"
        return Finding("warn", "locked memory", found, advice)
    return Finding("ok", "locked memory", found)


# In the order in which a person should mend them.
CHECKS: list[Callable[[Context], Finding]] = [
    check_python,
    check_library,
    check_torch,
    check_native,
    check_daemon,
    check_backend,
    check_budgets,
    check_trial,
    check_memlock,
    check_cluster,
]


def examine(context: Context) -> list[Finding]:
    """All checks. Waits for the daemon no longer than the context's timeout each."""
    try:
        return [check(context) for check in CHECKS]
    finally:
        if context.store is not None:
            context.store.close()


def main(arguments: list[str]) -> int:
    """0 when nothing failed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m ravenstore doctor", description=__doc__)
    parser.add_argument("--socket", help="the daemon's; else $RAVENSTORE_SOCKET or the node's")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(arguments)
    findings = examine(Context(socket=options.socket))
    healthy = all(finding.level != "fail" for finding in findings)
    if options.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"healthy": healthy, "findings": rows}))
    else:
        for finding in findings:
            print(f"{finding.level:<5} {finding.check:<14} {finding.found}")
            if finding.advice:
                print(f"{'':<20} -> {finding.advice}")
        warnings = sum(finding.level == "warn" for finding in findings)
        if not healthy:
            print("Something has to be mended.")
        else:
            print(f"Works, with {warnings} warnings." if warnings else "All is well.")
    return 0 if healthy else 1
