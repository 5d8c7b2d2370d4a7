// How large the pages of a client are on one device.
//
// The size is fixed at the client's first tensor there.
//
// Owns: nothing. Units: bytes.
#pragma once

#include <algorithm>

#include "core/types.h"

namespace ravenstore::core::plan {

// Larger: a small tensor moves more bytes that are not its own. Smaller: more calls of the driver.
inline constexpr Bytes kLargestPage = MiB(16);
// Smaller: memory changes hands more slowly than programs grow. Larger: as of kLargestPage, and a
// client holds more that it does not use.
inline constexpr Bytes kSharedPage = MiB(32);
// Smaller: mapping is slower than the link. Larger: a small budget has few pages.
inline constexpr Bytes kSmallestPage = MiB(8);
// A budget has at least this many pages, if these bounds allow it. Fewer: a page at the border of
// two tensors is a large part of the budget. More: as a smaller page.
inline constexpr uint64_t kPagesLeast = 256;

// The largest power of two from `least` to `most` that gives `pages` pages; `least` if none does.
constexpr Bytes PageBetween(Bytes least, Bytes most, uint64_t pages, Bytes budget) {
  Bytes page = most;
  while (page > least && page * pages > budget) page = Bytes(page.count() / 2);
  return page;
}

// A budget that has fewer pages has smaller ones, down to kSmallestPageOfDevice: tensors in use
// keep each of their pages.
inline constexpr uint64_t kPagesOfSmallBudget = 4;
inline constexpr Bytes kSmallestPageOfDevice = MiB(2);

// The largest power of two that gives kPagesLeast pages, between kSmallestPage and kLargestPage.
// Pages of clients that share a device change hands, which takes the same time for any size.
constexpr Bytes PageSizeFor(Bytes budget, bool is_shared) {
  Bytes page = kSharedPage;
  if (!is_shared) page = PageBetween(kSmallestPage, kLargestPage, kPagesLeast, budget);
  return PageBetween(kSmallestPageOfDevice, page, kPagesOfSmallBudget, budget);
}

// Of a device's clients in the daemon. A page that is mapped delays the launches of its client by
// some 100 us, of any size; one that is mostly empty is a large part of a small device.
// docs/decisions/0079 has what a GPU says of 16 to 64 MiB.
inline constexpr Bytes kLargestPageOfDevice = MiB(64);
inline constexpr uint64_t kPagesOfDevice = 1024;
// A page that leaves needs a piece of the host pool that is as large.
inline constexpr uint64_t kPagesOfHostPool = 64;
// Fewer: tensors in use keep much of a budget that they do not fill, since each keeps all of its
// pages. ResNet-50 in 3.0 GiB found no room in pages of 64 MiB, and trains in pages of 16 MiB;
// pages of 4 MiB take 38% more time (H200, 2026-11-30).
inline constexpr uint64_t kPagesOfUsualBudget = 128;

// The largest power of two that gives kPagesOfDevice pages, has kPagesOfHostPool of them in the
// host pool and kPagesOfUsualBudget in what a client usually may hold, between these two.
// `usual_budget`: 0: all of the device.
constexpr Bytes PageOfDevice(Bytes capacity, Bytes host, Bytes usual_budget) {
  const auto page = [](uint64_t pages, Bytes of) {
    return PageBetween(kSmallestPageOfDevice, kLargestPageOfDevice, pages, of);
  };
  const Bytes of_budget =
      usual_budget > Bytes{} ? page(kPagesOfUsualBudget, usual_budget) : kLargestPageOfDevice;
  return std::min({page(kPagesOfDevice, capacity), page(kPagesOfHostPool, host), of_budget});
}

}  // namespace ravenstore::core::plan
