#!/usr/bin/env python3
"""Fits the formula's coefficients to the tree's measured jobs, and writes them into the package.

    bench/estimator/fit.py           writes python/ravenstore/estimate/_formula.json
    bench/estimator/fit.py --check   says instead how jobs of architectures held out are met

Least squares of the relative error, each coefficient non-negative (Lawson and Hanson's algorithm,
scipy's), with a weak pull towards what autograd's rules say: where no measured job has a kind of
operation, the rule stands. A row counts for the forward branch of the formula or for the step's,
whichever is larger for the coefficients of the round before.
"""

import argparse
import json
import math

import numpy as np
import rows
from ravenstore.estimate import _formula
from ravenstore.estimate._describe import KINDS
from scipy.optimize import nnls

OUT = rows.figures.ROOT / "python/ravenstore/estimate/_formula.json"
FOLDS = 4
ROUNDS = 8
# What the rules say: what autograd keeps stays whole, the loss's input is met by its logarithm and
# its gradient. Under autocast most of what is kept has half of the bytes.
_RULE = dict.fromkeys([*KINDS, "outside", "block", "between", "batch"], 1.0)
_RULE |= dict.fromkeys(["ends", "live", "most_loss"], 1.0)
_RULE |= {"rnn": 8.0, "fixed": 64.0}
_RULE |= {"kept_products": 1.0, "kept_norms": 0.5, "kept_others": 0.25}
_AUTOCAST = dict.fromkeys(KINDS, 0.6) | {"rnn": 4.0, "parameters": 0.5}
# How far data has to pull to leave the rule: coefficients' usual distance from it, over the
# relative error of a good fit.
_PULL = 0.1
_PULL_FIXED = 0.001


def fit_one(taken, way, precision, peak, ordinary):
    """The coefficients of one way, precision and peak, by the rows `taken`; `ordinary`: those of
    ordinary training, if there are."""
    rule = _RULE | (_AUTOCAST if precision == "autocast" else {})
    inputs = [
        _formula.features(of, way, _formula.scale(of, ordinary))
        for of in (row.description for row in taken)
    ]
    names = list(inputs[0])
    pull = np.diag([_PULL_FIXED if name == "fixed" else _PULL for name in names])
    meant = pull @ np.array([rule.get(name, 0.0) for name in names])
    actual = np.array([getattr(row, peak) for row in taken], float)
    given = np.array([list(features.values()) for features in inputs], float)
    known = np.array([_formula.known(row.description, row.job.optimizer) for row in taken], float)
    step = np.array([_formula.step(row.description, row.job.optimizer) for row in taken], float)
    forward = np.ones(len(taken), bool)
    for _ in range(ROUNDS):
        left = np.vstack([given[forward] / actual[forward, None], pull])
        right = np.concatenate([(actual - known)[forward] / actual[forward], meant])
        solved, _ = nnls(left, right)
        forward = given @ solved >= step
    return dict(zip(names, (round(float(value), 4) for value in solved), strict=True))


def of_way(measured, way, precision):
    return [row for row in measured if row.way.name == way and row.job.precision == precision]


def fit(measured):
    """All coefficients, as the package keeps them."""
    coefficients = {}
    for way in _formula.WAYS:  # ordinary training is the first of them
        coefficients[way] = {}
        for precision in _formula.PRECISIONS:
            taken = of_way(measured, way, precision)
            ordinary = coefficients["training"].get(precision, {})
            coefficients[way][precision] = {
                peak: fit_one(taken, way, precision, peak, ordinary.get(peak, {}))
                for peak in _formula.PEAKS
            }
    return coefficients


def predicted(coefficients, row, peak="reserved"):
    peaks = {
        of: _formula.predicted(row.description, row.way, coefficients, of) for of in _formula.PEAKS
    }
    return max(peaks.values()) if peak == "reserved" else peaks[peak]


def folds(measured):
    """For each fold, the rows to fit and those held out: no architecture is on both sides."""
    names = sorted({row.job.architecture_key() for row in measured})
    fold = {name: number % FOLDS for number, name in enumerate(names)}
    for held in range(FOLDS):
        inside = [row for row in measured if fold[row.job.architecture_key()] != held]
        yield inside, [row for row in measured if fold[row.job.architecture_key()] == held]


def held_out(measured, peak="reserved"):
    """Of every row: itself, and what the coefficients of the other folds say of it."""
    return [
        (row, predicted(coefficients, row, peak))
        for inside, outside in folds(measured)
        for coefficients in [fit(inside)]
        for row in outside
    ]


def margins(pairs):
    """By way and sort of model: what one job of a hundred needed more than was said, as a share of
    what was said. Of fewer jobs, what the one furthest off needed.

    The rank is that of split conformal prediction: of n jobs the ceil((n + 1) x 0.99)th. A sort of
    which no job was measured has the largest of its way.
    """
    shares = {way: {} for way in _formula.WAYS}
    for row, said in pairs:
        by_sort = shares[row.way.name]
        by_sort.setdefault(_formula.sort(row.description), []).append(row.reserved / said - 1)
    needed = {
        way: {sort: round(_needed(of), 4) for sort, of in by_sort.items()}
        for way, by_sort in shares.items()
    }
    return {
        way: {sort: by_sort.get(sort, max(by_sort.values())) for sort in _formula.SORTS}
        for way, by_sort in needed.items()
    }


def _needed(shares):
    rank = min(len(shares), math.ceil((len(shares) + 1) * 0.99))
    return float(sorted(shares)[rank - 1])


def reserved_for(row, said, by_way):
    """What admission would set aside: what was said, with its margin."""
    return said * (1 + _formula.margin(row.description, row.way, by_way))


def errors(pairs, peak="reserved"):
    return np.array([said / getattr(row, peak) - 1 for row, said in pairs])


def check(measured):
    for peak in _formula.PEAKS:
        pairs = held_out(measured, peak)
        groups = {("all", ""): pairs}
        for row, said in pairs:
            groups.setdefault((row.way.name, row.job.family), []).append((row, said))
        for name, group in sorted(groups.items()):
            off = errors(group, peak)
            ends = "  1, 50, 99%:" + " {:+.3f}" * 3
            middle = ends.format(*np.quantile(off, (0.01, 0.5, 0.99)))
            print(
                f"{peak:9} {name[0]:13} {name[1]:12} {len(group):5}"
                f"  mean |error| {abs(off).mean():.3f}{middle}"
            )
        if peak == "reserved":
            print("margins", margins(pairs))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--data", default="h100.jsonl.xz")
    given = parser.parse_args()
    measured = rows.read(given.data)
    if given.check:
        check(measured)
        return
    fitted = {
        "gpu": "NVIDIA H100 80GB HBM3",
        "jobs": len(measured),
        "margins": margins(held_out(measured)),
        "coefficients": fit(measured),
    }
    OUT.write_text(json.dumps(fitted, indent=1) + "\n")


if __name__ == "__main__":
    main()
