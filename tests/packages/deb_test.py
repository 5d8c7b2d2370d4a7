#!/usr/bin/python3
"""The Debian packages in fresh roots of their release: install, reinstall, remove, purge.

$RAVENSTORE_DEBS names a folder with those of each release, as for bench/doors_deb.py; else those of
this machine's own release are made from bazel-bin. Prints doors.deb_s.
"""

import json
import os
import pathlib
import re
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
from doors_deb import INSTALL, NAMES, START, in_root, install_figure  # noqa: E402

USE = """
cat /tmp/status
ravenctl doctor || true
ravensim list | head -n 1
ravenrun --budget 1GiB echo a job ran
id ravenstore
"""
COMPILE = """
apt-get install --yes --no-install-recommends gcc libc6-dev pkg-config >/tmp/apt 2>&1
echo '#include "client/ravenstore.h"
int main(void) { ravenstore_store_t* s = 0; return ravenstore_connect(0, &s) ? 7 : 0; }' >/tmp/a.c
gcc /tmp/a.c $(pkg-config --cflags --libs ravenstore) -o /tmp/a
/tmp/a || echo ended with $?
"""
EXPORT = r"""
apt-get install --yes --no-install-recommends /debs/ravenstore-exporter_*.deb >/tmp/apt 2>&1
port=$(python3 -c '
import socket
with socket.create_server(("127.0.0.1", 0)) as server: print(server.getsockname()[1])')
setpriv --reuid ravenstore --regid ravenstore --init-groups \
  ravenstore-exporter --listen 127.0.0.1:$port >/tmp/exporter 2>&1 &
exporter=$!
until exec 3<>/dev/tcp/127.0.0.1/$port; do
  kill -0 $exporter || { cat /tmp/exporter; exit 1; }
done 2>/dev/null
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
grep --text '^ravenstore_up' <&3
ls /usr/share/ravenstore/{alerts.yml,grafana.json} | sed 's|.*/||'
dpkg --listfiles ravenstore-exporter | grep -o '[^/]*\.service$'
kill $exporter
"""
EDIT = "echo '# mine' >>/etc/ravenstore/ravenstored.toml\n"
# With the daemon at work, as the next version would.
REINSTALL = """
apt-get install --yes --reinstall --no-install-recommends \
  /debs/ravenstore{,-client}_*.deb >/tmp/apt 2>&1
ravenctl status >/dev/null
tail -n 1 /etc/ravenstore/ravenstored.toml
"""
# The next version, where systemd says that the daemon serves.
UPGRADE = r"""
mkdir -p /run/systemd/system /tmp/next
printf '#!/bin/sh\nexit 0\n' >/tmp/systemctl
install -m 755 /tmp/systemctl /usr/bin/systemctl
for deb in /debs/ravenstore{,-client}_*.deb; do
  dpkg-deb --raw-extract $deb /tmp/parts
  sed -i 's/^Version: .*/&+next/; s/(= [^)]*/&+next/' /tmp/parts/DEBIAN/control
  dpkg-deb --build /tmp/parts /tmp/next/${deb##*/} >/dev/null
  rm -r /tmp/parts
done
apt-get install --yes --no-install-recommends /tmp/next/*.deb >/tmp/apt 2>&1
grep 'attached jobs' /tmp/apt
dpkg-query --show --showformat='${Version}\n' ravenstore | sed 's/.*+/+/'
tail -n 1 /etc/ravenstore/ravenstored.toml
"""
REMOVE = """
kill $daemon
wait $daemon || true
apt-get remove --yes ravenstore ravenstore-client >/tmp/apt 2>&1
ls /usr/bin/raven* 2>/dev/null || echo no programs
tail -n 1 /etc/ravenstore/ravenstored.toml
"""
PURGE = """
mkdir -p /var/lib/ravenstore/pool
apt-get purge --yes $(dpkg-query --show --showformat='${Package}\n' 'ravenstore*') >/tmp/apt 2>&1
find / -xdev -path /debs -prune -o -iname '*raven*' -print | grep . || echo nothing
getent passwd ravenstore >/dev/null && echo the user stays
"""


class DebTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            debs = pathlib.Path(os.environ.get("RAVENSTORE_DEBS") or cls.make())
            for release in NAMES:
                bare_root.folder(NAMES[release])
        except bare_root.Missing as error:
            raise unittest.SkipTest(str(error)) from None
        cls.debs = {each.name: each for each in debs.iterdir() if each.name in NAMES}
        assert cls.debs, f"there are no packages in {debs}"

    @classmethod
    def make(cls):
        system = pathlib.Path("/etc/os-release").read_text()
        found = re.search(r'^VERSION_ID="(\d+)"$', system, re.M)
        if not found or found[1] not in NAMES or os.geteuid():
            raise bare_root.Missing("only root makes packages, and on a release that has some")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        built = os.environ.get("RAVENSTORE_BIN", str(ROOT / "bazel-bin"))
        command = [ROOT / "deploy/packages", "--release", found[1], "--into", folder.name]
        subprocess.run(command, env={**os.environ, "RAVENSTORE_BIN": built}, check=True)
        return folder.name

    def of_each(self, script):
        """What it prints in each release."""
        return [in_root(release, script, debs) for release, debs in self.debs.items()]

    def test_installed_it_serves(self):
        for release, debs in self.debs.items():
            figure, said = install_figure(release, debs, then=USE)
            print(json.dumps(figure))
            self.assertIn("a job ran", said)
            self.assertIn("backend host", said)

    def test_the_exporter_is_a_package_of_its_own(self):
        for said in self.of_each(INSTALL + START + EXPORT):
            words = ["ravenstore_up 1", "alerts.yml", "grafana.json", "ravenstore-exporter.service"]
            self.assertEqual(said.split("\n"), [*words, ""])

    def test_programs_compile_against_the_client(self):
        for said in self.of_each(INSTALL + COMPILE):
            self.assertIn("ended with 7", said)

    def test_an_edited_configuration_stays_while_the_daemon_runs_and_without_it(self):
        for said in self.of_each(INSTALL + EDIT + START + REINSTALL + REMOVE):
            self.assertEqual(said.split("\n"), ["# mine", "no programs", "# mine", ""])

    def test_an_upgrade_keeps_the_configuration_and_says_what_jobs_lose(self):
        for said in self.of_each(INSTALL + EDIT + START + UPGRADE):
            words = (
                "ravenstored restarts: attached jobs lose what they stored, and get the error LOST"
            )
            self.assertEqual(said.split("\n"), [words, "+next", "# mine", ""])

    def test_purge_leaves_the_user_alone(self):
        for said in self.of_each(INSTALL + PURGE):
            self.assertEqual(said.split("\n"), ["nothing", "the user stays", ""])


if __name__ == "__main__":
    xml_main.main()
