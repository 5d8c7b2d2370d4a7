"""A daemon, honest users and hostile ones: what the suite and bench/report's figures share.

Users are numbers that no account has, taken on by setpriv: that needs root. The daemon runs as a
user of its own, as its service does, on one core with the honest user who is measured; attackers
run on the other.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import re
import select
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

DAEMON_USER = 64000
HONEST_USER = 64001
OTHER_USER = 64002
ATTACKER = 64010  # and up
# The clients talk to no daemon of a stranger's.
os.environ["RAVENSTORE_DAEMON_USER"] = str(DAEMON_USER)
# Small enough that one user's greed is everybody's trouble.
SIZES = """
[devices]
backend = "host"
[limits]
device_reserve = 0
[host_pool]
size = "256MiB"
step = "256MiB"
[host_backend]
total = "256MiB"
"""
PATIENCE = 20
CLOSERS_IDLE = 1  # seconds, as in daemon/closers.cc
LENT_MEMORY = "/memfd:ravenstore (deleted)"  # as /proc shows a device's memory, and a pool's
NOTHING = (0, 0, 0)


@dataclasses.dataclass(frozen=True)
class Attack:
    """The concurrent work of several processes of one or several users."""

    name: str
    does: tuple = ()  # names of the attacker; empty: `name`
    processes: int = 1
    users: int = 1
    user: int = ATTACKER  # the first
    count: int = 0
    ready: float = PATIENCE  # seconds that it may take to be under way
    may_be_impossible: bool = False

    def starts(self):
        """(what, user) of each process."""
        does = self.does or (self.name,)
        for i in range(self.processes):
            yield does[i % len(does)], self.user if self.user == 0 else self.user + i % self.users


ATTACKS = {
    attack.name: attack
    for attack in (
        Attack("yield_once"),
        Attack("yield_again"),
        Attack("connect_close", processes=4),
        Attack("connect_close_nonblocking", processes=4),
        Attack("connect_close_by_users", does=("connect_close",), processes=8, users=8),
        Attack("silent", processes=2),
        Attack("flood_names"),
        Attack("flood_stats"),
        Attack("flood_tensors"),
        Attack("flood_nonsense"),
        Attack("flood_clients"),
        Attack("flood_records"),
        Attack("flood_steps"),
        Attack("flood_failures"),
        Attack("flood_trims"),
        Attack("flood_keeps"),
        Attack("flood_sleeps"),
        Attack("flood_wakes"),
        Attack("flood_set_opens"),
        Attack("flood_set_seals"),
        Attack("flood_set_uses"),
        Attack("flood_set_pages"),
        Attack("flood_set_use_ends"),
        Attack("flood_set_closes"),
        Attack("flood_set_drops"),
        Attack("flood_set_lists"),
        Attack("flood_pinned_slabs_released"),
        Attack("flood_limits"),
        Attack("flood_harvest_returns"),
        Attack("pinned_frees"),
        Attack("detaches"),
        Attack("explain_tensors"),
        Attack("explain_jobs"),
        Attack("job_orders"),
        Attack("flood_orders"),
        Attack("job_records"),
        Attack("admissions", processes=4),
        Attack("job_queries_8", does=("job_queries",), count=8),
        Attack("job_queries_60", does=("job_queries",), count=60),
        Attack("job_queries_400", does=("job_queries",), count=400),
        Attack("flood_stats_400", does=("flood_stats",), count=400),
        Attack("idle_jobs", count=400),
        Attack("never_reads"),
        Attack("welcomes_unread"),
        Attack("slabs_unread"),
        Attack("false_acknowledgements"),
        Attack("spread_tensors"),
        Attack("attaches", processes=2),
        Attack("legacy_churn", processes=2),
        Attack("wait_churn", processes=4),
        Attack("elastic_pages", processes=2),
        Attack("hold_clients"),
        Attack("hold_connections"),
        Attack("hold_places"),
        Attack("hold_names", ready=30),
        Attack("hold_recording"),
        Attack("hold_device"),
        Attack("hold_host"),
        Attack("hold_pinned"),
        Attack("pinned_churn", processes=2),
        Attack("linger"),
        Attack("linger_by_users", does=("linger",), processes=8, users=8),
        Attack("page_stalled", may_be_impossible=True),
        # Who may not stall the kernel's page faults may have them stalled by a container's root.
        Attack("page_stalled_by_root", does=("page_stalled",), user=0, may_be_impossible=True),
        Attack("stalling_file", may_be_impossible=True),
        Attack("stalling_file_by_root", does=("stalling_file",), user=0, may_be_impossible=True),
        Attack("pending_creates", processes=8),
        Attack("bad_requests"),
        Attack("flood_log"),
        Attack("slab_churn", processes=2),
        Attack("dirty_evictions", processes=2),
        Attack("limits_churn", user=0),
        Attack(
            "several_users",
            does=("connect_close", "flood_stats", "never_reads", "linger", "slab_churn", "attaches",
                  "yield_again", "silent"),
            processes=8,
            users=8,
        ),
    )
}  # fmt: skip


# What carries each message out at its dearest: of `body` of ClientPacket (proto/control.proto),
# RequestOp and AccessOp (proto/layout.h).
MESSAGES = {
    "hello": "attaches",
    "intern_name": "flood_names",
    "explain_failure": "flood_failures",
    "detach": "detaches",
    "stats": "flood_stats_400",
    "list_tensors": "flood_tensors",
    "list_clients": "flood_clients",
    "set_limits": "flood_limits",
    "trim": "flood_trims",
    "record": "flood_records",
    "explain_tensor": "explain_tensors",
    "pinned_alloc": "pinned_churn",
    "pinned_free": "pinned_frees",
    "pinned_slab_released": "flood_pinned_slabs_released",
    "keep_in_place": "flood_keeps",
    "sleep": "flood_sleeps",
    "wake": "flood_wakes",
    "seal_set": "flood_set_seals",
    "open_set": "flood_set_opens",
    "use_set": "flood_set_uses",
    "set_pages": "flood_set_pages",
    "end_use_of_set": "flood_set_use_ends",
    "close_set": "flood_set_closes",
    "drop_set": "flood_set_drops",
    "list_sets": "flood_set_lists",
    "legacy_hello": "legacy_churn",
    "legacy_reclaim": "yield_again",
    "list_legacy": "job_queries_400",
    "legacy_elastic": "elastic_pages",
    "explain_job": "explain_jobs",
    "legacy_wait": "wait_churn",
    "return_harvest": "flood_harvest_returns",
    "job_query": "job_queries_400",
    "list_job_records": "job_records",
    "admit_job": "admissions",
    "take_orders": "flood_orders",
    "order_done": "flood_orders",
    "order_job": "job_orders",
    "kCreate": "pending_creates",
    "kFetch": "dirty_evictions",
    "kFree": "slab_churn",
    "kStep": "flood_steps",
    "kGet": "flood_log",
    "kPut": "flood_log",
}


def messages(root):
    """Every kind of message that a client can send, as the protocol's files list them."""
    control = (pathlib.Path(root) / "proto/control.proto").read_text()
    layout = (pathlib.Path(root) / "proto/layout.h").read_text()

    def between(text, begin, end, pattern):
        found = re.findall(pattern, text.split(begin, 1)[1].split(end, 1)[0], re.MULTILINE)
        if not found:
            raise RuntimeError(f"no messages behind {begin}")
        return found

    bodies = between(control, "message ClientPacket {", "\n  }", r"^ +\w+ (\w+) = \d+;")
    bodies.remove("request")  # it goes before the body
    for enum in ("enum class RequestOp", "enum class AccessOp"):
        bodies += between(layout, enum, "};", r"\b(k\w+) = \d+")
    return bodies


def missing():
    """Why this machine or user cannot play several users; None: it can."""
    if os.geteuid() != 0:
        return "several users take root"
    for tool in ("setpriv", "taskset", "prlimit"):
        if not shutil.which(tool):
            return f"several users take {tool}"
    return None


def cores():
    """The daemon's and the honest user's core, and the attackers': one, where there is no other."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


def as_user(uid, core=None):
    """What goes before a command that another user runs."""
    pin = [] if core is None else ["taskset", "-c", str(core)]
    change = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    return pin + (change if uid != 0 else [])


def eventually(condition, timeout=PATIENCE):
    """What `condition` returns once it is true, or its last value when patience ran out."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(0.005)


class Stage:
    """A folder that every user can reach, with the programs in it."""

    PROGRAMS = {
        "ravenstored": "daemon",
        "ravenctl": "client/ctl",
        "attacker": "tests/hostile",
        "honest": "tests/hostile",
    }

    def __init__(self, built):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="raven-", dir="/tmp"))
        self.folder.chmod(0o755)
        for name, place in self.PROGRAMS.items():
            near = pathlib.Path(built) / name
            source = near if near.exists() else pathlib.Path(built) / place / name
            shutil.copy(source, self.folder / name)
            (self.folder / name).chmod(0o755)
        self.daemon_core, self.attack_core = cores()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def program(self, name):
        return str(self.folder / name)


class Daemon:
    """A ravenstored of a user of its own; anybody may connect."""

    def __init__(self, stage, sizes=SIZES, log=None, bounds=()):
        """`log`: where its words go; None: a file next to the socket. `bounds`: prlimit's flags."""
        self.stage = stage
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="d", dir=stage.folder))
        self.folder.chmod(0o755)
        os.chown(self.folder, DAEMON_USER, DAEMON_USER)
        self.socket = str(self.folder / "s")
        config = f'[socket]\npath = "{self.socket}"\nmode = 0o666\n{sizes}'
        (self.folder / "config").write_text(config)
        self.log_to = log
        self.bounds = ["prlimit", *bounds] if bounds else []
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        command = [self.stage.program("ravenstored"), "--config", str(self.folder / "config")]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.bounds + as_user(DAEMON_USER, self.stage.daemon_core) + command,
                stdin=subprocess.DEVNULL,
                stderr=log if self.log_to is None else self.log_to,
            )
        serves = eventually(lambda: self.process.poll() is not None or self.status() is not None)
        if not serves or self.process.poll() is not None:
            raise RuntimeError("no daemon: " + self.log())

    def log(self):
        return (self.folder / "log").read_text(errors="replace")

    def alive(self):
        return self.process.poll() is None

    def end(self, number=signal.SIGTERM, timeout=PATIENCE):
        """Seconds until it ended; None when patience ran out."""
        began = time.monotonic()
        self.process.send_signal(number)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return time.monotonic() - began

    def kill(self):
        if self.process is not None:
            if self.alive():
                self.process.kill()
            self.process.wait()

    def ctl(self, *words, user=0, timeout=PATIENCE):
        """What ravenctl says and how; None: it got no answer in time."""
        command = [self.stage.program("ravenctl"), "--socket", self.socket, "--json", *words]
        with contextlib.suppress(subprocess.TimeoutExpired):
            return subprocess.run(
                as_user(user, self.stage.daemon_core) + command,
                capture_output=True, text=True, check=False, timeout=timeout,
            )  # fmt: skip
        return None

    def status(self, user=0):
        """What `ravenctl status` says; None: it was not served."""
        answer = self.ctl("status", user=user)
        return json.loads(answer.stdout) if answer and answer.returncode == 0 else None

    def clients(self):
        return json.loads(self.ctl("clients").stdout)["clients"]

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def thread_names(self):
        names = []
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it ended meanwhile
                names.append((task / "comm").read_text().strip())
        return sorted(names)

    def idle_threads(self):
        """The fewest that it has within a time in which those that close what was sent end."""
        fewest = self.threads()
        end = time.monotonic() + CLOSERS_IDLE * 2
        while time.monotonic() < end:
            time.sleep(0.05)
            fewest = min(fewest, self.threads())
        return fewest

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def anonymous(self):
        """Bytes of anonymous memory in use."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        return 0

    def holds(self):
        """Threads, descriptors, and bytes of memory that it lends to clients. That memory's own
        descriptors are not counted: a pool that yielded grows again in as many steps as it can.
        """
        descriptors = memory = 0
        for link in pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if os.readlink(link) == LENT_MEMORY:
                    memory += link.stat().st_size
                else:
                    descriptors += 1
        return self.threads(), descriptors, memory

    def holds_alone(self, clients=0):
        """What it holds once at most `clients` clients are there."""
        if not eventually(lambda: len(self.clients()) <= clients):
            raise RuntimeError("clients that ended are still there: " + self.log()[-2000:])
        return self.holds()

    def residue(self, before, timeout=PATIENCE):
        """What it holds more than `before`, once that is nothing or patience ran out."""

        def left():
            return tuple(max(0, now - then) for now, then in zip(self.holds(), before, strict=True))

        eventually(lambda: not self.alive() or not any(left()), timeout)
        return left() if self.alive() else NOTHING


class Honest:
    """An honest user's process, at work from entry on."""

    def __init__(self, daemon, seconds, user=HONEST_USER, core=None, flags=()):
        stage = daemon.stage
        core = stage.daemon_core if core is None else core
        self.seconds = seconds
        command = [stage.program("honest"), "--socket", daemon.socket, "--seconds", str(seconds)]
        self.process = subprocess.Popen(
            as_user(user, core) + [*command, *flags], stdout=subprocess.PIPE, text=True
        )

    def result(self):
        """What it says of itself, with operations a second as `rate`."""
        said, _ = self.process.communicate(timeout=self.seconds + PATIENCE)
        result = json.loads(said)
        if result.get("operations") == 0:  # it took longer than it was watched
            result["p99_ms"] = result["max_ms"] = self.seconds * 1e3
        return result | {"rate": result.get("operations", 0) / self.seconds}


class Attackers:
    """Processes that attack; on exit they are killed, as they would be by their user."""

    def __init__(self, daemon, attack, seconds):
        self.daemon, self.attack, self.seconds = daemon, attack, seconds
        self.processes = []

    def __enter__(self):
        stage = self.daemon.stage
        for what, user in self.attack.starts():
            count = ["--count", str(self.attack.count)] if self.attack.count else []
            command = [stage.program("attacker"), "--socket", self.daemon.socket, what, *count]
            self.processes.append(
                subprocess.Popen(
                    as_user(user, stage.attack_core) + [*command, "--seconds", str(self.seconds)],
                    stdout=subprocess.PIPE,
                    text=True,
                    process_group=0,
                )  # fmt: skip
            )
        deadline = time.monotonic() + self.attack.ready
        self.said = ["" for _ in self.processes]
        for process in self.processes:
            left = max(0, deadline - time.monotonic())
            if select.select([process.stdout], [], [], left)[0]:
                process.stdout.readline()
        return self

    def __exit__(self, *_):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()
            process.stdout.close()

    def results(self):
        """What each says at its end, waited for."""
        results = []
        for process in self.processes:
            said, _ = process.communicate(timeout=self.seconds + PATIENCE)
            lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
            results.append(lines[-1] if lines else {})
        return results


# Attacks on memory: by the rule a user who is alone may have all of it in use.
TAKES_MEMORY = {
    "hold_device",
    "hold_host",
    "slabs_unread",
    "false_acknowledgements",
    "spread_tensors",
    "pending_creates",
}
# Attacks on pinned memory: others' part of it is there as well.
TAKES_PINNED = {"hold_pinned", "pinned_churn"}
PRESENT_SECONDS = 600


def present(daemon):
    """An honest user who stays attached: what one took before any other came it may keep."""
    keeper = Honest(daemon, PRESENT_SECONDS, flags=["--keep"])
    if keeper.process.stdout.readline() != "ready\n":
        raise RuntimeError("no honest user is present: " + daemon.log()[-2000:])
    return keeper


def baseline(daemon, attack, seconds):
    """The honest user's result with as many honest processes where the attackers would be."""
    others = [
        Honest(daemon, seconds, user, daemon.stage.attack_core) for _, user in attack.starts()
    ]
    result = Honest(daemon, seconds).result()
    for other in others:
        other.result()
    return result


def under(daemon, attack, seconds):
    """The honest user's result under the attack, with what is so at its end: `root_served` by
    ravenctl, and `held` descriptors in the daemon.
    """
    with Attackers(daemon, attack, seconds + attack.ready):
        result = Honest(daemon, seconds).result()
        served = daemon.status() is not None
        held = daemon.descriptors() if daemon.alive() else 0
    return result | {"root_served": served, "held": held}


def impossible(stage, attack):
    """Why the attack cannot be made here; "": it can."""
    if not attack.may_be_impossible:
        return ""
    with Daemon(stage) as daemon, Attackers(daemon, attack, 0.2) as attackers:
        return next((each["impossible"] for each in attackers.results() if each), "")


def measure(stage, attack, pairs, seconds):
    """The figures of an attack: of interleaved pairs, the medians.

    ratio, p99_ms, baseline_p99_ms, failures, threads, descriptors, memory (residues), alive,
    root_served, or the reason in `skipped`.
    """
    why = impossible(stage, attack)
    if why:
        return {"skipped": why}
    with Daemon(stage) as daemon:
        Honest(daemon, 0.3).result()
        keeper = present(daemon) if attack.name in TAKES_MEMORY else None
        before = daemon.holds_alone(clients=0 if keeper is None else 1)
        plain, attacked = [], []
        for _ in range(pairs):
            plain.append(baseline(daemon, attack, seconds))
            attacked.append(under(daemon, attack, seconds))
        threads, descriptors, memory = daemon.residue(before)
        if keeper is not None:
            keeper.process.kill()
            keeper.process.communicate()

        def median(results, key):
            return statistics.median(each[key] for each in results)

        rate = median(plain, "rate")
        return {
            "ratio": median(attacked, "rate") / rate if rate else 0,
            "rate": median(attacked, "rate"),
            "p99_ms": median(attacked, "p99_ms"),
            "max_ms": max(each["max_ms"] for each in attacked),
            "baseline_p99_ms": median(plain, "p99_ms"),
            "baseline_rate": rate,
            "failures": sum(each["failures"] for each in attacked),
            "error": next((each["error"] for each in attacked if each["error"]), ""),
            "threads": threads,
            "descriptors": descriptors,
            "memory": memory,
            "alive": daemon.alive(),
            "held": max(each["held"] for each in attacked),
            "root_served": all(each["root_served"] for each in attacked),
            "sigterm_s": daemon.end(),
        }


def soak(daemon, clients, seconds):
    """The results of `clients` honest users that work at the same time."""
    users = [
        Honest(daemon, seconds, HONEST_USER + i % 8, core)
        for i, core in zip(range(clients), itertools.cycle(cores()), strict=False)
    ]
    return [user.result() for user in users]


def trimmed(daemon, enough, timeout=15):
    """The daemon's anonymous memory once it is at most `enough`, or the least within patience.

    The daemon gives memory back by itself, some time after its clients left.
    """
    least = daemon.anonymous()

    def look():
        nonlocal least
        least = min(least, daemon.anonymous())
        return least <= enough

    eventually(look, timeout)
    return least
