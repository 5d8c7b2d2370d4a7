// A device without bytes for PageScheduler: backends whose moves end when the test says so, clients
// with streams, and a count of the physical pages that exist.
//
// Units: pages of 2 MiB. Threads: one. The same calls have the same course.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/execution/page_backend.h"
#include "core/schedule/page_scheduler.h"
#include "core/types.h"

namespace ravenstore::core {

class ScheduleWorld : public PageMaker {
 public:
  static constexpr Bytes kPage = MiB(2);
  static constexpr uint32_t kRoundsMost = 300;  // of Settle()

  // When plans are made: within the call that needs one, when CompletePlan() or Settle() says so,
  // or only when CompletePlan() does.
  enum class Plans : uint8_t { kImmediate, kLate, kHeld };

  explicit ScheduleWorld(uint32_t pages, Plans plans = Plans::kImmediate,
                         uint32_t guaranteed_part = 0)
      : pages_(pages),
        plans_(plans),
        scheduler_({.pages = pages,
                    .making = std::chrono::microseconds(200),
                    .guaranteed_part = guaranteed_part},
                   this) {}

  PageScheduler& scheduler() { return scheduler_; }
  const PageScheduler& scheduler() const { return scheduler_; }

  // ---- Clients. `pool`: the capacity of the pool for copies.
  void Join(ClientId id, Bytes pool = Bytes(UINT64_MAX), TenantId tenant = {},
            Bytes addresses = Bytes(UINT64_MAX));
  void Leave(ClientId id);
  bool HasClient(ClientId id) const { return clients_.count(id) > 0; }

  // ---- Calls. The virtual time advances by 100 µs with each.
  static constexpr StreamId kStream{1};
  CallResult Create(ClientId id, TensorNumber tensor, Bytes size, StreamId stream = kStream);
  CallResult Get(ClientId id, TensorNumber tensor);
  void Put(ClientId id, TensorNumber tensor, bool modifies = true);
  void Free(ClientId id, TensorNumber tensor, StreamId stream = kStream);
  bool Refuse(ClientId id, TensorNumber tensor);
  // A call waits for the tensor, for room or for bytes.
  bool Waits(ClientId id, TensorNumber tensor) const;
  // Calls that wait for room, in order.
  const std::deque<TensorNumber>& WaitingForRoom(ClientId id) const {
    return clients_.at(id)->waiting;
  }
  // The row's tensor is freed, and the stream has come there.
  bool IsRowFree(ClientId id, TensorNumber tensor) const {
    return clients_.at(id)->rows.count(tensor) == 0;
  }

  // ---- Time.
  // The client's stream executes what it can next. Returns false if it waits or is idle.
  bool RunStream(ClientId id);
  // The n-th of what is under way ends; a copy fails if `ok` is not set. REQUIRES: there is one.
  void Complete(size_t n, bool ok = true);
  size_t under_way() const { return under_way_.size(); }
  // The n-th plan that is under way is made. REQUIRES: there is one.
  void CompletePlan(size_t n);
  size_t plans_under_way() const { return plans_under_way_.size(); }
  void SetPlans(Plans plans) { plans_ = plans; }
  // The scheduler advances until no client is woken.
  void Advance();
  // All that can go on does, until nothing is under way. Returns false if moves go on without end.
  bool Settle();

  // ---- Checks.
  // Aborts if books contradict themselves. Returns what else is wrong; empty: nothing.
  std::string Fault() const;
  uint32_t physical_pages() const { return physical_pages_; }
  // Pages that the client's calls hold.
  uint32_t InUse(ClientId id) const;

  void MakePage(ClientId client) override;
  std::shared_ptr<PlanWork> MakePlan(DeviceId device, std::shared_ptr<PlanWork> work) override;

 private:
  struct UnderWay {
    enum class Kind : uint8_t { kMap, kUnmap, kIn, kOut, kRelease, kMake } kind;
    ClientId client;
    uint32_t number = 0;  // of a unit or a page
    bool demanded = false;
  };
  struct Enqueued {
    TensorNumber tensor;
    std::optional<CallEnd> end;  // of a put or a free
  };
  class Backend : public PageBackend {
   public:
    Backend(ScheduleWorld* world, ClientId id) : world_(*world), id_(id) {}

    bool Revoke(TensorNumber, uint32_t) override { return true; }
    void Publish(TensorNumber) override {}
    void Grant(TensorNumber) override {}
    void Refuse(TensorNumber tensor) override { world_.refused_.emplace_back(id_, tensor); }
    bool Map(const MapOrder& order) override {
      world_.under_way_.push_back({UnderWay::Kind::kMap, id_, order.unit});
      return false;
    }
    void Unmap(plan::PhysicalPage page) override {
      world_.under_way_.push_back({UnderWay::Kind::kUnmap, id_, page});
    }
    void Release(const plan::PageSupply::Released& page) override {
      world_.under_way_.push_back({UnderWay::Kind::kRelease, id_, page.page});
    }
    void CopyIn(const CopyOrder& order) override {
      world_.under_way_.push_back({UnderWay::Kind::kIn, id_, order.unit, order.demanded});
    }
    void CopyOut(const CopyOrder& order) override {
      world_.under_way_.push_back({UnderWay::Kind::kOut, id_, order.unit});
    }
    void FreeCopy(plan::Unit, plan::PoolNumber) override {}
    void MoveSlot(const PageMemory::SlotMove&, Bytes) override {}
    bool MoveCopy(const CopyMove&) override { return true; }
    bool CanCopyIn(plan::PoolNumber, bool demanded) const override {
      return Copies(UnderWay::Kind::kIn, false) == 0 ||
             (demanded && Copies(UnderWay::Kind::kIn, true) == 0);
    }
    bool CanCopyOut(plan::PoolNumber) const override {
      return Copies(UnderWay::Kind::kOut, false) == 0;
    }

   private:
    size_t Copies(UnderWay::Kind kind, bool demanded) const {
      return static_cast<size_t>(std::count_if(
          world_.under_way_.begin(), world_.under_way_.end(), [&](const UnderWay& of) {
            return of.client == id_ && of.kind == kind && (of.demanded || !demanded);
          }));
    }
    ScheduleWorld& world_;
    const ClientId id_;
  };
  struct Client {
    Client(ScheduleWorld* world, ClientId id) : backend(world, id) {}
    Backend backend;
    std::deque<Enqueued> stream;
    std::deque<TensorNumber> waiting;
    std::set<TensorNumber> rows;
    Duration at{0};
  };

  CallResult Called(ClientId id, TensorNumber tensor, CallResult result);
  void HandleRefusals();
  // Whether the place is one that another stream has freed and not left.
  bool IsOthers(ClientId id, TensorNumber tensor, StreamId stream) const;
  // Where the tensor begins and ends in the client's range. REQUIRES: it has no slot.
  std::pair<Bytes, Bytes> RangeOf(ClientId id, TensorNumber tensor) const;
  const PageExecutor& ExecutorOf(ClientId id) const { return scheduler_.client(id).executor(); }

  const uint32_t pages_;
  Plans plans_;
  uint32_t physical_pages_ = 0;  // that exist; one that is being made counts
  std::map<ClientId, std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<Client>> removed_;  // whose backends the scheduler may still call
  std::set<ClientId> leaving_;
  std::vector<UnderWay> under_way_;
  std::vector<std::shared_ptr<PlanWork>> plans_under_way_;
  std::vector<std::pair<ClientId, TensorNumber>> refused_;
  bool others_place_ = false;  // a create has got one
  Duration now_{0};
  PageScheduler scheduler_;
};

}  // namespace ravenstore::core
