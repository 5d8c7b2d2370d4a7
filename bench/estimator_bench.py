#!/usr/bin/env python3
"""Judges the estimator: one figure a line, as bench/report reads them.

    bench/estimator_bench.py [--scale X] [--part NAME]... [--table]

Parts: formula, packing, real, history, capture, speed, scripts. What was measured on a GPU is in
bench/estimator/data; here everything is computed from it, so that no GPU is needed. Rivals are
trained again on the same rows and judged on the same ones: a quarter of the architectures, to which
nothing was fitted. --table prints the real models one by one instead, with signs.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "estimator"))

import figures
import fit
import jobs
import models
import numpy as np
import packing
import rivals
import rows
import torch
from ravenstore import estimate
from ravenstore.estimate import _formula

GB = 1 << 30
H100 = 80 * 10**9 - (1 << 30)
GROUPS = {
    "mlp": (("mlp",), 1, 0.97),
    "cnn": (("cnn", "residual", "dense"), 8, 0.82),
    "transformer": (("transformer",), 8, 0.87),
}


def emit(name, value, unit, target, **more):
    machine = figures.machine("measured on NVIDIA H100 80GB HBM3")
    figures.emit(name, value, unit, target, machine, **more)


def share_right(said, actual, width):
    """The share of estimates that lie in the class of what was measured."""
    right = [
        int(s // (width * GB)) == int(a // (width * GB)) for s, a in zip(said, actual, strict=True)
    ]
    return sum(right) / len(right)


def mean_size(errors):
    return float(np.mean(np.abs(errors)))


def mean_error(said, actual):
    return mean_size(np.array(said) / np.array(actual) - 1)


class Judged:
    """The measured rows, what is held out of them, and what each estimator says of those."""

    def __init__(self, scale):
        self.all = rows.read("h100.jsonl.xz")
        self.inside, self.held = next(fit.folds(self.all))
        self.actual = [row.reserved for row in self.held]
        self.coefficients = fit.fit(self.inside)
        self.margins = fit.margins(fit.held_out(self.inside))
        self.said = {
            "formula": [fit.predicted(self.coefficients, row) for row in self.held],
            "horus": [rivals.horus(row) for row in self.held],
            "fake_sums": [rivals.fake_sums(row) for row in self.held],
        }
        self.classes = {}
        epochs = {"mlp": max(10, int(150 * scale)), "transformer": max(5, int(50 * scale))}
        for name, classify in (("mlp", rivals.mlp), ("transformer", rivals.transformer)):
            self.classes[name] = self.classified(classify, epochs[name])

    def classified(self, classify, epochs):
        """For each held row the class, and its width in GB, by the model of its kind of network."""
        predicted = {}
        for families, width, _ in [*GROUPS.values(), (("lstm",), 8, None)]:
            inside = [row for row in self.inside if row.job.family in families]
            held = [number for number, row in enumerate(self.held) if row.job.family in families]
            found = classify(inside, [self.held[number] for number in held], width, epochs=epochs)
            predicted |= {number: (kind, width) for number, kind in zip(held, found, strict=True)}
        return predicted

    @property
    def reserved(self):
        """What admission would set aside by the formula."""
        predicted = zip(self.held, self.said["formula"], strict=True)
        return [fit.reserved_for(row, said, self.margins) for row, said in predicted]

    def rival(self, name):
        """What a rival says in bytes: a classifier's the middle of the class."""
        if name in self.said:
            return self.said[name]
        predicted = self.classes[name]
        return [(predicted[n][0] + 0.5) * predicted[n][1] * GB for n in range(len(self.held))]

    @property
    def rivals(self):
        return ["horus", "fake_sums", *self.classes]


def formula_figures(judged):
    for group, (families, width, published) in GROUPS.items():
        held = [n for n, row in enumerate(judged.held) if row.job.family in families]
        actual = [judged.actual[n] for n in held]

        def right(name, held=held, actual=actual, width=width):
            return share_right([judged.rival(name)[n] for n in held], actual, width)

        others = {name: round(right(name), 3) for name in judged.rivals}
        ours = right("formula")
        best = max(others.values())
        emit(
            f"estimator.accuracy_{group}_{width}gb", round(ours, 3), "share", best, bound=published,
            at_least=True, rivals=others, jobs=len(held),
        )  # fmt: skip
    others = {
        name: round(mean_error(judged.rival(name), judged.actual), 3) for name in judged.rivals
    }
    ours = round(mean_error(judged.said["formula"], judged.actual), 4)
    emit("estimator.formula_mape", ours, "share", min(others.values()), rivals=others)
    kept = list(zip(judged.reserved, judged.actual, strict=True))
    emit("estimator.underestimates_formula", round(_under(kept), 4), "share", 0.01)
    emit("estimator.reserved_over_used_formula", round(_over(kept), 3), "ratio", 1.5)


def _under(pairs):
    return sum(said < actual for said, actual in pairs) / len(pairs)


def _over(pairs):
    """Over all jobs: bytes reserved over bytes taken."""
    return sum(said for said, _ in pairs) / sum(actual for _, actual in pairs)


def real_figures(table):
    """What the package's own coefficients say of models that others wrote."""
    off_by = []
    for row in rows.read("h100-real.jsonl.xz"):
        said = _formula.predict(row.description, row.way).reserved
        off_by.append((row.job.architecture["name"], said / row.reserved - 1))
    if table:
        return {name: {"formula": off} for name, off in off_by}
    off = [error for _, error in off_by]
    emit(
        "estimator.real_formula_mape", round(mean_size(off), 3), "share", 0.15,
        models=len(off), mean_sign=round(statistics.mean(off), 3),
    )  # fmt: skip
    return None


def packing_figures(judged):
    """The queue of 200 held jobs, by each estimator, over what the oracle's takes."""
    context = 0.65 * GB
    actual = [a + context for a in judged.actual]
    predicted = {
        "oracle": actual,
        "ours": [said + context for said in judged.reserved],
        "exclusive": [H100] * len(actual),
        "horus": [said + context for said in judged.rival("horus")],
        "gpumemnet": [(kind + 1) * width * GB + context for kind, width in _classes(judged, "mlp")],
    }
    spans, kills = {}, {}
    for name, said in predicted.items():
        runs = [
            packing.simulate(
                packing.queue(list(zip(said, actual, strict=True)), 200, seed), H100,
                corrected=name == "ours",
            )
            for seed in range(5)
        ]  # fmt: skip
        spans[name] = statistics.mean(run.makespan for run in runs)
        kills[name] = sum(run.kills for run in runs)
    over = {name: round(span / spans["oracle"], 3) for name, span in spans.items()}
    emit("estimator.packing", over["ours"], "ratio", 1.05, makespans=over, kills=kills)
    elastic = [
        packing.simulate(
            packing.queue(list(zip(predicted["ours"], actual, strict=True)), 200, seed), H100,
            corrected=True, elastic=True,
        )
        for seed in range(5)
    ]  # fmt: skip
    emit(
        "estimator.packing_kills_elastic", sum(run.kills for run in elastic), "jobs", 0,
        moved=sum(run.moved for run in elastic),
    )  # fmt: skip


def _classes(judged, name):
    return [judged.classes[name][n] for n in range(len(judged.held))]


# What the daemon adds to the largest of earlier runs (client/ctl/estimate.cc).
HISTORY_MARGIN = 0.05


def history_figures():
    """Jobs that ran twice, on two machines: what the first run says of the second."""
    pairs = [(row["before"] * (1 + HISTORY_MARGIN), row["again"]) for row in rows.read_again()]
    emit("estimator.underestimates_history", round(_under(pairs), 4), "share", 0.01)
    emit("estimator.reserved_over_used_history", round(_over(pairs), 3), "ratio", 1.05)


def captured(measured):
    """Each row with what a capture says of its job."""
    predicted = []
    for row in measured:

        def build(job=row.job):
            return jobs.Made(job, "cuda").step

        predicted.append((estimate.capture(build), row))
    return predicted


# One in SAMPLE of the drawn jobs is captured, which takes some two minutes.
SAMPLE = 28


def capture_figures(table, scale=1.0):
    """Compares captures made here with what the jobs took on a GPU: first the real models, then a
    sample of the jobs whose recordings were not used to find the capture's rules."""
    real = captured(rows.read("h100-real.jsonl.xz"))
    off = {row.job.architecture["name"]: said.reserved / row.reserved - 1 for said, row in real}
    if table:
        return {name: {"capture": error} for name, error in off.items()}
    for kind, names, target in (
        ("transformers", models.TEXT, 0.05),
        ("cnns", models.VISION, 0.10),
    ):
        mine = [off[name] for name in names]
        emit(
            f"estimator.real_capture_mape_{kind}", round(mean_size(mine), 3), "share",
            target, models=len(mine), mean_sign=round(statistics.mean(mine), 3),
        )  # fmt: skip
    known = {row["key"] for row in rows.read_again()}
    drawn = [row for row in rows.read("h100.jsonl.xz") if row.job.key() not in known]
    drawn = [row for row in drawn if not row.job.compiled][:: max(1, round(SAMPLE / scale))]
    predicted = captured(drawn)
    error = mean_size([said.reserved / row.reserved - 1 for said, row in predicted])
    emit("estimator.drawn_capture_mape", round(error, 3), "share", 0.10, jobs=len(predicted))
    pairs = {
        of: [(said.reserved + said.margin, row.reserved) for said, row in among]
        for of, among in (("", [*real, *predicted]), ("_real", real))
    }
    for of, kept in pairs.items():
        emit(
            f"estimator.underestimates_capture{of}", round(_under(kept), 4), "share", 0.01,
            jobs=len(kept),
        )  # fmt: skip
        emit(f"estimator.reserved_over_used_capture{of}", round(_over(kept), 3), "ratio", 1.15)
    return None


# GPT-2 XL, as its configuration says.
_XL = {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25}


def speed_figures():
    """What the capture of a large model takes of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.json"
        config.write_text(json.dumps(_XL | {"architectures": ["GPT2LMHeadModel"]}))
        begun = time.monotonic()
        answer = _asked(str(config), "--batch", "4", "--sequence", "1024")
        seconds = time.monotonic() - begun
    if answer.returncode != 0:
        raise SystemExit(f"GPT-2 XL was not captured: {answer.stderr.strip()[-300:]}")
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    emit("estimator.capture_s", round(seconds, 1), "s", 20)
    emit("estimator.capture_memory_gib", round(most / GB, 2), "GiB", 4)


def script_figures():
    """The named scripts, each captured as a user would have it."""
    captured, refused = [], {}
    for script in sorted((figures.ROOT / "tests/python/estimate_scripts").glob("*.py")):
        answer = _asked(str(script))
        if answer.returncode == 0:
            captured.append(script.stem)
        else:
            refused[script.stem] = answer.stderr.strip().splitlines()[-1:]
    emit(
        "estimator.scripts_captured", len(captured), "scripts", 8, at_least=True,
        of=len(captured) + len(refused), refused=refused,
    )  # fmt: skip


def _asked(*words):
    command = [sys.executable, "-m", "ravenstore.estimate", "--json", *words]
    path = os.pathsep.join([str(figures.ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def print_table():
    errors_of = real_figures(table=True)
    for name, more in capture_figures(table=True).items():
        errors_of[name] |= more
    print("| model | formula | capture |\n|---|---|---|")
    for name, errors in errors_of.items():
        print(f"| {name} | {errors['formula']:+.1%} | {errors['capture']:+.1%} |")


PARTS = ("formula", "packing", "real", "history", "capture", "speed", "scripts")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        print_table()
        return
    parts = given.part or PARTS
    torch.set_num_threads(1)  # the rivals are small: threads would wait for each other
    if "real" in parts:
        real_figures(table=False)
    if "history" in parts:
        history_figures()
    if "capture" in parts:
        capture_figures(table=False, scale=given.scale)
    if "speed" in parts:
        speed_figures()
    if "scripts" in parts:
        script_figures()
    if "formula" in parts or "packing" in parts:
        judged = Judged(given.scale)
        if "formula" in parts:
            formula_figures(judged)
        if "packing" in parts:
            packing_figures(judged)


if __name__ == "__main__":
    main()
