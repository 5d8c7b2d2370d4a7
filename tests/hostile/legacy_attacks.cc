// Legacy jobs that lie on their page, ask for more than any device has, and come and go.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <string>

#include "client/client.h"
#include "proto/elastic_page.h"
#include "tests/hostile/attacks.h"
#include "tests/hostile/raw.h"

namespace ravenstore::hostile {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kMoreThanAny = uint64_t{1} << 60;

// Asks for `bytes` and waits for the answer.
bool Reclaim(AttackContext& context, const std::string& uuid, uint64_t bytes) {
  auto connection = Connection::Open(context.socket());
  if (!connection.ok()) {
    context.Refused(connection.error().message);
    return false;
  }
  proto::ClientPacket packet;
  packet.set_request(1);
  packet.mutable_legacy_reclaim()->set_uuid(uuid);
  packet.mutable_legacy_reclaim()->set_bytes(bytes);
  const auto answer = connection->Ask(packet.SerializeAsString());
  if (!answer || !answer->has_legacy_reclaimed()) {
    context.Refused(answer ? answer->failure().message() : "hung up");
    return false;
  }
  context.AddDone();
  return true;
}

// On a page that claims more than there is; then, if so, again and again.
void ReclaimRequests(AttackContext& context, bool again) {
  const std::string uuid = FirstDevice(context.socket());
  const ipc::UniqueFd page = LedgerPage(uuid, kMoreThanAny);
  std::string why;
  const auto job = AttachLegacy(context.socket(), page, &why);
  if (!job) return context.Refused(why);
  bool yielded = Reclaim(context, uuid, 1);
  context.Ready();
  while (again && context.running()) {
    yielded = Reclaim(context, uuid, MiB(16));
    if (!yielded) context.Pause(milliseconds(10));
  }
  context.Hold();
}

// Attaches and leaves, at the highest rate that one process has.
void Churn(AttackContext& context) {
  const std::string uuid = FirstDevice(context.socket());
  while (context.running()) {
    const ipc::UniqueFd page = LedgerPage(uuid, 0);
    std::string why;
    if (AttachLegacy(context.socket(), page, &why)) {
      context.AddDone();
    } else {
      context.Refused(why);
    }
    context.Ready();
  }
}

// Waits for all of the device and hangs up, at the highest rate that one process has.
void Waits(AttackContext& context) {
  const std::string uuid = FirstDevice(context.socket());
  const ipc::UniqueFd page = LedgerPage(uuid, kMoreThanAny);
  std::string why;
  const auto job = AttachLegacy(context.socket(), page, &why);
  if (!job) return context.Refused(why);
  proto::ClientPacket packet;
  packet.set_request(1);
  packet.mutable_legacy_wait()->set_uuid(uuid);
  packet.mutable_legacy_wait()->set_bytes(kMoreThanAny);
  const std::string wait = packet.SerializeAsString();
  context.Ready();
  while (context.running()) {
    auto connection = Connection::Open(context.socket());
    if (connection.ok() && connection->Send(wait)) {
      context.AddDone();
    } else {
      context.Refused(connection.ok() ? "no room" : connection.error().message);
    }
  }
}

// A page of any bytes, rewritten while the daemon is asked again and again what stands there.
void ElasticPages(AttackContext& context) {
  const ipc::UniqueFd page(::memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (::ftruncate(page.get(), proto::kElasticPageBytes) != 0) return context.Refused("no page");
  auto* words = static_cast<uint64_t*>(
      ::mmap(nullptr, proto::kElasticPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page.get(), 0));
  ::fcntl(page.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  std::string why;
  const auto job =
      AttachLegacy(context.socket(), LedgerPage(FirstDevice(context.socket()), kMoreThanAny), &why);
  auto asks = Connection::Open(context.socket());
  if (!job || !asks.ok() || !asks->Ask(HelloPacket(true))) return context.Refused(why);
  std::mt19937_64 random(1);
  for (uint32_t client = 1; context.running(); client = client % 64 + 1) {
    for (size_t i = 0; i < proto::kElasticRowBytes / sizeof(uint64_t); ++i) words[i] = random();
    words[0] &= ~uint64_t{client % 2};
    // The first is taken; there is no end of others.
    auto brings = Connection::Open(context.socket());
    proto::ClientPacket packet;
    packet.mutable_legacy_elastic();
    if (brings.ok()) brings->Send(packet.SerializeAsString(), {page.get()});
    packet.set_request(1);
    packet.mutable_explain_job()->set_client(client);
    if (!asks->Ask(packet.SerializeAsString())) return context.Refused("hung up");
    context.AddDone();
    context.Ready();
  }
}

constexpr Attack kAttacks[] = {
    {"yield_once", [](AttackContext& context) { ReclaimRequests(context, false); }},
    {"yield_again", [](AttackContext& context) { ReclaimRequests(context, true); }},
    {"legacy_churn", Churn},
    {"wait_churn", Waits},
    {"elastic_pages", ElasticPages},
};

}  // namespace

std::span<const Attack> LegacyAttacks() {
  return kAttacks;
}

}  // namespace ravenstore::hostile
