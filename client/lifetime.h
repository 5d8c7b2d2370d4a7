// create, adopt and free.
//
// Threads: any.
// Errors: kOutOfMemory and kTimedOut (no room, no answer by the deadline), kNotFound (no such
//   device), kLimit (rows, names or streams are used up), kWrongState, kLost, kForked, kCapturing,
//   kCorrupt (poison), the device's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "client/access.h"
#include "client/tensor.h"
#include "core/result.h"
#include "core/types.h"
#include "device/device.h"

namespace ravenstore::client {

struct CreateOptions {
  int device = 0;
  bool fail_fast = false;
  bool fail_stuck = false;
  bool long_lived = false;
  std::optional<device::StreamHandle> ordered_on{};  // as RAVENSTORE_STREAM_ORDERED
  std::string_view name;                             // empty: none
  core::Duration timeout{0};                         // 0: the session's
};

// All or none. `handles` has one place for each size.
core::Status CreateBatch(Session& session, std::span<const uint64_t> sizes,
                         const CreateOptions& options, uint64_t* handles);
core::Result<uint64_t> Create(Session& session, uint64_t bytes, const CreateOptions& options);
core::Result<uint64_t> Adopt(Session& session, const void* from, uint64_t bytes,
                             device::StreamHandle stream, const CreateOptions& options);

// Ends every handle, also when an error is returned: the first one. What could not be freed (a
// stream that captures, a daemon that takes no requests) is freed by a later create or free, at the
// latest with the session: nothing is lost. REQUIRES: they are of one session.
core::Status FreeBatch(std::span<const uint64_t> handles, device::StreamHandle stream);

// Tries again what earlier frees could not do.
void RetryFrees(Session& session);

}  // namespace ravenstore::client
