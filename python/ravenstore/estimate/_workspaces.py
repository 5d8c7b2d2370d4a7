"""What kernels and libraries take in addition to inputs and outputs.

They take it while an operator runs, or from the first operator on that needs it. The rules are
those of PyTorch's kernels, and of what was seen on an H100.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ravenstore.estimate._fake import FakeGpu


def count_workspace(gpu: FakeGpu, func: Any, args: tuple[Any, ...], out: Any) -> None:
    """Counts what this operator takes in addition to `args` and `out`."""
    name = func._schema.name.removeprefix("aten::")
    if name in _MATMULS:
        # cuBLAS has a handle for each thread, and autograd runs backward in another one.
        thread = "backward" if torch._C._current_graph_task_id() != -1 else "forward"
        _count_once(gpu, f"cuBLAS {thread}", gpu.overheads.matmul_workspace)
        if name == "addmm" and args[0].dim() == 1:
            _count_once(gpu, "cuBLASLt", _LT_WORKSPACE)
    elif name == "convolution":
        if gpu.recorder.sort == "other":
            gpu.recorder.sort = "convolutional"
        convolution = Convolution.of(args[0], args[1], out, args[3], args[8])
        gpu.recorder.use(convolution.forward_workspace())
    elif name == "_scaled_dot_product_flash_attention_backward":
        _use_for_attention(gpu, args[1])
    elif name == "_softmax_backward_data":
        gpu.recorder.use(args[0].numel() * args[0].element_size())  # of the product with the result
    elif name in ("sum", "mean") and isinstance(out, torch.Tensor):
        _use_for_reduction(gpu, args[0], args[1] if len(args) > 1 else None, out)
    elif name == "embedding_dense_backward":
        _use_for_embedding(gpu, *args[:3])


# ---- cuBLAS

_MATMULS = frozenset(
    {
        *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "addbmm", "_addmm_activation"),
        "_grouped_mm",
    }
)


# Where a bias is added in the same kernel (c10's CUBLASLT_WORKSPACE_SIZE).
_LT_WORKSPACE = 1 << 20


def _count_once(gpu: FakeGpu, what: str, size: int) -> None:
    """Counts what is made where it is first needed, and kept for good."""
    if what not in gpu.workspaces:
        gpu.workspaces.add(what)
        gpu.recorder.allocate(size)


# ---- cuDNN

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_in_order(tensor: torch.Tensor, order: torch.memory_format) -> bool:
    """Whether the tensor is in that order, and not in the usual one as well."""
    return tensor.is_contiguous(memory_format=order) and not tensor.is_contiguous()


_FP32 = 4
_VECTOR_BYTES = 16
# The rules and their numbers were found in 1,534 workspaces that 45 jobs of bench/estimator took of
# an H100 (cuDNN 9, PyTorch 2.11). They meet 93% of those of windows to within 5%, but of their
# weights' gradients 65%, and of matrix products 84%.

# A special kernel reads at most _FEW_CHANNELS channels in any order, with windows of at most
# _FEW_WINDOW values.
_FEW_CHANNELS = 4
_FEW_WINDOW = 9
# A strided product reads at most _STRIDED_CHANNELS channels in any order.
_STRIDED_CHANNELS = 64
# Partial sums of a weight's gradient: how many, and the least and the most that they take.
_PARTIAL_SUMS = 13
_PARTIAL_BYTES_MIN, _PARTIAL_BYTES_MAX = 2 << 20, 8 << 20


@dataclasses.dataclass(frozen=True)
class Convolution:
    """cuDNN's workspaces of one convolution, in bytes. Its kernels want channels last: of tensors
    in another order it makes copies there, with channels in units of 16 bytes."""

    batch: int
    channels: int
    copies: int
    """Of input and output."""
    weights: int
    """Values."""
    weight_copy: int
    window: int
    """Values that an output takes of each channel."""
    strided: bool
    wide: bool
    """Whether values are in fp32."""
    free: bool
    """Whether it needs none: in channels-last order, or PyTorch's own kernel for one group for each
    channel."""

    @staticmethod
    def of(
        given: torch.Tensor,
        weight: torch.Tensor,
        result: torch.Tensor,
        stride: list[int],
        groups: int,
    ) -> Convolution:
        last = _CHANNELS_LAST.get(given.dim())
        in_order = last is not None and any(is_in_order(each, last) for each in (given, weight))
        is_depthwise = groups > 1 and groups == given.shape[1]
        return Convolution(
            batch=given.shape[0],
            channels=given.shape[1],
            copies=_copy_bytes(given) + _copy_bytes(result),
            weights=weight.numel(),
            weight_copy=_copy_bytes(weight),
            window=math.prod(weight.shape[2:]),
            strided=math.prod(stride) > 1,
            wide=given.element_size() >= _FP32,
            free=last is None or in_order or is_depthwise,
        )

    def forward_workspace(self) -> int:
        if self.free or self._reads_any_order:
            return 0
        if self.window > 1:
            return self.copies + self.weight_copy
        if self.strided:
            return self.copies if self.channels > _STRIDED_CHANNELS else 0
        return self.copies if self._is_small_map else 0

    def input_gradient_workspace(self) -> int:
        if self.free:
            return 0
        if self.window > 1:
            return self.copies + self.weight_copy
        return self.copies if self.strided or self._is_small_map else 0

    def weight_gradient_workspace(self) -> int:
        if self.free or (self.wide and self._reads_any_order):
            return 0
        if self.window > 1:
            partial = max(_PARTIAL_SUMS * _FP32 * self.weights, _PARTIAL_BYTES_MIN)
            partial = min(partial, _PARTIAL_BYTES_MAX)
            return self.copies + self.weight_copy + partial
        return self.copies if self.strided else min(self.copies, self._sums_by_sample)

    @property
    def _reads_any_order(self) -> bool:
        return self.channels <= _FEW_CHANNELS and self.window <= _FEW_WINDOW

    @property
    def _sums_by_sample(self) -> int:
        """Of a matrix product's weight, whose gradient is summed over samples in fp32."""
        return _FP32 * self.batch * self.weights

    @property
    def _is_small_map(self) -> bool:
        """Whether products of single samples are too small for a kernel."""
        return self._sums_by_sample > self.copies


def _copy_bytes(tensor: torch.Tensor) -> int:
    """Of a copy of the tensor in channels-last order."""
    channels, unit = tensor.shape[1], max(1, _VECTOR_BYTES // tensor.element_size())
    padded = -(-channels // unit) * unit
    return tensor.numel() // channels * padded * tensor.element_size()


# What recurrent layers take, as sizes that were seen of LSTMs say: of each step's hidden values, of
# the state of each layer, of weights; and where a layer is narrow, values for each row.
_RNN_STEPS, _RNN_STATES, _RNN_WEIGHTS = 6, 10, 2
_RNN_NARROW, _RNN_NARROW_VALUES = 128, 2048


def rnn_workspace(
    rows: int, weights: list[torch.Tensor], state: torch.Tensor, bidirectional: bool
) -> int:
    """cuDNN's, of recurrent layers over `rows` samples' steps, in bytes."""
    hidden, ways = state.shape[-1], 2 if bidirectional else 1
    values = _RNN_STEPS * rows * hidden * ways + _RNN_STATES * state.numel()
    values += _RNN_WEIGHTS * sum(each.numel() for each in weights)
    if hidden <= _RNN_NARROW or state.element_size() < _FP32:
        values += _RNN_NARROW_VALUES * rows * ways
    return values * state.element_size()


# Of each thread's random numbers.
_RNN_DROPOUT_STATE = 24


def count_rnn_dropout(gpu: FakeGpu) -> None:
    """What recurrent layers with dropout take once."""
    size = gpu.overheads.processors * _PROCESSOR_THREADS * _RNN_DROPOUT_STATE
    _count_once(gpu, "cuDNN dropout", size)


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
