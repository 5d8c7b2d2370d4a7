// What torch's tensors take of the device that is trained on, and a limit that is really enforced:
// on a GPU by torch's caching allocator, on the simulated device (the CPU) by an allocator of ours
// in front of torch's that counts every tensor's bytes.
#pragma once

#include <cstdint>

namespace ravenstore::examples {

class DeviceMemory {
 public:
  // Threads: none of these while tensors are made on another thread.
  static DeviceMemory& Cuda();
  static DeviceMemory& Simulated();
  virtual ~DeviceMemory() = default;

  // Bytes that torch may take, 0 for no limit. An allocation beyond it throws
  // c10::OutOfMemoryError. A GPU's memory that torch keeps but does not use is given back first.
  virtual void SetLimit(uint64_t bytes) = 0;
  virtual void ResetPeak() = 0;
  // The most that tensors took since ResetPeak.
  virtual uint64_t Peak() = 0;
  // The most that torch held of the device, with what its allocator keeps for later.
  virtual uint64_t PeakReserved() = 0;
  // Waits for the device's work.
  virtual void Synchronize() = 0;
};

}  // namespace ravenstore::examples
