// What the store on pages knows of its clients: their tensors, their part of each device, their
// requests and their limits.
//
// PageStore changes it as clients ask and pages move, StoreRooms (store_rooms.h) by what the pools
// for copies have, StoreViews (store_views.h) reads it.
//
// Owns: the clients with their pages, the schedulers. Units: bytes. Threads: the planner loop.
// Errors: none. Cost: O(1) or O(log clients) a call, unless it says more.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "core/chunked.h"
#include "core/events.h"
#include "core/schedule/page_scheduler.h"
#include "core/store_views.h"
#include "core/types.h"
#include "daemon/client_pages.h"
#include "daemon/page_explanation.h"
#include "daemon/page_limits.h"
#include "daemon/tensor_ids.h"

namespace ravenstore::daemon {

// A tensor's number is its slot.
constexpr core::SlotId SlotOf(core::TensorNumber tensor) {
  return core::SlotId{tensor};
}

struct StoreTables {
  // A create or a fetch that is not answered yet.
  struct Request {
    bool is_create = false;
    bool awaits = false;  // the bytes, before it goes on
    // It fails if it still waits for room once its device's pages are divided with it.
    bool fails_fast = false;
    core::Tick deadline{};
    core::Tick asked{};
  };
  // A tensor.
  struct Row {
    core::TensorId id = core::kNoTensor;
    core::NameId name{};
    core::DeviceId device{};
    core::Bytes size;
    uint32_t writes = 0;
    TensorPast past{};
    std::vector<core::CallEnd> ends{};  // puts that the stream has not reached, then the free
    bool lives = false;
    bool away = false;      // its word is "away"
    bool unneeded = false;  // its client will not read it again
    bool lost = false;      // its bytes are gone, for ever
    bool is_kept = false;   // in place
    // Its bytes are on their way, and the client's stream waits for them. Until then its uses do
    // not end, whatever the client's tickets say.
    bool is_granted_early = false;
    bool is_reached = false;                    // since then
    bool is_left = false;                       // and the stream has come to its free
    core::StreamId freed_on = core::kNoStream;  // its client has freed it behind this stream's work
    core::PoolId lost_by{};
    std::unique_ptr<Request> request{};

    bool is_freed() const { return freed_on != core::kNoStream; }
    // The scheduler knows of the free.
    bool has_free() const { return !ends.empty() && ends.back().frees; }
    // The client may use it without asking. What its log says else is late, or false.
    bool is_usable() const { return lives && !away && !request && !is_freed(); }
  };
  // They never move: a client may have millions, and the loop waits for none.
  using Rows = core::Chunked<Row, 1024>;
  struct Client;
  // A client's part of a device.
  struct Part {
    Client* client = nullptr;
    std::unique_ptr<ClientPages> pages;
    std::vector<core::SlotId> granted;
    std::vector<core::SlotId> refused;
    std::vector<core::SlotId> ended_early_grants;
    core::PageExecutor::Stats counted;  // of its moves
    core::ForesightStats followed;      // of its calls
  };
  struct Client {
    core::ClientId id{};
    core::TenantId tenant{};
    bool departed = false;
    core::Tick attached{};
    Rows rows;  // by slot
    std::map<core::DeviceId, Part> parts;
    core::PlannerStats stats;
    core::Bytes pinned;  // blocks of pinned memory
    core::Bytes live;    // of tensors
    core::Bytes away;    // of these
    uint64_t tensors = 0;

    // The word of the slot's tensor is "away", or not.
    void SetAway(core::SlotId slot, bool is_away);
  };
  struct Device {
    core::Bytes page;
    core::Bytes limit;      // by DeviceLimit
    core::Bytes addresses;  // the range of a client's pages; its slots have another
    std::unique_ptr<core::PageScheduler> scheduler;
    bool advances = false;                // the scheduler's Advance() is to be called
    std::optional<core::ClientId> makes;  // a page
  };
  struct Found {
    Client* client = nullptr;  // null: the tensor is not known, or its client is gone
    core::SlotId slot{};
  };

  explicit StoreTables(const PageLimits::Options& limits) : quotas(limits) {}

  // Null: it is gone, or has never been there. A process may name itself before its hello.
  Client* FindPresent(core::ClientId client) const;
  Found Find(core::TensorId tensor) const;
  // REQUIRES, here and below: it is there.
  Part& PartOf(ClientPages* pages) const { return *parts.at(pages); }
  Device& On(core::DeviceId device) { return devices[core::ToInt(device)]; }
  const Device& On(core::DeviceId device) const { return devices[core::ToInt(device)]; }
  core::PageScheduler& SchedulerOf(const Part& part) const {
    return *On(part.pages->device()).scheduler;
  }
  const core::PageExecutor& ExecutorOf(const Part& part) const {
    return SchedulerOf(part).client(part.client->id).executor();
  }
  // As PageScheduler::Moved.
  core::PageExecutor& Moved(const Part& part) const {
    return SchedulerOf(part).Moved(part.client->id);
  }
  // Something has happened that the part's moves may go on with.
  void Progressed(const Part& part);

  std::map<core::ClientId, std::unique_ptr<Client>> clients;
  std::map<ClientPages*, Part*> parts;
  std::vector<Device> devices;
  TensorIds ids;
  PageLimits quotas;
  std::set<std::tuple<core::Tick, core::ClientId, core::SlotId>> deadlines;  // of requests
  core::PlannerStats stats;
  core::Tick now{};
};

}  // namespace ravenstore::daemon
