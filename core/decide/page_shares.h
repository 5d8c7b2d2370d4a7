// How many pages of a device each client may hold.
//
// Pages are divided in stages, each evenly by weight: pages that calls hold now, pages that calls
// will hold, guaranteed pages in which tensors live, all pages in which tensors live, pages held
// already. Each stage ends when all clients have its pages or no page is left. So a client loses
// no page that another client cannot use.
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
  uint32_t expected = 0;   // the most that its calls will hold at one time
  uint32_t alive = 0;      // the most in which its tensors live
  uint32_t held = 0;       // that it has now
  uint32_t guarantee = 0;  // of `alive`, before others get more than theirs
  double weight = 1;       // above 0

  bool operator==(const PageDemand&) const = default;
};

// The share of each client; together at most `pages`.
std::vector<uint32_t> SharePages(std::span<const PageDemand> demands, uint32_t pages);

}  // namespace ravenstore::core::decide
