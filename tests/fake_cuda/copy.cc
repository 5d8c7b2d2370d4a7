// Copies, sets and host functions, each done in its stream's order, at addresses as they are mapped
// when it is done.
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <utility>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/state.h"

namespace fake_cuda {
namespace {

CUdeviceptr Address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

bool IsThere(CUdeviceptr address, size_t bytes) {
  Resolved found;
  return Resolve(address, bytes, Reach::kCopy, &found);
}

void CopySpans(std::vector<Span> to, std::vector<Span> from) {
  size_t i = 0;
  size_t j = 0;
  while (i < to.size()) {
    const size_t part = std::min(to[i].bytes, from[j].bytes);
    memcpy(to[i].begin, from[j].begin, part);
    to[i] = {to[i].begin + part, to[i].bytes - part};
    from[j] = {from[j].begin + part, from[j].bytes - part};
    if (to[i].bytes == 0) ++i;
    if (from[j].bytes == 0) ++j;
  }
}

bool IsOnHost(CUdeviceptr address) {
  Place place;
  return !Locate(address, &place) || place.on_host;
}

// How long a copy of `bytes` takes, in nanoseconds.
uint64_t LinkTime(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  static const double rate = [] {
    const char* text = getenv("RAVENSTORE_FAKE_CUDA_LINK");
    return text == nullptr ? 0 : strtod(text, nullptr);
  }();
  if (rate == 0 || IsOnHost(to) == IsOnHost(from)) return 0;
  return static_cast<uint64_t>(static_cast<double>(bytes) / rate * 1e9);
}

// False: an address with nothing there.
bool CopyNow(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  Resolved target;
  Resolved source;
  if (!Resolve(to, bytes, Reach::kCopy, &target) || !Resolve(from, bytes, Reach::kCopy, &source)) {
    return false;
  }
  const uint64_t begin = Nanoseconds();
  CopySpans(target.spans(), source.spans());
  const uint64_t wanted = LinkTime(to, from, bytes);
  while (true) {
    const uint64_t taken = Nanoseconds() - begin;
    if (taken >= wanted) return true;
    Nap(wanted - taken);
  }
}

// On the stream's thread: it waits while copies are held, and a copy that fails takes its context
// with it.
void Copy(CUcontext context, const std::function<bool()>& copy) {
  for (int turn = 0; CopiesHeld(); ++turn) Pause(turn);
  if (NextCopyFails() || !copy()) context->error = CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult EnqueueCopy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream,
                     CUcontext context) {
  if (!IsThere(to, bytes) || !IsThere(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return Enqueue(
      stream, context,
      {CU_GRAPH_NODE_TYPE_MEMCPY,
       [=](CUcontext in) { Copy(in, [=] { return CopyNow(to, from, bytes); }); }, nullptr});
}

// Behind what the legacy default stream waits for, and done when it returns.
CUresult CopyAndWait(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUcontext context) {
  Synchronize(context, false);
  const CUresult enqueued = EnqueueCopy(to, from, bytes, CU_STREAM_LEGACY, context);
  return enqueued != CUDA_SUCCESS ? enqueued : cuStreamSynchronize(CU_STREAM_LEGACY);
}

// Sets `count` elements of `value`'s size.
template <typename Value>
CUresult EnqueueSet(CUdeviceptr to, Value value, size_t count, CUstream stream, CUcontext context) {
  const size_t bytes = count * sizeof(Value);
  if (to % sizeof(Value) != 0 || !IsThere(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto set = [=](CUcontext in) {
    Resolved target;
    if (!Resolve(to, bytes, Reach::kCopy, &target)) {
      in->error = CUDA_ERROR_ILLEGAL_ADDRESS;
      return;
    }
    size_t done = 0;  // a span may begin within an element
    for (const auto& span : target.spans()) {
      char element[sizeof(Value)];
      memcpy(element, &value, sizeof(Value));
      std::rotate(element, element + done % sizeof(Value), element + sizeof(Value));
      for (size_t i = 0; i < span.bytes; ++i) span.begin[i] = element[i % sizeof(Value)];
      done += span.bytes;
    }
  };
  return Enqueue(stream, context, {CU_GRAPH_NODE_TYPE_MEMSET, set, nullptr});
}

template <typename Value>
CUresult SetAndWait(CUdeviceptr to, Value value, size_t count, CUcontext context) {
  Synchronize(context, false);
  const CUresult enqueued = EnqueueSet(to, value, count, CU_STREAM_LEGACY, context);
  return enqueued != CUDA_SUCCESS ? enqueued : cuStreamSynchronize(CU_STREAM_LEGACY);
}

// One side of a copy of rows.
struct Rows {
  CUdeviceptr begin;
  size_t pitch;
};

// False: arrays, which have no address here.
bool RowsOf(CUmemorytype type, const void* host, CUdeviceptr device, size_t x, size_t y,
            size_t pitch, size_t width, Rows* rows) {
  if (type == CU_MEMORYTYPE_ARRAY) return false;
  if (pitch == 0) pitch = width;
  const CUdeviceptr begin = type == CU_MEMORYTYPE_HOST ? Address(host) : device;
  *rows = {begin + y * pitch + x, pitch};
  return true;
}

CUresult EnqueueRows(const CUDA_MEMCPY2D& copy, CUstream stream, CUcontext context) {
  Rows to{};
  Rows from{};
  const size_t width = copy.WidthInBytes;
  const size_t height = copy.Height;
  if (!RowsOf(copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstXInBytes, copy.dstY,
              copy.dstPitch, width, &to) ||
      !RowsOf(copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcXInBytes, copy.srcY,
              copy.srcPitch, width, &from)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (width > to.pitch || width > from.pitch) return CUDA_ERROR_INVALID_VALUE;
  for (size_t row = 0; row < height; ++row) {
    if (!IsThere(to.begin + row * to.pitch, width) ||
        !IsThere(from.begin + row * from.pitch, width)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const auto rows = [=] {
    for (size_t row = 0; row < height; ++row) {
      if (!CopyNow(to.begin + row * to.pitch, from.begin + row * from.pitch, width)) return false;
    }
    return true;
  };
  return Enqueue(stream, context,
                 {CU_GRAPH_NODE_TYPE_MEMCPY, [=](CUcontext in) { Copy(in, rows); }, nullptr});
}

}  // namespace
}  // namespace fake_cuda

using fake_cuda::Address;

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKE_CUDA_CONTEXT("cuMemcpyAsync");
  return fake_cuda::EnqueueCopy(to, from, bytes, stream, context);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  FAKE_CUDA_CONTEXT("cuMemcpyHtoDAsync");
  return fake_cuda::EnqueueCopy(to, Address(from), bytes, stream, context);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKE_CUDA_CONTEXT("cuMemcpyDtoHAsync");
  return fake_cuda::EnqueueCopy(Address(to), from, bytes, stream, context);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKE_CUDA_CONTEXT("cuMemcpyDtoDAsync");
  return fake_cuda::EnqueueCopy(to, from, bytes, stream, context);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  FAKE_CUDA_CONTEXT("cuMemcpy2DAsync");
  return fake_cuda::EnqueueRows(*copy, stream, context);
}
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                               CUmemcpyAttributes*, size_t*, size_t, CUstream stream) {
  FAKE_CUDA_CONTEXT("cuMemcpyBatchAsync");
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = fake_cuda::EnqueueCopy(to[i], from[i], bytes[i], stream, context);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  FAKE_CUDA_CONTEXT("cuMemcpy");
  return fake_cuda::CopyAndWait(to, from, bytes, context);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  FAKE_CUDA_CONTEXT("cuMemcpyHtoD");
  return fake_cuda::CopyAndWait(to, Address(from), bytes, context);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  FAKE_CUDA_CONTEXT("cuMemcpyDtoH");
  return fake_cuda::CopyAndWait(Address(to), from, bytes, context);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  FAKE_CUDA_CONTEXT("cuMemcpyDtoD");
  return fake_cuda::CopyAndWait(to, from, bytes, context);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  FAKE_CUDA_CONTEXT("cuMemsetD8Async");
  return fake_cuda::EnqueueSet(to, value, count, stream, context);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  FAKE_CUDA_CONTEXT("cuMemsetD16Async");
  return fake_cuda::EnqueueSet(to, value, count, stream, context);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
  FAKE_CUDA_CONTEXT("cuMemsetD32Async");
  return fake_cuda::EnqueueSet(to, value, count, stream, context);
}
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  FAKE_CUDA_CONTEXT("cuMemsetD8");
  return fake_cuda::SetAndWait(to, value, count, context);
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) {
  FAKE_CUDA_CONTEXT("cuMemsetD32");
  return fake_cuda::SetAndWait(to, value, count, context);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  FAKE_CUDA_CONTEXT("cuLaunchHostFunc");
  return fake_cuda::Enqueue(
      stream, context,
      {CU_GRAPH_NODE_TYPE_HOST, [function, data](CUcontext) { function(data); }, nullptr});
}

// The variants for per-thread default streams, of the asynchronous calls.
#undef cuMemcpyAsync
#undef cuMemsetD8Async
#undef cuMemsetD16Async
#undef cuMemsetD32Async
#undef cuLaunchHostFunc
extern "C" {
CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return cuMemcpyAsync(to, from, bytes, FAKE_CUDA_PER_THREAD(stream));
}
CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t bytes,
                                   CUstream stream) {
  return cuMemcpyHtoDAsync_v2(to, from, bytes, FAKE_CUDA_PER_THREAD(stream));
}
CUresult cuMemcpyDtoHAsync_v2_ptsz(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return cuMemcpyDtoHAsync_v2(to, from, bytes, FAKE_CUDA_PER_THREAD(stream));
}
CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                   CUstream stream) {
  return cuMemcpyDtoDAsync_v2(to, from, bytes, FAKE_CUDA_PER_THREAD(stream));
}
CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return cuMemcpy2DAsync_v2(copy, FAKE_CUDA_PER_THREAD(stream));
}
CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return cuMemsetD8Async(to, value, count, FAKE_CUDA_PER_THREAD(stream));
}
CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count,
                               CUstream stream) {
  return cuMemsetD16Async(to, value, count, FAKE_CUDA_PER_THREAD(stream));
}
CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
  return cuMemsetD32Async(to, value, count, FAKE_CUDA_PER_THREAD(stream));
}
CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void* data) {
  return cuLaunchHostFunc(FAKE_CUDA_PER_THREAD(stream), function, data);
}
}
