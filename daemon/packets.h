// The daemon's packets, as they are sent.
#pragma once

#include <cstdint>
#include <string>

#include "core/result.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

// A client's name as it may be printed and sent on: printable ASCII and not too long.
std::string PrintableName(const std::string& name);

proto::DaemonPacket FailureOf(uint64_t request, const core::Error& error);
// A packet's bytes; a failure's in its place when they are more than a packet may have.
std::string Encode(const proto::DaemonPacket& packet);

}  // namespace ravenstore::daemon
