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
void PendingCreates(AttackContext& context) {
  const uint64_t most = std::min<uint64_t>(context.count(200000), proto::kSlotCapacity);
  std::string why;
  auto client = RawClient::Attach(context.socket(), &why);
  if (!client) return context.Refused(why);
  for (uint32_t slot = 0; slot < most && context.running();) {
    if (slot == 1000) context.Ready();
    if (!client->Create(slot, MiB(8))) {
      context.Pause(milliseconds(1));
      continue;
    }
    ++slot;
    context.AddDone();
  }
  context.Ready();
  context.Hold();
}

// Requests that mean nothing, as fast as the ring takes them.
void BadRequests(AttackContext& context) {
  std::string why;
  auto client = RawClient::Attach(context.socket(), &why);
  if (!client) return context.Refused(why);
  context.Ready();
  proto::Request request{};
  request.op = static_cast<uint32_t>(proto::RequestOp::kFree);
  while (context.running()) {
    for (int i = 0; i < 1000; ++i) {
      request.slot = (request.slot + 1) % 1024;
      if (client->Push(request)) context.AddDone();
    }
  }
}

// Notices of gets and puts that never were, on every lane.
void FloodOfLog(AttackContext& context) {
  std::string why;
  auto client = RawClient::Attach(context.socket(), &why);
  if (!client) return context.Refused(why);
  for (uint32_t slot = 0; slot < 1024 && context.running();)
    slot += client->Create(slot, KiB(4)) ? 1 : 0;
  std::vector<ipc::LogProducer> lanes;
  for (auto& lane : client->shared().log) lanes.emplace_back(&lane);
  client->shared().header.log_lanes = proto::kLogLanes;
  context.Ready();
  for (uint32_t slot = 0; context.running();) {
    for (auto& lane : lanes) {
      for (int i = 0; i < 64; ++i)
        lane.Append({slot++ % 1024, i % 2 == 0 ? proto::AccessOp::kGet : proto::AccessOp::kPut});
      context.AddDone(64);
    }
  }
}

Store Attach(AttackContext& context, uint64_t budget = 0) {
  return Store::connect({.socket = context.socket(),
                         .name = "attacker",
                         .device_budget = budget,
                         .timeout = seconds(5)});
}

// Allocates tensors that need a slab each, then immediately frees and returns them.
void SlabChurn(AttackContext& context) {
  Store store = Attach(context);
  std::vector<Tensor> tensors;
  while (context.running()) {
    try {
      for (int i = 0; i < 16; ++i) tensors.push_back(store.create(MiB(2), {.fail_fast = true}));
    } catch (const Error& error) {
      context.Refused(error.what());
    }
    context.AddDone(tensors.size());
    store.free(std::move(tensors), nullptr);
    tensors.clear();
    store.trim();
    context.Ready();
  }
}

// The descriptors of its slabs lie in its socket, unread.
void SlabsUnread(AttackContext& context) {
  std::vector<RawClient> clients;
  for (uint64_t i = 0; i < context.count(16); ++i) {
    std::string why;
    auto client = RawClient::Attach(context.socket(), &why);
    if (!client) {
      context.Refused(why);
      break;
    }
    clients.push_back(std::move(*client));
  }
  uint32_t slot = 0;
  while (context.running()) {
    // Those that fit get a slab each; the others wait, and are over with the client.
    for (RawClient& client : clients) {
      if (slot < 4096 && client.Create(slot, MiB(2))) context.AddDone();
    }
    ++slot;
    if (slot > 16) context.Ready();
    if (slot > 256) context.Pause(milliseconds(10));
  }
}

// Slabs that come and go, and whose instructions are acknowledged without being executed; now and
// then more than there are.
void FalseAcknowledgements(AttackContext& context) {
  while (context.running()) {
    std::string why;
    auto client = RawClient::Attach(context.socket(), &why);
    if (!client) {
      context.Refused(why);
      context.Pause(milliseconds(1));
      continue;
    }
    context.Ready();
    for (uint32_t slot = 0; slot < 256 && context.running(); ++slot) {
      proto::MapRing& maps = client->shared().maps;
      maps.acknowledged.store(maps.head.load());
      // Rings, and asks for one more slab.
      if (!client->Create(slot, MiB(2)) || !client->connection().Drain()) break;
      context.AddDone();
    }
    client->shared().maps.acknowledged.fetch_add(1);
    client->Create(256, MiB(2));
    while (context.running() && client->connection().Drain()) context.Pause(milliseconds(1));
  }
}

// One small tensor in use keeps each slab of idle ones from being taken back.
void SpreadTensors(AttackContext& context) {
  constexpr uint64_t kSmall = KiB(64);
  constexpr size_t kInSlab = MiB(2) / kSmall;
  Store store = Attach(context);
  std::vector<Tensor> tensors;
  while (context.running()) {
    try {
      tensors.push_back(store.create(kSmall, {.fail_fast = true, .timeout = milliseconds(200)}));
      std::memset(tensors.back().data(), 1, KiB(4));
      if (tensors.size() % kInSlab != 0) store.put(tensors.back(), nullptr);
      context.AddDone();
      if (tensors.size() < 4096) continue;
      context.Ready();
      context.Pause(milliseconds(10));
      if (tensors.size() == 8192) tensors.pop_back();
    } catch (const Error& error) {
      context.Refused(error.what());
      context.Ready();
      context.Pause(milliseconds(10));  // until somebody leaves some
    }
  }
}

// Writes more than fits, round and round: every get sends another's bytes over the link.
void DirtyEvictions(AttackContext& context) {
  Store store = Attach(context, MiB(16));
  std::vector<Tensor> tensors;
  while (context.running()) {
    try {
      while (tensors.size() < 24) {
        tensors.push_back(store.create(MiB(2)));
        std::memset(tensors.back().data(), 1, MiB(2));
        store.put(tensors.back(), nullptr);
      }
      for (Tensor& tensor : tensors) {
        static_cast<char*>(store.get(tensor, nullptr))[0] += 1;
        store.put(tensor, nullptr);
        context.AddDone();
      }
    } catch (const Error& error) {
      context.Refused(error.what());
      context.Pause(milliseconds(1));
    }
    context.Ready();
  }
}

// All of the device, in use; or, of tensors that are put, all of the host's pool, too.
void HoldMemory(AttackContext& context, bool host) {
  std::vector<Store> stores;
  std::vector<Tensor> tensors;
  stores.push_back(Attach(context));
  while (context.running()) {
    try {
      tensors.push_back(
          stores.back().create(MiB(2), {.fail_fast = !host, .timeout = milliseconds(200)}));
      std::memset(tensors.back().data(), 1, KiB(4));
      if (host) stores.back().put(tensors.back(), nullptr);
      context.AddDone();
    } catch (const Error& error) {
      context.Refused(error.what());
      context.Ready();
      context.Pause(milliseconds(10));  // until somebody leaves some
    }
  }
}

// All of the pinned memory that it may have.
void HoldPinned(AttackContext& context) {
  Store store = Attach(context);
  std::vector<PinnedBlock> blocks;
  while (context.running()) {
    try {
      blocks.push_back(store.pinned(MiB(2), {.timeout = milliseconds(200)}));
      std::memset(blocks.back().data(), 1, KiB(4));
      context.AddDone();
    } catch (const Error& error) {
      context.Refused(error.what());
      context.Ready();
      context.Pause(milliseconds(10));  // until somebody leaves some
    }
  }
}

// Blocks of all sizes come and go, and pinned memory that holds none is given back each time, so
// that slabs are made and destroyed for ever.
void PinnedChurn(AttackContext& context) {
  Store store = Attach(context);
  for (uint64_t i = 0; context.running(); ++i) {
    try {
      std::vector<PinnedBlock> blocks;
      for (uint64_t k = 0; k < 8; ++k) blocks.push_back(store.pinned(KiB(4) << ((i + k) % 14)));
      blocks.clear();
      store.trim();
      context.AddDone();
    } catch (const Error& error) {
      context.Refused(error.what());
      context.Pause(milliseconds(1));
    }
    if (i == 8) context.Ready();
  }
}

// As an administrator: another user's limits, and those of a user who is not there.
void LimitsChurn(AttackContext& context) {
  auto session = client::ctl::Session::Open(context.socket(), seconds(30));
  if (!session.ok()) return context.Refused(session.error().message);
  context.Ready();
  for (uint32_t i = 0; context.running(); ++i) {
    proto::SetLimits limits;
    limits.set_uid(4000000 + i % 64);
    limits.set_device_budget(i % 2 == 0 ? MiB(64) : ~uint64_t{0});
    limits.set_visible_memory(i % 2 == 0 ? MiB(64) : ~uint64_t{0});
    const auto answer = session->SetLimits(limits);
    if (!answer.ok()) {
      context.Refused(answer.error().message);
      return;
    }
    context.AddDone();
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
    {"hold_device", [](AttackContext& context) { HoldMemory(context, false); }},
    {"hold_host", [](AttackContext& context) { HoldMemory(context, true); }},
    {"hold_pinned", HoldPinned},
    {"pinned_churn", PinnedChurn},
};

}  // namespace

std::span<const Attack> StoreAttacks() {
  return kAttacks;
}

}  // namespace ravenstore::hostile
