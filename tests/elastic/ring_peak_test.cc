#include "elastic/ring_peak.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace ravenstore::elastic {
namespace {

TEST(RingPeakTest, IsTheLargestOfAnyStretchAlsoAfterSeveralTurns) {
  constexpr uint64_t kSlots = 4 * RingPeak::kMargin;
  for (const uint64_t seed : {1, 2}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RingPeak peak(kSlots);
    std::vector<uint64_t> all;
    for (uint64_t at = 0; at < 3 * kSlots; ++at) {
      all.push_back(random() % 1'000'000);
      peak.Append(at, all.back());
      if (at % 97 != 0) continue;
      const uint64_t oldest = at + RingPeak::kMargin > kSlots ? at + RingPeak::kMargin - kSlots : 0;
      const uint64_t from = oldest + random() % (at - oldest + 1);
      const uint64_t end = from + random() % (at + 1 - from + 1);
      const auto begin = all.begin() + static_cast<ptrdiff_t>(from);
      const auto stop = all.begin() + static_cast<ptrdiff_t>(end);
      ASSERT_EQ(peak.Peak(from, end), begin == stop ? 0 : *std::max_element(begin, stop))
          << from << " " << end;
    }
  }
}

}  // namespace
}  // namespace ravenstore::elastic
