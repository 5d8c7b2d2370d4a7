#include "elastic/replay.h"

#include <algorithm>
#include <limits>
#include <list>
#include <numeric>
#include <optional>
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

size_t RangesOf(const std::vector<ProgramEvent>& program) {
  size_t ranges = 0;
  for (const ProgramEvent& event : program) {
    if (event.kind == Kind::kAllocate) ranges = std::max<size_t>(ranges, ToInt(event.range) + 1);
  }
  return ranges;
}

std::vector<RangeId> Named(const ProgramEvent& call) {
  std::vector<RangeId> ranges;
  for (const ProgramEvent::Touch& touch : call.touches) ranges.push_back(touch.range);
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
  std::vector<Range> ranges;
  Bytes free;

  Range& operator[](RangeId range) { return ranges[ToInt(range)]; }
  void Allocate(RangeId id, Bytes bytes, Bytes part) {
    Range& range = (*this)[id];
    const uint64_t parts = (bytes.count() + part.count() - 1) / part.count();
    // Equal parts, so that sums are exact.
    const Bytes size = Bytes(bytes.count() / parts) * parts;
    if (range.size != size) {
      free += range.part() * range.on_device;
      range = {size, parts, 0, false};
    }
    range.is_live = true;
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
      : program_(program), machine_(machine), plan_({.device = machine.device}) {
    memory_.free = machine.device;
    memory_.ranges.resize(RangesOf(program));
    if (is_oracle) Foresee();
  }

  Replayed Run() {
    for (const ProgramEvent& event : program_) {
      switch (event.kind) {
        case Kind::kAllocate: Allocate(event.range, event.bytes); break;
        case Kind::kFree: Free(event.range); break;
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
    for (const ProgramEvent& event : program_) {
      if (event.kind == Kind::kAllocate) {
        memory_.Allocate(event.range, event.bytes, machine_.part);
        plan_.Allocated(event.range, memory_[event.range].size);
      }
      if (event.kind == Kind::kFree) Free(event.range);
      if (event.kind == Kind::kCall) plan_.Used(event.identity, Named(event), {});
    }
    for (uint32_t id = 0; id < memory_.ranges.size(); ++id) {
      if (memory_.ranges[id].is_live) Free(RangeId{id});
    }
    Mark();
  }

  void Tell(RangeId range) { plan_.SetAway(range, memory_[range].away()); }
  bool IsBusy(RangeId range) const {
    return in_.range == range || out_.range == range ||
           std::find(running_.begin(), running_.end(), range) != running_.end();
  }

  void Free(RangeId range) {
    memory_[range].is_live = false;
    plan_.Freed(range);
  }

  void Allocate(RangeId id, Bytes bytes) {
    memory_.Allocate(id, bytes, machine_.part);
    Memory::Range& range = memory_[id];
    plan_.Allocated(id, range.size);
    Tell(id);
    while (range.on_device < range.parts) {
      if (memory_.free < range.part()) {
        const auto victim =
            plan_.Victim(std::nullopt, [&](RangeId one) { return one == id || IsBusy(one); });
        if (!victim || memory_[*victim].is_live) break;
        memory_.Drop(*victim);
        Tell(*victim);
        continue;
      }
      memory_.Take(id);
      Tell(id);
      AdvanceTo(now_ + machine_.remap_seconds);
    }
  }

  void Call(const ProgramEvent& call) {
    const auto begun = now_;
    running_ = Named(call);
    const auto moves = [&](const Lane& lane) {
      return lane.range &&
             std::find(running_.begin(), running_.end(), *lane.range) != running_.end();
    };
    plan_.Used(call.identity, running_, {});
    while (moves(in_) || moves(out_)) {
      AdvanceTo(std::min(moves(in_) ? in_.end : kNever, moves(out_) ? out_.end : kNever));
    }
    result_.waited += now_ - begun;
    double up = 0;
    double down = 0;
    for (const ProgramEvent::Touch& touch : call.touches) {
      const double away = Double(memory_[touch.range].away());
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
    while (Begin()) {
    }
  }

  // Begins one move, or drops what is dead. False: nothing can be done.
  bool Begin() {
    if (in_.range && out_.range) return false;
    const auto skip = [&](RangeId range) { return IsBusy(range); };
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
    --leaves.on_device;  // its room is free only when it is out
    Tell(*victim);
    const double bytes = Double(leaves.part());
    result_.moved_out += bytes;
    out_ = {*victim, now_ + machine_.remap_seconds + bytes / machine_.bytes_per_second};
    return true;
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
  Replayed result_;
};

Replayed RunInPlace(const std::vector<ProgramEvent>& program, const Machine& machine) {
  struct Use {
    RangeId range;
    Bytes most;
    uint64_t touches = 0;
  };
  std::vector<Use> uses(RangesOf(program));
  for (const ProgramEvent& event : program) {
    if (event.kind == Kind::kAllocate) {
      Use& use = uses[ToInt(event.range)];
      use.range = event.range;
      use.most = std::max(use.most, event.bytes);
    }
    for (const auto& touch : event.touches) ++uses[ToInt(touch.range)].touches;
  }
  std::stable_sort(uses.begin(), uses.end(),
                   [](const Use& a, const Use& b) { return a.touches > b.touches; });
  std::vector<double> away(uses.size(), 0);  // share of it
  Bytes free = machine.device;
  for (const Use& use : uses) {
    const Bytes taken = std::min(free, use.most);
    free -= taken;
    if (use.most > Bytes{0}) away[ToInt(use.range)] = 1 - Double(taken) / Double(use.most);
  }
  Replayed result;
  std::vector<Bytes> sizes(uses.size());
  double step = 0;
  for (const ProgramEvent& event : program) {
    if (event.kind == Kind::kAllocate) sizes[ToInt(event.range)] = event.bytes;
    if (event.kind == Kind::kStep) result.steps.push_back(std::exchange(step, 0));
    if (event.kind != Kind::kCall) continue;
    double up = 0;
    double down = 0;
    for (const auto& touch : event.touches) {
      const double bytes = away[ToInt(touch.range)] * Double(sizes[ToInt(touch.range)]);
      if (touch.reads) up += bytes;
      if (touch.writes) down += bytes;
    }
    result.in_place += up + down;
    step += event.seconds + std::max(up, down) / machine.bytes_per_second;
  }
  return result;
}

class Demand {
 public:
  Demand(const std::vector<ProgramEvent>& program, const Machine& machine)
      : program_(program), machine_(machine), used_at_(RangesOf(program)) {
    memory_.free = machine.device;
    memory_.ranges.resize(used_at_.size());
  }

  Replayed Run() {
    double step = 0;
    for (const ProgramEvent& event : program_) {
      switch (event.kind) {
        case Kind::kAllocate:
          memory_.Allocate(event.range, event.bytes, machine_.part);
          fresh_.resize(used_at_.size(), false);
          fresh_[ToInt(event.range)] = true;
          Touch(event.range);
          break;
        case Kind::kFree: memory_[event.range].is_live = false; break;
        case Kind::kCall: step += Call(event); break;
        case Kind::kStep: result_.steps.push_back(std::exchange(step, 0)); break;
      }
    }
    return std::move(result_);
  }

 private:
  void Touch(RangeId range) {
    if (used_at_[ToInt(range)] > 0) order_.erase(where_[ToInt(range)]);
    where_.resize(used_at_.size());
    order_.push_back(range);
    where_[ToInt(range)] = std::prev(order_.end());
    used_at_[ToInt(range)] = ++uses_;
  }

  double Call(const ProgramEvent& call) {
    double in = 0;
    double out = 0;
    double up = 0;
    double down = 0;
    for (const auto& touch : call.touches) Touch(touch.range);
    const auto named = Named(call);
    for (const auto& touch : call.touches) {
      Memory::Range& range = memory_[touch.range];
      while (range.on_device < range.parts && MakeRoom(range.part(), named, &out)) {
        const double bytes = fresh_[ToInt(touch.range)] ? 0 : Double(range.part());
        memory_.Take(touch.range);
        result_.moved_in += bytes;
        in += machine_.remap_seconds + bytes / machine_.bytes_per_second;
      }
      if (touch.reads) up += Double(range.away());
      if (touch.writes) down += Double(range.away());
      fresh_[ToInt(touch.range)] = false;
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
  std::vector<bool> fresh_;
  std::vector<uint64_t> used_at_;
  uint64_t uses_ = 0;
  std::list<RangeId> order_;  // the least recently used first
  std::vector<std::list<RangeId>::iterator> where_;
  Replayed result_;
};

}  // namespace

Bytes PeakOf(const std::vector<ProgramEvent>& program) {
  std::vector<Bytes> sizes(RangesOf(program));
  Bytes live;
  Bytes peak;
  for (const ProgramEvent& event : program) {
    Bytes* const size = event.kind == Kind::kAllocate || event.kind == Kind::kFree
                            ? &sizes[ToInt(event.range)]
                            : nullptr;
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
