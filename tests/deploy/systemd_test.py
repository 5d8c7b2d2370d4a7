#!/usr/bin/python3
"""deploy/install and the unit under a real systemd, in a container (container.py)."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

# Through the links of Bazel's runfiles to the checkout itself.
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("deploy", "tidy", "timing")]
sys.dont_write_bytecode = True

import container  # noqa: E402
import xml_main  # noqa: E402
from timing import eventually  # noqa: E402

# The build outputs: next to this test under Bazel, else where deploy/install looks for them.
BUILT = pathlib.Path(os.environ.get("RAVENSTORE_BIN", ROOT / "bazel-bin"))
if "TEST_SRCDIR" in os.environ:
    BUILT = pathlib.Path.cwd()
PROGRAMS = (
    "daemon/ravenstored",
    "client/ctl/ravenctl",
    "sim/ravensim",
    "client/libravenstore.so",
)
VERSION = re.search(r'"(\d+\.\d+\.\d+)"', (ROOT / "proto/version.cc").read_text())[1]
NEXT_VERSION = re.sub(r"\d$", lambda digit: "1" if digit[0] != "1" else "2", VERSION)
CONFIG = "/etc/ravenstore/ravenstored.toml"
SECONDS = 60


def cache():
    script = f"source {ROOT}/deploy/common.sh && echo $CACHE"
    asked = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return pathlib.Path(asked.stdout.strip()) / "systemd"


def until(what, seconds=SECONDS):
    """The first true answer of `what`, which starts a program each time it is asked."""
    answer = eventually(what, seconds)
    if not answer:
        raise AssertionError(f"not within {seconds} s; the last answer was {answer!r}")
    return answer


class RootFolderTest(unittest.TestCase):
    """With a stand-in for debootstrap, on a machine that may have none."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cache = self.folder / "cache"
        self.cache.mkdir()
        paths = {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        patches = [mock.patch.dict(os.environ, paths)]
        patches += [mock.patch.object(container, "_release", lambda: ("sid", []))]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)

    def debootstrap(self, *lines):
        program = self.folder / "debootstrap"
        program.write_text("\n".join(("#!/bin/sh", f"echo fetch >>{self.folder}/fetched", *lines)))
        program.chmod(0o755)

    def test_is_fetched_once_and_takes_the_place_of_an_older_one(self):
        (self.cache / "root-older").mkdir()
        self.debootstrap('mkdir -p "$4/var/cache/apt"')
        root = container.root_folder(self.cache)
        self.assertEqual(container.root_folder(self.cache), root)
        self.assertEqual(list(self.cache.iterdir()), [root])
        self.assertEqual((self.folder / "fetched").read_text(), "fetch\n")

    def test_a_fetch_that_fails_skips_with_the_reason_and_is_tried_again(self):
        self.debootstrap('mkdir -p "$4"', "echo E: no network >&2", "exit 1")
        for _ in range(2):
            with self.assertRaisesRegex(unittest.SkipTest, "debootstrap: E: no network"):
                container.root_folder(self.cache)
        self.assertEqual((self.folder / "fetched").read_text(), "fetch\nfetch\n")

    def test_a_user_that_cannot_boot_a_container_skips_with_the_reason(self):
        for user, tools, reason in (
            (1000, "/usr/bin/true", "only root"),
            (0, None, "package systemd-container"),
        ):
            as_user = mock.patch.object(os, "geteuid", lambda user=user: user)
            which = mock.patch.object(shutil, "which", lambda name, tools=tools: tools)
            with as_user, which, self.assertRaisesRegex(unittest.SkipTest, reason):
                container.require_tools()


class ServiceTest(unittest.TestCase):
    """Each begins and ends with the service installed. alice and mallory may attach, bob not."""

    @classmethod
    def setUpClass(cls):
        container.require_tools()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        mounts = {ROOT: "/src"}
        for version in (VERSION, NEXT_VERSION):
            mounts[cls.programs(version)] = f"/built/{version}"
        cls.inside = container.Container(cache(), mounts)
        cls.addClassCleanup(cls.inside.stop)
        for user in ("alice", "bob", "mallory"):
            cls.inside.run("useradd", user)
        cls.before = cls.files()
        cls.install_words = cls.install()
        for user in ("alice", "mallory"):
            cls.inside.run("usermod", "-aG", "ravenstore", user)

    @classmethod
    def programs(cls, version):
        """A folder with the programs, laid out as bazel-bin, that say they are of `version`."""
        target = cls.folder / version
        for name in PROGRAMS:
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # The same build but for the digits: what an upgrade does depends on no more.
            old = (BUILT / name).read_bytes()
            path.write_bytes(old.replace(VERSION.encode(), version.encode()))
            path.chmod(0o755)
        job = target / "job"
        shutil.copy2(BUILT / "tests/deploy/job", job)
        return target

    @classmethod
    def try_install(cls, *arguments, version=VERSION):
        built = f"/built/{version}"
        return cls.inside.try_run("/src/deploy/install", *arguments, RAVENSTORE_BIN=built)

    @classmethod
    def install(cls, *arguments, version=VERSION):
        code, words = cls.try_install(*(arguments or ("--no-build",)), version=version)
        if code:
            raise AssertionError(f"deploy/install: exit code {code}\n{words}")
        return words

    @classmethod
    def files(cls):
        """What is on the container's disk."""
        names = cls.inside.run("find", "/", "-xdev", "-not", "-path", "/var/log/*").splitlines()
        return set(names)

    def setUp(self):
        # No test's restarts count against another's.
        self.inside.run("systemctl", "reset-failed")
        self.inside.run("systemctl", "start", "ravenstored")
        self.cursor = self.journal_end()

    def tearDown(self):
        # Useful only where the test failed.
        print(self.journal())

    def property(self, name):
        words = self.inside.run("systemctl", "show", "--property", name, "--value", "ravenstored")
        return words.strip()

    def journal_end(self):
        words = self.inside.run("journalctl", "--show-cursor", "--lines=0", "--quiet")
        return re.search(r"^-- cursor: (\S+)$", words, re.M)[1]

    def journal(self):
        """What the service said, and systemd of it, since the test began."""
        self.inside.run("journalctl", "--sync")
        return self.inside.run(
            "journalctl", "--unit=ravenstored", "--output=cat", f"--after-cursor={self.cursor}"
        )

    def await_journal(self, pattern):
        """The first line of the journal, from where the test began, that has the pattern."""
        return until(lambda: re.search(f".*{pattern}.*", self.journal()))[0]

    def start_job(self, user="alice"):
        job = self.inside.start(f"/built/{VERSION}/job", user=user)
        self.addCleanup(job.end)
        return job

    def attached_job(self):
        job = self.start_job()
        for command in ("attach", "create", "get"):
            self.assertEqual(job.ask(command), "OK")
        return job

    def assert_lost_and_served_again(self, job):
        self.assertRegex(job.ask("work"), r"^LOST ")
        for command in ("attach", "create", "get"):
            self.assertEqual(job.ask(command), "OK")

    def status(self):
        return json.loads(self.inside.run("ravenctl", "status", "--json"))

    def edit_config(self, *changes):
        """Changes (old, new) of the configuration, taken back when the test ends."""
        shipped = self.inside.run("cat", CONFIG)
        text = shipped
        for old, new in changes:
            self.assertIn(old, text)
            text = text.replace(old, new, 1)
        self.addCleanup(self.inside.run, "systemctl", "restart", "ravenstored")
        self.addCleanup(self.inside.write, CONFIG, shipped)
        self.inside.write(CONFIG, text)
        return text

    def test_install_enables_and_starts_the_service(self):
        self.assertIn("ravenstored is active", self.install_words)
        self.assertEqual(self.inside.run("systemctl", "is-enabled", "ravenstored"), "enabled\n")
        self.assertEqual(self.status()["daemon"]["version"], VERSION)
        self.assertIn("User=ravenstore", self.inside.run("systemctl", "cat", "ravenstored"))

    def test_install_again_restarts_nothing(self):
        pid = self.property("MainPID")
        words = self.install()
        self.assertIn("everything is up to date", words)
        self.assertEqual(self.property("MainPID"), pid)

    def test_a_member_of_the_group_is_served(self):
        self.attached_job()
        alice = self.inside.run("id", "--user", "alice").strip()
        clients = self.inside.run("ravenctl", "clients", user="alice")
        self.assertRegex(clients, rf"\n +\d+ +\d+ +{alice} +job ")

    def test_a_non_member_learns_how_to_join(self):
        words = self.start_job(user="bob").ask("attach")
        self.assertRegex(words, r"^PERMISSION ")
        code, printed = self.inside.try_run("ravenctl", "status", user="bob")
        self.assertEqual(code, 1, printed)
        for said in (words, printed):
            self.assertIn("usermod -aG ravenstore", said)

    def test_a_job_learns_that_a_restart_lost_its_tensors(self):
        job = self.attached_job()
        self.inside.run("systemctl", "restart", "ravenstored")
        self.assert_lost_and_served_again(job)

    def test_a_killed_daemon_restarts_and_its_job_gets_an_error(self):
        job = self.attached_job()
        pid = self.property("MainPID")
        self.inside.run("systemctl", "kill", "--signal=SIGKILL", "ravenstored")
        self.await_journal("Started ravenstored")
        self.assertNotEqual(self.property("MainPID"), pid)
        self.assertEqual(self.property("NRestarts"), "1")
        self.assert_lost_and_served_again(job)

    def test_a_member_is_served_next_to_a_hostile_one(self):
        hostile = self.inside.start(f"/built/{VERSION}/job", "flood", "1000", user="mallory")
        self.addCleanup(hostile.end)
        self.assertRegex(hostile.read_line(), r"^holding \d+$")
        job = self.start_job()
        for _ in range(10):
            self.assertEqual(job.ask("cycle"), "OK")
        self.status()
        hostile.end_input()
        self.assertRegex(hostile.read_line(), r"^connected \d+ times$")
        self.assertEqual(self.property("NRestarts"), "0")

    def test_reload_applies_limits_and_the_log_level_and_keeps_the_jobs(self):
        job = self.attached_job()
        pid = self.property("MainPID")
        self.edit_config(
            ("device_budget = 0", 'device_budget = "1GiB"'), ('level = "info"', 'level = "warn"')
        )
        self.inside.run("systemctl", "reload", "ravenstored")

        def limited():
            words = self.inside.run("ravenctl", "limits", "--user", "bob", "--json")
            return str(1 << 30) in words and words

        until(limited)
        self.assertEqual(self.property("MainPID"), pid)
        self.assertEqual(job.ask("get"), "OK")
        # "draining" is said at the level of information.
        self.inside.run("systemctl", "stop", "ravenstored")
        self.assertNotIn("draining", self.journal())

    def test_the_default_log_level_has_what_the_changed_one_leaves_out(self):
        self.inside.run("systemctl", "stop", "ravenstored")
        self.assertIn("draining", self.journal())

    def test_reload_of_a_bad_file_changes_nothing_and_is_logged(self):
        job = self.attached_job()
        pid = self.property("MainPID")
        self.edit_config(
            ("device_budget = 0", 'device_budget = "1GiB"'),
            ("clients_max = 512", "clients_maximum = 512"),
        )
        before = self.inside.run("ravenctl", "limits", "--user", "bob", "--json")
        self.inside.run("systemctl", "reload", "ravenstored")
        self.assertRegex(self.await_journal("clients_maximum"), r"line \d+|:\d+")
        self.assertEqual(self.inside.run("ravenctl", "limits", "--user", "bob", "--json"), before)
        self.assertEqual(self.property("MainPID"), pid)
        self.assertEqual(job.ask("get"), "OK")

    def test_reload_names_the_keys_that_take_a_restart(self):
        pid = self.property("MainPID")
        self.edit_config(("page = 0", 'page = "4MiB"'), ("spin_us = 200", "spin_us = 100"))
        self.inside.run("systemctl", "reload", "ravenstored")
        for key in (r"devices\.page", r"loop\.spin_us"):
            self.await_journal(key)
        self.assertIn("restart", self.journal())
        self.assertEqual(self.property("MainPID"), pid)

    def test_a_refused_configuration_is_an_error_and_not_tried_again(self):
        self.edit_config(("clients_max = 512", "clients_maximum = 512"))
        code, _ = self.inside.try_run("systemctl", "restart", "ravenstored")
        self.assertNotEqual(code, 0)
        self.assertEqual(self.property("ExecMainStatus"), "78")
        self.assertEqual(self.property("NRestarts"), "0")
        self.assertEqual(self.property("ActiveState"), "failed")
        self.assertIn("clients_maximum", self.journal())

    def test_an_upgrade_brings_the_new_daemon_and_warns_the_job(self):
        self.addCleanup(self.install)
        job = self.attached_job()
        edited = self.edit_config(("drain_s = 5", "drain_s = 1"))
        words = self.install(version=NEXT_VERSION)
        self.assertIn("attached jobs lose what they stored", words)
        self.assertIn(f"{CONFIG}.dist", words)
        self.assertEqual(self.inside.run("cat", CONFIG), edited)
        self.assertEqual(self.status()["daemon"]["version"], NEXT_VERSION)
        self.assertEqual(self.inside.run("ravenctl", "--version"), f"{NEXT_VERSION}\n")
        running = f"/proc/{self.property('MainPID')}/exe"
        self.assertEqual(self.inside.run("readlink", running), "/usr/local/bin/ravenstored\n")
        # The job's library is still of the version before.
        self.assert_lost_and_served_again(job)

    def test_uninstall_leaves_what_it_says(self):
        job = self.attached_job()
        self.addCleanup(self.install)
        words = self.install("--uninstall")
        self.assertRegex(job.ask("work"), r"^LOST ")
        left = self.files() - self.before
        self.assertEqual(left, {"/etc/ravenstore", CONFIG})
        self.assertIn(f"Kept: {CONFIG}, the user ravenstore\n", words)
        code, _ = self.inside.try_run("systemctl", "cat", "ravenstored")
        self.assertNotEqual(code, 0)
        running = self.inside.run("sh", "-c", "readlink /proc/[0-9]*/exe || true")
        self.assertIn("systemd", running)
        self.assertNotIn("ravenstored", running)

    def test_the_unit_exposes_little(self):
        words = self.inside.run("systemd-analyze", "security", "--no-pager", "ravenstored.service")
        score = float(re.search(r"Overall exposure level for \S+: ([\d.]+)", words)[1])
        self.assertLessEqual(score, 1.5, words)


if __name__ == "__main__":
    xml_main.main()
