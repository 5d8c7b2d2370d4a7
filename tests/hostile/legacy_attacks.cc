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

constexpr uint64_t kNobodyHas = uint64_t{1} << 60;

// Asks for `bytes` and waits for the answer.
bool Reclaim(Scene& scene, const std::string& uuid, uint64_t bytes) {
  auto connection = Connection::Open(scene.socket());
  if (!connection.ok()) {
    scene.Refused(connection.error().message);
    return false;
  }
  proto::ClientPacket packet;
  packet.set_request(1);
  packet.mutable_legacy_reclaim()->set_uuid(uuid);
  packet.mutable_legacy_reclaim()->set_bytes(bytes);
  const auto answer = connection->Ask(packet.SerializeAsString());
  if (!answer || !answer->has_legacy_reclaimed()) {
    scene.Refused(answer ? answer->failure().message() : "hung up");
    return false;
  }
  scene.Did();
  return true;
}

// On a page that claims more than there is; then, if so, again and again.
void ReclaimRequests(Scene& scene, bool again) {
  const std::string uuid = FirstDevice(scene.socket());
  const ipc::UniqueFd page = LedgerPage(uuid, kNobodyHas);
  std::string why;
  const auto job = AttachLegacy(scene.socket(), page, &why);
  if (!job) return scene.Refused(why);
  bool yielded = Reclaim(scene, uuid, 1);
  scene.Ready();
  while (again && scene.goes_on()) {
    yielded = Reclaim(scene, uuid, MiB(16));
    if (!yielded) scene.Pause(milliseconds(10));
  }
  scene.Hold();
}

// Attaches and leaves, at the highest rate that one process has.
void Churn(Scene& scene) {
  const std::string uuid = FirstDevice(scene.socket());
  while (scene.goes_on()) {
    const ipc::UniqueFd page = LedgerPage(uuid, 0);
    std::string why;
    if (AttachLegacy(scene.socket(), page, &why)) {
      scene.Did();
    } else {
      scene.Refused(why);
    }
    scene.Ready();
  }
}

// Waits for all of the device and hangs up, at the highest rate that one process has.
void Waits(Scene& scene) {
  const std::string uuid = FirstDevice(scene.socket());
  const ipc::UniqueFd page = LedgerPage(uuid, kNobodyHas);
  std::string why;
  const auto job = AttachLegacy(scene.socket(), page, &why);
  if (!job) return scene.Refused(why);
  proto::ClientPacket packet;
  packet.set_request(1);
  packet.mutable_legacy_wait()->set_uuid(uuid);
  packet.mutable_legacy_wait()->set_bytes(kNobodyHas);
  const std::string wait = packet.SerializeAsString();
  scene.Ready();
  while (scene.goes_on()) {
    auto connection = Connection::Open(scene.socket());
    if (connection.ok() && connection->Send(wait)) {
      scene.Did();
    } else {
      scene.Refused(connection.ok() ? "no room" : connection.error().message);
    }
  }
}

// A page of any bytes, rewritten while the daemon is asked again and again what stands there.
void ElasticPages(Scene& scene) {
  const ipc::UniqueFd page(::memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (::ftruncate(page.get(), proto::kElasticPageBytes) != 0) return scene.Refused("no page");
  auto* words = static_cast<uint64_t*>(
      ::mmap(nullptr, proto::kElasticPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page.get(), 0));
  ::fcntl(page.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  std::string why;
  const auto job =
      AttachLegacy(scene.socket(), LedgerPage(FirstDevice(scene.socket()), kNobodyHas), &why);
  auto asks = Connection::Open(scene.socket());
  if (!job || !asks.ok() || !asks->Ask(HelloPacket(true))) return scene.Refused(why);
  std::mt19937_64 random(1);
  for (uint32_t client = 1; scene.goes_on(); client = client % 64 + 1) {
    for (size_t i = 0; i < proto::kElasticRowBytes / sizeof(uint64_t); ++i) words[i] = random();
    words[0] &= ~uint64_t{client % 2};
    // The first is taken; there is no end of others.
    auto brings = Connection::Open(scene.socket());
    proto::ClientPacket packet;
    packet.mutable_legacy_elastic();
    if (brings.ok()) brings->Send(packet.SerializeAsString(), {page.get()});
    packet.set_request(1);
    packet.mutable_explain_job()->set_client(client);
    if (!asks->Ask(packet.SerializeAsString())) return scene.Refused("hung up");
    scene.Did();
    scene.Ready();
  }
}

constexpr Attack kAttacks[] = {
    {"yield_once", [](Scene& scene) { ReclaimRequests(scene, false); }},
    {"yield_again", [](Scene& scene) { ReclaimRequests(scene, true); }},
    {"legacy_churn", Churn},
    {"wait_churn", Waits},
    {"elastic_pages", ElasticPages},
};

}  // namespace

std::span<const Attack> LegacyAttacks() {
  return kAttacks;
}

}  // namespace ravenstore::hostile
