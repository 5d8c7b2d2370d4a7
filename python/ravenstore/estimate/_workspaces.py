"""What kernels and libraries take beside inputs and outputs: while an operator runs, or from the
first that needs it on. The rules are those of PyTorch's kernels, and of what was seen on an H100.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ravenstore.estimate._fake import FakeGpu


def count_workspace(gpu: FakeGpu, func: Any, args: tuple[Any, ...], out: Any) -> None:
    """Counts what this operator takes beside `args` and `out`."""
    name = func._schema.name.removeprefix("aten::")
    if name in _MATMULS:
        _count_for_cublas(gpu)
    elif name == "convolution":
        _use_for_convolution(gpu, *args[:2], args[3], args[8], args[0], out)
    elif name == "convolution_backward":
        gradient, given, weight = args[:3]
        for wanted, other in ((out[0], out[0]), (out[1], given)):
            if wanted is not None:
                _use_for_convolution(gpu, given, weight, args[4], args[9], gradient, other)
    elif name == "_scaled_dot_product_flash_attention_backward":
        _use_for_attention(gpu, args[1])
    elif name in ("sum", "mean") and isinstance(out, torch.Tensor):
        _use_for_reduction(gpu, args[0], args[1] if len(args) > 1 else None, out)
    elif name == "embedding_dense_backward":
        _use_for_embedding(gpu, *args[:3])


# ---- cuBLAS

_MATMULS = frozenset(
    {
        *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "addbmm", "_addmm_activation"),
        *("_grouped_mm", "_cudnn_rnn"),
    }
)


def _count_for_cublas(gpu: FakeGpu) -> None:
    """It has a handle for each thread, and autograd runs backward in another one."""
    handle = "backward" if torch._C._current_graph_task_id() != -1 else "forward"
    if handle not in gpu.workspaces:
        gpu.workspaces.add(handle)
        gpu.recorder.allocate(gpu.overheads.matmul_workspace)


# ---- cuDNN

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_in_order(tensor: torch.Tensor, order: torch.memory_format) -> bool:
    """Whether the tensor is in that order, and not in the usual one as well."""
    return tensor.is_contiguous(memory_format=order) and not tensor.is_contiguous()


def _use_for_convolution(
    gpu: FakeGpu,
    given: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    groups: int,
    *moved: torch.Tensor,
) -> None:
    """cuDNN's kernels want channels last: of another order it makes copies in its workspace, with
    channels in units of 16 bytes. What is a matrix product needs none, nor does PyTorch's own
    kernel for one group for each channel."""
    last = _CHANNELS_LAST.get(given.dim())
    is_product = math.prod(weight.shape[2:]) == 1 and math.prod(stride) == 1
    is_depthwise = groups > 1 and groups == given.shape[1]
    if last is None or is_product or is_depthwise:
        return
    if any(is_in_order(each, last) for each in (given, weight)):
        return
    unit = max(1, 16 // given.element_size())
    copies = (
        each.numel() // each.shape[1] * -(-each.shape[1] // unit) * unit
        for each in (*moved, weight)
    )
    size = sum(copies) * given.element_size()
    gpu.recorder.use(int(size * gpu.overheads.conv_workspace_share))


_ROWS = 128


def _use_for_attention(gpu: FakeGpu, query: torch.Tensor) -> None:
    """The gradient of the query is summed in fp32, in blocks of rows."""
    batch, heads, rows, width = query.shape
    rows = -(-rows // _ROWS) * _ROWS
    gpu.recorder.use(4 * batch * heads * rows * (width + 1))


# ---- PyTorch's own kernels

# aten/src/ATen/native/cuda/Reduce.cuh: threads of a block and of a processor, and what a thread
# should sum at least and at most.
_BLOCK_THREADS, _PROCESSOR_THREADS, _WARP = 512, 2048, 32
_VALUES_MIN, _VALUES_MAX = 16, 256


def _use_for_reduction(gpu: FakeGpu, given: torch.Tensor, dims: Any, out: torch.Tensor) -> None:
    """A sum over rows, such as a bias's gradient, is split over blocks of threads that meet in a
    buffer, with a value for each thread."""
    dims = [dims] if isinstance(dims, int) else dims
    last = given.dim() - 1
    if not dims or last < 1 or last in dims or -1 in dims or given.stride(last) != 1:
        return
    outputs = out.numel()
    rows = given.numel() // max(1, outputs)
    vector = math.gcd(4, given.shape[last])
    threads = _BLOCK_THREADS // vector
    width = min(_power_below(outputs // vector), _WARP)
    height = min(_power_below(rows), threads // max(1, width))
    width = min(_power_below(outputs // vector), threads // max(1, height))
    values = rows // max(1, height)
    grid = -(-outputs // (vector * width)) if width else 0
    wanted = gpu.overheads.processors * (_PROCESSOR_THREADS // max(1, width * height))
    if values < _VALUES_MAX or grid == 0 or grid > wanted:
        return
    blocks = max(min(-(-wanted // grid), -(-values // _VALUES_MIN)), -(-values // _VALUES_MAX))
    if blocks > 1:
        gpu.recorder.use(4 * outputs * blocks * width * vector)


def _power_below(number: int) -> int:
    """The largest power of two that is at most `number`; 0 of less than 1."""
    return 1 << number.bit_length() - 1 if number > 0 else 0


# aten/src/ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu: fewer indices need no
# sorting; rows that one thread sums.
_INDICES_UNSORTED_MAX = 3072
_ROWS_PER_THREAD = 10


def _use_for_embedding(
    gpu: FakeGpu, gradient: torch.Tensor, indices: torch.Tensor, weights: int
) -> None:
    """Indices are sorted, and gradients of equal ones summed in fp32, piece by piece."""
    count = indices.numel()
    if count <= _INDICES_UNSORTED_MAX:
        return
    order = [gpu.recorder.allocate(count * indices.element_size()) for _ in range(2)]
    pieces = count // _ROWS_PER_THREAD + min(count, weights)
    gpu.recorder.use(4 * gradient.size(-1) * pieces)
    for number in order:
        gpu.recorder.free(number)
