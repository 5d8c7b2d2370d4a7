// cluster_faults: clusters that are simulated with faults (sim/cluster_world.h), run by run from
// seeds that follow each other. One JSON object says what must be 0 and how much was done; the
// exit status is 1 if it is not.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "core/printable.h"
#include "sim/cluster_world.h"

namespace ravenstore::bench {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("Simulates clusters with faults.", "cluster_faults");
  uint64_t runs = 500;
  app.add_option("--runs", runs, "so many")->check(CLI::Range(1, 10'000'000));
  uint64_t seed = 1;
  app.add_option("--seed", seed, "of the first run");
  sim::ClusterRun run;
  app.add_option("--events", run.events, "of each run")->check(CLI::Range(1, 2000));
  app.add_option("--nodes", run.nodes_max, "at most")->check(CLI::Range(2, 8));
  CLI11_PARSE(app, argc, argv);

  sim::ClusterCounts all;
  uint64_t failed = 0;
  for (uint64_t i = 0; i < runs; ++i) {
    run.seed = seed + i;
    const sim::ClusterCounts counts = sim::RunCluster(run);
    if (counts.Violations() > 0) {
      ++failed;
      std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(run.seed),
                   counts.first.c_str());
    }
    all += counts;
  }
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "{\"name\": \"cluster.faults_simulated\", \"runs\": %llu, \"seed\": %llu, "
      "\"runs_failed\": %llu, \"wrong_bytes\": %llu, \"late_calls\": %llu, \"lent_twice\": %llu, "
      "\"served_late\": %llu, \"first\": %s, \"operations\": %llu, \"bytes_read\": %llu, "
      "\"pieces_lost\": %llu, \"pieces_moved\": %llu}\n",
      number(runs), number(seed), number(failed), number(all.wrong_bytes), number(all.late_calls),
      number(all.lent_twice), number(all.served_late), core::JsonQuoted(all.first).c_str(),
      number(all.operations), number(all.bytes_read), number(all.pieces_lost),
      number(all.pieces_moved));
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ravenstore::bench

int main(int argc, char** argv) {
  return ravenstore::bench::Main(argc, argv);
}
