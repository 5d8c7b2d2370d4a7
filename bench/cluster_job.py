#!/usr/bin/env python3
"""A job whose tensors find no room on its node, while faults strike: bench/cluster_real.py runs it.

Makes, rewrites, reads and frees tensors without end, and keeps a ledger of what each must hold. A
get gives those bytes, or LOST, or another error, all within a bound. When its daemon is gone the
job connects again, with no tensors.

Reads words from standard input and answers each with a line of JSON: `status` or `check`. `check`
reads every tensor once, but begins no read after CHECK_S seconds. `end`, or the input's end, ends
the job.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import select
import time

import figures

figures.use_package()

import ravenstore  # noqa: E402 (use_package says where it is)

# What a call may end with whatever happens to the cluster.
CLEAN = (ravenstore.Lost, ravenstore.TimedOut, ravenstore.OutOfMemory, ravenstore.Unavailable)
# In an error's words: the borrower's checksums found bytes that this node did not write.
CORRUPT = "not those that were written"
NOTES = 5  # of each kind
CONNECT_AGAIN_S = 0.1
CHECK_S = 20  # a check begins no get after so long


class Job:
    def __init__(self, options):
        self.options = options
        self.size = ravenstore.bytes_of(options.size)
        self.random = random.Random(options.seed)
        self.noise = self.random.randbytes(self.size)
        self.stamps = 0  # given so far: no two writes are of the same bytes
        self.store = None
        self.ledger = {}  # tensor: the stamp of what it must hold
        self.counts = dict.fromkeys(
            ("calls", "late", "right", "wrong", "corrupt", "lost", "unclean", "connects"), 0
        )
        self.errors = {}  # by class, how many calls ended so
        self.slowest = 0.0
        self.noted = collections.Counter()
        self.notes = []

    def note(self, kind, words):
        self.noted[kind] += 1
        if self.noted[kind] <= NOTES:
            self.notes.append(words)

    def call(self, what, function, *arguments, **options):
        """What the call returns, or the store's error. Counts it, and whether it was too late."""
        begin = time.monotonic()
        try:
            answer = function(*arguments, **options)
        except ravenstore.RavenstoreError as error:
            answer = error
            kind = type(error).__name__
            self.errors[kind] = self.errors.get(kind, 0) + 1
            self.counts["unclean"] += not isinstance(error, CLEAN)
            self.counts["corrupt"] += CORRUPT in error.message
            if not isinstance(error, CLEAN) or CORRUPT in error.message:
                self.note("error", f"{what}: {kind}: {error}")
        seconds = time.monotonic() - begin
        self.slowest = max(self.slowest, seconds)
        self.counts["calls"] += 1
        if seconds > self.options.bound:
            self.counts["late"] += 1
            self.note("late", f"{what} took {seconds:.2f} s: {answer!r}")
        return answer

    # ---- Tensors

    def content(self, stamp):
        """What a tensor of that stamp holds: the noise, turned further for each."""
        begin = stamp * 65_537 % self.size
        return self.noise[begin:] + self.noise[:begin]

    def write(self, memory):
        self.stamps += 1
        memory[:] = self.content(self.stamps)
        return self.stamps

    def create(self):
        tensor = self.call("create", self.store.create, self.size)
        if isinstance(tensor, Exception):
            return tensor
        stamp = self.write(tensor.memory())
        put = self.call("put", tensor.put)
        if not isinstance(put, Exception):
            self.ledger[tensor] = stamp
        return put

    def get(self, tensor, *, rewrite=False):
        """Reads it and compares every byte; `rewrite`: and gives it new ones."""
        view = self.call("get", tensor.get, read_only=not rewrite, blocking=True)
        if isinstance(view, Exception):
            if isinstance(view, ravenstore.Lost):
                self.counts["lost"] += 1
                self.free(tensor)
            return view
        right = bytes(view.memory()) == self.content(self.ledger[tensor])
        self.counts["right" if right else "wrong"] += 1
        if not right:
            stamp = self.ledger[tensor]
            self.note("wrong", f"{tensor!r} does not hold what was written with stamp {stamp}")
        if self.counts["right"] == self.options.falsify:
            self.options.falsify = 0
            self.ledger[tensor] += 1
        elif rewrite:
            self.ledger[tensor] = self.write(view.memory())
        return self.call("put", view.put)

    def free(self, tensor):
        del self.ledger[tensor]
        return self.call("free", tensor.free)

    def step(self):
        """One call or two, drawn by the seed; returns an error of them."""
        tensors = list(self.ledger)
        if len(tensors) < self.options.tensors:
            return self.create()
        # Mostly the least recently used tensor: tensors unused for long are stored on other nodes.
        tensor = tensors[0] if self.random.random() < 0.7 else self.random.choice(tensors)
        drawn = self.random.random()
        if drawn < 0.1:
            return self.free(tensor)
        ended = self.get(tensor, rewrite=drawn < 0.5)
        if tensor in self.ledger:
            self.ledger[tensor] = self.ledger.pop(tensor)
        return ended

    # ---- The daemon

    def connect(self):
        """Once; without a daemon it is tried again after a moment."""
        store = self.call(
            "connect",
            ravenstore.Store.connect,
            socket=self.options.socket,
            timeout=self.options.timeout,
        )
        if isinstance(store, Exception):
            time.sleep(CONNECT_AGAIN_S)
            return
        self.counts["connects"] += 1
        self.store = store

    def leave_lost_daemon(self):
        """After an error: with the daemon all tensors are gone."""
        asked = self.call("stats", self.store.stats)
        if not isinstance(asked, Exception) or isinstance(asked, ravenstore.TimedOut):
            return
        self.ledger.clear()
        store, self.store = self.store, None
        self.call("close", store.close)

    # ---- What is asked of it

    def status(self):
        return self.counts | {
            "tensors": len(self.ledger),
            "errors": self.errors,
            "slowest_s": round(self.slowest, 3),
            "notes": self.notes,
        }

    def check(self):
        before = dict(self.counts)
        deadline = time.monotonic() + CHECK_S
        for tensor in list(self.ledger):
            if time.monotonic() < deadline:
                self.get(tensor)
        return {name: self.counts[name] - before[name] for name in ("right", "wrong", "lost")} | {
            "tensors": len(self.ledger)
        }

    def run(self):
        asked = b""
        while True:
            while b"\n" not in asked:
                if not select.select([0], [], [], 0)[0]:
                    break
                read = os.read(0, 4096)
                if not read:
                    return
                asked += read
            word, newline, rest = asked.partition(b"\n")
            if newline:
                asked = rest
                if word == b"end":
                    return
                answer = {b"status": self.status, b"check": self.check}[word]()
                print(json.dumps(answer), flush=True)
            elif self.store is None:
                self.connect()
            elif isinstance(self.step(), Exception):
                self.leave_lost_daemon()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--socket", required=True, help="the daemon's")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--size", default="2MiB", help="of each tensor (%(default)s)")
    parser.add_argument("--tensors", type=int, default=48, help="how many (%(default)s)")
    parser.add_argument("--timeout", type=float, default=6, help="of each wait, in seconds")
    parser.add_argument("--bound", type=float, default=9, help="a call that takes longer is late")
    parser.add_argument(
        "--falsify",
        type=int,
        default=0,
        help="after so many right gets say falsely in the ledger that a tensor was written",
    )
    job = Job(parser.parse_args())
    with contextlib.suppress(KeyboardInterrupt):
        job.run()
    if job.store is not None:
        job.store.close()


if __name__ == "__main__":
    main()
