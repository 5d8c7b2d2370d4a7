// Every tensor the store knows: dense rows, addressed by id in O(1).
//
// A TensorId is the row's index and a serial that is new each time the row is used, so an old id
// never matches a new tensor. Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>

#include "core/chunked.h"
#include "core/extents.h"
#include "core/forecast.h"
#include "core/indexed_heap.h"
#include "core/planner.h"
#include "core/types.h"

namespace ravenstore::core {

// How a tensor's next use is known; each kind is ordered among itself only.
enum class UseKind : uint8_t { kUnknown, kAt, kOrder, kLearned };

struct TensorRow {
  TensorId id = kNoTensor;  // kNoTensor: the row is free
  Bytes size;
  // The larger, the later it is needed: kAt the time in ns, kOrder the order, kLearned the logical
  // time (core/forecast.h), kUnknown minus the time of its last use.
  int64_t use_key = 0;
  ClientId client{};
  SlotId slot{};
  NameId name = kNoName;
  ExtentMap::Block device_block = ExtentMap::kNone;
  ExtentMap::Block host_block = ExtentMap::kNone;
  uint32_t heap_position = kNotInHeap;
  LogicalUse logical;
  uint32_t writes = 0;  // the slot's count at the last put seen
  DeviceId device{};
  // The bits of the nanoseconds that recomputing it takes; 0: it cannot be, or copying is cheaper.
  uint16_t recompute : 7 = 0;
  uint16_t heap : 9 = 0;  // which of EvictionIndex's, while heap_position says it is in one
  UseKind use_kind : 2 = UseKind::kUnknown;
  Priority priority : 2 = Priority::kNormal;
  Residency residency : 3 = Residency::kOnDevice;
  bool in_use : 1 = true;
  bool stream_complete : 1 = false;  // no stream touches it
  bool on_host : 1 = false;          // there is a host copy
  bool written : 1 = false;          // since that was made
  bool copying : 1 = false;          // a copy of it is under way
  bool cleaning : 1 = false;         // that copy does not take it off its device
  bool leaves : 1 = false;           // but as soon as it is done the tensor leaves
  bool drains : 1 = false;           // leaves so that its slab can be given back
  bool freed : 1 = false;            // goes once its copy is done
  bool never : 1 = false;            // will not be read again: may be dropped unread
  bool prefetched : 1 = false;       // brought unasked and not used yet
  bool waiting : 1 = false;          // a fetch of it waits
  bool put_seen : 1 = false;         // since its last copy to the host began
  bool listed : 1 = false;           // among the prefetch candidates
  bool discarding : 1 = false;       // leaves without a copy, to be recomputed
  bool discarded : 1 = false;        // has left so: there are no bytes
  bool dies : 1 = false;             // learned: it is freed at use_key, not read
  bool predicted : 1 = false;        // use_key is no hint, though of a hint's kind
  bool correlated : 1 = false;       // predicted from what was used before it (core/correlation.h)
  bool redundant_copy : 1 = false;   // in its client's list of host copies that can be given up
  bool pinned : 1 = false;  // on its device, and in use or not stream-complete: it cannot leave

  bool dirty() const { return !on_host || written; }
  // What will be read again is on the device alone: to leave it takes a copy, or recomputing it.
  bool needs_copy() const { return dirty() && !never; }
};
// What recomputing the bytes takes, to within a factor of 1.5.
inline Duration RecomputeTime(const TensorRow& tensor) {
  return Duration(int64_t{3} << tensor.recompute >> 2);
}
static_assert(sizeof(TensorRow) <= 72, "the catalog's bytes per tensor are a published figure");

class Catalog {
 public:
  // A fresh row with its id set.
  TensorRow& Add() {
    auto row = static_cast<uint32_t>(rows_.size());
    if (spare_.empty()) {
      rows_.push_back(TensorRow());
    } else {
      row = spare_.back();
      spare_.pop_back();
      rows_[row] = TensorRow();
    }
    TensorRow& tensor = rows_[row];
    if (++serial_ == 0) ++serial_;  // so that no id is kNoTensor
    tensor.id = TensorId{uint64_t{serial_} << 32 | row};
    return tensor;
  }
  void Remove(TensorId id) {
    rows_[RowOf(id)].id = kNoTensor;
    spare_.push_back(RowOf(id));
  }
  // Null when there is no such tensor.
  TensorRow* Find(TensorId id) {
    const uint32_t row = RowOf(id);
    if (id == kNoTensor || row >= rows_.size()) return nullptr;
    TensorRow& tensor = rows_[row];
    return tensor.id == id ? &tensor : nullptr;
  }
  const TensorRow* Find(TensorId id) const { return const_cast<Catalog*>(this)->Find(id); }

  static uint32_t RowOf(TensorId id) { return static_cast<uint32_t>(ToInt(id)); }
  TensorRow& operator[](uint32_t row) { return rows_[row]; }
  const TensorRow& operator[](uint32_t row) const { return rows_[row]; }
  size_t rows() const { return rows_.size(); }
  size_t count() const { return rows_.size() - spare_.size(); }

 private:
  Chunked<TensorRow, 4096> rows_;
  std::deque<uint32_t> spare_;
  uint32_t serial_ = 0;
};

}  // namespace ravenstore::core
