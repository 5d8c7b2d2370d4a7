#!/usr/bin/python3
"""Orders to the processes of a job, against the host backend."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import unittest
from unittest import mock

import harness
import ravenstore
import torch
import xml_main
from harness import MIB
from ravenstore import orders, regions
from ravenstore._program import program_name

# A child has this process's PyTorch, and connects by itself.
PROCESSES = multiprocessing.get_context("fork")
STEP = 0.005
COUNT = MIB


def work(pipe, job, tags, stays, anytime):
    """A rank: steps with a point between them, until it is asked to end. A server has no steps, and
    says what becomes of its tags."""
    tensors = []
    for tag in tags:
        with ravenstore.region(tag):
            tensors.append(torch.arange(COUNT, dtype=torch.float32))
    if stays:
        ravenstore.stay(tensors[0])
    ravenstore.take_orders(job=job, anytime=anytime)
    pipe.send("ready")
    before = None
    while not pipe.poll(STEP):
        if not anytime:
            try:
                ravenstore.sleep_point()
            except ravenstore.Lost:
                pipe.send("lost")
                return
        elif (now := [each.asleep for each in ravenstore.tags().values()]) != before:
            pipe.send(now)
            before = now
    want = torch.arange(COUNT, dtype=torch.float32)
    pipe.send(all(torch.equal(each, want) for each in tensors))


def in_child(does):
    """A process whose parent has had regions has none. Its exit status."""
    child = os.fork()
    if child == 0:
        try:
            does()
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(child, 0)[1]


class Rank:
    def __init__(self, job, tags=("weights",), *, stays=False, anytime=False, works=True):
        self.pipe, theirs = PROCESSES.Pipe()
        arguments = (theirs, job, tags, stays, anytime)
        self.process = PROCESSES.Process(target=work if works else self.hang, args=arguments)
        self.process.start()
        theirs.close()
        assert self.pipe.recv() == "ready"

    @staticmethod
    def hang(pipe, job, tags, _stays, _anytime):
        """A rank that comes to no point."""
        with ravenstore.region(tags[0]):
            torch.zeros(COUNT)
        ravenstore.take_orders(job=job)
        pipe.send("ready")
        pipe.recv()

    def end(self):
        """Whether it has all its bytes."""
        self.pipe.send("end")
        while (said := self.pipe.recv()) not in (True, False):
            pass
        self.process.join()
        return said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.join()


class OrdersTest(unittest.TestCase):
    def setUp(self):
        socket = self.enterContext(harness.daemon())
        self.enterContext(mock.patch.dict(os.environ, RAVENSTORE_SOCKET=socket))
        self.job = self.id().rsplit(".", 1)[-1]

    def rank(self, *words, **options):
        return self.enterContext(Rank(self.job, *words, **options))

    def order(self, what, *tags, **options):
        """The order under way, as a thread, and where its error or result will be."""
        outcome = []

        def give():
            try:
                outcome.append(what(*tags, job=self.job, **options))
            except ravenstore.RavenstoreError as error:
                outcome.append(error)

        thread = threading.Thread(target=give)
        thread.start()
        self.addCleanup(thread.join)
        return thread, outcome

    def test_all_ranks_sleep_and_all_wake(self):
        ranks = [self.rank() for _ in range(3)]
        stranger = self.enterContext(Rank("another"))
        for _ in range(3):
            self.assertGreaterEqual(ravenstore.sleep("weights", job=self.job), 3 * 4 * COUNT)
            ravenstore.wake("weights", job=self.job)
        self.assertTrue(all(rank.end() for rank in [*ranks, stranger]))

    def test_what_sleeps_already_has_nothing_to_do(self):
        rank = self.rank(("weights", "cache"), anytime=True)
        self.assertEqual(rank.pipe.recv(), [False, False])
        ravenstore.sleep("cache", job=self.job, keep="nothing")
        self.assertEqual(rank.pipe.recv(), [False, True])
        self.assertGreaterEqual(ravenstore.sleep("weights", "cache", job=self.job), 4 * COUNT)
        self.assertEqual(ravenstore.sleep(job=self.job), 0)
        self.assertEqual(rank.pipe.recv(), [True, True])
        ravenstore.wake(job=self.job)

    def test_one_that_fails_wakes_the_others(self):
        ranks = [self.rank(), self.rank(stays=True), self.rank()]
        number = ranks[1].process.pid
        with self.assertRaisesRegex(ravenstore.WrongState, f"process {number} .*kept in place"):
            ravenstore.sleep("weights", job=self.job)
        self.assertTrue(all(rank.end() for rank in ranks))

    def test_one_that_is_killed_wakes_the_others(self):
        rank = self.rank(anytime=True)
        self.assertEqual(rank.pipe.recv(), [False])
        dies = self.rank(works=False)
        thread, outcome = self.order(ravenstore.sleep, "weights")
        self.assertEqual(rank.pipe.recv(), [True])
        os.kill(dies.process.pid, signal.SIGKILL)
        self.assertEqual(rank.pipe.recv(), [False])
        thread.join()
        self.assertIsInstance(outcome[0], ravenstore.Lost)
        self.assertIn(f"process {dies.process.pid} (weights): it ended", str(outcome[0]))
        self.assertTrue(rank.end())

    def test_one_that_comes_to_no_point_wakes_the_others(self):
        rank, _late = self.rank(), self.rank(works=False)
        with self.assertRaisesRegex(ravenstore.TimedOut, r"sleep_point\(\)"):
            ravenstore.sleep("weights", job=self.job, timeout=0.5)
        self.assertTrue(rank.end())

    def test_a_job_that_is_not_there_is_an_error_with_those_that_are(self):
        self.rank()
        known = f"'{self.job}' with 'weights'"
        for tags, job in ((("cache",), self.job), (("weights",), "unknown")):
            with self.assertRaisesRegex(ravenstore.NotFound, known):
                ravenstore.sleep(*tags, job=job)
        with self.assertRaisesRegex(ravenstore.InvalidArgument, "unchanged"):
            ravenstore.sleep(job=self.job, unchanged=True)
        for options in ({"blocking": False}, {"in_order": True}):
            with self.assertRaisesRegex(ravenstore.InvalidArgument, "blocking"):
                ravenstore.wake(job=self.job, **options)
        with self.assertRaises(ravenstore.InvalidArgument):
            ravenstore.sleep(job="")

    def test_a_point_waits_until_its_tags_are_awake(self):
        self.assertEqual(in_child(self.wait_at_a_point), 0)

    def wait_at_a_point(self):
        with ravenstore.region(self.job):
            first = torch.ones(COUNT)
        ravenstore.sleep_point()  # takes orders by itself, for what is made later as well
        ravenstore.take_orders(job=self.job)
        with ravenstore.region(self.job + "_later"):
            second = torch.ones(COUNT)
        thread, outcome = self.order(ravenstore.sleep)
        while not ravenstore.tags()[self.job].asleep:
            orders._execute_orders()
        thread.join()
        self.assertGreaterEqual(outcome[0], 2 * 4 * COUNT)
        thread, outcome = self.order(ravenstore.wake)
        ravenstore.sleep_point()
        self.assertEqual([tag.asleep for tag in ravenstore.tags().values()], [False, False])
        thread.join()
        self.assertEqual(outcome, [None])
        self.assertEqual(float(first.sum() + second.sum()), 2 * COUNT)
        self.assertEqual(in_child(ravenstore.sleep_point), 0)

    def test_a_rank_waits_for_an_order_that_another_has(self):
        self.assertEqual(in_child(self.agree), 0)

    def agree(self):
        with ravenstore.region(self.job):
            weights = torch.ones(COUNT)
        ravenstore.take_orders(job=self.job)
        ravenstore.sleep_point(agree=lambda ordered: ordered)
        began = []

        def another_is(ordered):
            self.assertFalse(ordered)
            began.append(self.order(lambda **job: ravenstore.sleep(**job) + self.woken(**job)))
            return True

        ravenstore.sleep_point(agree=another_is)
        thread, outcome = began[0]
        thread.join()
        self.assertGreaterEqual(outcome[0], 4 * COUNT)
        self.assertEqual(float(weights.sum()), COUNT)

    @staticmethod
    def woken(job):
        ravenstore.wake(job=job)
        return 0

    def test_while_a_stream_is_captured_a_point_does_nothing(self):
        self.assertEqual(in_child(self.capture), 0)

    def capture(self):
        with ravenstore.region(self.job):
            weights = torch.ones(COUNT)
        ravenstore.take_orders(job=self.job)
        with mock.patch.object(regions, "is_capturing", lambda: True):
            thread, outcome = self.order(ravenstore.sleep, timeout=0.2)
            while thread.is_alive():
                ravenstore.sleep_point()
        self.assertIsInstance(outcome[0], ravenstore.TimedOut)
        self.assertEqual(float(weights.sum()), COUNT)


class DeathTest(unittest.TestCase):
    def test_a_daemon_that_dies_ends_the_wait_at_a_point(self):
        with contextlib.ExitStack() as ends:
            with (
                harness.daemon() as socket,
                mock.patch.dict(os.environ, RAVENSTORE_SOCKET=socket),
            ):
                rank = ends.enter_context(Rank("dies"))
                self.assertGreater(ravenstore.sleep("weights", job="dies"), 0)
            self.assertEqual(rank.pipe.recv(), "lost")


class NamesTest(unittest.TestCase):
    def test_a_job_is_named_by_its_program(self):
        for word, name in (
            ("jobs/train.py", "train.py"),
            ("/lib/vllm/__main__.py", "vllm"),
            ("", os.path.basename(sys.executable)),
            ("-c", os.path.basename(sys.executable)),
        ):
            with mock.patch.object(sys, "argv", [word]):
                self.assertEqual(program_name(), name)

    def test_its_run_is_that_of_what_began_it(self):
        for variables, run in (
            ({}, 0),
            ({"RAVENSTORE_JOB": "0123:4711"}, 4711),
            ({"RAVENSTORE_JOB": "nonsense"}, 0),
            ({"TORCHELASTIC_RUN_ID": "none"}, os.getppid()),
            ({"TORCHELASTIC_RUN_ID": "none", "RAVENSTORE_JOB": "0123:4711"}, 4711),
        ):
            with mock.patch.dict(os.environ, variables):
                self.assertEqual(orders._run(), run)


if __name__ == "__main__":
    xml_main.main()
