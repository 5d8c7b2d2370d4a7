// What calls have done with ranges and the scheduler has not seen, in the order of the calls.
//
// Owns: the calls, and their memory for later ones. Units: the job's virtual time; calls by number.
// Threads: one at a time (the lock of calls). Cost: O(1) a call. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include "core/books/page_tensors.h"
#include "core/plan/places.h"
#include "core/types.h"
#include "elastic/point.h"

namespace ravenstore::elastic {

struct LoggedCall {
  enum class Kind : uint8_t { kCreate, kUse, kPut, kFree };
  Kind kind;
  core::TensorNumber range;
  core::Duration at;
  int64_t call = 0;  // of a use: its number; of a create: that of the next call
  // Of a create: it is resident there.
  core::Bytes size{};
  core::plan::Place place{};
  uint32_t stream = 0;  // of a create and a free
  // Of a put and a free: the last uses of the range.
  Point point = {};
  std::vector<Point> others = {};
};

class CallLog {
 public:
  void Add(const LoggedCall& call) { calls_.push_back(call); }
  // Takes the points out, and leaves their memory.
  void Add(LoggedCall call, std::vector<Point>* points) {
    if (!points->empty()) call.point = points->back();
    if (points->size() > 1) call.others.assign(points->begin(), points->end() - 1);
    points->clear();
    calls_.push_back(std::move(call));
  }

  size_t size() const { return calls_.size(); }
  // Moves the calls to `taken`, whose memory the next ones have.
  void Take(std::vector<LoggedCall>* taken) {
    taken->clear();
    calls_.swap(*taken);
  }

 private:
  std::vector<LoggedCall> calls_;
};

}  // namespace ravenstore::elastic
