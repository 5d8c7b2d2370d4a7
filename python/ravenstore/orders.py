"""Memory that sleeps from outside: orders of other processes, which a program executes.

    for batch in batches:           # in each rank of train.py
        ravenstore.sleep_point()    # what is ordered to sleep sleeps here, until it is woken
        train(batch)

    ravenctl sleep weights --job train.py    # in a shell
    ravenstore.wake("weights", job="train.py")    # or in another program of the user's

An order is for all processes of a job on this node: all execute it or none does. One that fails, is
late or ends has the others undo it. The error of the process that ordered it says which and why.

Threads: any. Fork: a child takes no orders.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from ctypes import byref, c_uint64

from ravenstore import _abi, regions
from ravenstore._program import program_name
from ravenstore.errors import Lost, check

# Python handles signals between two waits.
_SLICE_NS = 100_000_000
# The daemon sends an order to all ranks in one turn. One that is undone does not come.
_ON_ITS_WAY_NS = 2_000_000_000

_thread: threading.Thread | None = None


def take_orders(*, anytime: bool = False, job: str | None = None) -> None:
    """From now on other processes of this user, and root's, may order this one's tags to sleep and
    to wake, those made later as well. May be called again.

    anytime: a thread executes the orders as they come: for servers. No work with a tag's memory may
        be under way then, other than what this program's streams will end. Else they are executed
        in `sleep_point`.
    job: the name by which orders find this process, and the other ranks, which say the same. By
        default that of the program's file.
    Errors: Lost; InvalidArgument: a name longer than 255 bytes.
    """
    global _thread  # noqa: PLW0603 - one for all tags
    regions.take_orders((job or program_name()).encode(), _run())
    if anytime and (_thread is None or not _thread.is_alive()):
        _thread = threading.Thread(target=_execute_orders_anytime, name="raven-orders", daemon=True)
        _thread.start()


def sleep_point(*, agree: Callable[[bool], bool] | None = None) -> None:
    """What was ordered happens here. Returns when no tag sleeps by an order: a program whose tags
    are to sleep waits here until they are woken. REQUIRES: this process's work with the tags'
    memory is on streams, and is begun by this thread, or by none meanwhile.

    agree: for ranks that wait for each other elsewhere. It gets whether this rank is ordered to do
        anything, and returns whether any rank is: all then do it here. By an all-reduce, say.

    The first call takes orders, if `take_orders` was not called. Costs a microsecond when there is
    nothing to do. Does nothing while a stream is captured.
    Errors: Lost. Other failures are errors of the process that ordered it, not of this call.
    """
    if not regions.takes_orders():
        take_orders()
    library = _abi.library()
    ordered = bool(library.ravenstore_region_is_ordered())
    if agree is not None and agree(ordered) and not ordered:
        ordered = bool(library.ravenstore_region_await_order(_ON_ITS_WAY_NS))
    if not ordered or regions.is_capturing():
        return
    while _execute_orders():
        library.ravenstore_region_await_order(_SLICE_NS)


def _execute_orders() -> bool:
    """Whether a tag sleeps by an order."""
    any_sleeps = False
    sleeps = c_uint64()
    for each in regions.opened():
        info = each.info()
        if not info.asleep:
            regions.synchronize(info.devices)
            each.release_free_blocks()
        check(_abi.library().ravenstore_region_obey(each.handle, byref(sleeps)))
        any_sleeps |= sleeps.value != 0
    return any_sleeps


def _execute_orders_anytime() -> None:
    library = _abi.library()
    try:
        while library.ravenstore_region_await_order(0):
            _execute_orders()
    except Lost:
        return  # the program's next use of its memory says so


def _run() -> int:
    """The number of the process with which the job began, if it is known: ravenrun's or torchrun's.
    Then it names the job as well, among others of the same program."""
    run = os.environ.get("RAVENSTORE_JOB", "").partition(":")[2]
    if run.isdecimal():
        return int(run) % (1 << 32)
    return os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else 0
