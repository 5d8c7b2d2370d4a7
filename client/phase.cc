#include "client/phase.h"

namespace ravenstore::client {

core::Error RefusalOf(Phase phase) {
  switch (phase) {
    case Phase::kForked:
      return {core::ErrorCode::kForked,
              "this process is a fork of the one that connected: connect anew here"};
    case Phase::kClosed:
      return {core::ErrorCode::kLost, "the store was disconnected, and its tensors went with it"};
    case Phase::kLost:
    case Phase::kAttached: break;
  }
  return {core::ErrorCode::kLost,
          "the daemon is gone and its tensors with it: go back to a checkpoint and connect anew"};
}

}  // namespace ravenstore::client
