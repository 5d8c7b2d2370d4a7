#!/usr/bin/python3
"""deploy/cluster-demo: what it says where it cannot run, and its run, of which nothing is left."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

# Through the links of Bazel's runfiles to the checkout itself.
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/tidy")]
sys.dont_write_bytecode = True

import xml_main  # noqa: E402

DEMO = ROOT / "deploy/cluster-demo"
# The build outputs: next to this test under Bazel, else where the demo itself looks for them.
BUILT = pathlib.Path(os.environ.get("RAVENSTORE_BIN", ROOT / "bazel-bin"))
if "TEST_SRCDIR" in os.environ:
    BUILT = pathlib.Path.cwd()
FOLDER = re.compile(r"their folder is (\S+)\.")  # as the demo says
NOBODY = 65534
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def start(*arguments, before=(), **variables):
    environment = dict(os.environ, RAVENSTORE_BIN=str(BUILT)) | variables
    return subprocess.Popen(
        [*before, "/bin/bash", DEMO, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
    )


def run(*arguments, **options):
    demo = start(*arguments, **options)
    words, _ = demo.communicate(timeout=600)
    return demo.returncode, words


class RefusalTest(unittest.TestCase):
    def test_help_says_what_it_takes(self):
        code, words = run("--help")
        self.assertEqual(code, 0)
        self.assertIn("As root, where network namespaces can be made", words)
        self.assertNotIn("set -euo", words)

    def test_an_unknown_option_is_one_sentence(self):
        self.assertEqual(run("--quick"), (1, "error: unknown option --quick (see --help)\n"))

    def test_without_root_is_one_sentence(self):
        before = ()
        if os.geteuid() == 0:
            before = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
            if subprocess.run([*before, "test", "-r", DEMO]).returncode != 0:
                self.skipTest("who is not root cannot read the checkout")
        sentence = "error: the demo needs root: it makes network namespaces\n"
        self.assertEqual(run(before=before, HOME="/"), (1, sentence))


class AsRoot(unittest.TestCase):
    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("only root makes network namespaces")
        if not shutil.which("ip", path=SYSTEM_PATH):
            self.skipTest("there is no ip here (Debian: iproute2)")


class MissingTest(AsRoot):
    def test_without_etcd_is_one_sentence(self):
        if shutil.which("etcd", path=SYSTEM_PATH):
            self.skipTest("the system's own etcd is found anyway")
        with tempfile.TemporaryDirectory() as cache:
            code, words = run("--no-build", PATH=SYSTEM_PATH, RAVENSTORE_CACHE=cache)
        self.assertEqual((code, words.count("\n")), (1, 1), words)
        self.assertIn(f"needs etcd (Debian: etcd-server): neither in PATH nor at {cache}", words)


class RunTest(AsRoot):
    def setUp(self):
        super().setUp()
        cache = subprocess.run(
            ["bash", "-c", f"source {ROOT}/deploy/common.sh && echo $CACHE"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        if not (shutil.which("etcd") or os.access(f"{cache}/etcd/usr/bin/etcd", os.X_OK)):
            self.skipTest("there is no etcd here (Debian: etcd-server)")
        if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
            self.skipTest("network namespaces cannot be made here")
        if not (BUILT / "daemon/ravenstored").exists():
            self.skipTest(f"the programs are not built in {BUILT}")

    def expect_nothing_left_of(self, demo, folder):
        names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        self.assertNotIn(f"rv{demo.pid}-", names)
        self.assertFalse(folder.exists())
        for process in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                self.assertNotIn(os.fsencode(folder), process.read_bytes(), process)
            except (FileNotFoundError, ProcessLookupError):
                continue

    def test_every_step_happens_as_expected_and_nothing_is_left(self):
        demo = start("--no-build")
        words, _ = demo.communicate(timeout=600)
        self.assertEqual(demo.returncode, 0, words)
        folder = pathlib.Path(FOLDER.search(words)[1])
        table = words[words.index("STEP") :]
        self.assertLessEqual(max(map(len, table.splitlines())), 80, words)
        self.assertEqual(len(re.findall(r"^ok  ", table, re.MULTILINE)), 9, words)
        self.assertNotIn("FAILED", words)
        self.expect_nothing_left_of(demo, folder)

    def test_nothing_is_left_when_it_is_stopped_halfway(self):
        demo = start("--no-build")
        said = ""
        while "b offers" not in said:
            line = demo.stdout.readline()
            self.assertTrue(line, said)
            said += line
        folder = pathlib.Path(FOLDER.search(said)[1])
        demo.send_signal(signal.SIGTERM)
        words, _ = demo.communicate(timeout=600)
        self.assertEqual(demo.returncode, 143, words)
        self.expect_nothing_left_of(demo, folder)


if __name__ == "__main__":
    xml_main.main()
