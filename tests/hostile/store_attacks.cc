// What a client asks of the loop, the workers and the link.
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/ctl/session.h"
#include "tests/hostile/attacks.h"
#include "tests/hostile/raw.h"

namespace ravenstore::hostile {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Creates that find no room and wait for ever, `count` of them.
void PendingCreates(Scene& scene) {
  const uint64_t most = std::min<uint64_t>(scene.count(200000), proto::kSlotCapacity);
  std::string why;
  auto client = RawClient::Attach(scene.socket(), &why);
  if (!client) return scene.Refused(why);
  for (uint32_t slot = 0; slot < most && scene.goes_on();) {
    if (slot == 1000) scene.Ready();
    if (!client->Create(slot, MiB(8))) {
      scene.Pause(milliseconds(1));
      continue;
    }
    ++slot;
    scene.Did();
  }
  scene.Ready();
  scene.Hold();
}

// Requests that mean nothing, as fast as the ring takes them.
void BadRequests(Scene& scene) {
  std::string why;
  auto client = RawClient::Attach(scene.socket(), &why);
  if (!client) return scene.Refused(why);
  scene.Ready();
  proto::Request request{};
  request.op = static_cast<uint32_t>(proto::RequestOp::kFree);
  while (scene.goes_on()) {
    for (int i = 0; i < 1000; ++i) {
      request.slot = (request.slot + 1) % 1024;
      if (client->Push(request)) scene.Did();
    }
  }
}

// Notices of gets and puts that never were, on every lane.
void FloodOfLog(Scene& scene) {
  std::string why;
  auto client = RawClient::Attach(scene.socket(), &why);
  if (!client) return scene.Refused(why);
  for (uint32_t slot = 0; slot < 1024 && scene.goes_on();)
    slot += client->Create(slot, KiB(4)) ? 1 : 0;
  std::vector<ipc::LogProducer> lanes;
  for (auto& lane : client->shared().log) lanes.emplace_back(&lane);
  client->shared().header.log_lanes = proto::kLogLanes;
  scene.Ready();
  for (uint32_t slot = 0; scene.goes_on();) {
    for (auto& lane : lanes) {
      for (int i = 0; i < 64; ++i)
        lane.Append({slot++ % 1024, i % 2 == 0 ? proto::AccessOp::kGet : proto::AccessOp::kPut});
      scene.Did(64);
    }
  }
}

Store Attach(Scene& scene, uint64_t budget = 0) {
  return Store::connect({.socket = scene.socket(),
                         .name = "attacker",
                         .device_budget = budget,
                         .timeout = seconds(5)});
}

// Allocates tensors that need a slab each, then immediately frees and returns them.
void SlabChurn(Scene& scene) {
  Store store = Attach(scene);
  std::vector<Tensor> tensors;
  while (scene.goes_on()) {
    try {
      for (int i = 0; i < 16; ++i) tensors.push_back(store.create(MiB(2), {.fail_fast = true}));
    } catch (const Error& error) {
      scene.Refused(error.what());
    }
    scene.Did(tensors.size());
    store.free(std::move(tensors), nullptr);
    tensors.clear();
    store.trim();
    scene.Ready();
  }
}

// The descriptors of its slabs lie in its socket, unread.
void SlabsUnread(Scene& scene) {
  std::vector<RawClient> clients;
  for (uint64_t i = 0; i < scene.count(16); ++i) {
    std::string why;
    auto client = RawClient::Attach(scene.socket(), &why);
    if (!client) {
      scene.Refused(why);
      break;
    }
    clients.push_back(std::move(*client));
  }
  uint32_t slot = 0;
  while (scene.goes_on()) {
    // Those that fit get a slab each; the others wait, and are over with the client.
    for (RawClient& client : clients) {
      if (slot < 4096 && client.Create(slot, MiB(2))) scene.Did();
    }
    ++slot;
    if (slot > 16) scene.Ready();
    if (slot > 256) scene.Pause(milliseconds(10));
  }
}

// Slabs that come and go, and whose instructions are acknowledged without being executed; now and
// then more than there are.
void FalseAcknowledgements(Scene& scene) {
  while (scene.goes_on()) {
    std::string why;
    auto client = RawClient::Attach(scene.socket(), &why);
    if (!client) {
      scene.Refused(why);
      scene.Pause(milliseconds(1));
      continue;
    }
    scene.Ready();
    for (uint32_t slot = 0; slot < 256 && scene.goes_on(); ++slot) {
      proto::MapRing& maps = client->shared().maps;
      maps.acknowledged.store(maps.head.load());
      // Rings, and asks for one more slab.
      if (!client->Create(slot, MiB(2)) || !client->connection().Drain()) break;
      scene.Did();
    }
    client->shared().maps.acknowledged.fetch_add(1);
    client->Create(256, MiB(2));
    while (scene.goes_on() && client->connection().Drain()) scene.Pause(milliseconds(1));
  }
}

// One small tensor in use keeps each slab of idle ones from being taken back.
void SpreadTensors(Scene& scene) {
  constexpr uint64_t kSmall = KiB(64);
  constexpr size_t kInSlab = MiB(2) / kSmall;
  Store store = Attach(scene);
  std::vector<Tensor> tensors;
  while (scene.goes_on()) {
    try {
      tensors.push_back(store.create(kSmall, {.fail_fast = true, .timeout = milliseconds(200)}));
      std::memset(tensors.back().data(), 1, KiB(4));
      if (tensors.size() % kInSlab != 0) store.put(tensors.back(), nullptr);
      scene.Did();
      if (tensors.size() < 4096) continue;
      scene.Ready();
      scene.Pause(milliseconds(10));
      if (tensors.size() == 8192) tensors.pop_back();
    } catch (const Error& error) {
      scene.Refused(error.what());
      scene.Ready();
      scene.Pause(milliseconds(10));  // until somebody leaves some
    }
  }
}

// Writes more than fits, round and round: every get sends another's bytes over the link.
void DirtyEvictions(Scene& scene) {
  Store store = Attach(scene, MiB(16));
  std::vector<Tensor> tensors;
  while (scene.goes_on()) {
    try {
      while (tensors.size() < 24) {
        tensors.push_back(store.create(MiB(2)));
        std::memset(tensors.back().data(), 1, MiB(2));
        store.put(tensors.back(), nullptr);
      }
      for (Tensor& tensor : tensors) {
        static_cast<char*>(store.get(tensor, nullptr))[0] += 1;
        store.put(tensor, nullptr);
        scene.Did();
      }
    } catch (const Error& error) {
      scene.Refused(error.what());
      scene.Pause(milliseconds(1));
    }
    scene.Ready();
  }
}

// All of the device, in use; or, of tensors that are put, all of the host's pool, too.
void HoldMemory(Scene& scene, bool host) {
  std::vector<Store> stores;
  std::vector<Tensor> tensors;
  stores.push_back(Attach(scene));
  while (scene.goes_on()) {
    try {
      tensors.push_back(
          stores.back().create(MiB(2), {.fail_fast = !host, .timeout = milliseconds(200)}));
      std::memset(tensors.back().data(), 1, KiB(4));
      if (host) stores.back().put(tensors.back(), nullptr);
      scene.Did();
    } catch (const Error& error) {
      scene.Refused(error.what());
      scene.Ready();
      scene.Pause(milliseconds(10));  // until somebody leaves some
    }
  }
}

// All of the pinned memory that it may have.
void HoldPinned(Scene& scene) {
  Store store = Attach(scene);
  std::vector<PinnedBlock> blocks;
  while (scene.goes_on()) {
    try {
      blocks.push_back(store.pinned(MiB(2), {.timeout = milliseconds(200)}));
      std::memset(blocks.back().data(), 1, KiB(4));
      scene.Did();
    } catch (const Error& error) {
      scene.Refused(error.what());
      scene.Ready();
      scene.Pause(milliseconds(10));  // until somebody leaves some
    }
  }
}

// Blocks of all sizes come and go, and pinned memory that holds none is given back each time, so
// that slabs are made and destroyed for ever.
void PinnedChurn(Scene& scene) {
  Store store = Attach(scene);
  for (uint64_t i = 0; scene.goes_on(); ++i) {
    try {
      std::vector<PinnedBlock> blocks;
      for (uint64_t k = 0; k < 8; ++k) blocks.push_back(store.pinned(KiB(4) << ((i + k) % 14)));
      blocks.clear();
      store.trim();
      scene.Did();
    } catch (const Error& error) {
      scene.Refused(error.what());
      scene.Pause(milliseconds(1));
    }
    if (i == 8) scene.Ready();
  }
}

// As an administrator: another user's limits, and those of a user who is not there.
void LimitsChurn(Scene& scene) {
  auto session = client::ctl::Session::Open(scene.socket(), seconds(30));
  if (!session.ok()) return scene.Refused(session.error().message);
  scene.Ready();
  for (uint32_t i = 0; scene.goes_on(); ++i) {
    proto::SetLimits limits;
    limits.set_uid(4000000 + i % 64);
    limits.set_device_budget(i % 2 == 0 ? MiB(64) : ~uint64_t{0});
    limits.set_visible_memory(i % 2 == 0 ? MiB(64) : ~uint64_t{0});
    const auto answer = session->SetLimits(limits);
    if (!answer.ok()) {
      scene.Refused(answer.error().message);
      return;
    }
    scene.Did();
  }
}

constexpr Attack kAttacks[] = {
    {"pending_creates", PendingCreates},
    {"bad_requests", BadRequests},
    {"flood_log", FloodOfLog},
    {"slab_churn", SlabChurn},
    {"slabs_unread", SlabsUnread},
    {"false_acknowledgements", FalseAcknowledgements},
    {"spread_tensors", SpreadTensors},
    {"dirty_evictions", DirtyEvictions},
    {"limits_churn", LimitsChurn},
    {"hold_device", [](Scene& scene) { HoldMemory(scene, false); }},
    {"hold_host", [](Scene& scene) { HoldMemory(scene, true); }},
    {"hold_pinned", HoldPinned},
    {"pinned_churn", PinnedChurn},
};

}  // namespace

std::span<const Attack> StoreAttacks() {
  return kAttacks;
}

}  // namespace ravenstore::hostile
