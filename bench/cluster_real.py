#!/usr/bin/env python3
"""Faults that strike a cluster of real processes: what they do harm to.

    bench/cluster_real.py --runs 10          runs of the seeds 1 to 10
    bench/cluster_real.py --seed 7           that run again

A run has etcd and three or four daemons with simulated devices, each in a network namespace, and
jobs on two of them that need the others' memory. Within some seconds two to four faults strike, as
the seed says (bench/cluster_plan.py): daemons and etcd are killed and stopped, links go down, lose
and delay packets. The jobs compare every byte that they get and time every call; what borrowers
have is compared with what lenders lent; once all is healed the cluster must be of use again.

Prints the figure as one line of JSON, and what happens to standard error. As root, where network
namespaces can be made, with etcd; elsewhere the figure is skipped, with the reason. It exits 1 when
something went wrong, and the seed in question gives the same faults again.
"""

import argparse
import contextlib
import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import cluster_plan
import figures

DEPLOY = figures.ROOT / "deploy"
# A function of deploy/cluster_nodes.sh.
FUNCTION = 'cd "$0" && source ./common.sh && source ./cluster_nodes.sh && ETCD=$(find_etcd) && "$@"'
RESERVE = 1024  # MiB, as cluster_nodes.sh has it
FREE = 3072  # MiB that are free at first
DEVICE, HOST = 32, 32  # MiB of each node
TENSORS, SIZE = 48, 2  # of each job, and MiB of each
JOBS_ON = "ab"
LOOK_EVERY = 0.4
START_S = 60  # for all that begins and ends, on a busy machine
HEAL_S = 60
# What was wrong, for the figure.
HARM = ("wrong_bytes", "late_calls", "lent_twice", "not_healed", "crashes", "unclean_errors")

# Asks etcd's gateway: to write some keys, and to forget all older revisions.
ASK_ETCD = """
import json, sys, time, urllib.request
deadline = time.monotonic() + 30
def post(path, body):
    url = "http://192.0.2.9:2379/v3/kv/" + path
    while True:
        try:
            return json.load(urllib.request.urlopen(url, json.dumps(body).encode(), timeout=5))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
for _ in range(10):
    revision = post("put", {"key": "eA==", "value": "eA=="})["header"]["revision"]
if sys.argv[1] == "compact":
    post("compaction", {"revision": revision, "physical": True})
"""


def say(words):
    print(words, file=sys.stderr, flush=True)


def function(name, *words, **variables):
    """How subprocess runs one of cluster_nodes.sh's functions."""
    command = ["bash", "-euc", FUNCTION, str(DEPLOY), name, *map(str, words)]
    return {"args": command, "env": os.environ | variables}


def why_not():
    """In one sentence why it cannot be measured here; empty where it can."""
    done = subprocess.run(**function("why_not"), capture_output=True, text=True, check=True)
    if done.stdout:
        return done.stdout.strip()
    programs = ("daemon/ravenstored", "client/ctl/ravenctl", "client/libravenstore.so")
    missing = [program for program in programs if not os.path.exists(figures.built(program))]
    return f"{missing[0]} is not built" if missing else ""


def end(process, signal_number, seconds=START_S):
    """Its exit code; None when it has not ended in time, and was killed."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal_number)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


class Cluster:
    """The nodes, their network and etcd, and what faults do to them."""

    def __init__(self, folder, plan, options):
        self.folder = pathlib.Path(folder)
        self.nodes = plan.nodes
        self.copies = plan.copies
        self.prefix = f"rvf{os.getpid()}"
        self.variables = {
            "PREFIX": self.prefix,
            "RUN": folder,
            "RAVENSTORED": os.path.abspath(figures.built("daemon/ravenstored")),
            "NODE_NAMES": " ".join(plan.nodes),
            "LEASE": str(options.lease),
            "DEVICE": f"{DEVICE}MiB",
            "HOST": f"{HOST}MiB",
        }
        self.lease = options.lease
        self.shaper = options.shaper
        self.processes = {}
        self.away = set()  # those that a fault has stopped or killed
        self.crashes = []

    def call(self, name, *words):
        subprocess.run(
            **function(name, *words, **self.variables),
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def ip(self, name, *words, program="ip"):
        subprocess.run([program, "-n", f"{self.prefix}-{name}", *words], check=True)

    def start(self, name):
        what = ("run_etcd",) if name == "etcd" else ("run_node", name)
        self.processes[name] = subprocess.Popen(
            **function(*what, **self.variables), stdin=subprocess.DEVNULL
        )

    def kill(self, name):
        if self.processes[name].poll() is not None:
            self.crashes.append(f"{name} had ended with {self.processes[name].returncode}")
        end(self.processes[name], signal.SIGKILL)

    def make(self):
        self.call("make_network")
        self.call("make_key")
        self.start("etcd")
        for name in self.nodes:
            self.call("has_free", name, FREE)
            copies = f"copies = {self.copies}"
            self.call("write_config", name, 'size = "256MiB"', 'lend = "256MiB"', copies)
            self.start(name)

    def end_all(self):
        """Ends all processes, and records those that ended badly as crashes."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                self.crashes.append(f"{name} had ended with {process.returncode}")
            elif name != "etcd" and (code := end(process, signal.SIGTERM)) != 0:
                self.crashes.append(f"{name} ended with {code}")

    def remove_network(self):
        subprocess.run(**function("remove_network", **self.variables))

    def answer(self, name):
        """What `ravenctl nodes` shows of that node; None when it does not answer."""
        command = [figures.built("client/ctl/ravenctl"), "--socket", self.folder / name]
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
            done = subprocess.run(
                [*command, "--json", "nodes"], capture_output=True, timeout=5, text=True
            )
            if done.returncode == 0:
                return json.loads(done.stdout)
        return None

    def answers(self):
        """Of each node that is there and answers."""
        asked = {name: self.answer(name) for name in self.nodes if name not in self.away}
        return {name: answer for name, answer in asked.items() if answer is not None}

    # ---- Faults: each from its begin to its end

    def shape(self, node, words):
        """Both ways of a node's link; without words as it was."""
        for name, device in (("hub", f"to-{node}"), (node, "net")):
            if words:
                self.ip(name, "qdisc", "add", "dev", device, "root", *words.split(), program="tc")
            else:
                self.ip(name, "qdisc", "del", "dev", device, "root", program="tc")

    def reach(self, node, other, can):
        """If `can`, packets of `node` reach `other`; otherwise they go to an unused address."""
        address = f"192.0.2.{ord(other) - ord('a') + 1}"
        unused = ("lladdr", "02:00:00:00:00:fe", "nud", "permanent")
        words = ("del", address) if can else ("replace", address, *unused)
        self.ip(node, "neigh", *words, "dev", "net")

    def ask_etcd(self, what):
        """Patient: etcd may just have begun."""
        command = [sys.executable, "-c", ASK_ETCD, what]
        subprocess.run(["ip", "netns", "exec", f"{self.prefix}-hub", *command], check=True)

    def begin(self, fault):
        getattr(self, f"begin_{fault.kind.replace('-', '_')}")(*fault.nodes)

    def end(self, fault):
        getattr(self, f"end_{fault.kind.replace('-', '_')}")(*fault.nodes)

    def begin_kill(self, node):
        self.away.add(node)
        self.kill(node)

    def end_kill(self, node):
        self.start(node)
        self.away.discard(node)

    def begin_stop(self, node):
        # One that has just begun would end as any program does that has not come far.
        deadline = time.monotonic() + START_S
        while self.answer(node) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        self.away.add(node)
        self.processes[node].send_signal(signal.SIGTERM)

    def end_stop(self, node):
        # It has its own time for what it lends, and for its jobs.
        if (code := end(self.processes[node], signal.SIGTERM)) != 0:
            self.crashes.append(f"{node} was asked to end, and ended with {code}")
        self.end_kill(node)

    def begin_pause(self, node):
        self.away.add(node)
        self.processes[node].send_signal(signal.SIGSTOP)

    def end_pause(self, node):
        self.processes[node].send_signal(signal.SIGCONT)
        self.away.discard(node)

    def begin_link(self, node):
        self.call("link", node, "down")

    def end_link(self, node):
        self.call("link", node, "up")

    def begin_pair(self, node, other):
        self.reach(node, other, False)
        self.reach(other, node, False)

    def end_pair(self, node, other):
        self.reach(node, other, True)
        self.reach(other, node, True)

    def begin_one_way(self, node, other):
        self.reach(node, other, False)

    def end_one_way(self, node, other):
        self.reach(node, other, True)

    def begin_lossy(self, node):
        netem = self.shaper == "netem"
        # Without netem a bottleneck with hardly a queue.
        self.shape(node, "netem loss 10%" if netem else "tbf rate 40mbit burst 32kb limit 64kb")

    def begin_delayed(self, node):
        netem = self.shaper == "netem"
        half, queue = f"{self.lease * 500}ms", f"{self.lease * 2000}kb"
        # Without netem a bottleneck with a queue that holds what it sends in a lease.
        self.shape(
            node,
            f"netem delay {half} {half}" if netem else f"tbf rate 16mbit burst 32kb limit {queue}",
        )

    def end_lossy(self, node):
        self.shape(node, "")

    end_delayed = end_lossy

    def begin_wanted(self, node):
        self.call("has_free", node, RESERVE - 512)

    def end_wanted(self, node):
        self.call("has_free", node, FREE)

    def begin_etcd_restart(self):
        self.kill("etcd")

    def end_etcd_restart(self):
        self.start("etcd")

    def begin_etcd_restore(self):
        self.kill("etcd")
        shutil.copytree(self.folder / "etcd", self.folder / "backup")
        self.start("etcd")

    def end_etcd_restore(self):
        self.ask_etcd("write")
        self.kill("etcd")
        shutil.rmtree(self.folder / "etcd")
        (self.folder / "backup").rename(self.folder / "etcd")
        self.start("etcd")

    def begin_etcd_compact(self, node):
        self.begin_link(node)

    def end_etcd_compact(self, node):
        self.ask_etcd("compact")
        self.end_link(node)


class Job:
    """bench/cluster_job.py on one node."""

    def __init__(self, socket, seed, options):
        self.process = subprocess.Popen(
            [
                sys.executable, figures.ROOT / "bench/cluster_job.py",
                "--socket", socket, "--seed", str(seed),
                "--tensors", str(TENSORS), "--size", f"{SIZE}MiB",
                "--timeout", str(options.timeout), "--bound", str(options.bound),
                "--falsify", str(options.falsify),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.hangs = False

    def ask(self, word, seconds):
        """Its answer; None when there is none in time, or the job has ended, and ever after."""
        if self.hangs:
            return None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(word.encode() + b"\n")
            self.process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(self.process.stdout, selectors.EVENT_READ)
                line = self.process.stdout.readline() if selector.select(seconds) else b""
            if line.endswith(b"\n"):
                return json.loads(line)
        self.hangs = True
        return None


class Run:
    """One run of one plan: its harm in counts, and what is to be said of it."""

    def __init__(self, plan, options, folder):
        self.plan = plan
        self.options = options
        self.cluster = Cluster(folder, plan, options)
        self.books = cluster_plan.Books(patience=2 * options.lease + 3)
        self.jobs = {}
        self.harm = dict.fromkeys(HARM, 0)
        self.totals = {"calls": 0, "lost": 0, "slowest_s": 0.0}
        self.errors = {}
        self.notes = []
        self.begin = time.monotonic()
        self.phases = []  # how long each took

    def end_phase(self, name):
        taken = sum(seconds for _, seconds in self.phases)
        self.phases.append((name, time.monotonic() - self.begin - taken))

    def look(self):
        answers = self.cluster.answers()
        self.books.look(time.monotonic(), answers)
        return answers

    def wait_until(self, what, holds, seconds):
        """Whether it holds in time; looks meanwhile."""
        deadline = time.monotonic() + seconds
        while not holds(self.look()):
            if time.monotonic() > deadline:
                self.notes.append(f"not in {seconds} s: {what}")
                return False
            time.sleep(LOOK_EVERY)
        return True

    def all_meet(self, answers):
        return len(answers) == len(self.plan.nodes) and all(
            answer["discovery"].startswith("registered as")
            and sum(node["connected"] for node in answer["nodes"]) == len(answers) - 1
            for answer in answers.values()
        )

    @staticmethod
    def all_borrow(answers):
        return all(answers.get(name, {}).get("held_bytes", 0) > 0 for name in JOBS_ON)

    def strike(self):
        begin = time.monotonic()
        events = [(fault.begin, self.cluster.begin, fault) for fault in self.plan.faults]
        events += [(fault.end, self.cluster.end, fault) for fault in self.plan.faults]
        for at, does, fault in sorted(events, key=lambda event: event[0]):
            while (left := begin + at - time.monotonic()) > 0:
                time.sleep(min(LOOK_EVERY, left))
                self.look()
            does(fault)

    def is_healed(self):
        """Whether the cluster is of use again: jobs have more tensors than fit on their node."""
        if not self.wait_until("all nodes know and reach each other", self.all_meet, HEAL_S):
            return False
        if not self.wait_until("jobs have tensors on other nodes", self.all_borrow, HEAL_S):
            return False
        deadline = time.monotonic() + HEAL_S
        while True:
            checks = {name: job.ask("check", HEAL_S) for name, job in self.jobs.items()}
            if None in checks.values():
                self.notes.append(f"a job does not answer: {checks}")
                return False
            if all(check["right"] * SIZE > DEVICE + HOST for check in checks.values()):
                return True
            if time.monotonic() > deadline:
                self.notes.append(f"other nodes are of no use though all is healed: {checks}")
                return False
            self.look()
            time.sleep(LOOK_EVERY)

    def end_jobs(self):
        for name, job in self.jobs.items():
            status = job.ask("status", self.options.bound + START_S)
            if status is None:
                self.notes.append(f"the job on {name} hangs or has crashed: {job.process.poll()}")
                self.harm["late_calls"] += 1
                job.process.kill()
                job.process.wait()
                continue
            job.process.stdin.close()
            if end(job.process, 0) != 0:
                self.notes.append(f"the job on {name} ended with {job.process.returncode}")
                self.harm["crashes"] += 1
            self.harm["wrong_bytes"] += status["wrong"] + status["corrupt"]
            self.harm["late_calls"] += status["late"]
            self.harm["unclean_errors"] += status["unclean"]
            self.notes += [f"{name}: {note}" for note in status["notes"]]
            for what in ("calls", "lost"):
                self.totals[what] += status[what]
            self.totals["slowest_s"] = max(self.totals["slowest_s"], status["slowest_s"])
            for kind, count in status["errors"].items():
                self.errors[kind] = self.errors.get(kind, 0) + count

    def run_phases(self):
        self.cluster.make()
        if not self.wait_until("all nodes know and reach each other", self.all_meet, START_S):
            self.harm["not_healed"] += 1
            return
        for number, name in enumerate(JOBS_ON):
            socket = self.cluster.folder / name
            self.jobs[name] = Job(socket, 2 * self.plan.seed + number, self.options)
        self.end_phase("met")
        if self.wait_until("jobs have tensors on other nodes", self.all_borrow, START_S):
            self.end_phase("filled")
            self.strike()
            self.end_phase("struck")
            self.harm["not_healed"] += not self.is_healed()
            self.end_phase("healed")
        else:
            self.harm["not_healed"] += 1

    def finish(self):
        self.end_jobs()
        self.cluster.end_all()
        self.harm["lent_twice"] += len(self.books.violations)
        self.harm["crashes"] += len(self.cluster.crashes)
        self.notes += self.books.violations + self.cluster.crashes

    def break_off(self):
        """Leaves nothing behind. Kills immediately: a user that interrupts this may not wait."""
        processes = [*self.cluster.processes.values(), *(job.process for job in self.jobs.values())]
        for process in processes:
            end(process, signal.SIGKILL)
        self.cluster.remove_network()

    def show_logs(self):
        for log in sorted(self.cluster.folder.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-25:]
            say("\n".join([f"the last lines of {log.name}:", *lines]))


def run_one(plan, options):
    # Short: a socket's path has 108 bytes.
    with tempfile.TemporaryDirectory(prefix="rvf.", dir="/tmp") as folder:
        run = Run(plan, options, folder)
        try:
            run.run_phases()
            run.finish()
        finally:
            run.break_off()
        run.end_phase("ended")
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in run.phases)
        harm = {name: count for name, count in run.harm.items() if count}
        say(
            f"{plan}: {harm or 'no harm'}; {run.totals['calls']} calls, the slowest "
            f"{run.totals['slowest_s']} s; {run.errors}; {phases}"
        )
        for note in run.notes:
            say(f"  {note}")
        if harm:
            run.show_logs()
    return run


def find_shaper():
    """What can lose and delay packets here: "netem", "tbf" (a bottleneck), or nothing."""
    namespace = f"rvf{os.getpid()}-try"
    device = ["tc", "-n", namespace, "qdisc", "replace", "dev", "lo", "root"]
    tried = {"netem": "delay 1ms", "tbf": "rate 1mbit burst 16kb limit 16kb"}
    if not shutil.which("tc"):
        return ""
    subprocess.run(["ip", "netns", "add", namespace], check=True)
    try:
        for kind, words in tried.items():
            done = subprocess.run([*device, kind, *words.split()], capture_output=True)
            if done.returncode == 0:
                return kind
        return ""
    finally:
        subprocess.run(["ip", "netns", "delete", namespace], check=True)


def measured(options):
    options.shaper = find_shaper()
    shaped = ("lossy", "delayed")
    kinds = tuple(kind for kind in cluster_plan.KINDS if options.shaper or kind not in shaped)
    if options.kinds:
        kinds = tuple(kind for kind in kinds if kind in options.kinds.split(","))
    totals = dict.fromkeys((*HARM, "calls", "lost"), 0)
    seeds = range(options.seed, options.seed + options.runs)
    for seed in seeds:
        run = run_one(cluster_plan.plan(seed, options.lease, kinds), options)
        for name, count in (run.harm | run.totals).items():
            if name in totals:
                totals[name] += count
    harm = {name: totals[name] for name in HARM}
    words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in harm.items())
    figures.emit(
        "cluster.faults_real", sum(harm.values()), "violations", 0, figures.machine("namespaces"),
        detail=f"{options.runs} runs from seed {options.seed}: {words}; {totals['calls']} calls, "
        f"{totals['lost']} tensors lost; packets are lost by {options.shaper or 'nothing'}",
        **totals,
    )  # fmt: skip
    return 1 if any(harm.values()) else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first run (%(default)s)")
    parser.add_argument("--lease", type=int, default=1, help="in seconds (%(default)s)")
    parser.add_argument("--kinds", default="", help=f"only these: {','.join(cluster_plan.KINDS)}")
    parser.add_argument("--timeout", type=float, help="of the jobs' waits; lease + 5 seconds")
    parser.add_argument(
        "--bound",
        type=float,
        help="what takes longer is late; timeout + 3 s: a client waits 2 for a silent daemon",
    )
    parser.add_argument(
        "--falsify",
        type=int,
        default=0,
        help="after so many right gets the jobs' ledgers lie once: wrong bytes must be found",
    )
    options = parser.parse_args()
    options.timeout = options.timeout or options.lease + 5
    options.bound = options.timeout + 3 if options.bound is None else options.bound
    reason = why_not()
    if reason:
        figures.emit("cluster.faults_real", None, "violations", 0, "", skipped=reason)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return measured(options)


if __name__ == "__main__":
    sys.exit(main())
