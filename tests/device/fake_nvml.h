// The controls of libfakenvml.so, an NVML to which every GPU is the same, whose memory and
// processes a test says.
#pragma once

#include <utility>
#include <vector>

namespace ravenstore::device {

struct FakeNvmlControls {
  // What a call returns instead of success: nvmlInit_v2; every other.
  int init_result = 0;
  int result = 0;
  // What is free, a figure a call; the last one stays.
  std::vector<unsigned long long> free{0};
  // The process and its bytes.
  std::vector<std::pair<unsigned int, unsigned long long>> processes{};
  unsigned int utilization = 0;
  int utilization_result = 0;  // what that call alone returns
  // What the GPU's own counters say (GPM): below 0, it has none. And samples of theirs that are.
  int counted = -1;
  int samples = 0;
};

// Found by dlsym as "FakeNvml".
using FakeNvmlFunction = FakeNvmlControls*();

}  // namespace ravenstore::device
