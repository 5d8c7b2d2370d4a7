// What a piece's granules held when they were acknowledged: a hash of each, and how much of it was
// written.
//
// A home keeps one for each piece that it has borrowed, and these are most of what it keeps of
// other nodes' memory: 8 bytes and a bit a granule, and a record more for each that is not whole.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "core/types.h"

namespace ravenstore::cluster {

// Of a granule's first `length` bytes; 0: none were acknowledged.
struct GranuleSum {
  uint64_t hash = 0;
  uint32_t length = 0;
  bool operator==(const GranuleSum&) const = default;
};

class GranuleSums {
 public:
  // None is acknowledged. REQUIRES: a granule's bytes fit 32 bits.
  GranuleSums(size_t granules, core::Bytes granule);

  size_t size() const { return hashes_.size(); }
  GranuleSum operator[](size_t index) const;
  void Set(size_t index, GranuleSum sum);
  std::vector<GranuleSum> Range(size_t begin, size_t end) const;
  // What it takes in memory.
  core::Bytes footprint() const;

 private:
  uint32_t whole_;
  std::vector<uint64_t> hashes_;
  std::vector<bool> acknowledged_;
  std::map<uint32_t, uint32_t> shorter_;  // lengths of those that were, and are not whole
};

}  // namespace ravenstore::cluster
