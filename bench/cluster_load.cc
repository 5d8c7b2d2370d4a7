// cluster_load: large clusters that are simulated through part of a day (sim/cluster_load.h): 100
// nodes for an hour and 1,000 for five minutes. One JSON object a line; each figure is the worse of
// the two. `--nodes` instead simulates one such cluster and says all that is known of it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/figure.h"
#include "core/types.h"
#include "sim/cluster_load.h"

namespace ravenstore::bench {
namespace {

struct Run {
  sim::ClusterLoad load;
  sim::ClusterUse use = {};
  double took_s = 0;
};

void Simulate(Run* run) {
  const auto begin = std::chrono::steady_clock::now();
  run->use = sim::SimulateLoad(run->load);
  run->took_s = core::Seconds(std::chrono::steady_clock::now() - begin);
  const sim::ClusterUse& use = run->use;
  const sim::ClusterJobs::Counts& jobs = use.jobs;
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  const double gib = static_cast<double>(core::GiB(1).count());
  std::fprintf(stderr,
               "%u nodes for %.0f s in %.0f s: on average %.1f GiB wanted, %.1f GiB lendable, %.1f "
               "GiB useful, of %.1f GiB that could be; %llu pieces recalled, %llu missed, %llu "
               "moved; %llu jobs, %llu tensors, %llu uses, %llu lost, %llu refused; %llu events\n",
               run->load.nodes, core::Seconds(run->load.time), run->took_s, use.wanted / gib,
               use.lendable / gib, use.useful / gib, use.possible / gib, number(use.recalled),
               number(use.missed), number(use.moved), number(jobs.jobs), number(jobs.created),
               number(jobs.used), number(jobs.lost), number(jobs.refused), number(use.events));
  if (use.violations.Violations() > 0) {
    std::fprintf(stderr, "violations: %s\n", use.violations.first.c_str());
  }
}

std::string Text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return text;
}

// The worse of the runs, of which the detail has each.
Figure Worse(Figure figure, const std::vector<Run>& runs, double (*of)(const sim::ClusterUse&)) {
  for (const Run& run : runs) {
    const double value = of(run.use);
    figure.value = figure.value.value_or(value);
    figure.value =
        figure.at_least ? std::min(*figure.value, value) : std::max(*figure.value, value);
    if (!figure.detail.empty()) figure.detail += ", ";
    figure.detail += Text(value) + " of " + std::to_string(run.load.nodes) + " nodes";
  }
  return figure;
}

std::vector<Figure> Figures(const std::vector<Run>& runs) {
  using sim::ClusterUse;
  std::vector<Figure> all;
  all.push_back(Worse({.name = "cluster.sim_occupancy",
                       .unit = "of what could be",
                       .target = 0.5,
                       .at_least = true},
                      runs, [](const ClusterUse& use) { return use.UsefulOccupancy(); }));
  all.push_back(Worse({.name = "cluster.sim_missed_recalls", .unit = "% of pieces", .target = 0.1},
                      runs, [](const ClusterUse& use) { return use.MissedPercent(); }));
  all.push_back(Worse({.name = "cluster.sim_messages", .unit = "a node and second", .target = 20},
                      runs, [](const ClusterUse& use) { return use.messages; }));
  all.push_back(
      Worse({.name = "cluster.sim_directory_bytes", .unit = "bytes a remote tensor", .target = 120},
            runs, [](const ClusterUse& use) { return use.record_bytes + use.checksum_bytes; }));
  all.push_back(Worse({.name = "cluster.sim_directory_records", .unit = "bytes of these"}, runs,
                      [](const ClusterUse& use) { return use.record_bytes; }));
  all.push_back(Worse({.name = "cluster.sim_directory_per_mib", .unit = "bytes a MiB of these"},
                      runs, [](const ClusterUse& use) {
                        const double mib = static_cast<double>(core::MiB(1).count());
                        return (use.record_bytes + use.checksum_bytes) / use.tensor_bytes * mib;
                      }));
  all.push_back(Worse(
      {.name = "cluster.sim_violations", .unit = "", .target = 0}, runs,
      [](const ClusterUse& use) { return static_cast<double>(use.violations.Violations()); }));
  double took_s = 0;
  for (const Run& run : runs) took_s += run.took_s;
  all.push_back(
      {.name = "cluster.sim_minutes", .unit = "min in all", .value = took_s / 60, .target = 10});
  return all;
}

int Main(int argc, char** argv) {
  CLI::App app("Simulates large clusters through part of a day.", "cluster_load");
  double scale = 1;
  app.add_option("--scale", scale, "shortens (below 1) the simulated times")
      ->check(CLI::Range(0.001, 10.0));
  uint64_t seed = 1;
  app.add_option("--seed", seed, "of all that is random");
  uint32_t nodes = 0;
  app.add_option("--nodes", nodes, "of one cluster, instead of the two")
      ->check(CLI::Range(2, 4000));
  uint32_t minutes = 5;
  app.add_option("--minutes", minutes, "that it is simulated")->check(CLI::Range(2, 1440));
  sim::ClusterLoad load;
  app.add_option("--owners", load.owners, "that use a node's memory on average")
      ->check(CLI::Range(0.1, 100.0));
  app.add_option("--jobs", load.jobs, "of the store that run on a node on average")
      ->check(CLI::Range(0.1, 100.0));
  CLI11_PARSE(app, argc, argv);

  std::vector<Run> runs;
  const auto add = [&](uint32_t count, double time_s) {
    Run run{.load = load};
    run.load.seed = seed;
    run.load.nodes = count;
    const double warm_up = core::Seconds(run.load.warm_up);
    run.load.time = core::FromSeconds(warm_up + (time_s - warm_up) * scale);
    runs.push_back(run);
  };
  if (nodes > 0) {
    add(nodes, minutes * 60.0);
  } else {
    add(100, 3600);
    add(1000, 300);
  }
  for (Run& run : runs) Simulate(&run);
  std::ranges::for_each(Figures(runs), PrintEach("simulated"));
  return 0;
}

}  // namespace
}  // namespace ravenstore::bench

int main(int argc, char** argv) {
  return ravenstore::bench::Main(argc, argv);
}
