// The memory that owners use on GPUs, minute by minute: synthetic, after figures of production.
//
// Source: quantiles of one production cluster, as given here. The memory that a container uses has
// quantiles of 14.8 (5%), 23.1 (50%) and 31.3 GiB (95%); 23% of its minutes move more than 2 GiB;
// the change of a minute has quantiles of -10.7 (1%) and +9.7 GiB (99%).
//
// A container's use is normal, which these three quantiles fit. In most minutes it hardly moves; in
// the others it goes a part of the way to a newly drawn value. The part and how often that
// happens follow from the three figures of change, which are symmetric here. How long containers
// live, and how many share a GPU, is assumed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/types.h"

namespace ravenstore::sim {

// One container while it runs.
class Container {
 public:
  explicit Container(std::mt19937_64& random);
  // A minute passes.
  void Pass(std::mt19937_64& random);
  core::Bytes used() const;

 private:
  double gib_;
};

struct UtilisationOptions {
  size_t gpus = 8;
  size_t minutes = 24 * 60;
  core::Bytes memory = core::GiB(80);  // of a GPU; no more is used
  size_t containers = 2;               // at most, together on a GPU
  double lives = 60;                   // minutes, in the mean
  double vacant = 20;                  // minutes from one container to the next, in the mean
  uint64_t seed = 1;
};

// What is used, by GPU and minute. The same options give the same.
std::vector<std::vector<core::Bytes>> GenerateUtilisation(const UtilisationOptions& options);

}  // namespace ravenstore::sim
