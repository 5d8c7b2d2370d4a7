// The places of a job's ranges, in the order of its calls, which may be ahead of what the scheduler
// has seen.
//
// The rules are the scheduler's (core/plan/places.h), so that what it expects of later calls is
// what comes. A place is free here no earlier than there, once that has seen the calls before.
//
// Owns: the places. Units: bytes. Threads: one at a time (the lock of calls). Errors: none. Cost:
// O(log ranges) a call.
#pragma once

#include <optional>
#include <vector>

#include "core/books/page_tensors.h"
#include "core/plan/places.h"
#include "core/plan/places_in_use.h"
#include "core/types.h"

namespace ravenstore::elastic {

class JobPlaces {
 public:
  JobPlaces(core::Bytes page, core::Bytes addresses) : places_({.page = page}), end_(addresses) {}

  // For work of the stream. `most`: as Places::SetMost(). nullopt: there are no addresses.
  std::optional<core::plan::Place> Allocate(core::TensorNumber range, core::Bytes size,
                                            uint32_t most, core::StreamId stream);
  // The range is freed behind the work of the stream.
  void Free(core::TensorNumber range, core::StreamId stream);
  // All streams have passed the free.
  void EndFree(core::TensorNumber range);
  // The scheduler has refused the range.
  void Forget(core::TensorNumber range);

  core::plan::Place PlaceOf(core::TensorNumber range) const { return rows_[range].place; }
  core::Bytes SizeOf(core::TensorNumber range) const { return rows_[range].size; }
  core::StreamId StreamOf(core::TensorNumber range) const { return rows_[range].stream; }
  core::plan::UnitSpan UnitsOf(core::TensorNumber range) const {
    return places_.UnitsOf(rows_[range].place, rows_[range].size);
  }

 private:
  struct Row {
    core::plan::Place place;
    core::Bytes size;
    core::StreamId stream = core::kNoStream;  // for whose work it was created
    bool is_free = false;                     // for the same stream, which still uses it
  };

  core::plan::Places places_;
  const core::Bytes end_;
  core::plan::PlacesInUse in_use_;  // of places that are free
  std::vector<Row> rows_;           // by range
};

}  // namespace ravenstore::elastic
