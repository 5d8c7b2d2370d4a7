// Channels between memory and media, and between devices by way of the host, with the contract of
// every Channel (device.h).
//
// A copy is cut into chunks, of which several are under way at the same time. Between a device's
// memory and a medium, or another device's memory, they go through a ring of pinned host memory, so
// that both links are busy together. A device's memory is a VaRange of its own; one copy may run
// across chunks that are mapped side by side there.
// A channel makes progress in Poll, Copy and Health: a thread that waits for one of its words polls
// it.
// Errors of Copy: kInvalidArgument for ends that the channel does not lead from and to, and for a
// place in the medium that is misaligned or outside.
// A transfer that fails or falls short fails the channel, in the medium's words. The copies before
// it are signalled. Where the medium's failures are of single copies (goes_on) the channel goes on
// instead, and Channel::OutcomeOf reports them.
#pragma once

#include <cstdint>
#include <memory>

#include "core/result.h"
#include "core/types.h"
#include "device/device.h"
#include "device/medium.h"

namespace ravenstore::device {

enum class MediumAccess : uint8_t { kRead, kWrite };

struct MediumChannelOptions {
  core::Bytes chunk = core::MiB(4);  // a multiple of every medium's granularity
  uint32_t depth = 8;                // chunks under way; of a ring, its chunks
  bool goes_on = false;              // behind a transfer of the medium that failed
};

// For memory that the CPU reaches.
std::unique_ptr<Channel> OpenMediumChannel(MediumAccess access,
                                           const MediumChannelOptions& options);

// For the memory of `device`. Takes chunk * depth bytes of pinned memory, which takes long.
// Errors: those of the device.
Result<std::unique_ptr<Channel>> OpenMediumChannel(Device& device, MediumAccess access,
                                                   const MediumChannelOptions& options);

// From the memory of one device to that of another, or within one without a kernel. Takes and
// errors as above.
Result<std::unique_ptr<Channel>> OpenStagedChannel(Device& from, Device& to,
                                                   const MediumChannelOptions& options);

}  // namespace ravenstore::device
