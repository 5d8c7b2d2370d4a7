// Graphs: what a stream capture recorded, or memory nodes that were added by hand, done in order.
#include <algorithm>
#include <map>
#include <mutex>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/state.h"

struct CUgraphNode_st {
  fake_cuda::Work work;
};

// Guarded by the graphs' mutex, as all of an executable one.
struct CUgraph_st {
  uint64_t bytes = 0;  // of memory nodes
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};
struct CUgraphExec_st {
  uint64_t bytes = 0;
  std::vector<fake_cuda::Work> work;
};

namespace fake_cuda {
namespace {

constexpr int kDevicesMax = 64;

struct Graphs {
  std::mutex mutex;
  std::map<CUgraph, std::unique_ptr<CUgraph_st>> known;
  std::map<CUgraphExec, std::unique_ptr<CUgraphExec_st>> executable;
  // What each device's pool for memory nodes holds.
  std::atomic<uint64_t> bytes[kDevicesMax];
};
Graphs& graphs() {
  static Graphs* instance = new Graphs;
  return *instance;
}

// Under the mutex. Null: no such node.
CUgraphNode Find(CUgraphNode node) {
  for (const auto& [handle, graph] : graphs().known) {
    for (const auto& one : graph->nodes) {
      if (one.get() == node) return node;
    }
  }
  return nullptr;
}

}  // namespace

CUgraph NewGraph() {
  auto graph = std::make_unique<CUgraph_st>();
  const CUgraph handle = graph.get();
  std::lock_guard lock(graphs().mutex);
  graphs().known[handle] = std::move(graph);
  return handle;
}

void AddNode(CUgraph graph, Work work) {
  std::lock_guard lock(graphs().mutex);
  graph->nodes.push_back(std::make_unique<CUgraphNode_st>(CUgraphNode_st{std::move(work)}));
}

}  // namespace fake_cuda

using fake_cuda::Charged;
using fake_cuda::graphs;

CUresult cuGraphCreate(CUgraph* graph, unsigned int) {
  *graph = fake_cuda::NewGraph();
  return CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, size_t,
                                CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  fake_cuda::AddNode(graph, {CU_GRAPH_NODE_TYPE_MEM_ALLOC, [](CUcontext) {}, nullptr});
  std::lock_guard lock(graphs().mutex);
  graph->bytes += parameters->bytesize;
  *node = graph->nodes.back().get();
  parameters->dptr = CUdeviceptr{1} << 45;
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  std::lock_guard lock(graphs().mutex);
  if (graphs().known.count(graph) == 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t all = graph->nodes.size();
  if (nodes == nullptr) {
    *count = all;
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *count; ++i) nodes[i] = i < all ? graph->nodes[i].get() : nullptr;
  *count = std::min(*count, all);
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  std::lock_guard lock(graphs().mutex);
  if (fake_cuda::Find(node) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = node->work.type;
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* parameters) {
  std::lock_guard lock(graphs().mutex);
  if (fake_cuda::Find(node) == nullptr || node->work.launch == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  fake_cuda::Describe(*node->work.launch, parameters);
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  FAKE_CUDA_ENTER("cuGraphInstantiate");
  std::lock_guard lock(graphs().mutex);
  if (graphs().known.count(graph) == 0) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<CUgraphExec_st>();
  made->bytes = graph->bytes;
  for (const auto& node : graph->nodes) made->work.push_back(node->work);
  *executable = made.get();
  graphs().executable[*executable] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  const CUresult result = cuGraphInstantiateWithFlags(executable, graph, 0);
  parameters->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

// The nodes take new parameters; their number and kinds stay.
CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph,
                              CUgraphExecUpdateResultInfo* how) {
  FAKE_CUDA_ENTER("cuGraphExecUpdate");
  std::lock_guard lock(graphs().mutex);
  if (graphs().known.count(graph) == 0 || graphs().executable.count(executable) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool alike = std::equal(
      graph->nodes.begin(), graph->nodes.end(), executable->work.begin(), executable->work.end(),
      [](const auto& node, const auto& work) { return node->work.type == work.type; });
  how->result = alike ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  if (!alike) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  for (size_t i = 0; i < graph->nodes.size(); ++i) executable->work[i] = graph->nodes[i]->work;
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  FAKE_CUDA_CONTEXT("cuGraphLaunch");
  std::vector<fake_cuda::Work> work;
  {
    std::lock_guard lock(graphs().mutex);
    if (graphs().executable.count(executable) == 0) return CUDA_ERROR_INVALID_VALUE;
    // The pool keeps what its largest graph needed, until it is trimmed.
    auto& pool = graphs().bytes[context->device];
    if (pool < executable->bytes) {
      if (!fake_cuda::Charge(context->device, executable->bytes - pool)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      pool = executable->bytes;
    }
    work = executable->work;
  }
  // One thing for the stream, so that nothing comes between its nodes. The executable graph may be
  // destroyed before.
  const auto run = [work = std::move(work)](CUcontext in) {
    for (const auto& one : work) {
      if (in->error.load() == CUDA_SUCCESS) one.run(in);
    }
  };
  return fake_cuda::Enqueue(stream, context, {CU_GRAPH_NODE_TYPE_GRAPH, run, nullptr});
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute, void* value) {
  *static_cast<cuuint64_t*>(value) = graphs().bytes[device];
  return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  Charged(device) -= graphs().bytes[device].exchange(0);
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  std::lock_guard lock(graphs().mutex);
  return graphs().known.erase(graph) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  std::lock_guard lock(graphs().mutex);
  return graphs().executable.erase(executable) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#undef cuGraphLaunch
extern "C" CUresult cuGraphLaunch_ptsz(CUgraphExec executable, CUstream stream) {
  return cuGraphLaunch(executable, FAKE_CUDA_PER_THREAD(stream));
}
