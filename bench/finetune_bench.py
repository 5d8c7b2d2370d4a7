#!/usr/bin/env python3
"""The finetune.* figures: examples/python/finetune.py in one way after the other, a process each.

    finetune_bench.py [--device cuda|cpu] [--gpu-name NAME] [--seconds N] [--only NAME,...]
                      [--trials FILE]

On a GPU: 8B, 14B and 24B parameters with prepare(), over the plain loop or the bound. The bound of
a model that does not fit plainly is the larger of its step with SGD without momentum and of what
moving the states takes by the measured link. Without a GPU: that a tiny model learns bit for bit
the same in every loop and precision. One JSON object a line; what a run printed goes to stderr.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples/python/finetune.py"
RIVAL = ROOT / "bench/finetune_rival.py"
TINY = (
    *("--size", "tiny", "--tokens", "256", "--sequence", "64", "--steps", "4"),
    *("--budget", "40MiB", "--host-budget", "500MiB", "--device", "cpu"),
)
EQUAL_1B = ("--size", "1b", "--tokens", "2048", "--steps", "20", "--budget", "16GiB")
# The loops and precisions in which a prepared training is compared with a plain one.
LOOPS = {
    "auto": (),
    "in backward": ("--in-backward", "yes"),
    "clipped": ("--clip",),
    "accumulated": ("--accumulate", "2"),
    "float32": ("--full",),
}
# Dense bfloat16 peak in TFLOP/s by the device's name: NVIDIA's data sheets of H100, H200, A100 and
# L40S without sparsity, and for RTX 4090 its Ada white paper, with float32 sums.
PEAKS = {
    r"NVIDIA H100 .*HBM3": 989,
    r"NVIDIA H100 PCIe": 756,
    r"NVIDIA H200": 989,
    r"NVIDIA A100.*": 312,
    r"NVIDIA L40S": 362,
    r"NVIDIA GeForce RTX 4090": 165,
}
# The longest context is found to this number of tokens.
GRAIN = 8192
# Trials on each side: the longest take minutes.
TRIALS_MAX = 6
# The line that ends a traceback, and the errors of memory that ran out: PyTorch's, Triton's,
# cuBLAS's and what prepare() refuses.
ERROR = re.compile(r"([\w.]*(Error|Exception)|ravenstore\.errors\.\w+)\b")
DOES_NOT_FIT = re.compile(r"OutOfMemory|out of memory|CUBLAS_STATUS_ALLOC_FAILED")


class Runs:
    """Runs of the example, each once."""

    def __init__(self, limit, trials=None):
        self.limit = limit
        self.trials = trials
        self.begin = time.monotonic()
        self.codes = []
        self._results = {}

    def run(self, *words, program=EXAMPLE, may_not_fit=False):
        """What the program's last line says, or why there is none, as {"failed": words}. With
        `may_not_fit` a run whose memory ran out is no failure: {"does_not_fit": words}."""
        if (program, words) not in self._results:
            self._results[program, words] = self._run(program, words, may_not_fit)
        return self._results[program, words]

    def trial(self, *words):
        """run() with `may_not_fit`. Results are kept in the file of trials, failures are not."""
        kept = {}
        if self.trials and self.trials.exists():
            kept = json.loads(self.trials.read_text(encoding="utf-8"))
        key = " ".join(words)
        if key not in kept:
            kept[key] = self.run(*words, may_not_fit=True)
            if self.trials and "failed" not in kept[key]:
                self.trials.write_text(json.dumps(kept), encoding="utf-8")
        return kept[key]

    def _run(self, program, words, may_not_fit):
        left = self.limit - (time.monotonic() - self.begin)
        if left <= 0:
            return {"failed": "no time was left for it"}
        command = [sys.executable, str(program), *words]
        path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=left,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failed": "it did not end within the time that was left"}
        log = [f"# {' '.join(words)}", done.stderr[-3000:], done.stdout[-2000:]]
        print(*log, sep="\n", file=sys.stderr, flush=True)
        if done.returncode == 0:
            self.codes.append(0)
            return json.loads(done.stdout.splitlines()[-1])
        why = last_error(done.stderr) or f"it ended with {done.returncode}"
        if may_not_fit and DOES_NOT_FIT.search(why):
            self.codes.append(0)
            return {"does_not_fit": why}
        self.codes.append(done.returncode)
        return {"failed": why}


def last_error(text):
    """The last line that reports an exception, else the last line."""
    lines = text.strip().splitlines() or [""]
    return ([line for line in lines if ERROR.match(line)] or lines)[-1][:300]


def figure(name, value, unit, target, ok, machine, bound=None, **more):
    return {
        **{"name": name, "value": value, "unit": unit, "bound": bound},
        **{"target": target, "ok": ok, "machine": machine},
        **more,
    }


def skipped(name, why):
    return figure(name, None, "", None, None, "", skipped=why)


def ratio(name, ours, reference, target, machine, peak=None):
    """Our step over a reference's; `peak`: GiB of PyTorch's memory at most."""
    for result in (ours, reference):
        if "failed" in result:
            return skipped(name, result["failed"])
    value = round(ours["step_s"] / reference["step_s"], 3)
    ok = value <= target and (peak is None or ours["peak_gib"] <= peak)
    times = f"{ours['step_s']} over {reference['step_s']} s, {ours['tokens_s']} tokens/s, peak "
    times += f"{ours['peak_gib']} GiB" + (f" (at most {peak:.1f})" if peak is not None else "")
    words = f"{times}, device {ours['device_gib']}, loss {ours['loss_by']}"
    return figure(name, value, "", target, ok, machine, reference["step_s"], detail=words)


def mfu(result):
    """Model FLOPs utilization: operations of the model, without recomputation, over the peak."""
    for name, peak in PEAKS.items():
        if re.fullmatch(name, result.get("device_name", "")):
            return f"MFU {result['tflops'] / peak:.1%}"
    return "MFU unknown"


def over_bound(name, ours, sgd, machine):
    """Our step over the larger of compute and link."""
    for result in (ours, sgd):
        if "failed" in result:
            return skipped(name, result["failed"])
    bound = max(sgd["step_s"], ours["transfer_s"])
    value = round(ours["step_s"] / bound, 3)
    words = f"{ours['step_s']} s, {ours['tokens_s']} tokens/s, {ours['tflops']} TFLOP/s, "
    words += f"{mfu(ours)}; "
    words += f"SGD {sgd['step_s']}, link "
    words += f"{ours['transfer_s']}; peak {ours['peak_gib']} GiB, device {ours['device_gib']}"
    return figure(name, value, "", 1.10, value <= 1.10, machine, bound, detail=words)


def equal(runs, words, machine, workers=1):
    """Losses and weights of each loop, as the plain loop's."""
    name = "finetune.equal"
    ways = {}
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for loop, more in LOOPS.items():
            common = (*words, "--deterministic", "--whole-loss", *more)
            ways[loop] = [
                pool.submit(runs.run, *common, *way) for way in (("--plain",), ("--states", "away"))
            ]
    same = {}
    for loop, made in ways.items():
        plain, ours = (each.result() for each in made)
        for result in (plain, ours):
            if "failed" in result:
                return skipped(name, f"{loop}: {result['failed']}")
        same[loop] = all(plain[key] == ours[key] for key in ("losses", "weights"))
    differ = [loop for loop, is_same in same.items() if not is_same]
    words = f"{', '.join(same)}" + (f"; differ: {', '.join(differ)}" if differ else "")
    return figure(
        name, len(same) - len(differ), "loops", len(same), not differ, machine, detail=words
    )


WHOLE, YES = "--whole-loss", ("--in-backward", "yes")
OURS = (*YES, WHOLE, "--budget", "34GiB")


def bf16_chunked(runs, machine):
    plain = runs.run("--plain")
    peak = 0.4 * plain["peak_gib"] if "failed" not in plain else None
    ours = runs.run(*YES, "--budget", "26GiB")
    return ratio("finetune.8b_bf16_chunked", ours, plain, 1.10, machine, peak)


def clipped(runs, machine):
    words = ("--clip", WHOLE)
    ours = runs.run(*words, "--budget", "49GiB")
    return ratio("finetune.8b_clip", ours, runs.run(*words, "--plain"), 1.45, machine, 44)


def clipped_and_accumulated(runs, machine):
    words = ("--steps", "4", "--clip", "--accumulate", "4", WHOLE)
    ours, plain = runs.run(*words, "--budget", "49GiB"), runs.run(*words, "--plain")
    return ratio("finetune.8b_clip_accumulate", ours, plain, 1.12, machine, 45)


def bounded(name, *words):
    """Measures the step over its bound, for a model whose plain training does not fit."""

    def measure(runs, machine):
        sgd = [word for word in words if word != "--float32-states"]
        ours = runs.run(*words, *YES, "--budget", "74GiB")
        return over_bound(f"finetune.{name}", ours, runs.run(*sgd, "--sgd", "--plain"), machine)

    return measure


def lora(runs, machine):
    words = ("--steps", "4", "--lora", "16", "--tokens", "32768", "--sequence", "32768")
    ours, plain = runs.run(*words), runs.run(*words, "--plain")
    return ratio("finetune.lora_32k", ours, plain, 1.02, machine)


class Failed(Exception):
    """A trial failed for another reason than memory."""


def longest(fits, low, length):
    """The longest context, in tokens, for which fits() is true, and the shortest for which it is
    not, or None. Doubles the distance to `low`, which counts as fitting, from `length` on, and then
    bisects."""
    step, high = length - low, None
    for _ in range(TRIALS_MAX):
        if fits(length):
            low = length
        else:
            high = length
        if high is None:
            length, step = low + step, 2 * step
        elif high - low <= GRAIN:
            break
        else:
            length = (low + high) // 2 // GRAIN * GRAIN
    return low, high


class LoraTrials:
    """Whether two steps of LoRA fit, with a number of tokens as one sequence."""

    def __init__(self, runs, *way):
        self._runs = runs
        self._way = way
        self.results = {}

    def __call__(self, tokens):
        count = str(tokens)
        words = ("--steps", "2", "--lora", "16", "--tokens", count, "--sequence", count)
        result = self.results[tokens] = self._runs.trial(*words, *self._way)
        name = " ".join([f"{tokens} tokens", *self._way])
        if "failed" in result:
            raise Failed(f"{name}: {result['failed']}")
        fits = "does_not_fit" not in result
        words = f"{result['step_s']} s a step" if fits else result["does_not_fit"]
        print(f"# {name}: {words}", file=sys.stderr, flush=True)
        return fits


def lora_longest(runs, machine):
    """The longest context of LoRA, ours over plain's. Both compute the loss in chunks."""
    name = "finetune.lora_32k_longest"
    plain_fits, fits = LoraTrials(runs, "--plain"), LoraTrials(runs)
    try:
        plain, too_long = longest(plain_fits, 0, 65536)
        if too_long is None or too_long <= GRAIN:
            return skipped(name, f"plain's longest was not found: {plain} tokens fit")
        most = "" if too_long - plain <= GRAIN else "at most "
        plain = too_long - GRAIN
        start = max(plain * 3 // 2 // GRAIN * GRAIN, plain + GRAIN)
        ours, too_long = longest(fits, plain, start)
        if ours == plain and not fits(plain):
            return skipped(name, f"{plain} tokens, plain's longest, do not fit with prepare()")
    except Failed as error:
        return skipped(name, str(error))
    moved = fits.results[ours]["saved_out_gib"]
    if ours > plain and not moved:
        return skipped(name, f"{ours} tokens fit, though nothing that autograd saved was moved")
    value = round(ours / plain, 3)
    exact = too_long is not None and too_long - ours <= GRAIN
    least = "" if exact else "at least "
    words = f"{least}{ours} over {most}{plain} tokens, to {GRAIN}; "
    words += (
        f"{fits.results[ours]['step_s']} s a step, {moved} GiB that autograd saved moved in two"
    )
    if value < 1.8 and not exact:
        return skipped(name, f"ours was not found: {words}")
    return figure(name, value, "", 1.8, value >= 1.8, machine, detail=words)


def vs_rival(name, rival, ours, target, machine, how=""):
    """A rival's step over ours, with the same loss."""
    for result in (ours, rival):
        if "failed" in result:
            return skipped(name, result["failed"])
    value = round(rival["step_s"] / ours["step_s"], 2)
    words = f"{rival['step_s']} over {ours['step_s']} s, peaks {rival['peak_gib']} and "
    words += f"{ours['peak_gib']} GiB, device {rival['device_gib']} and {ours['device_gib']}, "
    words += f"{os.cpu_count()} cores{how}"
    return figure(name, value, "", target, value >= target, machine, detail=words)


def vs_torchao(runs, machine):
    rival = runs.run("--whole-loss", program=RIVAL)
    return vs_rival("finetune.vs_torchao", rival, runs.run(*OURS), 2.2, machine)


def vs_deepspeed(runs, machine):
    """In the device memory that DeepSpeed's run had in use."""
    name = "finetune.vs_deepspeed"
    words = ("--size", "3b", WHOLE)
    rival = runs.run("--rival", "deepspeed", *words, program=RIVAL)
    if "failed" in rival:
        return skipped(name, rival["failed"])
    budget = f"{math.ceil(rival['device_gib'])}GiB"
    ours = runs.run(*words, "--master-weights", *YES, "--budget", budget)
    how = "; float32 master weights and states on both sides, updates in the backward pass on ours"
    return vs_rival(name, rival, ours, 2.0, machine, how)


ON_GPU = {
    "8b_bf16": lambda runs, machine: ratio(
        "finetune.8b_bf16", runs.run(*OURS), runs.run("--plain", WHOLE), 1.05, machine, 29
    ),
    "first_step": lambda runs, machine: figure_of_first_step(runs.run(*OURS), machine),
    "8b_bf16_chunked": bf16_chunked,
    "8b_clip": clipped,
    "8b_clip_accumulate": clipped_and_accumulated,
    "24gb": lambda runs, machine: figure_of_tokens(runs.run(*YES, "--budget", "23GiB"), machine),
    "8b_fp32": bounded("8b_fp32", "--full"),
    "14b_bf16": bounded("14b_bf16", "--size", "14b"),
    "14b_fp32_states": bounded("14b_fp32_states", "--size", "14b", "--float32-states"),
    "largest": bounded("largest", "--size", "24b"),
    "vs_torchao": vs_torchao,
    "vs_deepspeed": vs_deepspeed,
    "lora_32k": lora,
    "lora_32k_longest": lora_longest,
    "equal": lambda runs, machine: equal(runs, EQUAL_1B, machine, workers=4),
    "checkpoint": lambda runs, machine: checkpoint(
        runs.run("--steps", "2", *OURS, "--save", "/tmp/states"), machine
    ),
}


def checkpoint(result, machine):
    """How fast states are saved, over a write of as many bytes; the memory that it takes."""
    name = "finetune.checkpoint"
    if "failed" in result:
        return skipped(name, result["failed"])
    value = round(result["save_gb_s"] / result["write_gb_s"], 3)
    ok = value >= 0.8 and result["save_memory_gib"] <= 2
    words = f"{result['save_gb_s']} of {result['write_gb_s']} GB/s, reading alone "
    words += f"{result['read_gb_s']} "
    words += f"({result['save_s']}, {result['write_s']}, {result['read_s']} s), "
    words += f"{result['save_memory_gib']} GiB of memory more (at most 2)"
    return figure(name, value, "", 0.8, ok, machine, detail=words)


def figure_of_first_step(ours, machine):
    name = "finetune.first_step"
    if "failed" in ours:
        return skipped(name, ours["failed"])
    value = round(ours["first_s"] / ours["step_s"], 2)
    words = f"{ours['first_s']} over {ours['step_s']} s"
    return figure(name, value, "", 4, value <= 4, machine, detail=words)


def figure_of_tokens(ours, machine):
    name = "finetune.24gb"
    if "failed" in ours:
        return skipped(name, ours["failed"])
    ok = ours["tokens_s"] >= 6500 and ours["device_gib"] <= 23
    words = f"device {ours['device_gib']} GiB (at most 23), loss {ours['loss_by']}"
    return figure(name, ours["tokens_s"], "tokens/s", 6500, ok, machine, detail=words)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--gpu-name", default="a GPU")
    parser.add_argument("--seconds", type=float, default=3600, help="for all runs together")
    parser.add_argument("--only", help="these GPU figures, comma-separated, in this order")
    parser.add_argument(
        "--trials", type=pathlib.Path, help="a file that keeps lora_32k_longest's, to go on later"
    )
    options = parser.parse_args()
    runs = Runs(options.seconds, options.trials)
    if options.device == "cuda":
        names = options.only.split(",") if options.only else list(ON_GPU)
        unknown = sorted(set(names) - set(ON_GPU))
        if unknown:
            parser.error(f"no such figure: {', '.join(unknown)}; there are {', '.join(ON_GPU)}")
        figures = (ON_GPU[name](runs, options.gpu_name) for name in names)
    else:
        here = ("equal", "checkpoint")
        figures = [
            skipped(f"finetune.{name}", "needs a GPU") for name in ON_GPU if name not in here
        ]
        machine = f"{os.cpu_count()} cores, host backend"
        figures.append(equal(runs, TINY, machine))
        with tempfile.TemporaryDirectory() as folder:
            saving = runs.run(*TINY, "--save", f"{folder}/states", "--states", "away")
        figures.append(checkpoint(saving, machine))
    for made in figures:
        print(json.dumps(made), flush=True)
    bad = sum(code != 0 for code in runs.codes)
    machine = options.gpu_name if options.device == "cuda" else "host backend"
    words = f"{len(runs.codes)} runs"
    print(json.dumps(figure("finetune.exit_status", bad, "", 0, bad == 0, machine, detail=words)))


if __name__ == "__main__":
    main()
