// The ids of tensors: each names a client and a row of its, and is never another tensor's.
//
// An id is the number of an entry and a serial that is new each time the entry is used.
//
// Owns: the entries. Threads: one at a time. Cost: O(1); 16 bytes an entry. Entries never move, so
// that no call takes longer where there are many.
#pragma once

#include <cstdint>
#include <optional>

#include "core/chunked.h"
#include "core/types.h"

namespace ravenstore::daemon {

class TensorIds {
 public:
  struct Of {
    core::ClientId client{};
    core::SlotId slot{};
  };

  core::TensorId Add(const Of& of) {
    uint32_t number = 0;
    if (free_.empty()) {
      number = static_cast<uint32_t>(entries_.size());
      entries_.push_back({});
    } else {
      number = free_.back();
      free_.pop_back();
    }
    Entry& entry = entries_[number];
    entry.of = of;
    ++entry.serial;
    entry.is_used = true;
    return core::TensorId{uint64_t{entry.serial} << 32 | number};
  }
  // nullopt: no tensor has it.
  std::optional<Of> Find(core::TensorId id) const {
    const uint32_t number = NumberOf(id);
    if (number >= entries_.size()) return std::nullopt;
    const Entry& entry = entries_[number];
    if (!entry.is_used || entry.serial != core::ToInt(id) >> 32) return std::nullopt;
    return entry.of;
  }
  // REQUIRES: a tensor has it.
  void Remove(core::TensorId id) {
    const uint32_t number = NumberOf(id);
    entries_[number].is_used = false;
    free_.push_back(number);
  }

 private:
  struct Entry {
    Of of;
    uint32_t serial = 0;
    bool is_used = false;
  };

  static uint32_t NumberOf(core::TensorId id) { return static_cast<uint32_t>(core::ToInt(id)); }

  core::Chunked<Entry, 1024> entries_;
  core::Chunked<uint32_t, 1024> free_;
};

}  // namespace ravenstore::daemon
