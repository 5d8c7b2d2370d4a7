// One training run: a model from its seed, a number of steps, and what they took.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/torch.h"

namespace ravenstore::examples {

struct RunConfig {
  int layers = 0, width = 0, heads = 0;
  int steps = 0, batch = 0, seq = 0;
  double learning_rate = 0;
  uint64_t seed = 0;
  bool cuda = false;
  uint64_t torch_limit = 0;  // bytes that torch's tensors may take; 0: no limit
  // Bytes of saved tensors that torch may hold outside the store; unset: the adapter decides.
  std::optional<uint64_t> torch_share = 0;
  bool hints = true;     // tell the store in which order the saved tensors are read
  bool measure = false;  // count what a store would get; `store` stays null
};

struct RunResult {
  bool finished = false;
  bool out_of_memory = false;  // torch's; else `failure` says what ended it
  std::string failure;
  int failed_step = 0;  // from 1
  std::vector<float> losses;
  uint64_t weights = 0;          // a checksum of all parameters' bits at the end
  double step_seconds = 0;       // the median, without the first step
  uint64_t torch_peak = 0;       // tensors' bytes
  uint64_t torch_reserved = 0;   // with what torch's allocator keeps
  uint64_t first_step_peak = 0;  // tensors' bytes
  // The store's bytes at their most, looked at in the middle of each step.
  uint64_t store_peak = 0;       // on the device
  uint64_t device_peak = 0;      // torch's and the store's of one step together
  uint64_t store_host_peak = 0;  // in host memory
  ravenstore::torch::OffloadStats offload;
  Stats store{};
};

// Called after each step, and with a failing one.
using Progress = std::function<void(int step, float loss, double seconds)>;

// Sets what makes runs repeatable: deterministic algorithms, threads. Once, before any run. Throws
// std::runtime_error if `cuda` and torch sees no GPU.
void PrepareTorch(bool cuda, int threads);
// Whether this program's torch can use a GPU.
bool TorchSeesCuda();

// Trains; with a store the saved activations go there. The same config and text give the same
// losses, with and without it. Errors are in the result.
RunResult Train(const RunConfig& config, const std::string& text, std::shared_ptr<Store> store,
                const Progress& progress);

}  // namespace ravenstore::examples
