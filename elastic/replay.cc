#include "elastic/replay.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <list>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace ravenstore::elastic {

using core::Bytes;
using core::ToInt;
using Kind = ProgramEvent::Kind;

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Calls that no program makes: where they stand the oracle knows where it is.
constexpr uint64_t kMark = 0x6f7261636c65;
constexpr int kMarks = 4;

double Double(Bytes bytes) {
  return static_cast<double>(bytes.count());
}

size_t ObjectsOf(const std::vector<ProgramEvent>& program) {
  size_t objects = 0;
  for (const ProgramEvent& event : program) {
    if (event.kind == Kind::kAllocate) objects = std::max<size_t>(objects, event.object + 1);
  }
  return objects;
}

RangeId RangeOf(uint32_t object) {
  return RangeId{object};
}

std::vector<RangeId> RangesOf(const ProgramEvent& call) {
  std::vector<RangeId> ranges;
  for (const ProgramEvent::Touch& touch : call.touches) ranges.push_back(RangeOf(touch.object));
  return ranges;
}

// What lies where, in parts.
struct Memory {
  struct Range {
    Bytes size;
    uint64_t parts = 0;
    uint64_t on_device = 0;
    bool is_live = false;

    Bytes part() const { return Bytes(size.count() / std::max<uint64_t>(1, parts)); }
    Bytes away() const { return size - part() * on_device; }
  };
  std::deque<Range> ranges;
  Bytes free;

  Range& operator[](RangeId range) {
    if (ToInt(range) >= ranges.size()) ranges.resize(ToInt(range) + 1);
    return ranges[ToInt(range)];
  }
  void Allocate(RangeId id, Bytes bytes, Bytes part) {
    Range& range = (*this)[id];
    if (range.parts == 0) range = {bytes, PartsOf(bytes, part), 0, false};
    range.is_live = true;
  }
  static uint64_t PartsOf(Bytes bytes, Bytes part) {
    return (bytes.count() + part.count() - 1) / part.count();
  }
  // In equal parts.
  static Bytes SizeOf(Bytes bytes, Bytes part) {
    const uint64_t parts = PartsOf(bytes, part);
    return Bytes(bytes.count() / parts) * parts;
  }
  // Of one part.
  void Drop(RangeId id) {
    --(*this)[id].on_device;
    free += (*this)[id].part();
  }
  void Take(RangeId id) {
    ++(*this)[id].on_device;
    free -= (*this)[id].part();
  }
};

class Engine {
 public:
  Engine(const std::vector<ProgramEvent>& program, const Machine& machine, bool is_oracle)
      : program_(program),
        machine_(machine),
        plan_({.device = machine.device, .part = machine.part}) {
    memory_.free = machine.device;
    if (is_oracle) Foresee();
  }

  Replayed Run() {
    for (const ProgramEvent& event : program_) {
      switch (event.kind) {
        case Kind::kAllocate: Allocate(event.object, event.bytes); break;
        case Kind::kFree: Free(event.object); break;
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
  struct Lane {
    std::optional<RangeId> range;  // of which a part moves
    double end = kNever;
  };

  void Mark() {
    for (int i = 0; i < kMarks; ++i) plan_.Used(kMark + static_cast<uint64_t>(i), {}, {});
  }
  void Foresee() {
    Mark();
    std::set<uint32_t> live;
    double seconds = 0;
    for (const ProgramEvent& event : program_) {
      if (event.kind == Kind::kAllocate) {
        const RangeId range = Take(event.object, event.bytes);
        live.insert(event.object);
        Tell(range);
      }
      if (event.kind == Kind::kFree) {
        Free(event.object);
        live.erase(event.object);
      }
      if (event.kind == Kind::kCall) {
        plan_.Used(event.identity, RangesOf(event), core::Tick(core::FromSeconds(seconds)));
        seconds += event.seconds;
      }
    }
    for (const uint32_t object : live) Free(object);
    Mark();
  }

  void Tell(RangeId range) { plan_.SetAway(range, memory_[range].away()); }
  bool IsBusy(RangeId range) const {
    return in_.range == range || out_.range == range || allocating_ == range ||
           std::find(running_.begin(), running_.end(), range) != running_.end();
  }

  void Free(uint32_t object) {
    const RangeId range = RangeOf(object);
    memory_[range].is_live = false;
    plan_.Freed(range);
  }
  RangeId Take(uint32_t object, Bytes bytes) {
    bytes = Memory::SizeOf(bytes, machine_.part);
    const RangeId id = RangeOf(object);
    memory_.Allocate(id, bytes, machine_.part);
    plan_.Allocated(id, bytes);
    return id;
  }

  void Allocate(uint32_t object, Bytes bytes) {
    const RangeId id = Take(object, bytes);
    Tell(id);
    allocating_ = id;
    Memory::Range& range = memory_[id];
    const double begun = now_;
    while (range.on_device < range.parts) {
      if (memory_.free >= range.part()) {
        memory_.Take(id);
        Tell(id);
        AdvanceTo(now_ + machine_.map_seconds);
      } else if (!MakeRoom()) {
        break;
      }
    }
    result_.allocated += now_ - begun;
    allocating_.reset();
  }

  // For an allocation: what is dead gives its room at once, what is live when it is out.
  bool MakeRoom() {
    const auto victim = plan_.Victim(std::nullopt, [&](RangeId one) { return IsBusy(one); });
    if (!victim) return false;
    if (!memory_[*victim].is_live) {
      memory_.Drop(*victim);
      Tell(*victim);
      return true;
    }
    if (!out_.range) BeginOut(*victim);
    is_waiting_ = true;
    AdvanceTo(out_.end);
    is_waiting_ = false;
    return true;
  }

  void Call(const ProgramEvent& call) {
    const auto begun = now_;
    running_ = RangesOf(call);
    const auto moves = [&](const Lane& lane) {
      return lane.range &&
             std::find(running_.begin(), running_.end(), *lane.range) != running_.end();
    };
    plan_.Used(call.identity, running_, core::Tick(core::FromSeconds(now_)));
    while (moves(in_) || moves(out_)) {
      AdvanceTo(std::min(moves(in_) ? in_.end : kNever, moves(out_) ? out_.end : kNever));
    }
    result_.waited += now_ - begun;
    double up = 0;
    double down = 0;
    for (const ProgramEvent::Touch& touch : call.touches) {
      const double away = Double(memory_[RangeOf(touch.object)].away());
      if (touch.reads) up += away;
      if (touch.writes) down += away;
    }
    result_.in_place += up + down;
    up /= machine_.bytes_per_second;
    down /= machine_.bytes_per_second;
    if (in_.range) in_.end += up;
    if (out_.range) out_.end += down;
    link_free_up_ = now_ + up;
    link_free_down_ = now_ + down;
    AdvanceTo(now_ + call.seconds + std::max(up, down));
    running_.clear();
    Pump();
  }

  void AdvanceTo(double time) {
    Pump();
    for (;;) {
      double next = std::min(in_.end, out_.end);
      // What waits for the link.
      for (const double free : {link_free_up_, link_free_down_}) {
        if (free > now_) next = std::min(next, free);
      }
      if (next > time) break;
      now_ = std::max(now_, next);
      if (in_.end <= now_) in_ = {};
      if (out_.end <= now_) {
        memory_.free += memory_[*out_.range].part();
        out_ = {};
      }
      Pump();
    }
    now_ = std::max(now_, time);
  }

  void Pump() {
    if (is_waiting_) return;
    while (Begin()) {
    }
  }

  // Begins one move, or drops what is dead. False: nothing can be done.
  bool Begin() {
    if (in_.range && out_.range) return false;
    const auto skip = [&](RangeId range) { return IsBusy(range); };
    if (!out_.range && now_ >= link_free_down_) {
      if (const auto leaves = plan_.NextOut(skip)) return BeginOut(*leaves), true;
    }
    const auto wanted = plan_.NextIn(skip);
    if (!wanted) return false;
    Memory::Range& range = memory_[wanted->range];
    if (memory_.free >= range.part()) {
      if (in_.range || now_ < link_free_up_) return false;
      memory_.Take(wanted->range);
      const double bytes = wanted->needs_copy ? Double(range.part()) : 0;
      result_.moved_in += bytes;
      in_ = {wanted->range, now_ + machine_.remap_seconds + bytes / machine_.bytes_per_second};
      Tell(wanted->range);
      return true;
    }
    const auto victim = plan_.Victim(wanted, skip);
    if (!victim) return false;
    Memory::Range& leaves = memory_[*victim];
    if (!leaves.is_live) {
      memory_.Drop(*victim);
      Tell(*victim);
      return true;
    }
    if (out_.range || now_ < link_free_down_) return false;
    BeginOut(*victim);
    return true;
  }

  void BeginOut(RangeId victim) {
    Memory::Range& leaves = memory_[victim];
    --leaves.on_device;  // its room is free only when it is out
    Tell(victim);
    const double bytes = Double(leaves.part());
    result_.moved_out += bytes;
    out_ = {victim, now_ + machine_.remap_seconds + bytes / machine_.bytes_per_second};
  }

  const std::vector<ProgramEvent>& program_;
  const Machine machine_;
  Plan plan_;
  Memory memory_;
  Lane in_;
  Lane out_;
  double now_ = 0;
  double step_begun_ = 0;
  double link_free_up_ = 0;
  double link_free_down_ = 0;
  std::vector<RangeId> running_;
  std::optional<RangeId> allocating_;
  bool is_waiting_ = false;  // what becomes free is for that
  Replayed result_;
};

// What is used most lies on the device for good.
Replayed RunInPlace(const std::vector<ProgramEvent>& program, const Machine& machine) {
  struct Use {
    uint32_t range;
    uint64_t touches = 0;
    Bytes bytes{};
    double away = 0;  // bytes
  };
  std::vector<Use> uses(ObjectsOf(program));
  // Once to see what is used, and once to use it.
  const auto pass = [&](const auto& allocated, const auto& called, const auto& step) {
    for (const ProgramEvent& event : program) {
      if (event.kind == Kind::kAllocate) allocated(event.object, event.bytes);
      if (event.kind == Kind::kCall) called(event);
      if (event.kind == Kind::kStep) step();
    }
  };
  pass(
      [&](uint32_t object, Bytes bytes) {
        uses[object].range = object;
        uses[object].bytes = bytes;
      },
      [&](const ProgramEvent& call) {
        for (const auto& touch : call.touches) ++uses[touch.object].touches;
      },
      [] {});
  std::vector<Use> order = uses;
  std::stable_sort(order.begin(), order.end(),
                   [](const Use& a, const Use& b) { return a.touches > b.touches; });
  Bytes free = machine.device;
  for (const Use& use : order) {
    const Bytes taken = std::min(free, use.bytes);
    free -= taken;
    uses[use.range].away = Double(use.bytes - taken);
  }
  Replayed result;
  double seconds = 0;
  pass([](uint32_t, Bytes) {},
       [&](const ProgramEvent& call) {
         double up = 0;
         double down = 0;
         for (const auto& touch : call.touches) {
           const double away = uses[touch.object].away;
           if (touch.reads) up += away;
           if (touch.writes) down += away;
         }
         result.in_place += up + down;
         seconds += call.seconds + std::max(up, down) / machine.bytes_per_second;
       },
       [&] { result.steps.push_back(std::exchange(seconds, 0)); });
  return result;
}

class Demand {
 public:
  Demand(const std::vector<ProgramEvent>& program, const Machine& machine)
      : program_(program),
        machine_(machine),
        is_fresh_(ObjectsOf(program)),
        where_(ObjectsOf(program), order_.end()) {
    memory_.free = machine.device;
  }

  Replayed Run() {
    double step = 0;
    for (const ProgramEvent& event : program_) {
      switch (event.kind) {
        case Kind::kAllocate: Allocate(event); break;
        case Kind::kFree: memory_[RangeOf(event.object)].is_live = false; break;
        case Kind::kCall: step += Call(event); break;
        case Kind::kStep: result_.steps.push_back(std::exchange(step, 0)); break;
      }
    }
    return std::move(result_);
  }

 private:
  void Allocate(const ProgramEvent& event) {
    const Bytes bytes = Memory::SizeOf(event.bytes, machine_.part);
    const RangeId range = RangeOf(event.object);
    memory_.Allocate(range, bytes, machine_.part);
    auto& where = where_[ToInt(range)];
    if (where == order_.end()) where = order_.insert(order_.end(), range);
    is_fresh_[ToInt(range)] = true;
    Touch(range);
  }
  void Touch(RangeId range) { order_.splice(order_.end(), order_, where_[ToInt(range)]); }

  double Call(const ProgramEvent& call) {
    double in = 0;
    double out = 0;
    double up = 0;
    double down = 0;
    const auto named = RangesOf(call);
    for (const RangeId range : named) Touch(range);
    for (const auto& touch : call.touches) {
      const RangeId id = RangeOf(touch.object);
      Memory::Range& range = memory_[id];
      while (range.on_device < range.parts && MakeRoom(range.part(), named, &out)) {
        const double bytes = is_fresh_[ToInt(id)] ? 0 : Double(range.part());
        memory_.Take(id);
        result_.moved_in += bytes;
        in += machine_.remap_seconds + bytes / machine_.bytes_per_second;
      }
      if (touch.reads) up += Double(range.away());
      if (touch.writes) down += Double(range.away());
      is_fresh_[ToInt(id)] = false;
    }
    result_.in_place += up + down;
    result_.waited += std::max(in, out);
    return call.seconds + std::max(in, out) + std::max(up, down) / machine_.bytes_per_second;
  }

  bool MakeRoom(Bytes bytes, const std::vector<RangeId>& named, double* out) {
    while (memory_.free < bytes) {
      const auto leaves = [&](bool live) {
        return std::find_if(order_.begin(), order_.end(), [&](RangeId id) {
          return memory_[id].on_device > 0 && memory_[id].is_live == live &&
                 std::find(named.begin(), named.end(), id) == named.end();
        });
      };
      auto victim = leaves(false);
      if (victim == order_.end()) {
        victim = leaves(true);
        if (victim == order_.end()) return false;
        const double copied = Double(memory_[*victim].part());
        result_.moved_out += copied;
        *out += machine_.remap_seconds + copied / machine_.bytes_per_second;
      }
      memory_.Drop(*victim);
    }
    return true;
  }

  const std::vector<ProgramEvent>& program_;
  const Machine machine_;
  Memory memory_;
  std::list<RangeId> order_;  // the least recently used first
  std::vector<bool> is_fresh_;
  std::vector<std::list<RangeId>::iterator> where_;
  Replayed result_;
};

}  // namespace

Bytes PeakOf(const std::vector<ProgramEvent>& program) {
  std::vector<Bytes> sizes(ObjectsOf(program));
  Bytes live;
  Bytes peak;
  for (const ProgramEvent& event : program) {
    Bytes* const size =
        event.kind == Kind::kAllocate || event.kind == Kind::kFree ? &sizes[event.object] : nullptr;
    if (event.kind == Kind::kAllocate) live += * size = event.bytes;
    if (event.kind == Kind::kFree) live -= std::exchange(*size, Bytes{});
    peak = std::max(peak, live);
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
