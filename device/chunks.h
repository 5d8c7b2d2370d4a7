// Which chunks of a range are mapped: the checks and the book-keeping that all ranges share.
//
// Addresses are reserved before the slow work of mapping or unmapping begins and released after, so
// that two threads never map over each other though no lock is held over a driver call.
// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/result.h"
#include "core/types.h"

namespace ravenstore::device {

template <typename Chunk>
class ChunkTable {
 public:
  ChunkTable(core::Bytes size, core::Bytes granularity) : size_(size), granularity_(granularity) {}

  // Reserves [offset, offset + bytes) and keeps what make(), a Result<std::shared_ptr<Chunk>>, put
  // there; releases the range again if that is an error.
  template <typename Make>
  core::Status Place(core::Bytes offset, core::Bytes bytes, Make make) {
    RAVEN_RETURN_IF_ERROR(Reserve(offset, bytes));
    core::Result<std::shared_ptr<Chunk>> chunk = make();
    std::lock_guard lock(mutex_);
    if (!chunk.ok()) {
      rows_.erase(offset);
      return std::move(chunk).error();
    }
    rows_.at(offset).chunk = *std::move(chunk);
    return core::Ok();
  }

  // Has clear(chunk), a Status, unmap the chunk at `offset`, and forgets it. If that is an error
  // the range stays reserved for ever: what is mapped there is not known.
  template <typename Clear>
  core::Status Remove(core::Bytes offset, Clear clear) {
    std::shared_ptr<Chunk> chunk;
    {
      std::lock_guard lock(mutex_);
      const auto row = rows_.find(offset);
      if (row == rows_.end() || row->second.chunk == nullptr) return Absent(offset);
      chunk = std::exchange(row->second.chunk, nullptr);
    }
    RAVEN_RETURN_IF_ERROR(clear(*chunk));
    std::lock_guard lock(mutex_);
    rows_.erase(offset);
    return core::Ok();
  }

  // kNotFound when no chunk begins at `offset`.
  core::Result<std::shared_ptr<Chunk>> Find(core::Bytes offset) const {
    std::lock_guard lock(mutex_);
    const auto row = rows_.find(offset);
    if (row == rows_.end() || row->second.chunk == nullptr) return Absent(offset);
    return row->second.chunk;
  }

  // Calls visit(offset, chunk) for every chunk and forgets them all.
  template <typename Visit>
  void Drain(Visit visit) {
    std::lock_guard lock(mutex_);
    for (auto& [offset, row] : rows_) {
      if (row.chunk != nullptr) visit(offset, *row.chunk);
    }
    rows_.clear();
  }

 private:
  struct Row {
    core::Bytes bytes;
    std::shared_ptr<Chunk> chunk;  // null while it is being filled or emptied
  };

  core::Status Reserve(core::Bytes offset, core::Bytes bytes) {
    const uint64_t mask = granularity_.count() - 1;
    if (bytes == core::Bytes{} || ((offset.count() | bytes.count()) & mask) != 0) {
      return Invalid(offset, "offset and size must be multiples of " +
                                 std::to_string(granularity_.count()) + ", got size " +
                                 std::to_string(bytes.count()));
    }
    if (offset > size_ || bytes > size_ - offset) {
      return Invalid(offset, std::to_string(bytes.count()) + " bytes reach past the arena's " +
                                 std::to_string(size_.count()));
    }
    std::lock_guard lock(mutex_);
    const auto next = rows_.lower_bound(offset);
    const bool hits_next = next != rows_.end() && next->first < offset + bytes;
    const bool hits_previous =
        next != rows_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > offset;
    if (hits_next || hits_previous) return Invalid(offset, "overlaps a chunk that is mapped");
    rows_.emplace(offset, Row{bytes, nullptr});
    return core::Ok();
  }

  static core::Error Invalid(core::Bytes offset, const std::string& what) {
    return {core::ErrorCode::kInvalidArgument,
            "arena offset " + std::to_string(offset.count()) + ": " + what};
  }
  static core::Error Absent(core::Bytes offset) {
    return {core::ErrorCode::kNotFound,
            "arena offset " + std::to_string(offset.count()) + ": no chunk begins there"};
  }

  const core::Bytes size_;
  const core::Bytes granularity_;
  mutable std::mutex mutex_;
  std::map<core::Bytes, Row> rows_;  // by offset; guarded by mutex_
};

}  // namespace ravenstore::device
