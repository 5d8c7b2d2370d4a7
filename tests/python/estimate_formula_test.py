"""The formula: what it knows by rule, what it was fitted to, and the estimate that users see."""

import dataclasses
import unittest

import harness  # noqa: F401
import torch
from ravenstore import estimate
from ravenstore.estimate import _formula
from ravenstore.estimate._describe import Description
from torch import nn

MIB = 1 << 20
OF = Description(
    parameters=100 * MIB, trainable=100 * MIB, tensors=10, batch=MIB, kept={"linear": 400 * MIB},
    backward=500 * MIB, live=80 * MIB, most={"linear": 90 * MIB}, blocks=300 * MIB,
    block=30 * MIB, between=20 * MIB, layers=(),
)  # fmt: skip
EVERY_WAY = [
    _formula.Way(optimizer, precision, checkpointed, compiled)
    for optimizer in _formula.STATES
    for precision in _formula.PRECISIONS
    for checkpointed, compiled in ((False, False), (True, False), (False, True))
]


def network():
    return nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 10))


class Formula(unittest.TestCase):
    def test_every_way_has_coefficients_that_know_what_must_be_there(self):
        for way in EVERY_WAY:
            said = _formula.predict(OF, way)
            self.assertGreaterEqual(said.used, _formula.known(OF, way.optimizer), way)
            self.assertGreaterEqual(said.reserved, said.used, way)
            self.assertGreater(said.margin, 0, way)

    def test_no_coefficient_is_negative(self):
        for by_precision in _formula.fitted()["coefficients"].values():
            for by_peak in by_precision.values():
                for coefficients in by_peak.values():
                    self.assertGreaterEqual(min(coefficients.values()), 0)

    def test_more_of_anything_never_needs_less(self):
        more = dataclasses.replace(
            OF, parameters=2 * OF.parameters, trainable=2 * OF.trainable, batch=2 * OF.batch,
            kept={kind: 2 * size for kind, size in OF.kept.items()}, backward=2 * OF.backward,
            live=2 * OF.live, most={kind: 2 * size for kind, size in OF.most.items()},
            blocks=2 * OF.blocks, block=2 * OF.block, between=2 * OF.between,
        )  # fmt: skip
        for way in EVERY_WAY:
            self.assertGreater(
                _formula.predict(more, way).reserved, _formula.predict(OF, way).reserved, way
            )

    def test_states_count_as_the_optimizer_keeps_them(self):
        known = {name: _formula.known(OF, name) for name in _formula.STATES}
        self.assertEqual(known["adam"] - known["sgd"], 2 * OF.trainable)
        self.assertEqual(known["momentum"] - known["sgd"], OF.trainable)
        self.assertEqual(known["none"], OF.parameters)

    def test_a_step_that_needs_more_than_the_passes_is_the_peak(self):
        small = dataclasses.replace(OF, kept={"linear": MIB}, backward=2 * MIB, most={}, batch=0)
        said = _formula.predict(small, _formula.Way("adam"))
        self.assertEqual(said.used, _formula.known(small, "adam") + 2 * small.trainable)

    def test_what_it_does_not_know_is_refused_in_words(self):
        with self.assertRaisesRegex(ValueError, "optimizer is one of .*adamw.*'adagrad'"):
            _formula.Way("adagrad")
        with self.assertRaisesRegex(ValueError, "precision is one of .*'fp8'"):
            _formula.Way(precision="fp8")


class Estimates(unittest.TestCase):
    def test_a_model_is_estimated_without_a_capture(self):
        said = estimate.estimate_model(network, 512, rung="formula")
        self.assertEqual(said.source, "formula")
        self.assertGreater(said.used, 4 * 4 * (1024 * 4096 + 4096 * 10))
        self.assertGreater(said.margin, 0)

    def test_it_lies_near_the_capture(self):
        quick, captured = (
            estimate.estimate_model(network, 4096, rung=rung) for rung in ("formula", "capture")
        )
        self.assertLess(abs(quick.used / captured.used - 1), 0.25)

    def test_a_rung_that_is_none_is_refused_in_words(self):
        with self.assertRaisesRegex(estimate.CaptureRefused, "'guess' is no rung: give one of"):
            estimate.estimate_model(network, 8, rung="guess")

    def test_an_optimizer_that_it_does_not_know_is_refused_in_words(self):
        with self.assertRaisesRegex(estimate.CaptureRefused, "knows no adafactor: give one of"):
            estimate.estimate_model(network, 8, optimizer="adafactor", rung="formula")

    def test_another_gpu_is_reported(self):
        said = estimate.estimate_model(network, 8, gpu="NVIDIA T4", rung="formula")
        self.assertIn("fitted to jobs on a NVIDIA H100 80GB HBM3", " ".join(said.notes))

    def test_what_does_not_fit_is_reported(self):
        said = estimate.estimate_model(network, 8, gpu_memory="256MiB", rung="formula")
        self.assertIn("it does not fit", " ".join(said.notes))

    def test_nothing_stays_on_the_meta_device(self):
        estimate.estimate_model(network, 8, rung="formula")
        self.assertEqual(torch.zeros(1).device.type, "cpu")


if __name__ == "__main__":
    unittest.main()
