// The protocol by hand: what a client library would never send, hold, or leave unread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "ipc/ring.h"
#include "ipc/segment.h"
#include "ipc/socket.h"
#include "ipc/unique_fd.h"
#include "ipc/wake.h"
#include "proto/control.pb.h"
#include "proto/ledger_page.h"

namespace ravenstore::hostile {

// Packets as the daemon expects them; `request` is what the answer carries.
std::string HelloPacket(bool control_only);
// Of a process of the command `job` (a key; empty: none is known), which runs as one of its own.
std::string LegacyHelloPacket(const std::string& job = "");
std::string InternPacket(const std::string& name);

// One connection. Owns: its socket. Threads: one.
class Connection {
 public:
  // Errors: of ipc::Connect.
  static core::Result<Connection> Open(const std::string& path);

  int fd() const { return socket_.get(); }
  // False when the socket has no room, or has no peer any more.
  bool Send(const std::string& packet, std::vector<int> descriptors = {});
  // The next answer, awaited; nullopt after a hang-up. Descriptors go to `*descriptors`, if given.
  std::optional<proto::DaemonPacket> Receive(std::vector<ipc::UniqueFd>* descriptors = nullptr);
  // Sends, and awaits the next answer.
  std::optional<proto::DaemonPacket> Ask(const std::string& packet,
                                         std::vector<ipc::UniqueFd>* descriptors = nullptr);
  // Reads what is there and forgets it. False after a hang-up.
  bool Drain();

 private:
  explicit Connection(ipc::UniqueFd socket) : socket_(std::move(socket)) {}
  ipc::UniqueFd socket_;
};

// A full client with the ends of its rings in hand. It reads no notices of slabs.
// Owns: its connection and segment. Threads: one.
class RawClient {
 public:
  // nullopt: it was refused, `*why` says with which words.
  static std::optional<RawClient> Attach(const std::string& path, std::string* why);

  Connection& connection() { return connection_; }
  proto::Segment& shared() { return *segment_.get(); }
  proto::LeaseState StateOf(uint32_t slot) {
    return proto::UnpackLease(shared().slots[slot].word.load()).state;
  }
  // Both are false when the ring is full.
  bool Create(uint32_t slot, uint64_t bytes);
  bool Push(const proto::Request& request);

 private:
  RawClient(Connection connection, ipc::ControlSegment segment, ipc::UniqueFd doorbell)
      : connection_(std::move(connection)),
        segment_(std::move(segment)),
        doorbell_(std::move(doorbell)),
        ring_(&segment_.get()->requests) {}
  Connection connection_;
  ipc::ControlSegment segment_;
  ipc::UniqueFd doorbell_;
  ipc::RequestProducer ring_;
};

// The page of a legacy job that claims `used` bytes of the device `uuid`.
ipc::UniqueFd LedgerPage(const std::string& uuid, uint64_t used);
// A page with all its rows, the first of the device `uuid`, and the page of an engine with every
// field of each row filled.
ipc::UniqueFd FullLedgerPage(const std::string& uuid);
ipc::UniqueFd FullElasticPage();
// The UUID of the store's first device; empty when the daemon does not say.
std::string FirstDevice(const std::string& path);
// A legacy job of this process: its connection, or nullopt with the daemon's words in `*why`.
// `*tenant_page` is the page that came along, `*client` the job's number.
std::optional<Connection> AttachLegacy(const std::string& path, const ipc::UniqueFd& page,
                                       std::string* why, ipc::UniqueFd* tenant_page = nullptr,
                                       const std::string& job = "", uint32_t* client = nullptr);

}  // namespace ravenstore::hostile
