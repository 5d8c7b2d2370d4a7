#include "daemon/packets.h"

#include "daemon/names.h"
#include "proto/packet.h"

namespace ravenstore::daemon {

std::string PrintableName(const std::string& name) {
  std::string text = name.substr(0, Names::kNameBytesMax);
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

proto::DaemonPacket FailureOf(uint64_t request, const core::Error& error) {
  proto::DaemonPacket packet;
  packet.set_request(request);
  packet.mutable_failure()->set_code(static_cast<uint32_t>(error.code));
  packet.mutable_failure()->set_message(error.message);
  return packet;
}

std::string Encode(const proto::DaemonPacket& packet) {
  std::string bytes = packet.SerializeAsString();
  if (bytes.size() <= proto::kControlPacketMax) return bytes;
  return FailureOf(packet.request(), {core::ErrorCode::kLimit,
                                      "the daemon's answer has " + std::to_string(bytes.size()) +
                                          " bytes, more than a packet may"})
      .SerializeAsString();
}

}  // namespace ravenstore::daemon
