// Chance by Zipf's law, the same with every library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "sim/trace_builder.h"

namespace ravenstore::sim {

// Ranks 0..n-1 with probability proportional to 1 / (rank + 1)^exponent.
class Zipf {
 public:
  Zipf(size_t n, double exponent) : sums_(n) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sums_[i] = sum += std::pow(double(i + 1), -exponent);
  }
  size_t operator()(std::mt19937_64& random) const {
    const double at = Unit(random) * sums_.back();
    return static_cast<size_t>(std::upper_bound(sums_.begin(), sums_.end() - 1, at) -
                               sums_.begin());
  }

 private:
  std::vector<double> sums_;
};

}  // namespace ravenstore::sim
