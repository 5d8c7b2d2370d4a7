// harvest_bench: the figures of harvested memory, one JSON object a line. bench/report runs it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "bench/figure.h"
#include "bench/harvest_faults.h"
#include "bench/harvest_node.h"
#include "bench/harvest_owners.h"

namespace ravenstore::bench {
namespace {

constexpr double kFaults = 101000;

int Main(int argc, char** argv) {
  CLI::App app("Measures the figures of harvested memory.", "harvest_bench");
  double scale = 1;
  app.add_option("--scale", scale, "shortens (below 1) the runs")->check(CLI::Range(0.01, 1.0));
  std::string node;
  app.add_option("--node", node, "measures this machine's devices instead, of that backend")
      ->check(CLI::IsMember({"cuda", "host"}));
  uint64_t faults = 0;
  app.add_option("--faults", faults, "injects so many faults into a daemon, and does no more");
  uint64_t seed = 20261126;
  app.add_option("--seed", seed, "of the faults");
  std::string gpu = "no GPU";
  app.add_option("--gpu-name", gpu, "what the figures call them");
  CLI11_PARSE(app, argc, argv);
  return Guarded([&] {
    if (!node.empty()) return MeasureHarvestNode(node, PrintEach(Machine(gpu)));
    const Report report = PrintEach(Machine("no GPU, simulated"));
    if (faults > 0) return MeasureHarvestFaults(faults, seed, report);
    MeasureUnawareOwners(scale, report);
    MeasureHarvestFaults(static_cast<uint64_t>(kFaults * scale), seed, report);
  });
}

}  // namespace
}  // namespace ravenstore::bench

int main(int argc, char** argv) {
  return ravenstore::bench::Main(argc, argv);
}
