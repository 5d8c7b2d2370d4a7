#!/usr/bin/python3
"""Guest manners: no daemon, fork, exec, deep binding, static constructors, and the self-test."""

import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import time
import unittest

from fakes import FAKES, HERE, JOBS, MIB, PROGRAMS, ROOT, SMALL, FakeGpuTest, job, main
from harness import PATIENCE, Daemon, Job, eventually, guest, wrong

RAVENRUN = str(ROOT / "deploy/ravenrun")


STRANGER = 12345


class Stranger:
    """Another user's process that listens at the path; the test is skipped where none may."""

    def __init__(self, path):
        self.heard_end, end_written = os.pipe()
        self.ready, ready = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setresuid(STRANGER, STRANGER, STRANGER)
                server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                server.bind(path)
                os.chmod(path, 0o666)
                server.listen(8)
                os.write(ready, b"y")
                while True:
                    if server.accept()[0].recv(4096):
                        os.write(end_written, b"y")
            finally:
                os._exit(1)
        os.close(ready)
        os.close(end_written)
        self.path = path

    def __enter__(self):
        if not os.read(self.ready, 1):
            self.__exit__()
            raise unittest.SkipTest("only root may listen as another user")
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.ready)
        os.close(self.heard_end)
        pathlib.Path(self.path).unlink(missing_ok=True)

    def heard(self, within):
        """Whether any client has said anything within `within` seconds."""
        return bool(select.select([self.heard_end], [], [], within)[0])


class MannersTest(FakeGpuTest):
    def test_without_a_daemon_a_job_runs_and_says_nothing_unless_asked(self):
        for name in JOBS:
            for log in ("", "stderr"):
                with self.subTest(name=name, log=log):
                    done = subprocess.run(
                        [job(name)],
                        input="all\ninfo\nfree\nquit\n",
                        env=guest(PROGRAMS, "/nowhere", RAVENSTORE_INTERCEPT_LOG=log),
                        capture_output=True, text=True, timeout=PATIENCE, check=True,
                    )  # fmt: skip
                    self.assertEqual(done.stderr.count("no daemon"), 1 if log else 0)
                    if not log:
                        self.assertEqual(done.stderr, "")

    def test_the_listener_must_be_a_user_that_may_run_the_daemon(self):
        os.chmod(self.folder.name, 0o777)
        path = self.folder.name + "/s"
        for trusted in ("", str(STRANGER)):
            with self.subTest(trusted=trusted), Stranger(path) as stranger:
                environment = guest(
                    PROGRAMS,
                    path,
                    RAVENSTORE_INTERCEPT_LOG="stderr",
                    RAVENSTORE_DAEMON_USER=trusted,
                )
                done = subprocess.run(
                    [job("driver")], input="all\nfree\nquit\n", env=environment,
                    capture_output=True, text=True, timeout=PATIENCE, check=True,
                )  # fmt: skip
                refused = done.stderr.count(f"no daemon: user {STRANGER} listens at '{path}'")
                self.assertEqual(refused, 0 if trusted else 1, done.stderr)
                self.assertEqual(stranger.heard(20 if trusted else 0), bool(trusted))

    def test_an_empty_variable_names_no_socket(self):
        done = subprocess.run(
            [job("driver")],
            input="quit\n",
            env=guest(PROGRAMS, "", RAVENSTORE_INTERCEPT_LOG="stderr"),
            capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
        self.assertIn("at /run/ravenstore/ravenstore.sock", done.stderr)

    def test_a_runtime_under_a_wheels_name_is_found(self):
        runtime = self.folder.name + "/libcudart-d0da41ae.so.13"
        shutil.copy(FAKES / "libcudart.so.13", runtime)
        environment = guest(PROGRAMS, "/nowhere")
        # It is there before the program asks for one by its soname.
        environment["LD_PRELOAD"] += " " + runtime
        with Job([job("shared")], environment) as one:
            self.assertIn(runtime, pathlib.Path(f"/proc/{one.pid}/maps").read_text())
            self.assertEqual(one.ask(f"device {MIB}"), {"code": 0})

    def test_programs_without_cuda_run_as_ever(self):
        done = subprocess.run(
            ["/bin/sh", "-c", "echo $$; python3 -c 'import ssl, ctypes; print(1)'"],
            env=guest(PROGRAMS, "/nowhere", RAVENSTORE_INTERCEPT_LOG="stderr"),
            capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
        self.assertEqual(done.stderr, "")

    def test_a_child_of_fork_is_no_part_of_the_job(self):
        with Daemon(PROGRAMS, SMALL) as daemon:
            for variables in ({}, {"JOB_CHILD_ALLOCATES": 1}):
                with Job([job("driver")], guest(PROGRAMS, daemon.socket, **variables)) as one:
                    held = one.ask("all")
                    self.assertEqual(one.ask("fork"), {"child": 7})
                    self.assertEqual(wrong(held, daemon.held(one.pid)), {})
                    self.assertEqual(wrong(one.ask("free"), daemon.held(one.pid)), {})

    def test_a_process_that_becomes_another_begins_at_zero(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([job("dlsym")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            one.ask("all")
            self.assertEqual(one.ask("exec"), {"ready": one.pid})
            self.assertTrue(eventually(lambda: wrong({}, daemon.held(one.pid)) == {}))
            self.assertEqual(wrong(one.ask("all"), daemon.held(one.pid)), {})

    def test_a_job_with_large_threads_is_shown_to_the_next_daemon(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            daemon.kill()
            daemon.start()
            self.assertTrue(eventually(lambda: daemon.held(one.pid)))

    def test_a_job_that_closes_every_descriptor_keeps_those_it_opens_next(self):
        with (
            Daemon(PROGRAMS, SMALL) as daemon,
            Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
        ):
            one.ask(f"device {MIB}")
            one.ask("close")
            # Longer than the interceptor waits between two looks at its socket.
            end = time.monotonic() + 1
            while time.monotonic() < end:
                self.assertEqual(one.ask("intact"), {"intact": True})
            self.assertEqual(one.ask(f"device {MIB}"), {"code": 0})
            self.assertIsNone(daemon.held(one.pid))

    def test_an_unknown_pointer_goes_to_the_driver(self):
        with Job([str(HERE / "prober")], guest(PROGRAMS)) as one:
            self.assertEqual(one.ask("unknown"), {"free": 1, "release": 1})

    def test_threads_may_race_into_the_first_call(self):
        with Daemon(PROGRAMS, SMALL) as daemon:
            for _ in range(10):
                environment = guest(PROGRAMS, daemon.socket, PROBER_LATE=1)
                with Job([str(HERE / "prober")], environment) as one:
                    one.ask("race")
                    self.assertEqual(daemon.held(one.pid)["device"], 16 * MIB)

    def test_a_static_constructor_may_allocate(self):
        with Daemon(PROGRAMS, SMALL) as daemon:
            environment = guest(PROGRAMS, daemon.socket, PROBE_AT_LOAD=1)
            environment["LD_PRELOAD"] += " " + str(HERE / "libprobe.so")
            with Job([str(HERE / "prober")], environment) as one:
                self.assertEqual(daemon.held(one.pid)["device"], MIB)

    def test_a_deeply_bound_library_is_counted_and_stays_deeply_bound(self):
        for way in ("LAZY", "NOW"):
            with (
                self.subTest(way=way),
                Daemon(PROGRAMS, SMALL) as daemon,
                Job([str(HERE / "prober")], guest(PROGRAMS, daemon.socket)) as one,
            ):
                path = HERE / ("libprobe.so" if way == "NOW" else "libprobe_lazy.so")
                # It still finds its own before the program's.
                self.assertEqual(one.ask(f"deep {path}"), {"code": 0, "version": 2})
                self.assertEqual(daemon.held(one.pid)["device"], MIB)

    def ravenrun(self, *words, **variables):
        return subprocess.run(
            [RAVENRUN, *words],
            input="all\nfree\nquit\n",
            env=os.environ | {"RAVENSTORE_LIB": str(PROGRAMS.library)} | variables,
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip

    def test_ravenrun_runs_a_command_and_hands_its_status_on(self):
        with Daemon(PROGRAMS, SMALL) as daemon:
            done = self.ravenrun("--socket", daemon.socket, "--budget=100MiB", job("shared"))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(self.ravenrun("sh", "-c", "exit 5").returncode, 5)
            self.assertEqual(self.ravenrun("--mode=fast", "true").returncode, 2)
            self.assertEqual(self.ravenrun("--budget=much", "true").returncode, 2)

    def test_ravenrun_takes_sizes_as_they_are_written(self):
        for text, size in (
            ("1.5GiB", 3 << 29), ("010GiB", 10 << 30), ("0.5K", 512), ("1000", 1000), ("2B", 2),
            ("3TiB", 3 << 40), ("0", 0), ("20GB", 20 * 10**9), ("1.5KB", 1500),
        ):  # fmt: skip
            done = self.ravenrun("--budget", text, "sh", "-c", "echo $RAVENSTORE_BUDGET")
            self.assertEqual((done.stdout, done.stderr), (f"{size}\n", ""), text)
        for text in ("1.5.0GiB", ".GiB", "1,5GiB", "-1GiB", "0x10", "GiB", "", "20Gb", "9000TiB"):
            done = self.ravenrun(f"--budget={text}", "true")
            self.assertEqual(done.returncode, 2, text)
            self.assertIn("a size such as 20GiB", done.stderr)

    def test_ravenrun_refuses_a_value_where_none_belongs(self):
        self.assertEqual(self.ravenrun("--check=anything", "true").returncode, 2)

    def test_the_self_test_names_what_is_captured(self):
        for name in ("shared", "driver", "dlsym", "static"):
            done = self.ravenrun("--check", job(name))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, r"called\s+cuMemAlloc_v2")

    def check_deep(self, **variables):
        deep = {"PROBER_DEEP": str(HERE / "libprobe.so")}
        return self.ravenrun("--check", str(HERE / "prober"), **deep, **variables)

    def test_the_self_test_fails_loudly_when_calls_escape(self):
        done = self.check_deep(PROBER_ONLY_LOADS="1")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("ESCAPED", done.stderr)
        self.assertIn("FAILED", done.stderr)

    def test_the_self_test_fails_loudly_when_calls_may_have_escaped(self):
        done = self.check_deep(PROBE_AT_LOAD="1")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("LATE", done.stderr)
        self.assertIn("FAILED", done.stderr)

    def test_the_self_test_is_content_when_no_driver_was_there_to_escape_to(self):
        done = self.check_deep(PROBER_LATE="1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"captured\s+dlsym\s+\S*libprobe.so")
        self.assertRegex(done.stderr, r"called\s+cuMemAlloc_v2 \(1")


if __name__ == "__main__":
    main()
