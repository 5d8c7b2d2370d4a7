"""What strikes a cluster of real processes, drawn by a seed, and how its loans are judged. Pure."""

import dataclasses
import itertools
import random

# Each kind of fault: what it does from its begin to its end.
KINDS = {
    "kill": "a daemon is killed, and started again",
    "stop": "a daemon is asked to end, which it does in its own time, and started again",
    "pause": "a daemon stands still for twice the lease",
    "link": "a node's link is down",
    "pair": "two nodes do not reach each other",
    "one-way": "what a node sends to another does not arrive",
    "lossy": "a node's link loses packets",
    "delayed": "a node's link delays packets, by up to about a lease",
    "wanted": "a node's memory is wanted back",
    "etcd-restart": "etcd is killed, and started again",
    "etcd-restore": "etcd gets back what it held at the begin",
    "etcd-compact": "a node's link is down, and etcd is compacted meanwhile",
}
# How many leases a kind lasts, at least and at most; the others last LEASES.
LASTS = {"pause": (2, 2), "etcd-restore": (1, 2), "lossy": (2, 4), "delayed": (2, 4)}
LEASES = (0.3, 3)
# How many nodes a fault is of; of the others one.
NODES = {"pair": 2, "one-way": 2, "etcd-restart": 0, "etcd-restore": 0}
FAULTS = (2, 4)  # at least and at most in one run
WINDOW = 3  # the leases within which they begin, but for those that wait for another


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str
    nodes: tuple  # one or two; none: etcd's alone
    begin: float  # seconds after the first may begin
    end: float

    @property
    def touches(self):
        """What of the cluster is no other fault's meanwhile."""
        nodes = {"+".join(sorted(self.nodes))} if len(self.nodes) == 2 else set(self.nodes)
        return nodes | ({"etcd"} if self.kind.startswith("etcd") else set())

    def __str__(self):
        where = f" {'>'.join(self.nodes)}" if self.nodes else ""
        return f"{self.kind}{where} {self.begin:.1f}-{self.end:.1f}"


@dataclasses.dataclass(frozen=True)
class Plan:
    seed: int
    nodes: str  # a letter each
    copies: int  # of data on other nodes
    faults: tuple

    def __str__(self):
        faults = ", ".join(map(str, self.faults))
        return f"seed {self.seed}, {len(self.nodes)} nodes, {self.copies} copies: {faults}"


def plan(seed, lease, kinds=tuple(KINDS)):
    """Of one run, by its seed: the nodes, the copies, and some faults. The first drawn is of the
    next kind after that of the seed before. Those that overlap touch different parts."""
    drawn = random.Random(seed)
    nodes = "abcd" if drawn.random() < 0.2 else "abc"
    copies = 2 if drawn.random() < 0.25 else 1
    faults = []
    for _ in range(drawn.randint(*FAULTS)):
        kind = drawn.choice(kinds) if faults else kinds[seed % len(kinds)]
        begin = drawn.uniform(0, WINDOW * lease)
        end = begin + drawn.uniform(*LASTS.get(kind, LEASES)) * lease
        fault = Fault(kind, tuple(drawn.sample(nodes, NODES.get(kind, 1))), begin, end)
        others = [other.end for other in faults if other.touches & fault.touches]
        if others and begin <= max(others):
            late = max(others) - begin + 0.1
            fault = dataclasses.replace(fault, begin=begin + late, end=end + late)
        faults.append(fault)
    return Plan(seed, nodes, copies, tuple(sorted(faults, key=lambda fault: fault.begin)))


class Books:
    """Whether a borrower counts on memory that its lender has not lent it, and so may lend others.

    Each daemon reports what it has borrowed and lent as it was within the last second. A renewal or
    the lease's end corrects what crashes and cuts leave. So the bytes that a borrower has under a
    valid lease may exceed what the lender reports for `patience` seconds, and no longer.
    """

    def __init__(self, patience):
        self.patience = patience
        self.since = {}  # borrower and lender: when it began, and whether it was reported
        self.violations = []

    @staticmethod
    def excess(views):
        """Pairs of borrower and lender that differ so; `views`: `ravenctl nodes` of each node that
        answers."""
        for home, lender in itertools.permutations(views, 2):
            borrowed = views[home].get(lender, {})
            if borrowed.get("lease_left_s", 0) <= 0:
                continue
            lent = views[lender].get(home, {}).get("lent_bytes", 0)
            if borrowed["borrowed_bytes"] > lent:
                yield home, lender, borrowed["borrowed_bytes"], lent

    def look(self, now, answers):
        """`answers`: of each node that answers, the parsed JSON of `ravenctl nodes`."""
        views = {
            name: {node["name"]: node for node in answer.get("nodes", [])}
            for name, answer in answers.items()
        }
        pairs = {(home, lender): sizes for home, lender, *sizes in self.excess(views)}
        self.since = {pair: self.since.get(pair, (now, False)) for pair in pairs}
        for pair, (borrowed, lent) in pairs.items():
            begin, reported = self.since[pair]
            if reported or now - begin <= self.patience:
                continue
            self.since[pair] = (begin, True)
            self.violations.append(
                f"{pair[0]} has {borrowed} bytes of {pair[1]}, which has lent it {lent}, since "
                f"{now - begin:.1f} s"
            )
