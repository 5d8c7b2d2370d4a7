#!/usr/bin/python3
"""Counts test cases for deploy/test.

test_report.py bazel STAGE EVENTS RC RESULTS
    reads Bazel's build events and the test.xml files they name; RC 124: it was interrupted
test_report.py check STAGE passed|failed|skipped NAME REASON RESULTS
    records one check
test_report.py left STAGE TARGETS RESULTS
    records the targets in the file TARGETS as not reached
test_report.py total RESULTS
    prints the skipped and the failed cases, with the end of their logs, and the closing line

A case may be skipped only where tests/skips.toml lists it; any other skip is a failure.
"""

import collections
import fnmatch
import functools
import json
import os
import pathlib
import re
import sys
import tomllib
import urllib.parse
import xml.etree.ElementTree

SKIPS = pathlib.Path(__file__).resolve().parent.parent / "tests/skips.toml"


@functools.cache
def allowed_skips(path):
    """[(target pattern, beginning of the reason)] of a file like tests/skips.toml."""
    if not path.exists():
        return []
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("skip", [])
    return [(entry["target"], entry["reason"]) for entry in entries]


def may_be_skipped(name, reason):
    """Whether SKIPS lists a skip of the case, target or check `name` for `reason`."""
    target = name.split(" ")[0]
    return any(
        fnmatch.fnmatchcase(target, pattern) and reason.startswith(beginning)
        for pattern, beginning in allowed_skips(SKIPS)
    )


class Stage:
    """The verdicts of one stage, kept as one line of JSON in the results file."""

    def __init__(self, name):
        self.name = name
        self.passed = 0
        self.failed = []
        self.skipped = []
        self.left = []  # targets that the stage's time limit left to deploy/test --full
        self.words = {}  # of cases that failed: their message
        self.logs = {}  # of targets that failed, with their status: the last lines of test.log

    def add(self, verdict, name, reason=""):
        if verdict == "skipped" and not may_be_skipped(name, reason):
            verdict, reason = "failed", f"skipped, and tests/skips.toml does not list it: {reason}"
        if verdict == "passed":
            self.passed += 1
        elif verdict == "failed":
            self.failed.append(name)
            if reason:
                self.words[name] = reason
        else:
            self.skipped.append([name, reason])

    def append_to(self, path):
        with open(path, "a", encoding="utf-8") as out:
            out.write(json.dumps(vars(self)) + "\n")
        words = f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        if self.left:
            words += f", {len(self.left)} targets not reached"
        print(f"  {self.name}: {words}", flush=True)


def case_verdict(case):
    """("passed" | "failed" | "skipped", reason) of a <testcase>."""
    for kind in ("failure", "error"):
        if (failed := case.find(kind)) is not None:
            words = failed.get("message") or failed.text or ""
            return "failed", " ".join(words.split())[:WORDS]
    skipped = case.find("skipped")
    if skipped is not None or case.get("result") == "skipped":
        words = "" if skipped is None else skipped.get("message") or skipped.text or ""
        # GoogleTest puts the place first; without it equal reasons are reported together.
        return "skipped", re.sub(r"^\S+:\d+ ", "", " ".join(words.split()))
    if case.get("status") == "notrun":
        return "skipped", "disabled in the source"
    return "passed", ""


def end_of(path, lines):
    """The last lines of a file, or why there are none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as log:
            return "".join(collections.deque(log, lines))
    except OSError as error:
        return f"no log: {error}\n"


# Limits of what the end of a run shows of the tests that failed.
LOG_LINES = 30
LOGS = 5
WORDS = 600


def add_cases(stage, label, status, xml_path):
    """Adds the cases of one test target; one that ended badly never counts as all passed."""
    cases = []
    try:
        cases = list(xml.etree.ElementTree.parse(xml_path).getroot().iter("testcase"))
    except (OSError, TypeError, xml.etree.ElementTree.ParseError) as error:
        print(f"  {label}: no readable test.xml ({error})")
    failed_before = len(stage.failed)
    for case in cases:
        verdict, reason = case_verdict(case)
        suite = case.get("classname") or ""
        name = f"{label} {suite}.{case.get('name')}".replace(" .", " ")
        stage.add(verdict, name, reason)
    bad = status not in ("PASSED", "FLAKY")
    if bad and len(stage.failed) == failed_before:
        stage.add("failed", f"{label} ({status})")
    elif not bad and not cases:
        stage.add("passed", label)
    if bad:
        log = end_of(os.path.join(os.path.dirname(xml_path), "test.log"), LOG_LINES)
        stage.logs[f"{label} ({status})"] = log


class Events:
    """What deploy/test asks of Bazel's build events."""

    def __init__(self, path):
        # label: {(run, shard): (status, test.xml) of its last attempt}
        self.results = collections.defaultdict(dict)
        self.tests = {}  # label: its tags
        self.not_built = set()
        self.aborted = set()  # by Bazel, before they were built or run
        self.incompatible = set()
        self.left_out = set()  # tags that the command left out
        self.broken = ""
        try:
            with open(path, encoding="utf-8") as lines:
                for line in lines:
                    self.read(json.loads(line))
        # What a Bazel that was killed leaves: what was read before counts, and that it is not all.
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            self.broken = f"{type(error).__name__}: {error}"

    def read(self, event):
        what = event["id"]
        if "testResult" in what and "testResult" in event:
            result = event["testResult"]
            files = {f["name"]: f.get("uri", "") for f in result.get("testActionOutput", [])}
            xml_path = urllib.parse.urlparse(files.get("test.xml", "")).path
            path = urllib.parse.unquote(xml_path)
            test = what["testResult"]
            run = test.get("run", 1), test.get("shard", 1)
            self.results[test["label"]][run] = (result["status"], path)
        elif "targetConfigured" in what and "configured" in event:
            configured = event["configured"]
            if configured.get("targetKind", "").endswith("_test rule"):
                self.tests[what["targetConfigured"]["label"]] = set(configured.get("tag", ()))
        elif "optionsParsed" in what and "optionsParsed" in event:
            for option in event["optionsParsed"].get("explicitCmdLine", ()):
                name, _, value = option.partition("=")
                if name == "--test_tag_filters":
                    self.left_out = {tag[1:] for tag in value.split(",") if tag.startswith("-")}
        elif "targetCompleted" in what:
            label = what["targetCompleted"]["label"]
            if event.get("aborted", {}).get("reason") == "SKIPPED":
                self.incompatible.add(label)
            elif "aborted" in event:
                self.aborted.add(label)
            elif not event.get("completed", {}).get("success"):
                self.not_built.add(label)

    def without_result(self):
        """The tests that should have run and have none."""
        asked = {label for label, tags in self.tests.items() if not tags & self.left_out}
        missing = self.not_built | self.aborted | asked
        return missing - self.results.keys() - self.incompatible


def why_incompatible(label):
    if label.startswith("//tests/python:"):
        if os.environ.get("RAVENSTORE_WITHOUT_TORCH") == "1":
            return "RAVENSTORE_WITHOUT_TORCH=1 leaves out what runs with a Python's PyTorch"
        return "there is no Python with PyTorch (see deploy/setup --help)"
    return "this machine lacks what the target needs (CUDA or libtorch)"


# Bazel was interrupted, as the time for it was over.
TIME_OVER = 124
# What its events then say of tests that were under way.
UNDER_WAY = ("NO_STATUS", "INCOMPLETE")


def report_bazel(stage_name, path, code, results_path):
    stage = Stage(stage_name)
    events = Events(path)
    time_over = code == TIME_OVER
    for label, runs in sorted(events.results.items()):
        for status, xml_path in runs.values():
            if time_over and status in UNDER_WAY:
                stage.left.append(label)
            else:
                add_cases(stage, label, status, xml_path)
    for label in sorted(events.incompatible):
        stage.add("skipped", label, why_incompatible(label))
    for label in sorted(events.without_result()):
        if time_over and label not in events.not_built:
            stage.left.append(label)
        else:
            stage.add("failed", f"{label} (not built or not run)")
    if events.broken:
        stage.add("failed", f"build events that cannot be read ({events.broken})")
    # Exit code 4: nothing to test. Any other with no failure seen is a failure of Bazel's own.
    if code not in (0, 4, TIME_OVER) and not stage.failed:
        stage.add("failed", f"bazel itself (exit code {code})")
    stage.append_to(results_path)
    return 1 if stage.failed else 0


def report_check(stage_name, verdict, name, reason, results_path):
    stage = Stage(stage_name)
    stage.add(verdict, name, reason)
    stage.append_to(results_path)
    return 1 if stage.failed else 0


def report_left(stage_name, targets_path, results_path):
    stage = Stage(stage_name)
    stage.left = pathlib.Path(targets_path).read_text(encoding="utf-8").split()
    stage.append_to(results_path)
    return 0


def print_skipped(stages):
    reasons = collections.defaultdict(list)
    for stage in stages:
        for name, reason in stage["skipped"]:
            reasons[reason].append(f"{stage['name']}: {name}")
    for reason, names in sorted(reasons.items()):
        print(f"skipped {len(names)}: {reason}")
        for name in names[:5]:
            print(f"    {name}")
        if len(names) > 5:
            print(f"    and {len(names) - 5} more")


def print_left(stages):
    left = sorted({label for stage in stages for label in stage.get("left", [])})
    if left:
        print(f"not reached, left to deploy/test --full: {len(left)} targets")
        print("    " + "\n    ".join(left))


def print_logs(stages):
    logs = [
        (f"{stage['name']}: {label}", log)
        for stage in stages
        for label, log in stage.get("logs", {}).items()
    ]
    for name, log in logs[:LOGS]:
        print(f"---- the end of the log of {name}", log, sep="\n", end="----\n")
    if len(logs) > LOGS:
        print(f"---- and {len(logs) - LOGS} more that failed")


def total(results_path):
    try:
        with open(results_path, encoding="utf-8") as lines:
            stages = [json.loads(line) for line in lines]
    except FileNotFoundError:
        stages = []
    passed = sum(stage["passed"] for stage in stages)
    failed = [
        (f"{stage['name']}: {name}", stage.get("words", {}).get(name))
        for stage in stages
        for name in stage["failed"]
    ]
    skipped = sum(len(stage["skipped"]) for stage in stages)
    print_skipped(stages)
    print_left(stages)
    print_logs(stages)
    for name, words in failed:
        print(f"FAILED  {name}")
        if words:
            print(f"    {words}")
    print(f"{passed} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


def main(arguments):
    match arguments:
        case ["bazel", stage, events, code, results]:
            return report_bazel(stage, events, int(code), results)
        case ["check", stage, verdict, name, reason, results]:
            return report_check(stage, verdict, name, reason, results)
        case ["left", stage, targets, results]:
            return report_left(stage, targets, results)
        case ["total", results]:
            return total(results)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
