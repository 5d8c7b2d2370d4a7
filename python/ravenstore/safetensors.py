"""Weights from safetensors files: read once, shared by all processes of the user.

    weights = ravenstore.load_safetensors("model/", device=0)
    model.load_state_dict(weights, assign=True)

The first process reads the files, with several threads and without the page cache where the file
system allows that, into pinned memory and from there to the device. Processes that ask meanwhile
wait for it; later ones attach to the memory that is there. If the loader ends, the next one takes
over. An entry is that of the files' device, inode, size and times, so a file that was written again
is another entry.

Errors: InvalidArgument: a file is no safetensors file, is cut off, or changed while it was loaded;
NotFound; OutOfMemory; those of Store.connect and Store.open.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import struct
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ravenstore._units import Duration
from ravenstore.errors import InvalidArgument, NotFound, OutOfMemory
from ravenstore.named import Filling, Layout, OpenedSet, ask
from ravenstore.store import Store

if TYPE_CHECKING:
    import torch

# safetensors' names of torch's types.
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
# Bytes of one read. Less: more system calls. More: more pinned memory.
_CHUNK = 16 << 20
# A file's place and length for a read without the page cache.
_DIRECT = 4096
_THREADS = 8
_HEADER_MOST = 100 << 20  # as the format has it

Slice = tuple[int, int, int]
"""(dimension, begin, end): a tensor's part for tensor parallelism."""


@dataclasses.dataclass(frozen=True)
class _Stored:
    """A tensor in a file."""

    file: int
    begin: int  # in the file
    dtype: str
    shape: tuple[int, ...]

    @property
    def item(self) -> int:
        import torch

        kind: torch.dtype = getattr(torch, self.dtype)
        return kind.itemsize

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.item


class _File:
    """An open file: its identity, and its header."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFound(f"there is no file {path}") from None
        except OSError as error:
            raise InvalidArgument(f"{path} cannot be opened: {error.strerror}") from None
        self.identity = self._identify()
        self.size = self.identity[2]

    def _identify(self) -> tuple[int, ...]:
        stat = os.fstat(self.descriptor)
        return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    def check_unchanged(self) -> None:
        if self._identify() != self.identity:
            raise InvalidArgument(f"{self.path} changed while it was loaded: load it again")

    def header(self) -> tuple[dict[str, Any], int]:
        """The tensors of the file, and where their bytes begin."""
        size = os.pread(self.descriptor, 8, 0)
        length = struct.unpack("<Q", size)[0] if len(size) == 8 else _HEADER_MOST + 1
        if length > min(_HEADER_MOST, self.size - 8):
            raise InvalidArgument(f"{self.path} is no safetensors file: its header is cut off")
        try:
            header = json.loads(os.pread(self.descriptor, length, 8))
            if not isinstance(header, dict):
                raise ValueError
        except ValueError:
            raise InvalidArgument(
                f"{self.path} is no safetensors file: its header is no JSON object"
            ) from None
        header.pop("__metadata__", None)
        return header, 8 + length

    def direct(self) -> int:
        """A descriptor that reads past the page cache, where there is one."""
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError:
            return os.dup(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


def _files_of(path: pathlib.Path) -> list[pathlib.Path]:
    """The files of a path: one, those of an index, or those of a folder."""
    if path.is_dir():
        indexes = sorted(path.glob("*.safetensors.index.json"))
        if not indexes:
            files = sorted(path.glob("*.safetensors"))
            if not files:
                raise NotFound(f"{path} has no safetensors file")
            return files
        path = indexes[0]
    if path.name.endswith(".index.json"):
        try:
            shards = set(json.loads(path.read_text())["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise InvalidArgument(f"{path} is no index of safetensors files: {error}") from None
        return sorted(path.parent / shard for shard in shards)
    return [path]


def _stored_in(files: list[_File]) -> dict[str, _Stored]:
    stored: dict[str, _Stored] = {}
    for number, file in enumerate(files):
        header, data = file.header()
        for name, entry in header.items():
            try:
                begin, end = entry["data_offsets"]
                shape = tuple(int(length) for length in entry["shape"])
                dtype = _DTYPES[entry["dtype"]]
                tensor = _Stored(number, data + begin, dtype, shape)
                if begin < 0 or end - begin != tensor.bytes or data + end > file.size:
                    raise ValueError
            except (KeyError, TypeError, ValueError):
                raise InvalidArgument(
                    f"{file.path}: the tensor {name!r} has a type that is not known, or its bytes "
                    "are not all there"
                ) from None
            if name in stored:
                raise InvalidArgument(f"{file.path}: the tensor {name!r} is in two files")
            stored[name] = tensor
    return stored


def _shape_of(name: str, stored: _Stored, part: Slice | None) -> tuple[int, ...]:
    if part is None:
        return stored.shape
    dimension, begin, end = part
    if not 0 <= dimension < len(stored.shape) or not 0 <= begin < end <= stored.shape[dimension]:
        raise InvalidArgument(f"{name!r} of shape {stored.shape} has no slice {part}")
    shape = list(stored.shape)
    shape[dimension] = end - begin
    return tuple(shape)


def load_safetensors(
    path: str | os.PathLike[str],
    device: int = 0,
    *,
    names: Iterable[str] | None = None,
    slices: Mapping[str, Slice] | None = None,
    socket: str | os.PathLike[str] | None = None,
    timeout: Duration = 600.0,
) -> OpenedSet:
    """The tensors of a safetensors file, of an index of several, or of a folder with either, on the
    device, shared with the other processes of this user that load the same.

    names: those alone. slices: of each named tensor (dimension, begin, end) alone.
    socket: the daemon's, by default $RAVENSTORE_SOCKET or the node's.
    timeout: of the wait for another process that loads them, and for room.
    Errors: see the module.
    """
    files = [_File(each) for each in _files_of(pathlib.Path(path))]
    store = None
    try:
        wanted = sorted(set(names)) if names is not None else None
        name = _entry_of(files, device, wanted, slices or {})
        store = Store.connect(socket=socket, name="safetensors", timeout=timeout)
        handle, load = ask(store, name, timeout=timeout, may_load=True)
        if load != 0:
            # The set stays while `published` is open.
            published = _load(store, name, load, files, device, wanted, slices or {})
            handle, _ = ask(store, name, timeout=timeout)
            published.close()
        return OpenedSet(store, name, handle, owns_store=True)._woken(timeout)
    except BaseException:
        # So the next process may load them.
        if store is not None:
            store.close()
        raise
    finally:
        for file in files:
            file.close()


def _entry_of(
    files: list[_File], device: int, names: list[str] | None, slices: Mapping[str, Slice]
) -> str:
    what = repr(([file.identity for file in files], device, names, sorted(slices.items())))
    digest = hashlib.sha256(what.encode()).hexdigest()[:32]
    return f"safetensors {files[0].path.name[:120]} {digest}"


def _load(
    store: Store,
    name: str,
    load: int,
    files: list[_File],
    device: int,
    names: list[str] | None,
    slices: Mapping[str, Slice],
) -> Any:
    stored = _stored_in(files)
    absent = [each for each in [*(names or []), *slices] if each not in stored]
    if absent:
        raise NotFound(f"{files[0].path} has no tensor {absent[0]!r}")
    if names is not None:
        stored = {each: stored[each] for each in names}
    if not stored:
        raise InvalidArgument(f"{files[0].path} has no tensors")
    layout = Layout(
        {
            each: (tensor.dtype, _shape_of(each, tensor, slices.get(each)), device)
            for each, tensor in stored.items()
        }
    )
    filling = Filling(store, name, layout)
    try:
        _Reader(store, filling, files, stored, slices).run()
        for file in files:
            file.check_unchanged()
        return filling.seal(load)
    except BaseException:
        filling.store.close()
        raise


class _Reader:
    """Reads the stretches of the files with several threads, each with pinned memory of its own,
    and copies the tensors' bytes from there."""

    def __init__(
        self,
        store: Store,
        filling: Filling,
        files: list[_File],
        stored: Mapping[str, _Stored],
        slices: Mapping[str, Slice],
    ) -> None:
        self._store = store
        self._filling = filling
        self._files = files
        self._slices = slices
        self._here = threading.local()
        self._direct = [file.direct() for file in files]
        # By file, in the order of the bytes.
        self._stored = sorted(stored.items(), key=lambda item: (item[1].file, item[1].begin))

    def run(self) -> None:
        try:
            chunks = self._jobs()
            with concurrent.futures.ThreadPoolExecutor(min(_THREADS, len(chunks) or 1)) as pool:
                jobs = [pool.submit(self._read, *chunk) for chunk in chunks]
                try:
                    for job in jobs:
                        job.result()
                except BaseException:
                    for job in jobs:
                        job.cancel()
                    raise
        finally:
            for descriptor in self._direct:
                os.close(descriptor)

    def _jobs(self) -> list[tuple[int, int, int, list[tuple[str, _Stored]]]]:
        """Chunks of files, each with the tensors that have bytes there."""
        jobs = []
        for number, file in enumerate(self._files):
            of_file = [item for item in self._stored if item[1].file == number]
            first = 0
            for begin in range(0, file.size, _CHUNK):
                end = min(begin + _CHUNK, file.size)
                while first < len(of_file) and _end_of(of_file[first][1]) <= begin:
                    first += 1
                last = first
                while last < len(of_file) and of_file[last][1].begin < end:
                    last += 1
                # Those without bytes are nowhere.
                inside = [item for item in of_file[first:last] if item[1].bytes > 0]
                if inside:
                    jobs.append((number, begin, end, inside))
        return jobs

    def _buffer(self) -> torch.Tensor:
        from ravenstore.pinned import pinned_empty

        buffer: torch.Tensor | None = getattr(self._here, "buffer", None)
        if buffer is None:
            import torch

            size = _CHUNK + _DIRECT
            try:
                buffer = pinned_empty(size, dtype=torch.uint8, store=self._store)
            except OutOfMemory:
                buffer = torch.empty(size, dtype=torch.uint8)
            past = -buffer.data_ptr() % _DIRECT
            buffer = buffer[past : past + _CHUNK]
            self._here.buffer = buffer
        return buffer

    def _read(self, number: int, begin: int, end: int, inside: list[tuple[str, _Stored]]) -> None:
        import torch

        buffer = self._buffer()
        memory = memoryview(buffer.numpy())
        file = self._files[number]
        done = 0
        while begin + done < end:
            # A read past the page cache begins and ends at whole blocks; the file's end is short.
            at = begin + done
            got = (
                os.preadv(self._direct[number], [memory[done:]], at)
                if at % _DIRECT == 0
                else os.preadv(file.descriptor, [memory[done : end - begin]], at)
            )
            if got <= 0:
                file.check_unchanged()
                raise InvalidArgument(f"{file.path} ended while it was loaded")
            done += got
        for name, tensor in inside:
            self._copy(name, tensor, buffer, begin, end)
        if self._filling.parts[0].is_cuda:
            torch.cuda.current_stream(self._filling.parts[0].device).synchronize()

    def _copy(self, name: str, tensor: _Stored, buffer: torch.Tensor, begin: int, end: int) -> None:
        """The bytes that the chunk [begin, end) has of the tensor."""
        place = self._filling.layout.places[name]
        to = self._filling.parts[place.part]
        first, last = max(tensor.begin, begin), min(_end_of(tensor), end)
        part = self._slices.get(name)
        # Runs of bytes that stay together: all of it, or one for each index before the dimension.
        run = tensor.bytes
        low, high = 0, run
        if part is not None:
            inner = math.prod(tensor.shape[part[0] + 1 :]) * tensor.item
            run = tensor.shape[part[0]] * inner
            low, high = part[1] * inner, part[2] * inner
        index = (first - tensor.begin) // run
        while tensor.begin + index * run < last:
            at = tensor.begin + index * run
            one, other = max(at + low, first), min(at + high, last)
            if one < other:
                target = place.offset + index * (high - low) + one - at - low
                to[target : target + other - one].copy_(
                    buffer[one - begin : other - begin], non_blocking=True
                )
            index += 1


def _end_of(tensor: _Stored) -> int:
    return tensor.begin + tensor.bytes
