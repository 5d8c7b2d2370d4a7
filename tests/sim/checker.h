// Replays a trace through the planner and watches its every step: an executor as strict as it can
// be, which tells the planner of everything at once and so may demand that no proposal is ever out
// of place.
//
// Copies take as long as they take, drawn around what the link needs by a seed; slabs come a little
// later. Owns: nothing of the trace. Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/events.h"
#include "core/planner.h"
#include "core/types.h"
#include "sim/trace.h"

namespace ravenstore::sim {

class Checker {
 public:
  struct Setting {
    core::Bytes budget;  // of the device, and of each client
    core::Bytes host_budget = core::GiB(256);
    core::Policy policy = core::Policy::kValue;
    bool learn = true;
    bool prefetch = true;
    bool preclean = true;
    core::Bytes slab = core::MiB(256);
    uint64_t seed = 1;
  };
  // How often things happened, so that a test which watches nothing is noticed.
  struct Counts {
    uint64_t events = 0;
    uint64_t copies_begun = 0;
    uint64_t copies_whole = 0;
    uint64_t copies_cancelled = 0;
    uint64_t drops = 0;
    uint64_t slabs = 0;
  };

  Checker(const Trace& trace, const Setting& setting);

  // The first thing that was wrong, in words; empty: nothing was. REQUIRES: every tensor of the
  // trace is freed in it.
  std::string Run();
  const Counts& counts() const { return counts_; }

 private:
  static constexpr uint32_t kNone = ~0u;
  enum class State : uint8_t { kNone, kAsked, kInUse, kIdle, kLeaving, kAway, kFetching, kFreed };
  struct Row {
    State state = State::kNone;
    core::TensorId id{};
    core::SlotId slot{};
    bool arriving = false;
    bool copying = false;
    bool irrevocable = false;  // it leaves beyond rescue
    bool is_placed = false;
    core::Bytes offset;
    uint32_t writes = 0;
    uint64_t uses = 0;
    core::Duration recompute{0};
  };
  struct Client {
    std::vector<uint32_t> program;  // indices of ops
    size_t next = 0;
    core::Tick ready{};
    bool waits = false;
    std::vector<uint32_t> row_of_slot;
    std::vector<core::SlotId> free_slots;
    std::map<core::Bytes, core::Bytes> slabs;      // that are there: offset, size
    std::map<core::Bytes, core::Bytes> vanishing;  // being removed
    core::Bytes held;                              // with what is added or removed just now
    std::map<core::Bytes, uint32_t> places;        // offset, row
  };
  enum class Kind : uint8_t { kOut, kClean, kIn };
  struct Job {
    Kind kind;
    uint32_t row;
    core::Tick end;
    uint64_t uses;
  };
  struct Later {  // what a worker will report
    core::Tick at;
    core::Event event;
  };

  void Expect(bool good, const std::string& what);
  void Step();
  void Advance(uint32_t index);
  void Perform(uint32_t index, const Op& op);
  void Ask(uint32_t index, const Op& op);
  void Resume(uint32_t row, core::Duration more = core::Duration{0});
  void Tell(const core::Event& event);
  void EndCopy(std::deque<Job>* lane);
  void ReportLater();
  void CheckLedgers();
  void CheckEnd();

  void Do(const core::AddSlab& action);
  void Do(const core::RemoveSlab& action);
  void Do(const core::GrowPool& action);
  void Do(const core::ReclaimPinned&) { Expect(false, "pinned blocks though there are none"); }
  void Do(const core::ShrinkPool&) { Expect(false, "the pool shrinks though nothing is pinned"); }
  void Do(const core::AllocReply& action);
  void Do(const core::AllocError& action) { Expect(false, "a refusal: " + action.error.message); }
  void Do(const core::FetchReply& action);
  void Do(const core::FetchError& action) { Expect(false, "a denial: " + action.error.message); }
  void Do(const core::Release& action);
  void Do(const core::Drop& action);
  void Do(const core::Move& action);
  void BeginLeave(uint32_t row, const core::Move& action);
  void BeginArrival(uint32_t row, const core::Move& action);
  void Do(const core::Prioritize& action);
  void Do(const core::DeferDestroy&) {}

  uint32_t RowOf(core::TensorId tensor) const { return rows_by_id_.at(tensor); }
  Client& ClientOf(uint32_t row) { return clients_[trace_.tensors[row].client]; }
  static core::ClientId IdOf(uint32_t client) { return core::ClientId{client + 1}; }
  core::Bytes SizeOf(uint32_t row) const {
    return trace_.tensors[row].bytes.RoundUp(core::kExtentAlignment);
  }
  void LeaveIrrevocably(Row& row);
  void Submit(std::deque<Job>* lane, Kind kind, uint32_t row);
  void Place(uint32_t row, core::Bytes offset);
  void Unplace(uint32_t row);
  core::Duration Jitter(core::Duration around);

  const Trace& trace_;
  const Setting setting_;
  core::Planner planner_;
  std::mt19937_64 random_;
  core::Tick now_{std::chrono::seconds(1)};
  std::vector<Row> rows_;
  std::vector<Client> clients_;
  std::map<core::TensorId, uint32_t> rows_by_id_;
  std::deque<core::Event> pending_events_;
  std::deque<Job> up_;
  std::deque<Job> down_;
  std::vector<Later> later_;
  core::Bytes host_end_;
  std::map<std::string, core::NameId> names_;
  std::string wrong_;
  Counts counts_;
};

}  // namespace ravenstore::sim
