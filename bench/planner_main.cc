// planner_bench: the figures of the planner, one JSON object a line. bench/report runs it.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/figure.h"
#include "bench/planner_figures.h"

int main(int argc, char** argv) {
  namespace bench = ravenstore::bench;
  CLI::App app("Measures the planner's figures.", "planner_bench");
  double scale = 1;
  bool scores = true;
  bool cost = true;
  bool truth = true;
  bool table = false;
  bool kernels = false;
  app.add_option("--scale", scale, "shortens (below 1) the runs")->check(CLI::Range(0.01, 10.0));
  app.add_flag("--scores,!--no-scores", scores, "stalls of every trace against bound and oracle");
  app.add_flag("--cost,!--no-cost", cost, "time per event");
  app.add_flag("--truth,!--no-truth", truth, "the simulator against the host backend");
  app.add_flag("--table", table, "only the stalls, all of them, in ms, as a markdown table");
  app.add_flag("--kernels", kernels, "only the table of the traces at the level of kernels");
  CLI11_PARSE(app, argc, argv);
  // What is simulated depends on no GPU.
  const std::string machine = bench::Machine("no GPU");
  const auto report = [&machine](const bench::Figure& figure) {
    std::printf("%s\n", bench::Json(figure, machine).c_str());
    std::fflush(stdout);
  };
  if (kernels) {
    bench::MeasureKernelLevel(true);
    return 0;
  }
  if (scores || table) bench::MeasurePlannerScores(table, report);
  if (table) return 0;
  if (cost) bench::MeasurePlannerCost(scale, report);
  if (truth) bench::MeasureSimulatorTruth(scale, report);
  return 0;
}
