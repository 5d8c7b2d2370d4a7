// map_bench: the figures of mapping device memory in clients, one JSON object a line. bench/report
// runs it.
#include <CLI/CLI.hpp>

#include "bench/figure.h"
#include "bench/map_figures.h"

int main(int argc, char** argv) {
  CLI::App app("Measures how the daemon's memory is mapped in clients.", "map_bench");
  std::string backend = "cuda";
  double scale = 1;
  std::string gpu_name = "no GPU";
  app.add_option("--backend", backend, "cuda or host (whose figures have no targets)")
      ->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("--scale", scale, "shortens (below 1) the runs")->check(CLI::Range(0.01, 10.0));
  app.add_option("--gpu-name", gpu_name, "what to call the GPU in the lines");
  CLI11_PARSE(app, argc, argv);
  return ravenstore::bench::Guarded([&] {
    const auto report = ravenstore::bench::PrintEach(ravenstore::bench::Machine(gpu_name));
    ravenstore::bench::MeasureMaps(backend, scale, report);
  });
}
