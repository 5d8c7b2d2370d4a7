"""Runs a script as this process's main program, on a GPU that is not there, until the first of its
optimizers made enough steps, and writes the estimate, or why there is none, to a file."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ravenstore._units import size_text
from ravenstore.estimate._estimate import CaptureRefused, of_recording
from ravenstore.estimate._fake import FakeGpu
from ravenstore.estimate._recorder import Recorder

MODEL_INSTEAD = "give the model itself, as module:callable, a torchvision name or a config.json"


class Stop(SystemExit):
    """Ends the script, which catches what is an Exception."""


class Run:
    """One script's capture."""

    def __init__(self, options: dict[str, Any], words: list[str]) -> None:
        self._options = options
        self._words = words
        self._name = words[1] if words[0] == "-m" else words[0]
        self._begin = time.perf_counter()
        self._recorder = Recorder()
        self._steps: dict[int, int] = {}  # by optimizer
        self._host: str | None = None  # of the network that the script wanted

    def run(self) -> None:
        self._forbid_network()
        hook = register_optimizer_step_post_hook(self._count_step)
        gpu = FakeGpu(self._recorder, self._options["gpu"], self._options["total_memory"])
        with gpu:
            try:
                self._run_script()
            except Stop:
                return
            except SystemExit as end:
                if end.code not in (None, 0) and not self._steps:
                    self._refuse(f"{self._name} ended by itself ({end.code}): mend its arguments")
            except BaseException as error:
                traceback.print_exc()
                self._refuse(self._reason(error))
            finally:
                hook.remove()
        if not self._steps:
            self._refuse(
                f"{self._name} ended without a step of an optimizer of torch.optim: give a script "
                f"that trains, or {MODEL_INSTEAD.removeprefix('give ')}"
            )
        made = max(self._steps.values())
        if made < self._options["steps"]:
            self._recorder.note(f"{self._name} ended by itself after {made} steps")
            self._finish()

    def _run_script(self) -> None:
        if self._words[0] == "-m":
            sys.argv = self._words[1:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(self._name, run_name="__main__", alter_sys=True)
        else:
            sys.argv = self._words
            sys.path[0] = str(Path(self._name).resolve().parent)
            runpy.run_path(self._name, run_name="__main__")

    def _count_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        made = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        self._recorder.mark(f"after step {made}")
        if made >= self._options["steps"]:
            self._finish()
            raise Stop(0)

    # ---- What becomes of it

    def _finish(self) -> None:
        estimate = of_recording(
            self._recorder,
            gpu=self._options["gpu"],
            total_memory=self._options["total_memory"],
            allocator=self._options["allocator"],
            seconds=time.perf_counter() - self._begin,
        )
        self._answer("estimate", dataclasses.asdict(estimate))

    def _refuse(self, sentence: str) -> NoReturn:
        self._answer("refused", sentence)
        raise Stop(2)

    def _answer(self, kind: str, what: Any) -> None:
        Path(self._options["result"]).write_text(json.dumps({kind: what}))

    def _reason(self, error: BaseException) -> str:
        """Why the script failed, with its meaning if that is known."""
        chain = _chain(error)
        words = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if isinstance(error, CaptureRefused):
            return str(error)
        if self._host is not None or any(type(each).__name__ in _OFFLINE for each in chain):
            host = f" ({self._host})" if self._host else ""
            return (
                f"{self._name} needs the network{host}, which a capture has not: give it data and "
                "weights that are on this machine"
            )
        if isinstance(error, ModuleNotFoundError):
            return (
                f"{self._name} imports {error.name}, which {sys.executable} does not have: install "
                f"it there, or {MODEL_INSTEAD}"
            )
        if any("torch/distributed/" in file for each in chain for file in _files_of(each)):
            return (
                f"{self._name} begins several processes ({words}), which are not captured: give it "
                "as one process on one GPU"
            )
        if any(_is_custom_kernel(each) for each in chain):
            return (
                f"{self._name} runs a kernel of its own ({words}), which has no shape rule: "
                f"{MODEL_INSTEAD} without it"
            )
        if any(isinstance(each, MemoryError) or _NO_MEMORY in str(each) for each in chain):
            return (
                f"{self._name} is too large to capture in "
                f"{size_text(self._options['memory_max'])} of host memory: give more of it, or a "
                "smaller batch"
            )
        return f"{self._name} failed with {words}: try whether it runs, or {MODEL_INSTEAD}"

    def _forbid_network(self) -> None:
        look_up, connect = socket.getaddrinfo, socket.socket.connect

        def refuse(host: Any) -> NoReturn:
            self._host = str(host)
            raise OSError(f"{host}: a capture has no network")

        def guarded_look_up(host: Any, *rest: Any, **options: Any) -> Any:
            if not _is_local(host):
                refuse(host)
            return look_up(host, *rest, **options)

        def guarded_connect(one: socket.socket, address: Any) -> None:
            if one.family != socket.AF_UNIX and not _is_local(address[0]):
                refuse(address[0])
            connect(one, address)

        socket.getaddrinfo = guarded_look_up
        socket.socket.connect = guarded_connect  # type: ignore[method-assign,assignment]


_OFFLINE = ("OfflineModeIsEnabled", "LocalEntryNotFoundError")
_NO_MEMORY = "can't allocate memory"
_KERNEL_MAKERS = ("triton", "cupy", "pycuda", "numba/cuda", "torch/utils/cpp_extension.py")


def _is_local(host: Any) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    return name in (None, "", "localhost", "::1", "0.0.0.0") or str(name).startswith("127.")


def _chain(error: BaseException) -> list[BaseException]:
    """The error, and those that it came from."""
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in found:
        found.append(one)
        one = one.__cause__ or one.__context__
    return found


def _is_custom_kernel(error: BaseException) -> bool:
    if "libcuda" in str(error) or "libnvrtc" in str(error):
        return True
    return any(f"/{maker}" in file for file in _files_of(error) for maker in _KERNEL_MAKERS)


def _files_of(error: BaseException) -> list[str]:
    """Where it passed."""
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
