#include "elastic/pace.h"

#include <algorithm>

namespace ravenstore::elastic {

namespace {

// Under way: where the job runs further ahead, stretches are longer.
constexpr size_t kMarksMost = 256;

}  // namespace

Pace::~Pace() {
  if (last_) events_.push_back(last_->event);
  for (const Mark& mark : marks_) events_.push_back(mark.event);
  for (CUevent event : events_) driver_->event_destroy(event);
}

void Pace::Ends(CUstream stream, int64_t call) {
  if (driver_->elapsed == nullptr || marks_.size() >= kMarksMost) return;
  // Another thread was faster.
  if (call < passed_ || (!marks_.empty() && call <= marks_.back().call)) return;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver_->is_capturing(stream, &capture) != CUDA_SUCCESS ||
      capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return;
  }
  CUevent event = nullptr;
  if (!events_.empty()) {
    event = events_.back();
    events_.pop_back();
  } else if (driver_->event_create(&event, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
    return;
  }
  if (driver_->event_record(event, stream) == CUDA_SUCCESS) {
    marks_.push_back({event, call});
  } else {
    events_.push_back(event);
  }
}

std::optional<Pace::Stretch> Pace::Next() {
  while (!marks_.empty() && driver_->event_query(marks_.front().event) != CUDA_ERROR_NOT_READY) {
    const std::optional<Mark> before = last_;
    last_ = marks_.front();
    marks_.pop_front();
    passed_ = last_->call + 1;
    if (!before) continue;
    float milliseconds = 0;
    const CUresult measured = driver_->elapsed(&milliseconds, before->event, last_->event);
    events_.push_back(before->event);
    if (measured != CUDA_SUCCESS) continue;
    // Of two streams the later may be over sooner.
    const double seconds = std::max(0.0, static_cast<double>(milliseconds) * 1e-3);
    return Stretch{before->call + 1, passed_, core::FromSeconds(seconds)};
  }
  return std::nullopt;
}

}  // namespace ravenstore::elastic
