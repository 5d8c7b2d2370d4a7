#include "elastic/pace.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace ravenstore::elastic {

namespace {

// Under way: where the job runs further ahead, stretches are longer.
constexpr size_t kMarksMost = 256;

}  // namespace

Pace::~Pace() {
  if (last_) events_.Give(last_->event);
  for (const Mark& mark : marks_) events_.Give(mark.event);
}

void Pace::Ends(CUstream stream, int64_t call) {
  if (driver_->elapsed == nullptr || marks_.size() >= kMarksMost) return;
  // Another thread was faster.
  if (call < passed_ || (!marks_.empty() && call <= marks_.back().call)) return;
  if (CUevent event = events_.Record(stream)) marks_.push_back({event, call, stream});
}

std::optional<Pace::Stretch> Pace::Next() {
  std::vector<CUstream> busy;
  for (auto mark = marks_.begin(); mark != marks_.end();) {
    const bool waits = std::find(busy.begin(), busy.end(), mark->stream) != busy.end();
    if (waits || driver_->event_query(mark->event) == CUDA_ERROR_NOT_READY) {
      if (!waits) busy.push_back(mark->stream);
      ++mark;
      continue;
    }
    const Mark passed = *mark;
    mark = marks_.erase(mark);
    // A stream that is behind says nothing.
    if (passed.call < passed_) {
      events_.Give(passed.event);
      continue;
    }
    const std::optional<Mark> before = std::exchange(last_, passed);
    const int64_t from = std::exchange(passed_, passed.call + 1);
    if (!before) continue;
    float milliseconds = 0;
    const CUresult measured = driver_->elapsed(&milliseconds, before->event, passed.event);
    events_.Give(before->event);
    if (measured != CUDA_SUCCESS) continue;
    // Of two streams the later may have been sooner.
    const double seconds = std::max(0.0, static_cast<double>(milliseconds) * 1e-3);
    return Stretch{from, passed_, core::FromSeconds(seconds)};
  }
  return std::nullopt;
}

std::optional<int64_t> Pace::under_way() const {
  for (const Mark& mark : marks_) {
    if (mark.call >= passed_) return mark.call;
  }
  return std::nullopt;
}

}  // namespace ravenstore::elastic
