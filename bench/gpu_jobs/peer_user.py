#!/usr/bin/env python3
"""A user of device 0 whose tensors lie in another device's memory, for bench/peers_bench.py.

    peer_user.py SOCKET BYTES TENSOR BUDGET

Makes tensors of TENSOR bytes, BYTES in all, with a budget of BUDGET on the device. Takes commands,
a line each, and answers each with a line of JSON. sweep N read|write: gets and puts all N times, in
order. begin read|write: does so until the next command, which is end. check: how many of the
tensors have other bytes than were written. quit.
"""

import json
import os
import sys
import threading
import time

import figures

figures.use_package()

import ravenstore  # noqa: E402
import torch  # noqa: E402

TOGETHER = 4  # tensors of one call


def say(**what):
    print(json.dumps(what), flush=True)


class User:
    def __init__(self, socket, total, tensor, budget):
        self.store = ravenstore.Store.connect(socket=socket, device_budget=budget, timeout=60)
        self.cuda = self.store.backend == "cuda"
        self.stream = ravenstore.HostStream()
        if self.cuda:
            torch.cuda.init()
            self.stream = torch.cuda.Stream(0)
        device = "cuda:0" if self.cuda else "cpu"
        # A place's number, so that no piece looks like another.
        self.base = torch.arange(tensor // 8, device=device, dtype=torch.int64)
        self.tensors = []
        for index in range(total // tensor):
            one = self.store.create(tensor)
            torch.add(self.base, index << 32, out=one.torch(torch.int64))
            self.synchronize()
            one.put()
            self.tensors.append(one)

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()
        else:
            self.stream.synchronize()

    def once(self, read_only):
        for first in range(0, len(self.tensors), TOGETHER):
            some = self.tensors[first : first + TOGETHER]
            with self.store.get_batch(some, read_only=read_only, stream=self.stream):
                pass

    def sweep(self, read_only, goes_on):
        """Bytes and seconds of as many rounds as `goes_on` wants."""
        before, begun, rounds = self.store.stats(), time.perf_counter(), 0
        while goes_on(rounds):
            self.once(read_only)
            rounds += 1
            # Without this wait, a round would be timed when it is queued.
            self.synchronize()
        after, seconds = self.store.stats(), time.perf_counter() - begun
        return {
            "seconds": seconds,
            "rounds": rounds,
            "in": after.bytes_in - before.bytes_in,
            "out": after.bytes_out - before.bytes_out,
            "stall": (after.stall_ns - before.stall_ns) / 1e9,
        }

    def check(self):
        """How many of the tensors have other bytes than were written."""
        wrong = 0
        for index, tensor in enumerate(self.tensors):
            with tensor.get(read_only=True, blocking=True) as view:
                wrong += not torch.equal(view.torch(torch.int64) - (index << 32), self.base)
        return wrong


def main():
    socket, *sizes = sys.argv[1:]
    user = User(socket, *map(int, sizes))
    say(ready=os.getpid())
    sweeping, stop, found = None, threading.Event(), {}
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "quit":
            break
        if word == "sweep":
            count, kind = int(rest[0]), rest[1]
            say(**user.sweep(kind == "read", lambda rounds, count=count: rounds < count))
        elif word == "begin":
            stop.clear()

            def run(read_only=rest[0] == "read"):
                found.update(user.sweep(read_only, lambda _: not stop.is_set()))

            sweeping = threading.Thread(target=run)
            sweeping.start()
            say(begun=True)
        elif word == "end":
            stop.set()
            sweeping.join()
            say(**found)
        elif word == "check":
            say(wrong=user.check(), tensors=len(user.tensors))
    user.store.close()


if __name__ == "__main__":
    main()
