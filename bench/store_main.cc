// store_bench: the figures of the store, one JSON object a line. bench/report runs it.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/figure.h"
#include "bench/store_figures.h"

int main(int argc, char** argv) {
  CLI::App app("Measures the store's figures.", "store_bench");
  double scale = 1;
  bool host = true;
  bool gpu = true;
  std::string gpu_name = "no GPU";
  app.add_option("--scale", scale, "shortens (below 1) the runs")->check(CLI::Range(0.01, 10.0));
  app.add_flag("--host,!--no-host", host, "the figures of the host backend");
  app.add_flag("--gpu,!--no-gpu", gpu, "the figures that need a GPU");
  app.add_option("--gpu-name", gpu_name, "what to call the GPU in the lines");
  CLI11_PARSE(app, argc, argv);
  return ravenstore::bench::Guarded([&] {
    const auto report = ravenstore::bench::PrintEach(ravenstore::bench::Machine(gpu_name));
    if (host) {
      ravenstore::bench::MeasureStoreOnHost(scale, report);
      ravenstore::bench::MeasureFileLink(scale, report);
    }
    if (gpu) ravenstore::bench::MeasureStoreOnGpu(scale, report);
  });
}
