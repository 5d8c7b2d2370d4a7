// What has become of a session, as every call and every wait looks at it first.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/result.h"

namespace ravenstore::client {

enum class Phase : uint32_t {
  kAttached = 0,
  kLost = 1,        // the daemon died and did not come back in time
  kForked = 2,      // this process is a fork of the one that connected; the segment is not here
  kClosed = 3,      // disconnected; the segment and the arenas are unmapped
  kHandedOver = 4,  // its tensors are a named set, and the daemon's; not disconnected
};

using PhaseWord = std::atomic<Phase>;

// Why a session in `phase` refuses every call. REQUIRES: not kAttached.
inline core::Error RefusalOf(Phase phase) {
  switch (phase) {
    case Phase::kForked:
      return {core::ErrorCode::kForked,
              "this process is a fork of the one that connected: connect again here"};
    case Phase::kClosed:
      return {core::ErrorCode::kLost, "the store was disconnected, and its tensors went with it"};
    case Phase::kHandedOver:
      return {core::ErrorCode::kWrongState,
              "the store's tensors are a named set now: open it from another store"};
    case Phase::kLost:
    case Phase::kAttached: break;
  }
  return {core::ErrorCode::kLost,
          "the daemon is gone and its tensors with it: go back to a checkpoint and connect again"};
}

}  // namespace ravenstore::client
