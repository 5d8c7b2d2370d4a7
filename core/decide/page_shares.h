// How many pages of a device each client may hold.
//
// Pages are divided in stages, each evenly by weight: pages that calls hold now, pages for one call
// that waits, pages that calls will hold, guaranteed pages in which tensors live, all pages in
// which tensors live, pages held already. Each stage ends when all clients have its pages or no
// page is left. So a client loses no page that another client cannot use.
//
// Of the clients in which a call waits for room, only one is served: the first whose call fits with
// the pages that calls hold, else the first. Two that get a part each could wait for each other, as
// could the first and one that holds pages until a later call of its own.
//
// Source: max-min fairness (Bertsekas and Gallager, "Data Networks", 1992, 6.5).
//
// Owns: nothing. Units: pages. Threads: any. Errors: none; where not even the first stage has
// enough, each gets a part by weight. Cost: O(clients x log pages).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ravenstore::core::decide {

struct PageDemand {
  uint32_t in_use = 0;     // that its calls hold now
  uint32_t waits_for = 0;  // that they would hold with a call that waits for room; 0: none does
  uint32_t expected = 0;   // the most that its calls will hold at one time
  uint32_t alive = 0;      // the most in which its tensors live
  uint32_t held = 0;       // that it has now
  uint32_t guarantee = 0;  // of `alive`, before others get more than theirs
  bool has_turn = false;   // all of `alive` is guaranteed (core/decide/peak_turns.h)
  double weight = 1;       // above 0

  bool operator==(const PageDemand&) const = default;
};

// The share of each client; together at most `pages`.
std::vector<uint32_t> SharePages(std::span<const PageDemand> demands, uint32_t pages);
// A plan that was made for the share `planned` is to be made for `share`: a half of it has come or
// gone.
bool NeedsPlan(uint32_t planned, uint32_t share);

}  // namespace ravenstore::core::decide
