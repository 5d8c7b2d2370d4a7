#!/usr/bin/env python3
"""Prints what hostile users cost honest ones, a JSON object a line.

    hostile_bench [--scale X] [--gpu-name NAME] [--attack NAME]...

For each attack of tests/hostile: an honest user's rate under it over that with as many honest
processes instead, and the 99th percentile of an operation; medians of five interleaved pairs of
3 s. Then what the attacks, and a second soak of 20 clients, left in the daemon. --scale shortens
the runs. $RAVENSTORE_BIN names bazel-bin; else it is found from here.
"""

import argparse
import os
import pathlib
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/hostile"), str(ROOT / "bench")]

import figures as bench  # noqa: E402
import hostile  # noqa: E402

PAIRS = 5
SECONDS = 3
RATE_LEAST = 0.5
P99_MS_MOST = 20
SOAK_CLIENTS = 20
SOAK_SECONDS = 300
RESIDUE_MB_MOST = 2


def programs_folder():
    if "RAVENSTORE_BIN" in os.environ:
        return pathlib.Path(os.environ["RAVENSTORE_BIN"])
    # `bazel run` and bench/report start it from its runfiles or from bazel-bin.
    for folder in (pathlib.Path(sys.argv[0] + ".runfiles/ravenstore"), ROOT / "bazel-bin"):
        if (folder / "tests/hostile").exists():
            return folder
    sys.exit("hostile_bench: build //bench:hostile_bench first")


class Figures:
    """Prints each figure as it is measured."""

    def __init__(self, machine):
        self.machine = machine

    def emit(self, name, unit, value, target, at_least=False, **more):
        more["at_least"] = at_least
        bench.emit(f"hostile.{name}", value, unit, target, self.machine, **more)

    def skip(self, names, why):
        for name, unit, target in names:
            self.emit(name, unit, None, target, skipped=why)

    def attack(self, name, measured):
        names = ((f"{name}_rate", "x", RATE_LEAST), (f"{name}_p99_ms", "ms", P99_MS_MOST))
        if "skipped" in measured:
            return self.skip(names, measured["skipped"])
        detail = "{rate:.0f} operations a second of {baseline_rate:.0f}".format_map(measured)
        if measured["failures"]:
            detail += "; {failures} failed: {error}".format_map(measured)
        if not measured["alive"]:
            detail += "; the daemon died"
        if not measured["root_served"]:
            detail += "; root's ravenctl was not served"
        self.emit(*names[0][:2], round(measured["ratio"], 3), RATE_LEAST, True, detail=detail)
        most = max(P99_MS_MOST, 2 * measured["baseline_p99_ms"])
        detail = "{baseline_p99_ms:.1f} ms without; {max_ms:.1f} ms at most".format_map(measured)
        self.emit(*names[1][:2], measured["p99_ms"], round(most, 1), detail=detail)
        return None


COUNTED = {"threads": "", "descriptors": "", "memory": "bytes"}  # what is left after each attack
RESIDUES = (
    *((f"residue_{what}", unit, 0) for what, unit in COUNTED.items()),
    ("residue_mb", "MB", RESIDUE_MB_MOST),
)


def soaked(stage, seconds):
    """Anonymous memory after a second soak less that after the first, in MB, and both in words."""
    with hostile.Daemon(stage) as daemon:
        left = []
        for _ in range(2):
            hostile.soak(daemon, SOAK_CLIENTS, seconds)
            left.append(hostile.trimmed(daemon, 0))
    detail = " and ".join(f"{each / 1e6:.1f} MB" for each in left)
    return (left[1] - left[0]) / 1e6, f"{detail} after {seconds:.0f} s each"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--gpu-name", default="no GPU")
    parser.add_argument("--attack", action="append", choices=sorted(hostile.ATTACKS))
    options = parser.parse_args()
    figures = Figures(bench.machine(options.gpu_name))
    attacks = options.attack or list(hostile.ATTACKS)
    why = hostile.missing()
    if why:
        for name in attacks:
            figures.attack(name, {"skipped": why})
        return figures.skip(RESIDUES, why)
    with hostile.Stage(programs_folder()) as stage:
        worst = dict.fromkeys(COUNTED, (0, "none"))
        for name in attacks:
            measured = hostile.measure(
                stage, hostile.ATTACKS[name], PAIRS, max(0.5, SECONDS * options.scale)
            )
            figures.attack(name, measured)
            for what in worst:
                worst[what] = max(worst[what], (measured.get(what, 0), name))
        for what, (count, name) in worst.items():
            figures.emit(
                f"residue_{what}", COUNTED[what], count, 0, detail=f"the most, after {name}"
            )
        if not options.attack:
            mb, detail = soaked(stage, max(5, SOAK_SECONDS * options.scale))
            figures.emit("residue_mb", "MB", round(mb, 3), RESIDUE_MB_MOST, detail=detail)
    return None


if __name__ == "__main__":
    main()
