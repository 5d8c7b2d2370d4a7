// The backends that the conformance suite runs on, behind what it needs beyond device.h: streams of
// a caller, graph capture and faults.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace ravenstore::device {

class TestBackend {
 public:
  virtual ~TestBackend() = default;

  virtual const Devices& devices() const = 0;
  // A stream as a program would make it, on device `index`. The caller ends it.
  virtual StreamHandle NewStream(size_t index) = 0;
  virtual void EndStream(StreamHandle stream) = 0;
  virtual void BeginCapture(StreamHandle stream) = 0;
  virtual void EndCapture(StreamHandle stream) = 0;
  // Makes the next copy of a channel, or the next Create, fail. False where nothing can.
  virtual bool FailNextCopy() = 0;
  virtual bool FailNextCreate() = 0;
};

// "host", "fake" (the CUDA backend over libfakecuda.so at $RAVENSTORE_FAKE_LIBCUDA) or "cuda" (over
// this machine's driver); or one of these and "_parts": its first device in two (device/parts.h).
// Null, with the reason, where it cannot run.
std::unique_ptr<TestBackend> OpenBackend(const std::string& name, std::string* why_not);

// Takes the suites' tests of backends that are not here out of GoogleTest's filter, and prints one
// line for each backend instead. Their parameters are backends' names, or begin with one and "_".
void SkipAbsentBackends();

// "fake" and "cuda", and their parts. Null in a build without the CUDA toolkit.
std::unique_ptr<TestBackend> OpenCudaBackend(const std::string& library, bool parts,
                                             std::string* why_not);

// The first of the devices in two.
Devices FirstInTwo(const Devices& devices);

}  // namespace ravenstore::device
