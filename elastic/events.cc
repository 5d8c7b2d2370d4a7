#include "elastic/events.h"

namespace ravenstore::elastic {

Events::~Events() {
  for (CUevent event : unused_) driver_->event_destroy(event);
}

CUevent Events::Record(CUstream stream) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver_->is_capturing(stream, &capture) != CUDA_SUCCESS ||
      capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return nullptr;
  }
  CUevent event = nullptr;
  if (!unused_.empty()) {
    event = unused_.back();
    unused_.pop_back();
  } else if (driver_->event_create(&event, flags_) != CUDA_SUCCESS) {
    return nullptr;
  }
  if (driver_->event_record(event, stream) == CUDA_SUCCESS) return event;
  Give(event);
  return nullptr;
}

}  // namespace ravenstore::elastic
