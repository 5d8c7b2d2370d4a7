// Which bytes each physical page of a simulated node's device holds: of which tensors, and of which
// version. Bytes that come from other nodes are compared with it.
//
// Owns: the ledger. The executor outlives it. Threads: one, the node's. Units: granules of tensors.
// Errors: none. Cost: O(tensors in a page) for each page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/execution/page_executor.h"
#include "core/types.h"

namespace ravenstore::sim {

// Consecutive granules of one tensor.
struct ClusterPart {
  core::TensorNumber tensor = 0;
  uint32_t version = 0;
  uint32_t first = 0;
  uint32_t granules = 0;
};
using ClusterParts = std::vector<ClusterPart>;  // in the order in which they are copied

uint32_t GranulesOf(const ClusterParts& parts);
// Writes what a copy of these parts holds in granules [`begin`, `end`) to `buffer`, where a granule
// takes `granule` bytes.
void FillGranules(const ClusterParts& parts, uint32_t begin, uint32_t end, size_t granule,
                  std::vector<std::byte>* buffer);

class ClusterContents {
 public:
  ClusterContents(const core::PageExecutor* executor, core::Bytes page, core::Bytes granule)
      : executor_(*executor),
        page_(page),
        granule_(granule),
        pages_(executor->books().memory().pages()) {}

  // All bytes of the tensor are of this version from now on. REQUIRES: it lives and is resident.
  void Write(core::TensorNumber tensor, uint32_t version);
  // Returns true if the device has that version of all its bytes. REQUIRES: it is resident.
  bool Holds(core::TensorNumber tensor, uint32_t version) const;
  // The parts of tensors that live in the page.
  ClusterParts PartsOf(core::plan::PhysicalPage page) const;
  // The page holds these from now on.
  void SetParts(core::plan::PhysicalPage page, ClusterParts parts) {
    pages_[page] = std::move(parts);
  }

 private:
  ClusterPart PartOf(core::TensorNumber tensor, uint32_t unit) const;

  const core::PageExecutor& executor_;
  const core::Bytes page_;
  const core::Bytes granule_;
  std::vector<ClusterParts> pages_;  // by physical page
};

}  // namespace ravenstore::sim
