// The last call of each kind: of the same kernel with ranges of the same sizes.
//
// Owns: 16 bytes for each kind that is remembered; kinds of one place replace each other. Threads:
// one at a time. Cost: O(1). Errors: none.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace ravenstore::elastic {

class Twins {
 public:
  explicit Twins(size_t kinds) : twins_(kinds) {}

  // The finalizer of MurmurHash3 (Appleby).
  static uint64_t Mix(uint64_t hash, uint64_t more) {
    hash = (hash ^ more) * 0xff51afd7ed558ccd;
    return (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53;
  }

  // The call is of the kind. Returns the number of the one before, if it is known.
  std::optional<uint64_t> Next(uint64_t kind, uint64_t call) {
    const Twin before = std::exchange(twins_[kind % twins_.size()], {kind, call});
    return before.kind == kind && before.call != kNone ? std::optional(before.call) : std::nullopt;
  }

 private:
  static constexpr uint64_t kNone = UINT64_MAX;

  struct Twin {
    uint64_t kind = 0;
    uint64_t call = kNone;
  };

  std::vector<Twin> twins_;
};

}  // namespace ravenstore::elastic
