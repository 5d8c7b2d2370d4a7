"""torch.cuda as a program finds it on a machine with one GPU, while a FakeGpu is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ravenstore.estimate import _factories
from ravenstore.estimate._factories import Undo, replace

if TYPE_CHECKING:
    from ravenstore.estimate._fake import FakeGpu


class _Stream:
    """A stream, or an event, on which everything is done already."""

    device = _factories.GPU
    device_index = 0
    stream_id = 0
    cuda_stream = 0
    priority = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def _done(self, *_: Any, **__: Any) -> None:
        pass

    synchronize = wait = wait_stream = wait_event = _done

    def record(self, *_: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        return event or _Stream()

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 1.0


class _Properties:
    """Of the GPU that is taken to be there."""

    def __init__(self, name: str, total_memory: int, processors: int) -> None:
        self.name = name
        self.total_memory = total_memory
        self.major, self.minor = 9, 0
        self.multi_processor_count = processors
        self.warp_size = 32
        self.max_threads_per_multi_processor = 2048
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = 232448
        self.shared_memory_per_multiprocessor = 233472
        self.L2_cache_size = 50 << 20
        self.is_integrated = self.is_multi_gpu_board = 0
        self.gcnArchName = name


def install(gpu: FakeGpu) -> list[Undo]:
    """Makes torch.cuda say that there is one GPU; what undoes it."""
    properties = _Properties(gpu.name, gpu.total_memory, gpu.overheads.processors)
    state = torch.zeros(16, dtype=torch.uint8)

    def used(*_: Any, **__: Any) -> int:
        return gpu.recorder.used

    def used_peak(*_: Any, **__: Any) -> int:
        return gpu.recorder.used_peak

    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": gpu.name,
        "get_device_properties": properties,
        "get_device_capability": (properties.major, properties.minor),
        "get_arch_list": ["sm_90"],
        "is_bf16_supported": True,
        "get_rng_state": state,
        "get_rng_state_all": [state],
        "initial_seed": 0,
        "memory_stats": {},
        "memory_summary": "",
        "utilization": 0,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "can_device_access_peer": False,
        "is_current_stream_capturing": False,
        "current_stream": _Stream(),
        "default_stream": _Stream(),
    }
    nothing = (
        "_lazy_init init synchronize set_device empty_cache ipc_collect manual_seed "
        "manual_seed_all seed seed_all set_rng_state set_rng_state_all reset_peak_memory_stats "
        "reset_max_memory_allocated reset_max_memory_cached reset_accumulated_memory_stats "
        "set_per_process_memory_fraction set_stream"
    )
    functions: dict[str, Any] = {
        **{name: _answering(answer) for name, answer in answers.items()},
        **{name: _answering(None) for name in nothing.split()},
        "mem_get_info": lambda *_: (gpu.total_memory - used(), gpu.total_memory),
        **dict.fromkeys(("memory_allocated", "memory_reserved"), used),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), used_peak),
        "Stream": _Stream,
        "Event": _Stream,
        "stream": lambda stream: _Stream(),
    }
    undo = [replace(torch.cuda, name, function) for name, function in functions.items()]
    undo.append(replace(torch.Tensor, "pin_memory", lambda tensor, *_: tensor))
    undo += _factories.install()
    undo.append(replace(torch.accelerator, "is_available", lambda: False))
    undo.append(replace(torch, "compile", _not_compiled(gpu)))
    undo.append(replace(torch.nn.Module, "compile", _answering(None)))
    return undo


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _not_compiled(gpu: FakeGpu) -> Callable[..., Any]:
    def compile_nothing(model: Any = None, **_: Any) -> Any:
        gpu.recorder.note("torch.compile was left out: the model was captured as it runs eagerly")
        return (lambda function: function) if model is None else model

    return compile_nothing
