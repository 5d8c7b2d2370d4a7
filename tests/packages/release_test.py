#!/usr/bin/python3
"""deploy/release, on a copy of this tree that is committed, from programs that are built."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

# Through the links of Bazel's runfiles to the checkout itself.
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/tidy"), str(ROOT / "bench")]
sys.dont_write_bytecode = True

import bare_root  # noqa: E402
import xml_main  # noqa: E402

VERSION = re.search(
    r'^#define RAVENSTORE_VERSION "(.*)"', (ROOT / "client/ravenstore.h").read_text(), re.M
)[1]
GIT = ("git", "-c", "user.name=Test", "-c", "user.email=test@localhost")
ENVIRONMENT = {
    **os.environ,
    "PATH": bare_root.PATH,
    "RAVENSTORE_BIN": os.environ.get("RAVENSTORE_BIN", str(ROOT / "bazel-bin")),
}


def committed_copy(into):
    """A repository of its own with the files of this tree."""
    files = subprocess.check_output(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, text=True
    ).split("\0")
    for name in files:
        if name and (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "The tree that is tested"]):
        subprocess.run([*GIT, *words], cwd=into, check=True)


def release(tree, *arguments):
    return subprocess.run(
        [tree / "deploy/release", *arguments], env=ENVIRONMENT, text=True,
        stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip


class ReleaseTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid():
            raise unittest.SkipTest("only root makes packages and images")
        for tool in ("buildah", "debootstrap", "systemd-nspawn"):
            if subprocess.run(["which", tool], env=ENVIRONMENT, capture_output=True).returncode:
                raise unittest.SkipTest(f"there is no {tool} here")
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.tree = cls.folder / "tree"
        committed_copy(cls.tree)
        cls.addClassCleanup(subprocess.run, ["bazel", "shutdown"], cwd=cls.tree)

    def test_a_tree_with_changes_is_refused(self):
        page = self.tree / "README.md"
        before = page.read_bytes()
        page.write_bytes(before + b"more\n")
        made = release(self.tree, "--into", self.folder / "changed")
        page.write_bytes(before)
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("not committed", made.stderr)

    def test_it_has_all_its_parts_and_their_sums(self):
        into = self.folder / "release"
        made = release(self.tree, "--into", into)
        self.assertEqual(made.returncode, 0, made.stdout[-2000:] + made.stderr[-2000:])
        name = f"ravenstore-{VERSION}"
        found = {str(path.relative_to(into)) for path in into.rglob("*") if path.is_file()}
        sums = dict(
            reversed(line.split("  ")) for line in (into / "SHA256SUMS").read_text().splitlines()
        )
        self.assertEqual(set(sums), found - {"SHA256SUMS"})
        for path, digest in sums.items():
            self.assertEqual(hashlib.sha256((into / path).read_bytes()).hexdigest(), digest, path)
        wheels = [path for path in found if path.endswith(".whl")]
        self.assertEqual(len(wheels), 1)
        for number in (12, 13):
            for part in ("ravenstore", "ravenstore-client", "ravenstore-exporter"):
                self.assertIn(f"debian/{number}/{part}_{VERSION}~deb{number}u1_amd64.deb", found)
        self.assertIn(f"## {VERSION}", (into / "NOTES.md").read_text())
        with tarfile.open(into / f"{name}.tar.gz") as source:
            self.assertIn(f"{name}/WORKSPACE", source.getnames())
        with tarfile.open(into / f"{name}-image.tar") as image:
            self.assertIn("./oci-layout", image.getnames())
        self.check_materials(json.loads((into / f"{name}-wheel.spdx.json").read_text()))
        again = release(self.tree, "--into", into)
        self.assertIn("is there already", again.stderr)

    def check_materials(self, materials):
        self.assertEqual(materials["spdxVersion"], "SPDX-2.3")
        known = {each["SPDXID"]: each for each in materials["packages"]}
        linked = {
            known[each["spdxElementId"]]["name"]
            for each in materials["relationships"]
            if each["relationshipType"] == "STATIC_LINK"
            and known[each["relatedSpdxElement"]]["name"] == "//daemon:ravenstored_static_openssl"
        }
        self.assertLessEqual({"openssl", "protobuf", "spdlog", "zlib"}, linked)
        self.assertTrue(all(each["versionInfo"] for each in known.values()))


if __name__ == "__main__":
    xml_main.main()
