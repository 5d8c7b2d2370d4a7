// cluster_planted: bugs that are planted in the protocol, one at a time, and how many of them the
// simulation of faults finds in seeds that follow each other. One JSON object.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>

#include "bench/figure.h"
#include "cluster/planted.h"
#include "sim/cluster_world.h"

namespace ravenstore::bench {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("Finds planted bugs.", "cluster_planted");
  uint64_t seeds = 1000;
  app.add_option("--seeds", seeds, "for each, at most")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  constexpr auto kBugs = static_cast<int>(cluster::kPlantedLast);
  int found = 0;
  uint64_t most = 0;
  for (int bug = 1; bug <= kBugs; ++bug) {
    cluster::planted = static_cast<cluster::Planted>(bug);
    uint64_t seed = 1;
    while (seed <= seeds && sim::RunCluster({.seed = seed}).Violations() == 0) ++seed;
    found += seed <= seeds ? 1 : 0;
    most = std::max(most, std::min(seed, seeds));
  }
  const Figure figure{.name = "cluster.planted_found",
                      .unit = "bugs",
                      .value = found,
                      .target = kBugs,
                      .at_least = true,
                      .detail = "in " + std::to_string(most) + " seeds at most"};
  std::printf("%s\n", Json(figure, Machine("no GPU, simulated")).c_str());
  return 0;
}

}  // namespace
}  // namespace ravenstore::bench

int main(int argc, char** argv) {
  return ravenstore::bench::Main(argc, argv);
}
