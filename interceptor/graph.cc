#include "interceptor/graph.h"

#include <atomic>

#include "interceptor/budgets.h"
#include "interceptor/copies.h"
#include "interceptor/devices.h"
#include "interceptor/driver.h"
#include "interceptor/graph_uses.h"
#include "interceptor/hooks.h"

namespace ravenstore::interceptor::graph {
namespace {

constinit std::atomic<bool> has_memory{false};

using IsCapturing = CUresult(CUstream, CUstreamCaptureStatus*);
using GetAttribute = CUresult(CUdevice, CUgraphMem_attribute, void*);

}  // namespace

bool Capturing(CUstream stream, bool per_thread) {
  static std::atomic<IsCapturing*> plain{nullptr};
  static std::atomic<IsCapturing*> own{nullptr};
  IsCapturing* function =
      per_thread ? Cached(&own, "cuStreamIsCapturing_ptsz") : Cached(&plain, "cuStreamIsCapturing");
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (function == nullptr) return false;
  // During a capture elsewhere the legacy stream returns an error. It cannot be captured.
  return function(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void HasMemory() {
  has_memory.store(true, std::memory_order_relaxed);
}

void RefreshUsage() {
  if (!has_memory.load(std::memory_order_relaxed)) return;
  static std::atomic<GetAttribute*> slot{nullptr};
  GetAttribute* get = Cached(&slot, "cuDeviceGetGraphMemAttribute");
  const proto::LedgerPage* page = Page();
  for (uint32_t i = 0; get != nullptr && i < page->rows; ++i) {
    cuuint64_t bytes = 0;
    const int row = static_cast<int>(i);
    if (get(DeviceOf(row), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS) {
      Gauge(row, LegacyKind::kGraph, bytes);
    }
  }
}

}  // namespace ravenstore::interceptor::graph

namespace interceptor = ravenstore::interceptor;
namespace graph = interceptor::graph;

namespace {
void Note(CUresult result, const CUgraphNodeParams* parameters) {
  if (result == CUDA_SUCCESS && parameters != nullptr &&
      parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    graph::HasMemory();
  }
}
}  // namespace

RAVEN_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph to,
                                             const CUgraphNode* dependencies, size_t count,
                                             CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  RAVEN_BEGIN(cuGraphAddMemAllocNode);
  const CUresult result = real(node, to, dependencies, count, parameters);
  if (result == CUDA_SUCCESS) graph::HasMemory();
  return result;
}

RAVEN_EXPORT CUresult cuGraphAddNode(CUgraphNode* node, CUgraph to, const CUgraphNode* dependencies,
                                     size_t count, CUgraphNodeParams* parameters) {
  RAVEN_BEGIN(cuGraphAddNode);
  interceptor::copies::NodeReaches(parameters);
  const CUresult result = real(node, to, dependencies, count, parameters);
  Note(result, parameters);
  return result;
}

RAVEN_EXPORT CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph to,
                                        const CUgraphNode* dependencies,
                                        const CUgraphEdgeData* edges, size_t count,
                                        CUgraphNodeParams* parameters) {
  RAVEN_BEGIN(cuGraphAddNode_v2);
  interceptor::copies::NodeReaches(parameters);
  const CUresult result = real(node, to, dependencies, edges, count, parameters);
  Note(result, parameters);
  return result;
}

RAVEN_EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  RAVEN_BEGIN(cuGraphLaunch);
  const CUresult result = interceptor::graph_uses::Launch(executable, stream, false, real);
  graph::RefreshUsage();
  return result;
}

RAVEN_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec executable, CUstream stream) {
  RAVEN_BEGIN(cuGraphLaunch_ptsz);
  const CUresult result = interceptor::graph_uses::Launch(executable, stream, true, real);
  graph::RefreshUsage();
  return result;
}

RAVEN_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
  RAVEN_BEGIN(cuDeviceGraphMemTrim);
  const CUresult result = real(device);
  graph::RefreshUsage();
  return result;
}
