// train_gpt's command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ravenstore::examples {

// A budget of device memory: bytes, or a part of the measured activations.
struct Budget {
  uint64_t bytes = 0;  // 0: `percent` counts
  double percent = 0;
  uint64_t Resolve(uint64_t activations) const;
  std::string Format() const;
};

struct Options {
  std::string size = "tiny";
  int layers = 0, width = 0, heads = 0;  // of `size`
  int steps = 0, batch = 0, seq = 0;     // 0: those of `size`
  std::vector<Budget> budgets;           // one run with the store for each
  std::optional<double> torch_share;     // per cent of a budget that torch itself holds
  uint64_t device_limit = 0;             // 0: none; with --demo: chosen from what was measured
  uint64_t host_budget = 0;              // 0: the tenant's
  std::string text, socket, device = "auto";
  uint64_t seed = 1;
  int threads = 2;
  double learning_rate = 0;  // 0: that of `size`
  bool plain = false, demo = false, json = false, help = false;
  bool no_hints = false;  // the store learns what comes next
};

extern const char kUsage[];

// "1.5GiB", "300MB", "1048576" and so on. Throws std::runtime_error that names the text.
uint64_t ParseBytes(const std::string& text);
// Throws std::runtime_error that names the argument.
Options ParseOptions(const std::vector<std::string>& arguments);

}  // namespace ravenstore::examples
