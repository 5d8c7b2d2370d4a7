#include "tests/hostile/raw.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <span>

#include "ipc/clock.h"
#include "proto/elastic_page.h"
#include "proto/version.h"

namespace ravenstore::hostile {

namespace {

constexpr auto kTimeout = std::chrono::seconds(30);

proto::ClientPacket Numbered() {
  static uint64_t last = 0;
  proto::ClientPacket packet;
  packet.set_request(++last);
  return packet;
}

}  // namespace

std::string HelloPacket(bool control_only) {
  proto::ClientPacket packet = Numbered();
  packet.mutable_hello()->set_protocol_version(proto::kProtocolVersion);
  packet.mutable_hello()->set_name("attacker");
  packet.mutable_hello()->set_control_only(control_only);
  return packet.SerializeAsString();
}

std::string LegacyHelloPacket(const std::string& job) {
  proto::ClientPacket packet = Numbered();
  packet.mutable_legacy_hello()->set_protocol_version(proto::kProtocolVersion);
  packet.mutable_legacy_hello()->set_name("attacker");
  packet.mutable_legacy_hello()->set_mode(job.empty() ? "account" : "elastic");
  packet.mutable_legacy_hello()->set_job(job);
  packet.mutable_legacy_hello()->set_run(static_cast<uint32_t>(::getpid()));
  return packet.SerializeAsString();
}

std::string InternPacket(const std::string& name) {
  proto::ClientPacket packet = Numbered();
  packet.mutable_intern_name()->set_name(name);
  return packet.SerializeAsString();
}

core::Result<Connection> Connection::Open(const std::string& path) {
  RAVEN_ASSIGN_OR_RETURN(ipc::UniqueFd socket, ipc::Connect(path, ipc::Now() + kTimeout));
  return Connection(std::move(socket));
}

bool Connection::Send(const std::string& packet, std::vector<int> descriptors) {
  return ipc::Send(socket_.get(), packet, descriptors).ok();
}

std::optional<proto::DaemonPacket> Connection::Receive(std::vector<ipc::UniqueFd>* descriptors) {
  auto packet = ipc::Receive(socket_.get(), true);
  if (!packet.ok() || !packet->has_value()) return std::nullopt;
  proto::DaemonPacket answer;
  if (!answer.ParseFromString((*packet)->bytes)) return std::nullopt;
  if (descriptors != nullptr) *descriptors = std::move((*packet)->descriptors);
  return answer;
}

std::optional<proto::DaemonPacket> Connection::Ask(const std::string& packet,
                                                   std::vector<ipc::UniqueFd>* descriptors) {
  if (!Send(packet)) return std::nullopt;
  return Receive(descriptors);
}

bool Connection::Drain() {
  for (;;) {
    auto packet = ipc::Receive(socket_.get(), false);
    if (!packet.ok()) return packet.error().code == core::ErrorCode::kTimedOut;
    if (!packet->has_value()) return false;
  }
}

std::optional<RawClient> RawClient::Attach(const std::string& path, std::string* why) {
  auto connection = Connection::Open(path);
  if (!connection.ok()) {
    *why = connection.error().message;
    return std::nullopt;
  }
  std::vector<ipc::UniqueFd> descriptors;
  const auto answer = connection->Ask(HelloPacket(false), &descriptors);
  if (!answer || descriptors.size() != 2) {
    *why = answer ? answer->failure().message() : "hung up";
    return std::nullopt;
  }
  auto segment = ipc::ControlSegment::Map(std::move(descriptors[0]));
  if (!segment.ok()) {
    *why = segment.error().message;
    return std::nullopt;
  }
  return RawClient(std::move(*connection), std::move(*segment), std::move(descriptors[1]));
}

bool RawClient::Push(const proto::Request& request) {
  const bool pushed = ring_.Push(request);
  ipc::WakeIfAsleep(&shared().header.daemon_asleep, doorbell_.get());
  return pushed;
}

bool RawClient::Create(uint32_t slot, uint64_t bytes) {
  if (ring_.Room() == 0) {
    ipc::WakeIfAsleep(&shared().header.daemon_asleep, doorbell_.get());
    return false;
  }
  proto::Request request{};
  request.op = static_cast<uint32_t>(proto::RequestOp::kCreate);
  request.slot = slot;
  request.bytes = bytes;
  request.deadline_ns = std::numeric_limits<int64_t>::max();
  shared().slots[slot].word = proto::Pack({proto::LeaseState::kRequested, 0, 1});
  return Push(request);
}

namespace {

// A sealed memfd of `bytes` bytes, filled by `fill` through a mapping that is all zeros.
template <typename Page, typename Fill>
ipc::UniqueFd SealedPage(size_t bytes, Fill fill) {
  ipc::UniqueFd file(::memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return {};
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return {};
  fill(static_cast<Page*>(mapped));
  ::munmap(mapped, bytes);
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  return file;
}

void FillRow(const std::string& uuid, uint64_t used, proto::LedgerRow* row) {
  std::strncpy(row->uuid, uuid.c_str(), sizeof(row->uuid) - 1);
  row->used = used;
  row->kinds[0] = used;
  row->peak = used;
}

}  // namespace

ipc::UniqueFd LedgerPage(const std::string& uuid, uint64_t used) {
  return SealedPage<proto::LedgerPage>(proto::kLedgerBytes, [&](proto::LedgerPage* page) {
    page->magic = proto::kLedgerMagic;
    page->rows = 1;
    FillRow(uuid, used, &page->row[0]);
  });
}

ipc::UniqueFd FullLedgerPage(const std::string& uuid) {
  return SealedPage<proto::LedgerPage>(proto::kLedgerBytes, [&](proto::LedgerPage* page) {
    page->magic = proto::kLedgerMagic;
    page->rows = proto::kLedgerDevices;
    FillRow(uuid, 1, &page->row[0]);
    const std::string longest(sizeof(page->row[0].uuid) - 3, 'G');
    for (uint32_t i = 1; i < proto::kLedgerDevices; ++i)
      FillRow(longest + static_cast<char>('a' + i), 1, &page->row[i]);
  });
}

ipc::UniqueFd FullElasticPage() {
  return SealedPage<char>(proto::kElasticPageBytes, [](char* page) {
    for (uint32_t i = 0; i < proto::kLedgerDevices; ++i) {
      auto* row = reinterpret_cast<proto::ElasticPageRow*>(page + i * proto::kElasticRowBytes);
      std::memset(static_cast<void*>(row), 'e', sizeof(*row));
      row->sequence = 2;
      row->enough = 1;
    }
  });
}

std::string FirstDevice(const std::string& path) {
  auto connection = Connection::Open(path);
  if (!connection.ok()) return "";
  const auto answer = connection->Ask(HelloPacket(true));
  return answer && answer->welcome().devices_size() > 0 ? answer->welcome().devices(0).uuid() : "";
}

std::optional<Connection> AttachLegacy(const std::string& path, const ipc::UniqueFd& page,
                                       std::string* why, ipc::UniqueFd* tenant_page,
                                       const std::string& job, uint32_t* client) {
  auto connection = Connection::Open(path);
  if (!connection.ok()) {
    *why = connection.error().message;
    return std::nullopt;
  }
  std::vector<ipc::UniqueFd> descriptors;
  std::optional<proto::DaemonPacket> answer;
  if (connection->Send(LegacyHelloPacket(job), {page.get()}))
    answer = connection->Receive(&descriptors);
  if (!answer || !answer->has_legacy_welcome()) {
    *why = answer ? answer->failure().message() : "hung up";
    return std::nullopt;
  }
  if (client != nullptr) *client = answer->legacy_welcome().client();
  if (tenant_page != nullptr && !descriptors.empty()) *tenant_page = std::move(descriptors[0]);
  return std::move(*connection);
}

}  // namespace ravenstore::hostile
