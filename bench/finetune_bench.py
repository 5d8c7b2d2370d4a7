#!/usr/bin/env python3
"""The finetune.* figures: examples/python/finetune.py in one way after the other, a process each.

    finetune_bench.py [--device cuda|cpu] [--gpu-name NAME] [--seconds N]

On a GPU: 8B, 14B and 24B parameters with prepare(), over the plain loop or the bound. The bound of
a model that does not fit plainly is the larger of its step with SGD without momentum and of what
moving the states takes by the measured link. Without a GPU: that a tiny model learns bit for bit
the same in every loop and precision. One JSON object a line; what a run printed goes to stderr.
"""

import argparse
import json
import os
import pathlib
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
EQUAL_1B = ("--size", "1b", "--tokens", "2048", "--steps", "20", "--budget", "9GiB")
# The loops and precisions in which a prepared training is compared with a plain one.
LOOPS = {
    "auto": (),
    "in backward": ("--in-backward", "yes"),
    "clipped": ("--clip",),
    "accumulated": ("--accumulate", "2"),
    "float32": ("--full",),
}
NOT_BUILT = {
    "finetune.lora_32k_longest": "no search for the longest context yet",
    "finetune.vs_deepspeed": "no run of DeepSpeed's ZeRO-Offload yet",
}


class Runs:
    """Runs of the example, each once."""

    def __init__(self, limit):
        self.limit = limit
        self.begin = time.monotonic()
        self.codes = []
        self._told = {}

    def run(self, *words, program=EXAMPLE):
        """What the program's last line says, or why there is none, as {"failed": words}."""
        if (program, words) not in self._told:
            self._told[program, words] = self._run(program, words)
        return self._told[program, words]

    def _run(self, program, words):
        left = self.limit - (time.monotonic() - self.begin)
        if left <= 0:
            return {"failed": "no time was left for it"}
        print(f"# {' '.join(words)}", file=sys.stderr, flush=True)
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
        self.codes.append(done.returncode)
        print(done.stderr[-3000:], done.stdout[-2000:], sep="\n", file=sys.stderr, flush=True)
        if done.returncode != 0:
            return {"failed": (done.stderr.strip().splitlines() or ["no word"])[-1][:300]}
        return json.loads(done.stdout.splitlines()[-1])


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
    for told in (ours, reference):
        if "failed" in told:
            return skipped(name, told["failed"])
    value = round(ours["step_s"] / reference["step_s"], 3)
    ok = value <= target and (peak is None or ours["peak_gib"] <= peak)
    told = f"{ours['step_s']} over {reference['step_s']} s, {ours['tokens_s']} tokens/s, peak "
    told += f"{ours['peak_gib']} GiB" + (f" (at most {peak:.1f})" if peak is not None else "")
    words = f"{told}, device {ours['device_gib']}, loss {ours['loss_by']}"
    return figure(name, value, "", target, ok, machine, reference["step_s"], detail=words)


def over_bound(name, ours, sgd, machine):
    """Our step over the larger of compute and link."""
    for told in (ours, sgd):
        if "failed" in told:
            return skipped(name, told["failed"])
    bound = max(sgd["step_s"], ours["transfer_s"])
    value = round(ours["step_s"] / bound, 3)
    words = f"{ours['step_s']} s, {ours['tokens_s']} tokens/s; SGD {sgd['step_s']}, link "
    words += f"{ours['transfer_s']}; peak {ours['peak_gib']} GiB, device {ours['device_gib']}"
    return figure(name, value, "", 1.10, value <= 1.10, machine, bound, detail=words)


def equal(runs, words, machine):
    """Losses and weights of each loop, as the plain loop's."""
    name = "finetune.equal"
    same = {}
    for loop, more in LOOPS.items():
        common = (*words, "--deterministic", "--whole-loss", *more)
        plain = runs.run(*common, "--plain")
        ours = runs.run(*common, "--states", "away")
        for told in (plain, ours):
            if "failed" in told:
                return skipped(name, f"{loop}: {told['failed']}")
        same[loop] = all(plain[key] == ours[key] for key in ("losses", "weights"))
    differ = [loop for loop, is_same in same.items() if not is_same]
    words = f"{', '.join(same)}" + (f"; differ: {', '.join(differ)}" if differ else "")
    return figure(
        name, len(same) - len(differ), "loops", len(same), not differ, machine, detail=words
    )


def on_gpu(runs, machine):
    """Yields every figure that a GPU is needed for."""
    whole, yes = "--whole-loss", ("--in-backward", "yes")
    plain = runs.run("--plain", whole)
    chunked = runs.run("--plain")
    first = ours = runs.run(*yes, whole, "--budget", "33GiB")
    yield ratio("finetune.8b_bf16", ours, plain, 1.05, machine, 29)
    yield figure_of_first_step(ours, machine)
    peak = 0.4 * chunked["peak_gib"] if "failed" not in chunked else None
    small = runs.run(*yes, "--budget", "26GiB")
    yield ratio("finetune.8b_bf16_chunked", small, chunked, 1.10, machine, peak)
    clip = runs.run("--clip", whole, "--budget", "48GiB")
    yield ratio("finetune.8b_clip", clip, runs.run("--clip", whole, "--plain"), 1.45, machine, 44)
    four = ("--clip", "--accumulate", "4", whole)
    yield ratio(
        "finetune.8b_clip_accumulate",
        runs.run(*four, "--budget", "49GiB"),
        runs.run(*four, "--plain"),
        *(1.12, machine, 45),
    )
    yield figure_of_tokens(runs.run(*yes, "--budget", "23GiB"), machine)
    for name, words in (
        ("finetune.8b_fp32", ("--full",)),
        ("finetune.14b_bf16", ("--size", "14b")),
        ("finetune.14b_fp32_states", ("--size", "14b", "--float32-states")),
        ("finetune.largest", ("--size", "24b")),
    ):
        sgd = [word for word in words if word != "--float32-states"]
        ours = runs.run(*words, *yes, "--budget", "72GiB")
        yield over_bound(name, ours, runs.run(*sgd, "--sgd", "--plain"), machine)
    yield vs_torchao(runs, first, machine)
    long = ("--lora", "16", "--tokens", "32768", "--sequence", "32768")
    yield ratio("finetune.lora_32k", runs.run(*long), runs.run(*long, "--plain"), 1.02, machine)
    yield equal(runs, EQUAL_1B, machine)
    saving = runs.run("--steps", "2", *yes, "--budget", "33GiB", whole, "--save", "/tmp/states")
    yield checkpoint(saving, machine)


def vs_torchao(runs, ours, machine):
    """A rival's step over ours, with the same loss."""
    name = "finetune.vs_torchao"
    rival = runs.run("--whole-loss", program=RIVAL)
    for told in (ours, rival):
        if "failed" in told:
            return skipped(name, told["failed"])
    value = round(rival["step_s"] / ours["step_s"], 2)
    words = f"{rival['step_s']} over {ours['step_s']} s, peaks {rival['peak_gib']} and "
    words += f"{ours['peak_gib']} GiB, {os.cpu_count()} cores"
    return figure(name, value, "", 2.2, value >= 2.2, machine, detail=words)


def checkpoint(told, machine):
    """How fast states are saved, over a write of as many bytes; the memory that it takes."""
    name = "finetune.checkpoint"
    if "failed" in told:
        return skipped(name, told["failed"])
    value = round(told["save_gb_s"] / told["write_gb_s"], 3)
    ok = value >= 0.8 and told["save_memory_gib"] <= 2
    words = f"{told['save_gb_s']} of {told['write_gb_s']} GB/s, "
    words += f"{told['save_memory_gib']} GiB of memory more (at most 2)"
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


GPU_NAMES = (
    *("8b_bf16", "first_step", "8b_bf16_chunked", "8b_clip", "8b_clip_accumulate", "24gb"),
    *("8b_fp32", "14b_bf16", "14b_fp32_states", "largest", "vs_torchao", "lora_32k"),
)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--gpu-name", default="a GPU")
    parser.add_argument("--seconds", type=float, default=3600, help="for all runs together")
    options = parser.parse_args()
    runs = Runs(options.seconds)
    if options.device == "cuda":
        figures = on_gpu(runs, options.gpu_name)
    else:
        figures = [skipped(f"finetune.{name}", "needs a GPU") for name in GPU_NAMES]
        machine = f"{os.cpu_count()} cores, host backend"
        figures.append(equal(runs, TINY, machine))
        with tempfile.TemporaryDirectory() as folder:
            saving = runs.run(*TINY, "--save", f"{folder}/states", "--states", "away")
        figures.append(checkpoint(saving, machine))
    for made in figures:
        print(json.dumps(made), flush=True)
    for name, why in NOT_BUILT.items():
        print(json.dumps(skipped(name, why)), flush=True)
    bad = sum(code != 0 for code in runs.codes)
    machine = options.gpu_name if options.device == "cuda" else "host backend"
    words = f"{len(runs.codes)} runs"
    print(json.dumps(figure("finetune.exit_status", bad, "", 0, bad == 0, machine, detail=words)))


if __name__ == "__main__":
    main()
