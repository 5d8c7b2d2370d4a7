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
  const auto report = [machine = ravenstore::bench::Machine("no GPU")](const auto& figure) {
    std::printf("%s\n", ravenstore::bench::Json(figure, machine).c_str());
    std::fflush(stdout);
  };
  ravenstore::bench::MeasureRemote(scale, report);
  ravenstore::bench::MeasureIdle(scale, report);
  ravenstore::bench::MeasureNodeLoss(report);
  return 0;
}
