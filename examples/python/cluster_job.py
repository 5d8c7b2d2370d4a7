"""A job whose tensors find no room on its node: makes them, and compares every byte on demand.

    python3 examples/python/cluster_job.py --socket /run/ravenstore/ravenstore.sock

Reads words from standard input and answers each with a line: `make N` makes tensors until there
are N; `check` gets each, compares it, and frees those that are lost; `end`, or the input's end,
ends the job. deploy/cluster-demo runs it.
"""

import argparse
import random
import sys
import time

import ravenstore


class Job:
    def __init__(self, store, size):
        self.store = store
        self.size = size
        self.noise = random.Random(1).randbytes(size)
        self.tensors = {}  # by seed
        self.seeds = 0

    def content(self, seed):
        """What the tensor made with `seed` holds: the noise, turned further for each."""
        begin = seed * 65_537 % self.size
        return self.noise[begin:] + self.noise[:begin]

    def make(self, count):
        begin = time.monotonic()
        while len(self.tensors) < count:
            self.seeds += 1
            tensor = self.store.create(self.size)
            tensor.memory()[:] = self.content(self.seeds)
            tensor.put()
            self.tensors[self.seeds] = tensor
        return f"tensors={len(self.tensors)} seconds={time.monotonic() - begin:.1f}"

    def is_right(self, seed, tensor):
        with tensor.get(read_only=True, blocking=True) as view:
            return bytes(view.memory()) == self.content(seed)

    def check(self):
        begin = time.monotonic()
        right, wrong, lost, first_lost = 0, 0, 0, 0.0
        for seed, tensor in list(self.tensors.items()):
            try:
                is_right = self.is_right(seed, tensor)
            except ravenstore.Lost as error:
                if lost == 0:
                    first_lost = time.monotonic() - begin
                lost += 1
                print(f"tensor {seed}: {error}", file=sys.stderr, flush=True)
                tensor.free()
                del self.tensors[seed]
                continue
            right += is_right
            wrong += not is_right
        seconds = time.monotonic() - begin
        return (
            f"right={right} wrong={wrong} lost={lost} first_lost={first_lost:.1f} "
            f"seconds={seconds:.1f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--socket", help="the daemon's; by default the node's")
    parser.add_argument("--size", default="8MiB", help="of each tensor (%(default)s)")
    parser.add_argument("--timeout", type=float, default=30, help="of each wait, in seconds")
    options = parser.parse_args()
    with ravenstore.Store.connect(socket=options.socket, timeout=options.timeout) as store:
        job = Job(store, ravenstore.bytes_of(options.size))
        for line in sys.stdin:
            match line.split():
                case ["make", count]:
                    print(job.make(int(count)), flush=True)
                case ["check"]:
                    print(job.check(), flush=True)
                case ["end"]:
                    break
                case _:
                    sys.exit(f"neither make N, check nor end: {line.strip()}")


if __name__ == "__main__":
    main()
