// The state of a page or a slot while a client runs.
//
// Owns: plain data. Units: bytes.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace ravenstore::core::plan {

struct UnitState {
  enum class Phase : uint8_t {
    kAway,     // no physical memory is beneath it
    kMapping,  // physical memory is being mapped
    kQueued,   // mapped; its bytes wait for the link
    kCopying,  // its bytes come
    kResident,
  };

  Phase phase = Phase::kAway;
  bool dirty = false;     // resident: the device's bytes are newer than any copy
  bool leaving = false;   // resident: its bytes are being copied out
  bool demanded = false;  // a call waits for it
  bool forced = false;    // leaves though the plan does not say so
  uint32_t pins = 0;      // calls that hold it
  uint32_t tickets = 0;   // puts and frees that the client's stream has not reached
  uint32_t live = 0;      // tensors in it
  uint32_t slots_per_page = 1;
  Bytes bytes = {};       // of those tensors
  uint64_t last_use = 0;  // counts uses of all units

  bool InUse() const { return pins > 0 || tickets > 0; }
  bool IsIdle() const {
    return phase == Phase::kResident && !InUse() && live > 0 && !leaving && !forced;
  }
};

}  // namespace ravenstore::core::plan
