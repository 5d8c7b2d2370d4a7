#!/usr/bin/env python3
"""How long it takes from `apt install` of the Debian packages to a daemon that answers.

$RAVENSTORE_DEBS names a folder with those of each release (12, 13), as deploy/packages makes them.
Prints doors.deb_s of each, one JSON object a line.
"""

import json
import os
import pathlib
import re
import sys

sys.dont_write_bytecode = True

import bare_root  # noqa: E402

NAMES = {"12": "bookworm", "13": "trixie"}
INSTALL_SECONDS = 30
HANGS_AFTER = 600
UPDATE = "export DEBIAN_FRONTEND=noninteractive\napt-get update >/tmp/update 2>&1\n"
# Without the exporter, which not every node has.
INSTALL = """
apt-get install --yes --no-install-recommends \\
    /debs/ravenstore{,-client}_*.deb >/tmp/apt 2>&1 || { cat /tmp/apt; false; }
"""
# As an administrator would where systemd does not run.
START = """
install -d -o ravenstore -g ravenstore /run/ravenstore
setpriv --reuid ravenstore --regid ravenstore --init-groups \\
    ravenstored --config /etc/ravenstore/ravenstored.toml --backend host >/tmp/log 2>&1 &
daemon=$!
until ravenctl status >/tmp/status 2>&1; do kill -0 $daemon || { cat /tmp/log; exit 1; }; done
"""


def in_root(release, script, debs):
    """What a shell's script prints, as root, with the release's packages in /debs and lists of
    those that they need. Raises as bare_root.run()."""
    mounts = {str(debs.resolve()): "/debs"}
    return bare_root.run(NAMES[release], UPDATE + script, mounts, HANGS_AFTER, as_root=True)


def install_figure(release, debs, then=""):
    """(doors.deb_s, what was printed): installs, starts the daemon, and runs `then`."""
    timed = f"begin=$(date +%s.%N)\n{INSTALL}{START}echo took $(date +%s.%N) $begin\n"
    said = in_root(release, timed + then, debs)
    end, begin = map(float, re.search(r"^took (\S+) (\S+)$", said, re.M).groups())
    figure = {
        "name": f"doors.deb_s.{release}", "value": round(end - begin, 1), "unit": "s",
        "bound": None, "target": INSTALL_SECONDS, "ok": end - begin <= INSTALL_SECONDS,
        "machine": f"{os.cpu_count()} cores", "detail": f"a bare {NAMES[release]}",
    }  # fmt: skip
    return figure, said


def main():
    debs = pathlib.Path(os.environ.get("RAVENSTORE_DEBS", "dist/debian"))
    for release in NAMES:
        try:
            if not list((debs / release).glob("*.deb")):
                raise bare_root.Missing(f"no packages in {debs / release} (deploy/packages)")
            figure, _ = install_figure(release, debs / release)
        except bare_root.Missing as error:
            figure = {
                "name": f"doors.deb_s.{release}", "value": None, "unit": "s", "bound": None,
                "target": INSTALL_SECONDS, "ok": None, "machine": "", "skipped": str(error),
            }  # fmt: skip
        print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
