// What copies, sets and waits name (touches.def).
//
// Threads: any.
#pragma once

#include "interceptor/touch.h"

namespace ravenstore::interceptor::copies {

// What a description of rows and layers names: CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER.
template <typename Description>
void Rows(Touched& touched, const Description* copy) {
  if (copy == nullptr) return;
  const auto has_address = [](CUmemorytype type) {
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
  };
  uint64_t layers = 1;
  uint64_t first_row = copy->srcY;
  uint64_t layer_rows = 0;
  if constexpr (requires { copy->Depth; }) {
    layers = copy->Depth;
    layer_rows = copy->srcHeight;
    first_row += copy->srcZ * layer_rows;
  }
  touched.Shape(copy->WidthInBytes);
  touched.Shape(copy->Height * layers);
  if (has_address(copy->srcMemoryType)) touched.Name(copy->srcDevice);
  // Arrays are not searched for addresses.
  if (!has_address(copy->dstMemoryType)) return;
  touched.Name(copy->dstDevice);
  if (!touched.is_after() || copy->WidthInBytes * copy->Height * layers > kLargestTable) return;
  const bool maybe = copy->srcMemoryType == CU_MEMORYTYPE_UNIFIED;
  if (!maybe && copy->srcMemoryType != CU_MEMORYTYPE_HOST) return;
  const uint64_t base = maybe ? copy->srcDevice : reinterpret_cast<uint64_t>(copy->srcHost);
  const uint64_t to = copy->dstDevice + copy->dstXInBytes;
  for (uint64_t i = 0; i < copy->Height * layers; ++i) {
    const uint64_t row = first_row + i / copy->Height * layer_rows + i % copy->Height;
    const uint64_t from = base + row * copy->srcPitch + copy->srcXInBytes;
    if (maybe) {
      touched.MaybeTable(to, from, copy->WidthInBytes);
    } else {
      touched.Table(to, reinterpret_cast<const void*>(from), copy->WidthInBytes);
    }
  }
}

// A graph has, or is to have, this as a node (ReachNamed).
inline void NodeReaches(const CUDA_MEMCPY3D* copy) {
  ReachNamed([copy](Touched& touched) { Rows(touched, copy); });
}
inline void NodeReaches(const CUDA_MEMSET_NODE_PARAMS* set) {
  ReachNamed([set](Touched& touched) {
    if (set != nullptr) touched.Name(set->dst);
  });
}
inline void NodeReaches(const CUgraphNodeParams* node) {
  if (node == nullptr) return;
  if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY) NodeReaches(&node->memcpy.copyParams);
  if (node->type != CU_GRAPH_NODE_TYPE_MEMSET) return;
  ReachNamed([node](Touched& touched) { touched.Name(node->memset.dst); });
}

}  // namespace ravenstore::interceptor::copies
