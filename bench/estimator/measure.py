#!/usr/bin/env python3
"""Measures what jobs take of a GPU: the peak in use, the peak reserved, the time of a step.

    bench/estimator/jobs.py > JOBS
    bench/estimator/measure.py JOBS FILE [--seconds S] [--workers N] [--events FOLDER]
    bench/estimator/measure.py --contexts

Appends one JSON object a line to FILE, and goes on where an earlier run of it stopped: what FILE
has is not measured again. Several workers share each GPU, for a job's memory does not depend on who
else is there; a job that found no room is tried again at the end, alone. --seconds: after these no
job is begun. --events: a file of each job's allocations and frees goes there. --contexts: what
else a process takes, by what it uses.
"""

import argparse
import gc
import json
import lzma
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time

STEPS = 3
# A job that takes longer is given up, and said so.
PATIENCE = 90


def work(events):
    """A worker: reads jobs from stdin, one a line, and answers each with a line."""
    import jobs
    import torch

    sys.stdout.reconfigure(line_buffering=True)
    for line in sys.stdin:
        job = jobs.Job(**json.loads(line))
        clean()
        if events:
            torch.cuda.memory._record_memory_history("all", context=None, max_entries=10**6)
        row = measured(jobs, job)
        if events:
            keep_events(pathlib.Path(events) / f"{job.key()}.json.xz")
        print(json.dumps(row))


def clean():
    """Everything that an earlier job left goes, so that each begins as a process of its own."""
    import torch

    torch._dynamo.reset()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def measured(jobs, job):
    import torch

    begun = time.monotonic()
    row = {"left": torch.cuda.memory_allocated()}
    try:
        made = jobs.Made(job, "cuda")
        for _ in range(STEPS):
            torch.cuda.synchronize()
            step_begun = time.monotonic()
            made.step()
            torch.cuda.synchronize()
            row["step_s"] = round(time.monotonic() - step_begun, 5)
        row["parameters"] = sum(p.numel() for p in made.model.parameters())
    except torch.OutOfMemoryError:
        row["error"] = "no room"
    except Exception as error:  # noqa: BLE001 - whatever a job dies of, the others go on
        row["error"] = f"{type(error).__name__}: {error}"[:200]
    made = None
    row["used"] = torch.cuda.max_memory_allocated()
    row["reserved"] = torch.cuda.max_memory_reserved()
    row["seconds"] = round(time.monotonic() - begun, 3)
    return row


def keep_events(path):
    """The job's allocations and frees in their order: +bytes or -, and which block."""
    import torch

    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(None)
    numbers, lines = {}, []
    for entry in trace:
        if entry["action"] == "alloc":
            numbers[entry["addr"]] = len(lines)
            lines.append(entry["size"])
        elif entry["action"] == "free_completed" and entry["addr"] in numbers:
            lines.append(-numbers.pop(entry["addr"]) - 1)
    with lzma.open(path, "wt") as file:
        json.dump(lines, file)


class Worker:
    """A process that measures, on one GPU; started again when a job brings it down."""

    def __init__(self, gpu, events):
        self.command = [sys.executable, __file__, "--work"] + (
            ["--events", events] if events else []
        )
        self.gpu = gpu
        self.process = None

    def measure(self, job):
        if self.process is None:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": str(self.gpu)},
            )
        timer = threading.Timer(PATIENCE, self.process.kill)
        timer.start()
        try:
            print(json.dumps(job), file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        timer.cancel()
        row = json.loads(answer) if answer else {"error": "its process ended"}
        if "error" in row or row.get("left"):
            self.end()
        return row

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.process = None


def measure_all(todo, path, gpus, workers, deadline, events):
    """Measures those of `todo` that there is time for; returns those that found no room."""
    waiting = queue.SimpleQueue()
    for job in todo:
        waiting.put(job)
    homeless, lock = [], threading.Lock()

    def serve(gpu):
        worker = Worker(gpu, events)
        while time.monotonic() < deadline:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                break
            row = worker.measure(job.asdict())
            with lock:
                if row.get("error") == "no room" and workers > 1:
                    homeless.append(job)
                    continue
                with path.open("a") as file:
                    print(json.dumps(job.asdict() | {"key": job.key()} | row), file=file)
        worker.end()

    threads = [threading.Thread(target=serve, args=(gpu,)) for gpu in gpus for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return homeless


# What a process uses of CUDA's libraries: each takes memory in addition to PyTorch's segments.
CONTEXTS = {
    "context": "torch.zeros(1, device='cuda')",
    "kernels": "torch.randn(1000, device='cuda').exp().sum().item()",
    "cublas": "(torch.randn(64, 64, device='cuda') @ torch.randn(64, 64, device='cuda')).sum()",
    "cudnn": "torch.conv2d(*(torch.randn(8, 8, 32, 32, device='cuda') for _ in range(2)))",
    "cudnn_rnn": "torch.nn.LSTM(64, 64).cuda()(torch.randn(8, 8, 64).cuda())[0].sum().backward()",
    "attention": "torch.nn.functional.scaled_dot_product_attention("
    "*(torch.randn(2, 4, 64, 64, device='cuda', dtype=torch.bfloat16) for _ in range(3)))",
}
_CONTEXT = """
import subprocess, torch
def used():
    ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(ask, capture_output=True, text=True).stdout) << 20
before = used()
{use}
torch.cuda.synchronize()
print(used() - before - torch.cuda.memory_reserved(), torch.cuda.memory_reserved())
"""


def contexts():
    """By what a process uses: bytes of the device that it takes in addition to PyTorch's segments,
    and the bytes of those segments. The GPU should be idle."""
    answers = {}
    for name, use in CONTEXTS.items():
        command = [sys.executable, "-c", _CONTEXT.format(use=use)]
        answer = subprocess.run(command, capture_output=True, text=True)
        answers[name] = [int(word) for word in answer.stdout.split()] or answer.stderr[-200:]
    return answers


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("jobs", nargs="?", type=pathlib.Path)
    parser.add_argument("file", nargs="?", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--events")
    parser.add_argument("--contexts", action="store_true")
    parser.add_argument("--work", action="store_true")
    given = parser.parse_args()
    if given.work:
        work(given.events)
        return
    if given.contexts:
        print(json.dumps(contexts()))
        return
    import jobs
    import torch

    deadline = time.monotonic() + given.seconds
    known = set()
    if given.file.exists():
        known = {json.loads(line)["key"] for line in given.file.read_text().splitlines()}
    asked = [jobs.Job(**json.loads(line)) for line in given.jobs.read_text().splitlines()]
    todo = [job for job in asked if job.key() not in known]
    gpus = list(range(torch.cuda.device_count()))
    homeless = measure_all(todo, given.file, gpus, given.workers, deadline, given.events)
    measure_all(homeless, given.file, gpus, 1, deadline, given.events)
    print(f"{len(known)} known, {len(todo)} to do, {len(homeless)} alone")


if __name__ == "__main__":
    main()
