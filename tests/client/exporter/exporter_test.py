#!/usr/bin/python3
"""ravenstore-exporter itself: a real daemon, HTTP, and the dashboard and rules that read it."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
ROOT = pathlib.Path.cwd()
sys.path[:0] = [str(ROOT / "tests/tidy"), str(ROOT / "tests/timing")]

from timing import HANGS_AFTER, TimeLimit  # noqa: E402

EXPORTER = ROOT / "client/exporter/ravenstore-exporter"
DAEMON = ROOT / "daemon/ravenstored"
MONITORING = ROOT / "deploy/monitoring"
TOKEN = "0123456789abcdef0123456789abcdef"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(command):
    process = subprocess.Popen(
        [str(word) for word in command],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def fetch(port, process, token=None):
    """The metrics' text, as soon as it is served."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    limit = TimeLimit(60)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=HANGS_AFTER) as page:
                return page.read().decode()
        except urllib.error.HTTPError:
            raise
        except (urllib.error.URLError, ConnectionError):
            if process.poll() is not None or limit.is_over():
                raise


class ExporterTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.socket = folder.name + "/s"
        self.port = free_port()

    def exporter(self, *flags):
        listen = f"127.0.0.1:{self.port}"
        return running([EXPORTER, "--socket", self.socket, "--listen", listen, *flags])

    def token_file(self, mode=0o600):
        path = self.folder / "token"
        path.write_text(TOKEN + "\n")
        path.chmod(mode)
        return "--token-file", path

    def daemon(self):
        """A node of a cluster, whose only peer and whose etcd are not there."""
        key = self.folder / "key"
        key.write_text("7" * 64)
        key.chmod(0o600)
        config = self.folder / "ravenstored.toml"
        config.write_text(
            f"""[cluster]
node = "a"
listen = "127.0.0.1:0"
machine = "one"
key = "{key}"
state = "{self.folder / "state"}"
size = "64MiB"
peers = ["b=127.0.0.1:{free_port()}"]
etcd = ["http://127.0.0.1:{free_port()}"]
"""
        )
        sizes = ["--device-total", "64MiB", "--pool-size", "64MiB"]
        command = [DAEMON, "--config", config, "--backend", "host", *sizes]
        return running([*command, "--socket", self.socket])

    def served_by_a_daemon(self):
        """What is served to the token once the daemon answers."""
        with self.daemon(), self.exporter(*self.token_file()) as exporter:
            limit = TimeLimit(60)
            while "\nravenstore_up 1\n" not in (text := fetch(self.port, exporter, TOKEN)):
                self.assertFalse(limit.is_over(), text)
            exporter.send_signal(signal.SIGTERM)
            self.assertEqual(exporter.wait(HANGS_AFTER), 0)
        return text

    def test_serves_a_daemon_and_ends_at_a_signal(self):
        text = self.served_by_a_daemon()
        self.assertIn('ravenstore_tier_capacity_bytes{tier="device 0"} ', text)
        self.assertIn('backend="host"', text)

    def test_says_that_no_daemon_is_there_and_goes_on(self):
        with self.exporter() as exporter:
            self.assertIn("\nravenstore_up 0\n", fetch(self.port, exporter))
            self.assertIsNone(exporter.poll())

    def test_a_port_that_somebody_has_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", self.port))
            taken.listen()
            with self.exporter() as exporter:
                _, said = exporter.communicate(timeout=HANGS_AFTER)
                self.assertEqual(exporter.returncode, 1)
                self.assertIn(f'cannot listen on "127.0.0.1:{self.port}"', said)

    def test_slow_connections_stop_no_scrape(self):
        with self.exporter() as exporter, contextlib.ExitStack() as slow:
            fetch(self.port, exporter)
            for i in range(32):
                one = slow.enter_context(socket.create_connection(("127.0.0.1", self.port)))
                one.sendall(b"GET /met"[: i % 8])
            limit = TimeLimit(60)
            for _ in range(8):
                self.assertIn("\nravenstore_up 0\n", fetch(self.port, exporter))
            self.assertFalse(limit.is_over())

    def test_single_users_are_served_to_the_token_alone(self):
        text = self.served_by_a_daemon()
        self.assertIn("# TYPE ravenstore_user_bytes ", text)
        with self.exporter(*self.token_file()) as exporter:
            self.assertNotIn("user", fetch(self.port, exporter))
            with self.assertRaises(urllib.error.HTTPError) as refused:
                fetch(self.port, exporter, "another")
            refused.exception.close()
            self.assertEqual(refused.exception.code, 401)

    def test_a_token_that_others_can_read_is_refused(self):
        with self.exporter(*self.token_file(0o644)) as exporter:
            _, said = exporter.communicate(timeout=HANGS_AFTER)
            self.assertEqual(exporter.returncode, 1)
            self.assertIn("token is open to other users than its owner (mode 0644)", said)
            self.assertNotIn(TOKEN, said)

    def test_wrong_usage_has_its_own_exit_code(self):
        wrong = (["--users", "all"], ["--timeout", "0"], ["--timeout", "nan"], ["--nonsense"])
        for flags in (*wrong, ["--token-file", ""]):
            with running([EXPORTER, *flags]) as exporter:
                exporter.communicate(timeout=HANGS_AFTER)
                self.assertEqual(exporter.returncode, 2, flags)

    def test_the_dashboard_and_the_rules_ask_for_what_is_served(self):
        served = set(re.findall(r"^# TYPE (ravenstore_\w+) ", self.served_by_a_daemon(), re.M))
        dashboard = json.loads((MONITORING / "grafana.json").read_text())
        asked = {}
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                asked[panel["title"]] = re.findall(r"ravenstore_\w+", target["expr"])
        rules = (MONITORING / "alerts.yml").read_text()
        for alert, expr in re.findall(r"alert: (\w+)\n\s+expr: (.*)\n", rules):
            asked[alert] = re.findall(r"ravenstore_\w+", expr)
        self.assertGreaterEqual(len(asked), 20)
        for what, names in asked.items():
            self.assertTrue(names, what)
            self.assertLessEqual(set(names), served, what)
        page = (ROOT / "docs/MONITORING.md").read_text()
        for name in served:
            self.assertIn(f"`{name.removeprefix('ravenstore_')}`", page)
        for alert in re.findall(r"alert: (\w+)", rules):
            self.assertIn(f"`{alert}`", page)


if __name__ == "__main__":
    os.environ.pop("RAVENSTORE_SOCKET", None)
    import xml_main

    xml_main.main()
