// What the channels' suite runs on: two places and the channels between them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace ravenstore::device {

// One end of a link: kBytes that are reached by copies, and by the test in another way.
class Place {
 public:
  static constexpr Bytes kBytes = core::MiB(16);

  virtual ~Place() = default;
  virtual Target TargetAt(Bytes offset) = 0;
  virtual Source SourceAt(Bytes offset) = 0;
  virtual void Write(Bytes offset, const std::vector<uint8_t>& bytes) = 0;
  virtual std::vector<uint8_t> Read(Bytes offset, Bytes bytes) = 0;
};

class TestLink {
 public:
  virtual ~TestLink() = default;
  virtual Place& near() = 0;
  virtual Place& far() = 0;
  // From near to far, or back.
  virtual std::unique_ptr<Channel> Open(bool forth) = 0;
  // Makes the next copy, or all from then on, fail. False where nothing can.
  virtual bool FailNextCopy() = 0;
};

// Between a device of a backend (backends.h), or memory that the CPU reaches, and something else:
// "BACKEND_memory", "BACKEND_device" (another one, by way of the host), "BACKEND_peer" (the same
// directly), "BACKEND_file", "BACKEND_medium" (fake_medium.h), "memory_file" and "memory_medium".
// Null, with the reason, where it cannot run.
std::unique_ptr<TestLink> OpenLink(const std::string& name, std::string* why_not);

}  // namespace ravenstore::device
