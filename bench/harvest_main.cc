// harvest_bench: the figures of harvested memory, one JSON object a line. bench/report runs it.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/figure.h"
#include "bench/harvest_day.h"

namespace ravenstore::bench {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("Measures the figures of harvested memory.", "harvest_bench");
  double scale = 1;
  app.add_option("--scale", scale, "shortens (below 1) the runs")->check(CLI::Range(0.01, 1.0));
  CLI11_PARSE(app, argc, argv);
  const auto report = [machine = Machine("no GPU, simulated")](const Figure& figure) {
    std::printf("%s\n", Json(figure, machine).c_str());
    std::fflush(stdout);
  };
  MeasureGiveBack(report);
  MeasureHarvestDay(scale, report);
  return 0;
}

}  // namespace
}  // namespace ravenstore::bench

int main(int argc, char** argv) {
  return ravenstore::bench::Main(argc, argv);
}
