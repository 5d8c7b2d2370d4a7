#!/usr/bin/python3
"""The Debian packages in fresh roots of their release: install, upgrade, remove, purge.

$RAVENSTORE_DEBS names a folder with those of each release (12, 13), as deploy/packages makes them;
else it makes that of this machine's own release from bazel-bin. Prints doors.deb_s.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

# Through the links of Bazel's runfiles to the checkout itself.
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/tidy"), str(ROOT / "bench")]
sys.dont_write_bytecode = True

import bare_root  # noqa: E402
import xml_main  # noqa: E402

NAMES = {"12": "bookworm", "13": "trixie"}
COMMAND_SECONDS = 600
# As an administrator would where systemd does not run.
START = """
install -d -o ravenstore -g ravenstore /run/ravenstore
setpriv --reuid ravenstore --regid ravenstore --init-groups \\
    ravenstored --config /etc/ravenstore/ravenstored.toml --backend host >/tmp/log 2>&1 &
daemon=$!
until ravenctl status >/tmp/status 2>&1; do kill -0 $daemon || { cat /tmp/log; exit 1; }; done
"""
INSTALL = """
apt-get install --yes --no-install-recommends /debs/*.deb >/tmp/apt 2>&1 || { cat /tmp/apt; false; }
"""


def in_root(release, script, debs):
    """What a shell's script prints, as root, on a layer that is forgotten; with a network."""
    words = [
        "systemd-nspawn", "--quiet", "--directory", bare_root.folder(NAMES[release]),
        "--volatile=overlay", "--register=no", "--keep-unit", "--as-pid2", "--console=pipe",
        "--resolv-conf=copy-host", f"--bind-ro={debs}:/debs", "bash", "-euc",
        "export DEBIAN_FRONTEND=noninteractive\napt-get update >/tmp/update 2>&1\n" + script,
    ]  # fmt: skip
    done = subprocess.run(
        words, env={"PATH": bare_root.PATH}, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=COMMAND_SECONDS,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"exit code {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


class DebTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid():
            raise unittest.SkipTest("only root makes a bare system")
        for tool in ("debootstrap", "systemd-nspawn"):
            if not shutil.which(tool, path=bare_root.PATH):
                raise unittest.SkipTest(f"there is no {tool} here")
        cls.debs = pathlib.Path(os.environ.get("RAVENSTORE_DEBS") or cls._made())
        cls.releases = sorted(each.name for each in cls.debs.iterdir() if each.name in NAMES)
        if not cls.releases:
            raise AssertionError(f"there are no packages in {cls.debs}")

    @classmethod
    def _made(cls):
        found = re.search(
            r'^VERSION_ID="(\d+)"$', pathlib.Path("/etc/os-release").read_text(), re.M
        )
        if not found or found[1] not in NAMES:
            raise unittest.SkipTest("what was built here is for no release that has packages")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        built = os.environ.get("RAVENSTORE_BIN", str(ROOT / "bazel-bin"))
        command = [ROOT / "deploy/packages", "--release", found[1], "--into", folder.name]
        subprocess.run(command, env={**os.environ, "RAVENSTORE_BIN": built}, check=True)
        return folder.name

    def of_each(self, script):
        """What it prints in each release."""
        return {each: in_root(each, script, self.debs / each) for each in self.releases}

    def test_installed_it_serves(self):
        # The time is that of installing and starting; fetching of package lists is before.
        script = f"begin=$(date +%s.%N)\n{INSTALL}{START}"
        script += "echo took $(date +%s.%N) $begin\ncat /tmp/status\nravenctl doctor || true\n"
        script += (
            "ravensim list | head -n 1\nravenrun --budget 1GiB echo a job ran\nid ravenstore\n"
        )
        for release, said in self.of_each(script).items():
            end, begin = map(float, re.search(r"^took (\S+) (\S+)$", said, re.M).groups())
            self.assertIn("a job ran", said)
            self.assertIn("host", said)
            figure = {
                "name": f"doors.deb_s.{release}", "value": round(end - begin, 1), "unit": "s",
                "bound": None, "target": 30, "ok": end - begin <= 30, "machine": "bare root",
            }  # fmt: skip
            print(json.dumps(figure))

    def test_programs_compile_against_the_client(self):
        script = (
            INSTALL
            + """
apt-get install --yes --no-install-recommends gcc libc6-dev pkg-config >/tmp/apt 2>&1
echo '#include "client/ravenstore.h"
int main(void) { ravenstore_store_t* s = 0; return ravenstore_connect(0, &s) ? 7 : 0; }' >/tmp/a.c
gcc /tmp/a.c $(pkg-config --cflags --libs ravenstore) -o /tmp/a
/tmp/a || echo ended with $?
"""
        )
        for said in self.of_each(script).values():
            self.assertIn("ended with 7", said)

    def test_an_upgrade_keeps_an_edited_configuration(self):
        script = (
            INSTALL
            + """
echo '# mine' >>/etc/ravenstore/ravenstored.toml
apt-get install --yes --reinstall --no-install-recommends /debs/*.deb >/tmp/apt 2>&1
tail -n 1 /etc/ravenstore/ravenstored.toml
"""
        )
        for said in self.of_each(script + START).values():
            self.assertIn("# mine", said)

    def test_purge_leaves_the_user_alone(self):
        list_all = "find / -xdev -path /proc -prune -o -path /debs -prune -o -print 2>/dev/null"
        script = (
            INSTALL
            + f"""
mkdir -p /var/lib/ravenstore/pool
apt-get purge --yes ravenstore ravenstore-client >/tmp/apt 2>&1
{list_all} | grep -i raven || echo nothing
"""
        )
        for said in self.of_each(script).values():
            self.assertIn("nothing", said.splitlines(), said)


if __name__ == "__main__":
    xml_main.main()
