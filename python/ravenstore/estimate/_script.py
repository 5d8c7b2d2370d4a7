"""Captures a script: runs it in a process of its own (_child.py), and reads what that found."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import ravenstore
from ravenstore._units import bytes_of, size_text
from ravenstore.estimate._estimate import (
    CaptureRefused,
    Estimate,
    allocator_of_environment,
    memory_of,
)


def estimate(
    command: list[str],
    *,
    steps: int,
    gpu: str,
    gpu_memory: int | str | None,
    allocator: str | None,
    seconds_max: float,
    memory_max: int | str,
) -> Estimate:
    """Documented in the package, as estimate_script."""
    python, words = _split(command)
    options = {
        "steps": steps,
        "gpu": gpu,
        "total_memory": memory_of(gpu, gpu_memory),
        "allocator": allocator or allocator_of_environment(),
        "memory_max": bytes_of(memory_max),
    }
    with tempfile.TemporaryDirectory(prefix="ravenstore-") as folder:
        result = Path(folder) / "result.json"
        options["result"] = str(result)
        code = _run(
            [python, "-m", "ravenstore.estimate._child", json.dumps(options), *words],
            name=words[0],
            seconds_max=seconds_max,
        )
        answer = json.loads(result.read_text()) if result.exists() else {}
    if "refused" in answer:
        raise CaptureRefused(answer["refused"])
    if "estimate" not in answer:
        raise CaptureRefused(
            f"the capture of {words[0]} ended without a word (exit code {code}), as one without "
            f"host memory does: give a smaller model or batch, or more than "
            f"{size_text(bytes_of(memory_max))}"
        )
    fields = answer["estimate"]
    return Estimate(**{**fields, "notes": tuple(fields["notes"])})


def _split(command: list[str]) -> tuple[str, list[str]]:
    """The Python to run, and the script, or -m and a module, with its arguments."""
    words = list(command)
    python = sys.executable
    if words and re.fullmatch(r"python[\d.]*", os.path.basename(words[0])):
        found = shutil.which(words[0])
        if found is None:
            raise CaptureRefused(f"there is no {words[0]}: name a Python that can be run")
        python, words = found, words[1:]
    while words and words[0] in ("-u", "-B"):
        words = words[1:]
    if words[:1] == ["-m"]:
        if len(words) < 2:
            raise CaptureRefused("-m names no module: give its name, or a script")
        return python, words
    if not words or not words[0].endswith(".py"):
        raise CaptureRefused(
            f"{' '.join(command) or 'nothing'} is no Python script: give a script.py and its "
            "arguments"
        )
    if not os.path.exists(words[0]):
        raise CaptureRefused(f"there is no {words[0]}: give the path of a script")
    return python, words


def _run(command: list[str], *, name: str, seconds_max: float) -> int:
    """The exit code of the capture, which has a process group of its own and leaves nothing."""
    package = str(Path(ravenstore.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "TOKENIZERS_PARALLELISM": "false",
    }
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
        start_new_session=True,
    )
    try:
        return process.wait(seconds_max)
    except subprocess.TimeoutExpired:
        raise CaptureRefused(
            f"{name} made no three steps in {seconds_max:g} seconds: give it less data to begin "
            "with, or more time"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
