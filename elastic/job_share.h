// How much of a device a job's engine may hold that shares it with the user's other engines.
//
// Each engine publishes its demand, and divides the device among all of them by the core's rules
// (core/decide/page_shares.h, core/decide/peak_turns.h). So all come to about the same shares
// without asking anybody. For moments they may differ, since each reads the others' wants at its
// own times. What they hold is bounded by the ledger, not by these shares.
//
// Owns: whose turn it is, as this engine sees it. Units: bytes. Threads: one at a time. Errors:
// none. Cost: O(engines).
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "core/decide/peak_turns.h"
#include "core/types.h"

namespace ravenstore::elastic {

class JobShare {
 public:
  // What an engine wants of the device.
  struct Demand {
    core::Bytes in_use;     // that the calls under way use
    core::Bytes waits_for;  // the same, with a call that waits for memory; 0: none waits
    core::Bytes expected;   // that its calls will use at one time
    core::Bytes alive;      // that allocations occupy at most
    core::Bytes held;       // that it has
  };
  struct Device {
    std::vector<Demand> demands;  // of all engines, in the same order for each of them
    size_t own = 0;               // the number of this one's
    core::Bytes together;         // that they may hold
    core::Bytes room;             // that this one may take immediately
  };

  explicit JobShare(core::Bytes page) : page_(page) {}

  // What the engine may hold now, at most `most`: no more than it has with the room, and less where
  // others get what it has. nullopt: no other engine shares the device.
  core::Bytes Of(const std::optional<Device>& device, core::Bytes most, core::Duration now);
  // The last time there was another engine.
  bool is_shared() const { return engines_ > 1; }

 private:
  const core::Bytes page_;
  size_t engines_ = 1;
  std::optional<core::decide::PeakTurn> turn_;
};

}  // namespace ravenstore::elastic
