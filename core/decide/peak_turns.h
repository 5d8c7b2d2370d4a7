// Which client of a device may grow first, where not all that lives fits.
//
// Clients that grow at the same time take pages from each other, and each waits for copies of its
// own. They stay in step, and their peaks meet again in each pass. So one client at a time has a
// turn: its tensors have pages before those of the others. It passes its peak, and afterwards the
// peaks of the clients come one after the other.
//
// The first turn is that of the client in which most lives: it is the nearest to its peak. A turn
// ends when half of that has died, or when the client has not grown for kTurnPause. The next client
// in the order in which something lives follows.
//
// Owns: nothing; the caller keeps the turn. Units: pages, time. Threads: any. Errors: none.
// Cost: O(clients).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/decide/page_shares.h"
#include "core/types.h"

namespace ravenstore::core::decide {

struct PeakTurn {
  uint32_t client = 0;
  uint32_t peak = 0;  // the most pages in which tensors lived during the turn
  Duration grew{0};   // when it reached that
};

// The turn at this time, which follows `turn`; nullopt: all that lives fits the pages.
std::optional<PeakTurn> NextTurn(const std::optional<PeakTurn>& turn,
                                 std::span<const PageDemand> demands, uint32_t pages, Duration now);

}  // namespace ravenstore::core::decide
