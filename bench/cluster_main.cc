// cluster_bench: the figures of daemons that are one cluster, over the loopback, one JSON object a
// line. bench/report runs it.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/cluster_figures.h"
#include "bench/figure.h"

int main(int argc, char** argv) {
  CLI::App app("Measures the figures of a cluster's daemons.", "cluster_bench");
  double scale = 1;
  app.add_option("--scale", scale, "shortens (below 1) the runs")->check(CLI::Range(0.01, 10.0));
  CLI11_PARSE(app, argc, argv);
  return ravenstore::bench::Guarded([scale] {
    const auto report = ravenstore::bench::PrintEach(ravenstore::bench::Machine("no GPU"));
    ravenstore::bench::MeasureRemote(scale, report);
    ravenstore::bench::MeasureIdle(scale, report);
    ravenstore::bench::MeasureNodeLoss(report);
  });
}
