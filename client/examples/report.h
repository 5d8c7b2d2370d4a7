// What train_gpt reports at its end: one table of all runs for people, or one JSON object a run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/examples/trainer.h"

namespace ravenstore::examples {

// A run, finished or failed, and the terms it ran under.
struct Trial {
  std::string name;
  bool with_store = false;
  bool must_finish = true;
  uint64_t device_limit = 0;  // for torch and store together; 0: none
  uint64_t budget = 0;        // device bytes for what autograd saves
  // Of these: torch holds them, the store has the others. Unset: the adapter decides.
  std::optional<uint64_t> torch_share = 0;
  RunResult result;
};

// Whether both have the same losses and, if both finished, the same weights, bit for bit.
bool SameBits(const RunResult& a, const RunResult& b);

// The first of `runs` is the plain one, which the others are compared with.
std::string Report(const std::string& title, const std::vector<Trial>& runs);
// One line. `where` is "cuda" or "simulated device".
std::string Json(const Trial& run, const Trial& plain, const std::string& where);

// Says of each run that did not do what it must what is wrong; empty when all is well.
std::vector<std::string> Failures(const std::vector<Trial>& runs);

}  // namespace ravenstore::examples
