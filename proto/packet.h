// Bounds of the control socket that both ends check. See proto/control.proto.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ravenstore::proto {

inline constexpr size_t kControlPacketMax = 64 * 1024;
// Of a packet to the daemon; of one from it.
inline constexpr size_t kClientDescriptorsMax = 4;
inline constexpr size_t kControlDescriptorsMax = 64;
// Descriptors of memory that the client has not imported yet, at most.
inline constexpr size_t kMemoryUnderWayMax = 64;
inline constexpr const char* kDefaultSocketPath = "/run/ravenstore/ravenstore.sock";
// In SetLimits: take back what was set.
inline constexpr uint64_t kLimitNotSet = ~uint64_t{0};
// A tenant's weight at most.
inline constexpr uint32_t kWeightMost = 1000;
// Overrides the socket path for clients and tools.
inline constexpr const char* kSocketPathVariable = "RAVENSTORE_SOCKET";

}  // namespace ravenstore::proto
