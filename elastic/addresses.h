// The addresses that ranges have: one reserved run, cut into pieces of whole granules.
//
// A granule's owner is one array element, because it is looked up for each word of each kernel's
// parameters.
//
// Owns: the table, four bytes a granule. Threads: one at a time, except At(), which any thread may
// call meanwhile (it may miss a piece that is taken or returned at that time).
#pragma once

#include <cuda.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>

#include "core/types.h"

namespace ravenstore::elastic {

class Addresses {
 public:
  static constexpr uint32_t kNoOwner = 0;

  // REQUIRES: whole granules, of a power of two bytes.
  Addresses(CUdeviceptr begin, core::Bytes size, core::Bytes granule);

  // A piece of whole granules for `owner`, which may be kNoOwner for now; nothing: no run of free
  // addresses is as long. The lowest place is taken.
  std::optional<CUdeviceptr> Take(core::Bytes size, uint32_t owner);
  void Give(CUdeviceptr begin, core::Bytes size);
  // Whose piece it is from now on. REQUIRES: whole granules.
  void SetOwner(CUdeviceptr begin, core::Bytes size, uint32_t owner);
  // Whose piece it is, or kNoOwner.
  uint32_t At(CUdeviceptr address) const;

  CUdeviceptr begin() const { return begin_; }
  CUdeviceptr end() const { return begin_ + size_.count(); }

 private:
  const CUdeviceptr begin_;
  const core::Bytes size_;
  const core::Bytes granule_;
  std::unique_ptr<std::atomic<uint32_t>[]> owners_;
  std::map<CUdeviceptr, core::Bytes> free_;  // by begin; no two of them touch
};

}  // namespace ravenstore::elastic
