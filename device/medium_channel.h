// Channels between memory and media, with the promise of every Channel (device.h).
//
// A copy is cut into chunks, of which several are under way at once. Between a medium and the
// memory of a device they go through a ring of pinned host memory, so that the device's link and
// the medium are busy together.
// In Poll, Copy and Health a channel goes on: whoever waits for a word of it polls it.
// Errors of Copy: kInvalidArgument for ends that are not one of memory and one of a medium, in the
// channel's direction, and for a place in the medium that is misaligned or outside.
// A transfer that fails or falls short fails the channel, in the medium's words. What was copied
// before it is signalled.
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
};

// For memory that the CPU reaches.
std::unique_ptr<Channel> OpenMediumChannel(MediumAccess access,
                                           const MediumChannelOptions& options);

// For the memory of `device`. Takes chunk * depth bytes of pinned memory, which takes long.
// Errors: those of the device.
Result<std::unique_ptr<Channel>> OpenMediumChannel(Device& device, MediumAccess access,
                                                   const MediumChannelOptions& options);

}  // namespace ravenstore::device
