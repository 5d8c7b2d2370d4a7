#include "elastic/replay.h"

#include <algorithm>
#include <array>
#include <limits>
#include <list>
#include <optional>
#include <utility>

#include "core/check.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::ToInt;
using Kind = ProgramEvent::Kind;

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Calls that no program makes: where they stand the oracle knows where it is.
constexpr uint64_t kMark = 0x6f7261636c65;
constexpr int kMarks = 4;
// Of one lane that are not done; the last is copied, what is mapped for the first.
constexpr size_t kUnfinished = 2;

double Double(Bytes bytes) {
  return static_cast<double>(bytes.count());
}

size_t PagesOf(const std::vector<ProgramEvent>& program) {
  size_t pages = 0;
  for (const ProgramEvent& event : program) {
    if (event.kind == Kind::kAllocate) pages = std::max<size_t>(pages, event.page + 1);
  }
  return pages;
}

std::vector<RangeId> NamedBy(const ProgramEvent& call) {
  std::vector<RangeId> pages;
  for (const ProgramEvent::Touch& touch : call.touches) pages.push_back(RangeId{touch.page});
  return pages;
}

bool Holds(const std::vector<RangeId>& pages, RangeId page) {
  return std::find(pages.begin(), pages.end(), page) != pages.end();
}

// What lies where.
class Memory {
 public:
  enum class Place : uint8_t { kNowhere, kDevice, kHost };

  Memory(size_t pages, const Machine& machine)
      : pages_(pages), free_(machine.device.count() / machine.page.count()) {}

  bool IsLive(RangeId page) const { return pages_[ToInt(page)].is_live; }
  void SetLive(RangeId page, bool live) { pages_[ToInt(page)].is_live = live; }
  bool IsOnDevice(RangeId page) const { return pages_[ToInt(page)].place == Place::kDevice; }
  bool IsOnHost(RangeId page) const { return pages_[ToInt(page)].place == Place::kHost; }
  uint64_t free() const { return free_; }

  void Take(RangeId page) {
    RAVEN_CHECK(free_ > 0);
    --free_, Put(page, Place::kDevice);
  }
  void Drop(RangeId page) { ++free_, Put(page, Place::kNowhere); }
  // What it leaves on the device is free only by Release(). True: the host's memory is new.
  bool ToHost(RangeId page) {
    Put(page, Place::kHost);
    if (on_host_ <= most_on_host_) return false;
    most_on_host_ = on_host_;
    return true;
  }
  void Release() { ++free_; }

 private:
  struct Page {
    Place place = Place::kNowhere;
    bool is_live = false;
  };
  void Put(RangeId page, Place place) {
    Place& now = pages_[ToInt(page)].place;
    if (now == Place::kHost) --on_host_;
    now = place;
    if (now == Place::kHost) ++on_host_;
  }

  std::vector<Page> pages_;
  uint64_t free_;
  uint64_t on_host_ = 0;
  uint64_t most_on_host_ = 0;
};

class Engine {
 public:
  Engine(const std::vector<ProgramEvent>& program, const Machine& machine, bool is_oracle)
      : program_(program),
        machine_(machine),
        plan_({.device = machine.device, .part = machine.page}),
        memory_(PagesOf(program), machine) {
    if (is_oracle) Foresee();
  }

  Replayed Run() {
    for (const ProgramEvent& event : program_) {
      switch (event.kind) {
        case Kind::kAllocate: Allocate(RangeId{event.page}); break;
        case Kind::kFree: Free(RangeId{event.page}); break;
        case Kind::kCall: Call(event); break;
        case Kind::kStep:
          result_.steps.push_back(now_ - step_begun_);
          step_begun_ = now_;
          break;
      }
    }
    return std::move(result_);
  }

 private:
  enum Lane : size_t { kIn, kOut };
  struct Move {
    RangeId page;
    Lane lane;
    double copied;
    double end;
  };

  void Mark() {
    for (int i = 0; i < kMarks; ++i) plan_.Used(kMark + static_cast<uint64_t>(i), {}, {});
  }
  void Foresee() {
    Mark();
    double seconds = 0;
    for (const ProgramEvent& event : program_) {
      const RangeId page{event.page};
      if (event.kind == Kind::kAllocate) {
        memory_.SetLive(page, true);
        plan_.Allocated(page, machine_.page);
      }
      if (event.kind == Kind::kFree) Free(page);
      if (event.kind == Kind::kCall) {
        plan_.Used(event.identity, NamedBy(event), core::Tick(core::FromSeconds(seconds)));
        seconds += event.seconds;
      }
    }
    for (uint32_t page = 0; page < PagesOf(program_); ++page) {
      if (memory_.IsLive(RangeId{page})) Free(RangeId{page});
    }
    Mark();
  }

  // As the memory has it.
  void SetResident(RangeId page) { plan_.SetResident(page, memory_.IsOnDevice(page)); }
  auto Busy() const {
    return [this](RangeId page) {
      return allocating_ == page || Holds(running_, page) ||
             std::any_of(moves_.begin(), moves_.end(),
                         [&](const Move& move) { return move.page == page; });
    };
  }

  void MakePlan() {
    if (!plan_.NeedsPlan()) return;
    KernelForecast made = plan_.Copy();
    made.Make();
    plan_.Set(&made);
  }

  void Free(RangeId page) {
    memory_.SetLive(page, false);
    plan_.Freed(page);
  }

  void Allocate(RangeId page) {
    memory_.SetLive(page, true);
    plan_.Allocated(page, machine_.page);
    allocating_ = page;
    const double begun = now_;
    while (!memory_.IsOnDevice(page)) {
      if (memory_.free() > 0) {
        const double unmap = memory_.IsOnHost(page) ? machine_.unmap_host : 0;
        memory_.Take(page);
        AdvanceTo(now_ + machine_.map + unmap);
      } else if (!MakeRoom()) {
        break;
      }
    }
    SetResident(page);
    if (!memory_.IsOnDevice(page) && !memory_.IsOnHost(page)) AdvanceTo(now_ + SecondsToHost(page));
    result_.allocated += now_ - begun;
    allocating_.reset();
  }

  // Of one thread.
  double SecondsToHost(RangeId page) {
    return machine_.map_host + (memory_.ToHost(page) ? machine_.pin : 0);
  }

  // For an allocation: what is dead gives its room at once, what is live when it is out.
  bool MakeRoom() {
    const auto victim = plan_.Victim(Busy());
    if (!victim) return false;
    is_waiting_ = true;
    if (!memory_.IsLive(*victim)) {
      memory_.Drop(*victim);
      SetResident(*victim);
      AdvanceTo(now_ + machine_.unmap);
    } else {
      if (IsFree(kOut)) BeginOut(*victim);
      double end = kNever;
      for (const Move& move : moves_) {
        if (move.lane == kOut) end = std::min(end, move.end);
      }
      AdvanceTo(end);
    }
    is_waiting_ = false;
    return true;
  }

  void Call(const ProgramEvent& call) {
    const auto begun = now_;
    running_ = NamedBy(call);
    plan_.Used(call.identity, running_, core::Tick(core::FromSeconds(now_)));
    MakePlan();
    for (;;) {
      const auto move = std::find_if(moves_.begin(), moves_.end(),
                                     [&](const Move& one) { return Holds(running_, one.page); });
      if (move == moves_.end()) break;
      AdvanceTo(move->end);
    }
    result_.waited += now_ - begun;
    std::array<double, 2> seconds{};
    for (const ProgramEvent::Touch& touch : call.touches) {
      if (memory_.IsOnDevice(RangeId{touch.page})) continue;
      seconds[kIn] += Double(touch.reads) / machine_.in_place;
      seconds[kOut] += Double(touch.writes) / machine_.in_place;
      result_.in_place += Double(touch.reads + touch.writes);
    }
    for (Move& move : moves_) {
      if (move.copied <= now_) continue;
      // The copy and the call have half of the link each, until one of them is done.
      double& used = seconds[move.lane];
      const double shared = std::min(used, move.copied - now_);
      used += shared;
      move.copied += shared;
      move.end += shared;
    }
    for (const Lane lane : {kIn, kOut}) link_free_[lane] = now_ + seconds[lane];
    AdvanceTo(now_ + call.seconds + std::max(seconds[kIn], seconds[kOut]));
    running_.clear();
    Pump();
  }

  void AdvanceTo(double time) {
    Pump();
    for (;;) {
      double next = kNever;
      for (const Move& move : moves_)
        next = std::min(next, move.copied > now_ ? move.copied : move.end);
      for (const double free : link_free_) next = std::min(next, free > now_ ? free : kNever);
      if (next > time) break;
      now_ = std::max(now_, next);
      std::erase_if(moves_, [&](const Move& move) {
        if (move.end > now_) return false;
        if (move.lane == kOut) memory_.Release();
        SetResident(move.page);
        return true;
      });
      Pump();
    }
    now_ = std::max(now_, time);
  }

  void Pump() {
    while (Begin()) {
    }
  }

  bool IsFree(Lane lane) const {
    size_t unfinished = 0;
    for (const Move& move : moves_) {
      if (move.lane != lane) continue;
      if (move.copied > now_) return false;
      ++unfinished;
    }
    return unfinished < kUnfinished && link_free_[lane] <= now_;
  }

  // Begins one move, or drops what is dead. False: nothing can be done.
  bool Begin() {
    if (IsFree(kOut)) {
      if (const auto leaves = plan_.NextOut(Busy())) return BeginOut(*leaves), true;
    }
    if (is_waiting_ || !IsFree(kIn)) return false;
    const auto wanted = plan_.NextIn(Busy());
    if (!wanted) return false;
    if (memory_.free() > 0) return BeginIn(*wanted), true;
    if (!wanted->dead) return false;
    memory_.Drop(*wanted->dead);
    SetResident(*wanted->dead);
    thread_free_ = std::max(thread_free_, now_) + machine_.unmap;
    return true;
  }

  void BeginIn(const Plan::Wanted& wanted) {
    const bool was_on_host = memory_.IsOnHost(wanted.page);
    const bool copies = wanted.needs_copy;
    plan_.BeginMove(wanted.page);
    memory_.Take(wanted.page);
    result_.moved_in += copies ? Double(machine_.page) : 0;
    BeginMove(wanted.page, kIn, copies, machine_.map + (was_on_host ? machine_.unmap_host : 0));
  }
  void BeginOut(RangeId page) {
    result_.moved_out += Double(machine_.page);
    plan_.BeginMove(page);
    BeginMove(page, kOut, true, machine_.unmap + SecondsToHost(page));
  }
  void BeginMove(RangeId page, Lane lane, bool copies, double mapping) {
    const bool beside = std::any_of(moves_.begin(), moves_.end(),
                                    [&](const Move& other) { return other.copied > now_; });
    const double rate = beside ? machine_.both_ways : machine_.one_way;
    const double copied = now_ + (copies ? Double(machine_.page) / rate : 0);
    thread_free_ = std::max(thread_free_, copied) + mapping;
    moves_.push_back({page, lane, copied, thread_free_});
  }

  const std::vector<ProgramEvent>& program_;
  const Machine machine_;
  Plan plan_;
  Memory memory_;
  std::vector<Move> moves_;
  double now_ = 0;
  double step_begun_ = 0;
  double thread_free_ = 0;             // that maps
  std::array<double, 2> link_free_{};  // of use in place
  std::vector<RangeId> running_;
  std::optional<RangeId> allocating_;
  bool is_waiting_ = false;  // what becomes free is for that
  Replayed result_;
};

// What is used most lies on the device for good.
Replayed RunInPlace(const std::vector<ProgramEvent>& program, const Machine& machine) {
  std::vector<double> touched(PagesOf(program));
  for (const ProgramEvent& event : program) {
    for (const auto& touch : event.touches)
      touched[touch.page] += Double(std::max(touch.reads, touch.writes));
  }
  std::vector<uint32_t> order(touched.size());
  for (uint32_t page = 0; page < order.size(); ++page) order[page] = page;
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return touched[a] > touched[b]; });
  const size_t fit = std::min<size_t>(order.size(), machine.device.count() / machine.page.count());
  std::vector<bool> is_away(order.size());
  for (size_t i = fit; i < order.size(); ++i) is_away[order[i]] = true;
  std::vector<bool> is_new = is_away;
  Replayed result;
  double seconds = 0;
  for (const ProgramEvent& event : program) {
    if (event.kind == Kind::kAllocate && is_new[event.page]) {
      seconds += machine.map_host + machine.pin;
      is_new[event.page] = false;
    }
    double up = 0;
    double down = 0;
    for (const auto& touch : event.touches) {
      if (!is_away[touch.page]) continue;
      up += Double(touch.reads);
      down += Double(touch.writes);
    }
    result.in_place += up + down;
    seconds += event.seconds + std::max(up, down) / machine.in_place;
    if (event.kind == Kind::kStep) result.steps.push_back(std::exchange(seconds, 0));
  }
  return result;
}

// What is used comes first; for it leaves what was not used for longest.
class Demand {
 public:
  Demand(const std::vector<ProgramEvent>& program, const Machine& machine)
      : program_(program),
        machine_(machine),
        memory_(PagesOf(program), machine),
        is_fresh_(PagesOf(program)),
        where_(PagesOf(program)) {
    for (uint32_t page = 0; page < where_.size(); ++page)
      where_[page] = order_.insert(order_.end(), RangeId{page});
  }

  Replayed Run() {
    double step = 0;
    for (const ProgramEvent& event : program_) {
      switch (event.kind) {
        case Kind::kAllocate:
          memory_.SetLive(RangeId{event.page}, true);
          is_fresh_[event.page] = true;
          break;
        case Kind::kFree: memory_.SetLive(RangeId{event.page}, false); break;
        case Kind::kCall: step += Call(event); break;
        case Kind::kStep: result_.steps.push_back(std::exchange(step, 0)); break;
      }
    }
    return std::move(result_);
  }

 private:
  double Call(const ProgramEvent& call) {
    double in = 0;
    double out = 0;
    double up = 0;
    double down = 0;
    const auto named = NamedBy(call);
    for (const RangeId page : named) order_.splice(order_.end(), order_, where_[ToInt(page)]);
    const double copy = Double(machine_.page) / machine_.both_ways;
    for (const auto& touch : call.touches) {
      const RangeId page{touch.page};
      if (!memory_.IsOnDevice(page) && MakeRoom(named, copy, &out)) {
        memory_.Take(page);
        const bool is_fresh = is_fresh_[touch.page];
        is_fresh_[touch.page] = false;
        result_.moved_in += is_fresh ? 0 : Double(machine_.page);
        in += machine_.map + (is_fresh ? 0 : machine_.unmap_host + copy);
      }
      if (memory_.IsOnDevice(page)) continue;
      up += Double(touch.reads);
      down += Double(touch.writes);
    }
    result_.in_place += up + down;
    result_.waited += std::max(in, out);
    return call.seconds + std::max(in, out) + std::max(up, down) / machine_.in_place;
  }

  bool MakeRoom(const std::vector<RangeId>& named, double copy, double* out) {
    if (memory_.free() > 0) return true;
    const auto leaves = [&](bool live) {
      return std::find_if(order_.begin(), order_.end(), [&](RangeId page) {
        return memory_.IsOnDevice(page) && memory_.IsLive(page) == live && !Holds(named, page);
      });
    };
    auto victim = leaves(false);
    if (victim == order_.end()) {
      victim = leaves(true);
      if (victim == order_.end()) return false;
      result_.moved_out += Double(machine_.page);
      *out += copy + machine_.map_host + (memory_.ToHost(*victim) ? machine_.pin : 0);
      memory_.Release();
    } else {
      memory_.Drop(*victim);
    }
    *out += machine_.unmap;
    return true;
  }

  const std::vector<ProgramEvent>& program_;
  const Machine machine_;
  Memory memory_;
  std::vector<bool> is_fresh_;
  std::list<RangeId> order_;  // the least recently used first
  std::vector<std::list<RangeId>::iterator> where_;
  Replayed result_;
};

}  // namespace

uint64_t PeakOf(const std::vector<ProgramEvent>& program) {
  uint64_t live = 0;
  uint64_t peak = 0;
  for (const ProgramEvent& event : program) {
    if (event.kind == Kind::kAllocate) peak = std::max(peak, ++live);
    if (event.kind == Kind::kFree) --live;
  }
  return peak;
}

std::vector<double> ComputeOf(const std::vector<ProgramEvent>& program) {
  std::vector<double> steps;
  double step = 0;
  for (const ProgramEvent& event : program) {
    step += event.seconds;
    if (event.kind == Kind::kStep) steps.push_back(std::exchange(step, 0));
  }
  return steps;
}

Replayed Replay(const std::vector<ProgramEvent>& program, const Machine& machine, Rival rival) {
  switch (rival) {
    case Rival::kInPlace: return RunInPlace(program, machine);
    case Rival::kDemandLru: return Demand(program, machine).Run();
    case Rival::kLearned:
    case Rival::kOracle: break;
  }
  return Engine(program, machine, rival == Rival::kOracle).Run();
}

}  // namespace ravenstore::elastic
