// The addresses that ranges have: one reserved run, cut into pieces of whole granules.
//
// Which piece an address lies in is an array's element: it is asked for each word of each kernel's
// parameters.
//
// Owns: the table, four bytes a granule. Threads: one at a time; At() beside any (a piece that is
// made or given back meanwhile may be missed).
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
  static constexpr uint32_t kNobody = 0;

  // REQUIRES: whole granules, of a power of two bytes.
  Addresses(CUdeviceptr begin, core::Bytes size, core::Bytes granule);

  // A piece of whole granules for `owner`, or for nobody yet; nothing: no run of free addresses is
  // as long. The lowest place is taken.
  std::optional<CUdeviceptr> Take(core::Bytes size, uint32_t owner);
  void Give(CUdeviceptr begin, core::Bytes size);
  // Whose piece it is from now on. REQUIRES: whole granules.
  void SetOwner(CUdeviceptr begin, core::Bytes size, uint32_t owner);
  // Whose piece it is, or kNobody.
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
