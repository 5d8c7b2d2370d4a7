// Which client gives memory to which, on a device that clients share by one plan.
//
// A free page goes to the client that needs it first from the one that needs it last itself, if the
// time between is longer than what making it takes. Where a call waits and no page is free, idle
// units leave of the client that needs them last.
//
// Owns: nothing. Units: times from now on; each client's by its plan. Threads: any. Errors: none.
// Cost: O(clients); NeedOf: as the questions of core/plan/move_chooser.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/plan/move_chooser.h"
#include "core/types.h"

namespace ravenstore::core::decide {

// Before all times. Such a call keeps pages, and ends only when it has them all. A page that is
// free helps it, though its owner needs it now: the owner's call holds no page yet.
inline constexpr Duration kHeldCall{-1};

struct PageNeed {
  // When the client first needs a page that it has no memory for; kHeldCall: for a call that holds
  // its pages.
  std::optional<Duration> lacks = std::nullopt;
  // When it needs the free page, and the idle unit, that it needs last.
  std::optional<Duration> spare = std::nullopt;
  std::optional<Duration> idle = std::nullopt;
  uint32_t coming = 0;  // pages that are being made for it, or that it is emptying

  bool Waits() const { return lacks && *lacks <= Duration{0}; }
};

struct PageTransfer {
  uint32_t from = 0;
  uint32_t to = 0;
};

// The need of a client with a plan. One for which pages are being made lacks no further one: those
// would come for needs that are met by then.
PageNeed NeedOf(const plan::MoveView& view);
std::optional<PageTransfer> NextTransfer(std::span<const PageNeed> clients, Duration making);
// The client of which an idle unit leaves; nullopt: no call waits, memory for it is coming, or
// nothing is idle.
std::optional<uint32_t> NextToLeave(std::span<const PageNeed> clients);

}  // namespace ravenstore::core::decide
