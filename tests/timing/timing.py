"""How long a test waits: on a machine that is busy with other work, longer. See timing.h."""

import os
import time

# For what must come.
PATIENCE = 60
# When a program that a test started counts as one that hangs.
HANGS_AFTER = 600
LOOK_EVERY = 0.1


def stretch_of(loadavg, cores):
    """By how many times a machine of `cores` with this /proc/loadavg is slower than an idle one:
    the threads that want a core now, or that did in the last minute, by core. From 1 to 32."""
    minute, _, _, threads, _ = loadavg.split()
    wanted = max(float(minute), float(threads.split("/")[0]))
    return min(max(wanted / max(cores or 1, 1), 1.0), 32.0)


def stretch():
    with open("/proc/loadavg", encoding="ascii") as file:
        return stretch_of(file.read(), os.cpu_count())


class TimeLimit:
    """Begins when it is made. The load is read again while it runs."""

    def __init__(self, seconds):
        self.left = seconds
        self.counted = time.monotonic()  # what came before is taken from `left`

    def is_over(self):
        now = time.monotonic()
        if now - self.counted >= min(self.left, LOOK_EVERY):
            self.left -= (now - self.counted) / stretch()
            self.counted = now
        return self.left <= 0


def eventually(condition, limit=PATIENCE):
    """What `condition` returns once it is true, or its last value when the limit is over."""
    time_limit = TimeLimit(limit)
    while True:
        value = condition()
        if value:
            return value
        if time_limit.is_over():
            return condition()
        time.sleep(0.002)
