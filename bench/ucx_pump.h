// What UCX's own active messages move over the loopback, as UCX chooses to send them (rendezvous
// too): what the transport over UCX is measured against.
#pragma once

#include <cstddef>
#include <memory>

#include "core/result.h"

namespace ravenstore::bench {

class UcxPump {
 public:
  virtual ~UcxPump() = default;
  // `count` messages of `bytes` there, and as many back, at most `in_flight` at the same
  // time. Each is acknowledged when it is in its buffer. How long both took, in seconds.
  virtual double OutAndIn(size_t count, size_t in_flight, size_t bytes) = 0;
};

// A client on the thread that calls, and a server on a thread of its own, over UCX's TCP.
// `bytes_max`: of a message. Errors: LoadUcx's.
core::Result<std::unique_ptr<UcxPump>> OpenUcxPump(size_t bytes_max);

}  // namespace ravenstore::bench
