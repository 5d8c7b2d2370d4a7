"""A GPU without a GPU: tensors of the "cuda" device that have shapes and storages, but no bytes.

    with FakeGpu(recorder, "NVIDIA H100 80GB HBM3", 80 << 30):
        model = Model().to("cuda")        # nothing is computed
        model(batch.to("cuda")).sum().backward()

While it is open, what is on "cuda" is a Fake: a tensor of PyTorch's meta device with the dispatch
keys of CUDA, so that autocast and autograd do what they do there. A dispatch mode sees each
operator, runs its shape rule, and notifies the recorder of each new storage and of its end.
Tensors on the CPU stay real, and data loaders run as ever. Only parameters have no bytes wherever
they are: a model larger than host memory can be built.

PyTorch's own FakeTensorMode does not do: without a driver its tensors on "cuda" cannot run
backward, for the autograd engine of a CUDA build then asks the driver for a stream.

Threads: of the thread that opened it, and autograd's for that thread. One at a time in a process.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ravenstore.estimate import _autocast, _choices, _operators, _overheads, _presence
from ravenstore.estimate._estimate import CaptureRefused
from ravenstore.estimate._recorder import Recorder
from ravenstore.estimate._trees import map_tensors, tensors_in
from ravenstore.estimate._workspaces import count_workspace

META = torch.device("meta")
CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")


class Fake(torch.Tensor):
    """A tensor without bytes. It is on the GPU if its storage is one of those that are."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    value: Any
    """What the host reads if it asks; see FakeGpu.value_of. Not always there."""

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """For what the mode does not see: it is off within another mode's operators."""
        gpu = FakeGpu.current
        assert gpu is not None, "the FakeGpu of this tensor is closed"
        return gpu.run(func, types, args, kwargs or {})

    @property
    def device(self) -> torch.device:
        gpu = FakeGpu.current
        if gpu is None or gpu.in_kernel:
            return META
        return CUDA if gpu.has(self) else CPU

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def is_meta(self) -> bool:
        return self.device.type == "meta"

    def get_device(self) -> int:
        return 0 if self.is_cuda else -1

    def __repr__(self, **_: Any) -> str:
        what = (
            repr(self.item())
            if self.dim() == 0 and FakeGpu.current
            else f"size={tuple(self.shape)}"
        )
        return f"tensor({what}, device='{self.device}', dtype={self.dtype})"

    def __format__(self, how: str) -> str:
        return format(self.item(), how) if self.dim() == 0 else repr(self)

    def numpy(self, **_: Any) -> Any:
        if self.is_cuda:
            raise TypeError("can't convert cuda:0 device type tensor to numpy: use Tensor.cpu()")
        return _operators.on_host(self).numpy()

    def tolist(self) -> Any:
        return _operators.on_host(self).tolist()

    def pin_memory(self, *_: Any) -> Fake:
        return self

    def __reduce_ex__(self, _: Any) -> Any:
        """A saved one takes no room, and is empty when it is loaded."""
        return torch.empty, (0,)


def _is_gpu(device: torch.device | None) -> bool:
    """PyTorch's own code takes the device of a Fake from its meta tensor."""
    return device is not None and device.type in ("cuda", "meta")


class FakeGpu(TorchDispatchMode):
    """See the module."""

    current: ClassVar[FakeGpu | None] = None
    """The one that is open."""

    def __init__(self, recorder: Recorder, name: str, total_memory: int) -> None:
        super().__init__()
        self.recorder = recorder
        self.name = name
        """Of the GPU that is taken to be there."""
        self.total_memory = total_memory
        self.overheads = _overheads.of(name)
        self.in_kernel = False
        """Whether a shape rule runs: to it a Fake is what it is, a meta tensor."""
        self.workspaces: set[str] = set()
        """Which of the libraries' workspaces there are by now."""
        self._live: dict[int, weakref.ref[Any]] = {}  # storages on the GPU, by their address
        self._depth = 0
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> FakeGpu:
        if self._depth == 0:
            assert FakeGpu.current is None, "another FakeGpu is open"
            FakeGpu.current = self
            self._undo = [
                *_choices.install(self, Fake),
                *_autocast.install(Fake),
                *_presence.install(self),
            ]
        self._depth += 1
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._depth -= 1
        if self._depth == 0:
            for undo in reversed(self._undo):
                undo()
            self.recorder.closed = True
            FakeGpu.current = None

    # ---- What is on the GPU

    @staticmethod
    def is_fake(tensor: torch.Tensor) -> bool:
        return type(tensor) is Fake

    def has(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._live

    def _adopt(self, tensor: torch.Tensor) -> None:
        """Counts the tensor's storage as the GPU's, from now to its end."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        number = self.recorder.allocate(storage.nbytes())

        def freed(_: Any) -> None:
            del self._live[key]
            self.recorder.free(number)

        self._live[key] = weakref.ref(storage, freed)

    def empty(
        self, size: Any, dtype: torch.dtype, *, stride: Any = None, on_gpu: bool = True
    ) -> torch.Tensor:
        """A new Fake."""
        with torch._C._DisableTorchDispatch():
            if stride is None:
                meta = torch.empty(size, dtype=dtype, device=META)
            else:
                meta = torch.empty_strided(size, stride, dtype=dtype, device=META)
        return self.wrap(meta, on_gpu=on_gpu)

    def wrap(self, meta: torch.Tensor, *, on_gpu: bool) -> torch.Tensor:
        """The Fake of a meta tensor, with its storage."""
        if meta.layout != torch.strided:
            raise CaptureRefused(
                f"it makes a tensor of layout {meta.layout}, which is not captured: give one that "
                "has dense tensors alone, or measure it on a GPU"
            )
        fake: torch.Tensor = torch.Tensor._make_subclass(
            Fake, meta, False, device_for_backend_keys=CUDA
        )
        if on_gpu:
            self._adopt(fake)
        return fake

    def alias(self, fake: torch.Tensor) -> torch.Tensor:
        """Another tensor of the same storage."""
        with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
            torch._C._set_meta_in_tls_dispatch_include(True)
            meta = torch.empty(0, dtype=fake.dtype, device=META)
            meta.set_(fake.untyped_storage(), fake.storage_offset(), fake.size(), fake.stride())
        other = self.wrap(meta, on_gpu=self.has(fake))
        if hasattr(fake, "value"):
            other.value = fake.value
        return other

    def any_on(self, values: Any) -> bool:
        """Whether one of the tensors among the values is on the GPU."""
        return any(self.is_fake(each) and self.has(each) for each in tensors_in(*values))

    def without_bytes(self, tensor: torch.Tensor) -> torch.Tensor:
        """Of a real tensor on the host one without bytes. One value stays, for it may be a scalar,
        whose dtype does not count."""
        if type(tensor) is Fake or tensor.dim() == 0:
            return tensor
        return self.empty(tensor.size(), tensor.dtype, stride=tensor.stride(), on_gpu=False)

    # ---- Operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.run(func, types, args, kwargs or {})

    def run(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the operator gives: of real tensors a real one, else one without bytes."""
        if Fake not in types and not _is_gpu(kwargs.get("device")):
            return func(*args, **kwargs)
        special = _operators.SPECIAL.get(func)
        if special is not None:
            return special(self, func, args, kwargs)
        composite = _choices.composite(func)
        if composite is not None:
            with self:
                return composite(*args, **kwargs)
        return self.run_without_bytes(func, args, kwargs)

    def run_without_bytes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator's shape rule, and counts what it allocates."""
        given = tensors_in(*args, *kwargs.values())
        if "device" in kwargs and kwargs["device"] is not None:
            on_gpu = _is_gpu(kwargs["device"])
            kwargs = {**kwargs, "device": META}
        else:
            on_gpu = self.any_on(given)
        kwargs = {name: None if name in _NOT_FOR_SHAPES else each for name, each in kwargs.items()}
        shapes = args
        if any(type(each) is not Fake and each.dim() > 0 for each in given):
            shapes = tuple(map_tensors(each, self.without_bytes) for each in args)
            kwargs = {name: map_tensors(each, self.without_bytes) for name, each in kwargs.items()}
        out = self._run_shape_rule(func, shapes, kwargs)
        if shapes is not args and shapes[0] is not args[0] and func._schema.is_mutable:
            return args[0]  # a real one, which keeps its bytes
        out = map_tensors(
            _operators.in_order(func, args, out),
            lambda each: each if type(each) is Fake else self.wrap(each, on_gpu=on_gpu),
        )
        if on_gpu:
            count_workspace(self, func, args, out)
        _operators.note_value(func, args, out)
        return out

    def _run_shape_rule(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer, self.in_kernel = self.in_kernel, True
        try:
            with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
                torch._C._set_meta_in_tls_dispatch_include(True)
                return func(*args, **kwargs)
        except NotImplementedError:
            self.in_kernel = outer
            return _operators.run_on_zeros(self, func, args, kwargs)
        finally:
            self.in_kernel = outer


# A shape rule has no random numbers, and pins nothing.
_NOT_FOR_SHAPES = frozenset({"generator", "pin_memory"})
