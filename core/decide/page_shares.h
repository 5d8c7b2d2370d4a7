// How many pages of a device each client may hold, or each tenant (core/decide/tenant_shares.h).
//
// Pages are divided in stages: pages that calls hold now, guaranteed pages that are needed, pages
// for a call that waits, pages that calls will hold, all pages in which tensors live, pages held
// already. Each stage ends when all have its pages or no page is left. So a client loses no page
// that another client cannot use.
//
// Some pages stay free: no stage beyond guarantees may have them.
//
// Beyond guarantees a higher priority is served first, in all stages but those of pages that are
// held. Of one priority each stage is divided evenly, by weight. If any weight is set, all needed
// pages beyond the guarantees are divided by weight before the calls that wait are looked at.
//
// Source: max-min fairness (Bertsekas and Gallager, "Data Networks", 1992, 6.5).
//
// Owns: nothing. Units: pages. Threads: any. Errors: none; where not even the first stage has
// enough, each gets a part by weight. Cost: O(clients x log pages).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ravenstore::core::decide {

struct PageDemand {
  uint32_t in_use = 0;             // that its calls hold now
  uint32_t waits_for = 0;          // that they would hold with a call that waits; 0: none is served
  uint32_t expected = 0;           // the most that its calls will hold at one time
  uint32_t alive = 0;              // the most in which its tensors live
  uint32_t held = 0;               // that it has now
  uint32_t most = UINT32_MAX;      // that it may hold
  uint32_t guarantee = 0;          // of its needs, before others get more than theirs
  bool has_turn = false;           // `alive` is served first (core/decide/peak_turns.h)
  int priority = 0;                // the higher is served first
  std::optional<double> weight{};  // above 0; not set: 1

  // The most that its tensors and calls need.
  uint32_t needed() const { return std::max({in_use, waits_for, expected, alive}); }
  bool operator==(const PageDemand&) const = default;
};

// The share of each client, at most its `most`; together at most `pages`. `kept`: pages that stay
// free if calls and guarantees leave them.
std::vector<uint32_t> SharePages(std::span<const PageDemand> demands, uint32_t pages,
                                 uint32_t kept = 0);
// A plan that was made for the share `planned` is to be made for `share`: a half of it has come or
// gone.
bool NeedsPlan(uint32_t planned, uint32_t share);

}  // namespace ravenstore::core::decide
