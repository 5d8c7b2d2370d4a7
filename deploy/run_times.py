#!/usr/bin/python3
"""Prints where the time of a run of deploy/test went, and keeps the figures for bench/report.

run_times.py --steps STEPS --end SECONDS --record RECORD --kind KIND --commit COMMIT PROFILE...
    STEPS has a line `seconds<TAB>name` for the start of each step; each PROFILE is a Bazel profile.
"""

import argparse
import collections
import datetime
import gzip
import json
import os
import pathlib

# Bazel's names for a whole action, and for the process within it, which a cached action has not.
ACTION = "action processing"
PROCESS = "subprocess.run"
DEAREST = 20
# What a test may take that SLOW gives no reason for.
SLOW_SECONDS = 10
SLOW = pathlib.Path(__file__).resolve().parent.parent / "tests/slow_tests.txt"
TESTING = "Testing "


def steps_of(path, end):
    """[(name, seconds)] of the steps, in order."""
    starts = [line.split("\t", 1) for line in path.read_text().splitlines()]
    times = [float(seconds) for seconds, _ in starts] + [end]
    return [(name, times[i + 1] - times[i]) for i, (_, name) in enumerate(starts)]


def events_of(path):
    """The complete events of a Bazel profile; of one that was cut short, those before the cut."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (EOFError, OSError):
        return []
    try:
        return json.loads(text)["traceEvents"]
    except (ValueError, KeyError):
        return []


def actions_of(path):
    """[(seconds, name, whether it was executed)] of a profile's actions."""
    spans = [event for event in events_of(path) if event.get("ph") == "X"]
    by_thread = collections.defaultdict(list)
    for event in spans:
        if event.get("cat") == ACTION:
            by_thread[event["tid"]].append(event)
    for events in by_thread.values():
        events.sort(key=lambda event: event["ts"])
    processes = collections.defaultdict(float)
    for event in spans:
        if event["name"] == PROCESS and (action := _enclosing(by_thread[event["tid"]], event)):
            processes[id(action)] += event["dur"]
    return [
        (processes.get(id(action), action["dur"]) / 1e6, action["name"], id(action) in processes)
        for actions in by_thread.values()
        for action in actions
    ]


def _enclosing(actions, event):
    """The action of the same thread that encloses `event`, or None."""
    low, high = 0, len(actions)
    while low < high:
        middle = (low + high) // 2
        if actions[middle]["ts"] <= event["ts"]:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return None
    found = actions[low - 1]
    return found if event["ts"] <= found["ts"] + found["dur"] else None


def without_reason(actions):
    """The tests among the actions that take long, and that SLOW does not list."""
    lines = SLOW.read_text(encoding="utf-8").splitlines() if SLOW.exists() else []
    listed = {line.partition(" ")[0] for line in lines}
    slow = {name for seconds, name, ran in actions if ran and seconds > SLOW_SECONDS}
    tests = {name.removeprefix(TESTING) for name in slow if name.startswith(TESTING)}
    return sorted(tests - listed)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=pathlib.Path, required=True)
    parser.add_argument("--end", type=float, required=True)
    parser.add_argument("--record", type=pathlib.Path, required=True)
    parser.add_argument("--kind", choices=("plain", "full", "flaky"), required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("profiles", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    steps = steps_of(options.steps, options.end)
    actions = [action for path in options.profiles for action in actions_of(path)]
    actions.sort(reverse=True)
    print("where the time went:")
    for name, seconds in steps:
        print(f"  {seconds / 60:6.1f} min  {name}")
    print(f"the {DEAREST} dearest actions:")
    for seconds, name, _ in actions[:DEAREST]:
        print(f"  {seconds:6.1f} s  {name}")
    if options.kind == "plain" and (tests := without_reason(actions)):
        print(
            f"{len(tests)} tests took more than {SLOW_SECONDS} s, and {SLOW.name} gives no reason:"
        )
        print("  " + "\n  ".join(tests))
    setup = sum(seconds for name, seconds in steps if name == "set-up")
    record = {
        "kind": options.kind,
        "commit": options.commit,
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "minutes": (options.end - setup) / 60,
        "setup_minutes": setup / 60,
        "executed": sum(ran for *_, ran in actions),
        "actions": len(actions),
        "dearest": [[round(seconds, 1), name] for seconds, name, _ in actions[:DEAREST]],
    }
    with options.record.open("a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
