// Events of the driver that are recorded on the job's streams, used again and again.
//
// Owns: those that were given back; who was given one gives it back before this is destroyed.
// Threads: one at a time. A current context is required.
#pragma once

#include <cuda.h>

#include <vector>

#include "elastic/driver.h"

namespace ravenstore::elastic {

class Events {
 public:
  // `flags`: cuEventCreate's.
  Events(const Driver* driver, unsigned flags) : driver_(driver), flags_(flags) {}
  ~Events();
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  // One behind what is on the stream now; null: the stream is being captured, or the driver makes
  // or records none.
  CUevent Record(CUstream stream);
  void Give(CUevent event) { unused_.push_back(event); }

 private:
  const Driver* const driver_;
  const unsigned flags_;
  std::vector<CUevent> unused_;
};

}  // namespace ravenstore::elastic
