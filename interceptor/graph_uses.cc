#include "interceptor/graph_uses.h"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "interceptor/copies.h"
#include "interceptor/driver.h"
#include "interceptor/graph.h"
#include "interceptor/hooks.h"
#include "interceptor/params.h"
#include "interceptor/settings.h"
#include "interceptor/start.h"

namespace ravenstore::interceptor::graph_uses {
namespace {

// What an executable names, on pages of its own.
struct Uses {
  size_t mapped;
  Code code;  // of all its kernels
  uint32_t count;
  bool unknown;
  CUdeviceptr addresses[];
};

// More is as good as anything.
constexpr uint32_t kMost = 1u << 16;
constexpr int kDeepest = 16;

Uses* Map(uint32_t count) {
  const size_t bytes = sizeof(Uses) + count * sizeof(CUdeviceptr);
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  auto* uses = static_cast<Uses*>(pages);
  uses->mapped = bytes;
  return uses;
}

void Unmap(Uses* uses) {
  if (uses != nullptr) munmap(uses, uses->mapped);
}

struct Functions {
  decltype(&cuGraphGetNodes) nodes;
  decltype(&cuGraphNodeGetType) type;
  decltype(&cuGraphKernelNodeGetParams_v2) kernel;
  decltype(&cuGraphMemcpyNodeGetParams) copy;
  decltype(&cuGraphMemsetNodeGetParams) set;
  decltype(&cuGraphChildGraphNodeGetGraph) child;
};

bool Find(Functions* functions) {
  const auto find = [](const char* symbol, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(DriverFunction(symbol));
    return *function != nullptr;
  };
  // Without one of these some nodes cannot be read, and are unknown.
  find("cuGraphKernelNodeGetParams_v2", &functions->kernel);
  find("cuGraphMemcpyNodeGetParams", &functions->copy);
  find("cuGraphMemsetNodeGetParams", &functions->set);
  find("cuGraphChildGraphNodeGetGraph", &functions->child);
  return find("cuGraphGetNodes", &functions->nodes) && find("cuGraphNodeGetType", &functions->type);
}

// All versions of it begin alike.
template <typename Kernel>
void NameKernel(const Kernel& kernel, CUfunction function, Touched* touched) {
  params::Name(function, kernel.kernelParams, kernel.extra, touched);
}

CUfunction FunctionOf(const CUDA_KERNEL_NODE_PARAMS_v2& kernel) {
  return kernel.func != nullptr ? kernel.func : reinterpret_cast<CUfunction>(kernel.kern);
}

void NameGraph(const Functions& functions, CUgraph graph, int depth, Touched* touched);

void NameNode(const Functions& functions, CUgraphNode node, int depth, Touched* touched) {
  CUgraphNodeType type{};
  if (functions.type(node, &type) != CUDA_SUCCESS) return touched->Unknown();
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS_v2 kernel{};
      const bool read =
          functions.kernel != nullptr && functions.kernel(node, &kernel) == CUDA_SUCCESS;
      return read ? NameKernel(kernel, FunctionOf(kernel), touched) : touched->Unknown();
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      CUDA_MEMCPY3D copy{};
      const bool read = functions.copy != nullptr && functions.copy(node, &copy) == CUDA_SUCCESS;
      return read ? copies::Rows(*touched, &copy) : touched->Unknown();
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      CUDA_MEMSET_NODE_PARAMS set{};
      const bool read = functions.set != nullptr && functions.set(node, &set) == CUDA_SUCCESS;
      return read ? touched->Name(set.dst) : touched->Unknown();
    }
    case CU_GRAPH_NODE_TYPE_GRAPH: {
      CUgraph child = nullptr;
      const bool read = functions.child != nullptr && depth < kDeepest &&
                        functions.child(node, &child) == CUDA_SUCCESS;
      return read ? NameGraph(functions, child, depth + 1, touched) : touched->Unknown();
    }
    // Memory nodes are of the graph's own memory.
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_HOST:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: return;
    default: return touched->Unknown();
  }
}

void NameGraph(const Functions& functions, CUgraph graph, int depth, Touched* touched) {
  size_t count = 0;
  if (functions.nodes(graph, nullptr, &count) != CUDA_SUCCESS) return touched->Unknown();
  if (count == 0) return;
  const size_t bytes = count * sizeof(CUgraphNode);
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return touched->Unknown();
  auto* nodes = static_cast<CUgraphNode*>(pages);
  if (functions.nodes(graph, nodes, &count) != CUDA_SUCCESS) {
    touched->Unknown();
    count = 0;
  }
  for (size_t i = 0; i < count; ++i) NameNode(functions, nodes[i], depth, touched);
  munmap(pages, bytes);
}

// In ledger's words: the executable's entry has its uses as its object.
Uses* UsesOf(CUgraphExec executable) {
  Entry entry;
  const bool known = ledger.Find(Space::kGraphExec, reinterpret_cast<uint64_t>(executable), &entry);
  return known ? static_cast<Uses*>(entry.object) : nullptr;
}

void Drop(CUgraphExec executable) {
  Entry entry;
  if (ledger.Take(Space::kGraphExec, reinterpret_cast<uint64_t>(executable), &entry)) {
    Unmap(static_cast<Uses*>(entry.object));
  }
}

// The executable names what `name(touched)` names, and, with `keep`, what it did before.
template <typename Name>
void Note(CUgraphExec executable, bool keep, Name name) {
  Uses* room = Map(kMost);
  if (room == nullptr) return Drop(executable);
  Touched touched(0, room->addresses, kMost);
  const Uses* before = UsesOf(executable);
  if (keep && (before == nullptr || before->unknown)) touched.Unknown();
  if (keep && before != nullptr) touched.Runs(before->code);
  for (uint32_t i = 0; keep && before != nullptr && i < before->count; ++i) {
    touched.Name(before->addresses[i]);
  }
  name(&touched);
  std::sort(room->addresses, room->addresses + touched.count());
  const CUdeviceptr* end = std::unique(room->addresses, room->addresses + touched.count());
  const auto count = static_cast<uint32_t>(end - room->addresses);
  Uses* uses = Map(count);
  if (uses != nullptr) {
    memcpy(uses->addresses, room->addresses, count * sizeof(CUdeviceptr));
    uses->count = count;
    uses->unknown = touched.unknown();
    uses->code = touched.code();
  }
  Unmap(room);
  Drop(executable);
  Entry entry;
  entry.space = Space::kGraphExec;
  entry.key = reinterpret_cast<uint64_t>(executable);
  entry.object = uses;
  // An executable without an entry may touch anything.
  if (uses != nullptr && !ledger.Add(entry)) Unmap(uses);
}

void NoteGraph(CUgraphExec executable, CUgraph graph, bool keep = false) {
  Note(executable, keep, [graph](Touched* touched) {
    Functions functions{};
    if (!Find(&functions)) return touched->Unknown();
    NameGraph(functions, graph, 0, touched);
  });
}

bool Follows(CUresult result) {
  return result == CUDA_SUCCESS && AskedMode() == Mode::kElastic;
}

CUresult Made(CUresult result, const CUgraphExec* executable, CUgraph graph) {
  if (Follows(result)) NoteGraph(*executable, graph);
  return result;
}

CUresult Updated(CUresult result, CUgraphExec executable, CUgraph graph) {
  if (Follows(result)) NoteGraph(executable, graph);
  return result;
}

// A node of the executable is another: it names `name(touched)` as well.
template <typename Name>
CUresult Changed(CUresult result, CUgraphExec executable, Name name) {
  if (Follows(result)) Note(executable, true, name);
  return result;
}

CUresult ChangedKernel(CUresult result, CUgraphExec executable,
                       const CUDA_KERNEL_NODE_PARAMS_v2* kernel, bool has_kern) {
  return Changed(result, executable, [&](Touched* touched) {
    NameKernel(*kernel, has_kern ? FunctionOf(*kernel) : kernel->func, touched);
  });
}

void NameAny(const CUgraphNodeParams& node, Touched* touched) {
  switch (node.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const auto& kernel = node.kernel;
      const auto function =
          kernel.func != nullptr ? kernel.func : reinterpret_cast<CUfunction>(kernel.kern);
      return NameKernel(kernel, function, touched);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: return copies::Rows(*touched, &node.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: return touched->Name(node.memset.dst);
    case CU_GRAPH_NODE_TYPE_HOST:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: return;
    default: return touched->Unknown();
  }
}

}  // namespace

CUresult Launch(CUgraphExec executable, CUstream stream, bool per_thread,
                CUresult (*call)(CUgraphExec executable, CUstream stream)) {
  if (!elastic::On()) return call(executable, stream);
  const Within within;
  if (!within.outermost()) return call(executable, stream);
  Uses* uses = UsesOf(executable);
  const uint32_t count = uses == nullptr ? 0 : uses->count;
  Touched touched(kGraph, uses == nullptr ? nullptr : uses->addresses, count);
  touched.Shape(reinterpret_cast<uint64_t>(executable));
  touched.NameAll();
  if (uses != nullptr) touched.Runs(uses->code);
  if (uses == nullptr || uses->unknown) touched.Unknown();
  Touching touching(&touched, stream, per_thread);
  const CUresult result = call(executable, stream);
  touching.End(result);
  return result;
}

}  // namespace ravenstore::interceptor::graph_uses

namespace interceptor = ravenstore::interceptor;
namespace graph_uses = interceptor::graph_uses;

RAVEN_EXPORT CUresult cuGraphInstantiate(CUgraphExec* executable, CUgraph graph, CUgraphNode* node,
                                         char* text, size_t room) {
  RAVEN_BEGIN(cuGraphInstantiate);
  return graph_uses::Made(real(executable, graph, node, text, room), executable, graph);
}

RAVEN_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec* executable, CUgraph graph,
                                            CUgraphNode* node, char* text, size_t room) {
  RAVEN_BEGIN(cuGraphInstantiate_v2);
  return graph_uses::Made(real(executable, graph, node, text, room), executable, graph);
}

RAVEN_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                                  unsigned long long flags) {
  RAVEN_BEGIN(cuGraphInstantiateWithFlags);
  return graph_uses::Made(real(executable, graph, flags), executable, graph);
}

RAVEN_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  RAVEN_BEGIN(cuGraphInstantiateWithParams);
  return graph_uses::Made(real(executable, graph, parameters), executable, graph);
}

RAVEN_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* executable, CUgraph graph,
                                                        CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  RAVEN_BEGIN(cuGraphInstantiateWithParams_ptsz);
  return graph_uses::Made(real(executable, graph, parameters), executable, graph);
}

RAVEN_EXPORT CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphNode* node,
                                        CUgraphExecUpdateResult* how) {
  RAVEN_BEGIN(cuGraphExecUpdate);
  return graph_uses::Updated(real(executable, graph, node, how), executable, graph);
}

RAVEN_EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph,
                                           CUgraphExecUpdateResultInfo* how) {
  RAVEN_BEGIN(cuGraphExecUpdate_v2);
  return graph_uses::Updated(real(executable, graph, how), executable, graph);
}

// The first version has no `kern`, and is the second's beginning else.
RAVEN_EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                     const CUDA_KERNEL_NODE_PARAMS_v1* kernel) {
  RAVEN_BEGIN(cuGraphExecKernelNodeSetParams);
  return graph_uses::ChangedKernel(real(executable, node, kernel), executable,
                                   reinterpret_cast<const CUDA_KERNEL_NODE_PARAMS_v2*>(kernel),
                                   false);
}

RAVEN_EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
                                                        const CUDA_KERNEL_NODE_PARAMS_v2* kernel) {
  RAVEN_BEGIN(cuGraphExecKernelNodeSetParams_v2);
  return graph_uses::ChangedKernel(real(executable, node, kernel), executable, kernel, true);
}

RAVEN_EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                     const CUDA_MEMCPY3D* copy, CUcontext context) {
  RAVEN_BEGIN(cuGraphExecMemcpyNodeSetParams);
  interceptor::copies::NodeReaches(copy);
  return graph_uses::Changed(
      real(executable, node, copy, context), executable,
      [&](interceptor::Touched* touched) { interceptor::copies::Rows(*touched, copy); });
}

RAVEN_EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                     const CUDA_MEMSET_NODE_PARAMS* set,
                                                     CUcontext context) {
  RAVEN_BEGIN(cuGraphExecMemsetNodeSetParams);
  interceptor::copies::NodeReaches(set);
  return graph_uses::Changed(real(executable, node, set, context), executable,
                             [&](interceptor::Touched* touched) { touched->Name(set->dst); });
}

RAVEN_EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                         CUgraph child) {
  RAVEN_BEGIN(cuGraphExecChildGraphNodeSetParams);
  const CUresult result = real(executable, node, child);
  if (graph_uses::Follows(result)) graph_uses::NoteGraph(executable, child, true);
  return result;
}

RAVEN_EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                               CUgraphNodeParams* parameters) {
  RAVEN_BEGIN(cuGraphExecNodeSetParams);
  interceptor::copies::NodeReaches(parameters);
  return graph_uses::Changed(
      real(executable, node, parameters), executable,
      [&](interceptor::Touched* touched) { graph_uses::NameAny(*parameters, touched); });
}

RAVEN_EXPORT CUresult cuGraphExecBatchMemOpNodeSetParams(
    CUgraphExec executable, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
  RAVEN_BEGIN(cuGraphExecBatchMemOpNodeSetParams);
  return graph_uses::Changed(real(executable, node, parameters), executable,
                             [](interceptor::Touched* touched) { touched->Unknown(); });
}

RAVEN_EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable) {
  RAVEN_BEGIN(cuGraphExecDestroy);
  // Dropped before the call: the driver may reuse its name immediately.
  graph_uses::Drop(executable);
  return real(executable);
}

// --- Captures

namespace {
CUresult Began(CUresult result) {
  if (result == CUDA_SUCCESS) interceptor::CaptureBegan();
  return result;
}
// A capture that was broken has ended as well.
CUresult Ended(CUresult result) {
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) {
    interceptor::CaptureEnded();
  }
  return result;
}
}  // namespace

RAVEN_EXPORT CUresult cuStreamBeginCapture(CUstream stream) {
  RAVEN_BEGIN(cuStreamBeginCapture);
  return Began(real(stream));
}
RAVEN_EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  RAVEN_BEGIN(cuStreamBeginCapture_ptsz);
  return Began(real(stream));
}
RAVEN_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  RAVEN_BEGIN(cuStreamBeginCapture_v2);
  return Began(real(stream, mode));
}
RAVEN_EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  RAVEN_BEGIN(cuStreamBeginCapture_v2_ptsz);
  return Began(real(stream, mode));
}
RAVEN_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                                  const CUgraphNode* dependencies,
                                                  const CUgraphEdgeData* edges, size_t count,
                                                  CUstreamCaptureMode mode) {
  RAVEN_BEGIN(cuStreamBeginCaptureToGraph);
  return Began(real(stream, graph, dependencies, edges, count, mode));
}
RAVEN_EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                       const CUgraphNode* dependencies,
                                                       const CUgraphEdgeData* edges, size_t count,
                                                       CUstreamCaptureMode mode) {
  RAVEN_BEGIN(cuStreamBeginCaptureToGraph_ptsz);
  return Began(real(stream, graph, dependencies, edges, count, mode));
}
RAVEN_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  RAVEN_BEGIN(cuStreamEndCapture);
  return Ended(real(stream, graph));
}
RAVEN_EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  RAVEN_BEGIN(cuStreamEndCapture_ptsz);
  return Ended(real(stream, graph));
}
