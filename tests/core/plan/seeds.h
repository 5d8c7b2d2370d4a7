// Runs a property with several seeds; a failure names the seed.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

namespace ravenstore::core::plan {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // A number of [0, end).
  uint64_t Below(uint64_t end) { return engine_() % end; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

template <typename Property>
void ForSeeds(uint64_t seeds, Property property) {
  for (uint64_t seed = 1; seed <= seeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    property(random);
  }
}

}  // namespace ravenstore::core::plan
