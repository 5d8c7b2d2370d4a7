#include "bench/page_program.h"

#include <algorithm>
#include <map>
#include <utility>

#include "elastic/arena.h"

namespace ravenstore::bench {

using core::Bytes;
using elastic::ProgramEvent;
using sim::OpKind;

namespace {

// What is smaller is the driver's.
constexpr Bytes kLeastRange = core::MiB(2);
constexpr Bytes kGranule = core::MiB(2);
constexpr CUdeviceptr kBegin = CUdeviceptr{1} << 40;
constexpr Bytes kReach{uint64_t{1} << 44};

class Pager {
 public:
  Pager(const sim::Trace& trace, Bytes page)
      : trace_(trace),
        page_(page.count()),
        arena_(kBegin, kReach, [](const elastic::Point&) { return true; }) {}

  std::vector<ProgramEvent> Run() {
    for (const sim::Op& op : trace_.ops) {
      if (op.kind == OpKind::kCompute) {
        Call(op);
      } else if (op.kind == OpKind::kStep) {
        events_.push_back({.kind = ProgramEvent::Kind::kStep});
      } else if (trace_.tensors[op.tensor].bytes >= kLeastRange) {
        Touch(op);
      }
    }
    return std::move(events_);
  }

 private:
  struct Piece {
    uint64_t begin;  // from the arena's on
    uint64_t size;
  };

  uint32_t First(const Piece& piece) const { return static_cast<uint32_t>(piece.begin / page_); }
  uint32_t Last(const Piece& piece) const {
    return static_cast<uint32_t>((piece.begin + piece.size - 1) / page_);
  }

  void Touch(const sim::Op& op) {
    switch (op.kind) {
      case OpKind::kCreate:
        Create(op.tensor);
        in_use_[op.tensor] = op;
        break;
      case OpKind::kGet: in_use_[op.tensor] = op; break;
      case OpKind::kPut: in_use_.erase(op.tensor); break;
      case OpKind::kFree:
        in_use_.erase(op.tensor);
        Free(op.tensor);
        break;
      case OpKind::kCompute:
      case OpKind::kStep: break;
    }
  }
  void Create(uint32_t tensor) {
    const Bytes size = trace_.tensors[tensor].bytes.RoundUp(kGranule);
    const Piece piece{*arena_.Take(size, 1) - kBegin, size.count()};
    pieces_[tensor] = piece;
    for (uint32_t page = First(piece); page <= Last(piece); ++page) {
      if (on_page_[page]++ == 0)
        events_.push_back({.kind = ProgramEvent::Kind::kAllocate, .page = page});
    }
  }
  void Free(uint32_t tensor) {
    const Piece piece = pieces_.extract(tensor).mapped();
    for (uint32_t page = First(piece); page <= Last(piece); ++page) {
      if (--on_page_[page] == 0)
        events_.push_back({.kind = ProgramEvent::Kind::kFree, .page = page});
    }
    arena_.Give(kBegin + piece.begin, Bytes(piece.size), {});
  }
  void Call(const sim::Op& op) {
    ProgramEvent call{
        .kind = ProgramEvent::Kind::kCall, .identity = op.call, .seconds = core::Seconds(op.time)};
    std::map<uint32_t, ProgramEvent::Touch> touches;
    for (const auto& [tensor, get] : in_use_) {
      call.identity = call.identity * 31 + trace_.tensors[tensor].bytes.count() +
                      (get.kind == OpKind::kGet ? 1 : 0) + (get.read_only ? 2 : 0);
      const Piece& piece = pieces_.at(tensor);
      for (uint32_t page = First(piece); page <= Last(piece); ++page) {
        const uint64_t begin = std::max(piece.begin, page * page_);
        const Bytes bytes(std::min(piece.begin + piece.size, (page + 1) * page_) - begin);
        ProgramEvent::Touch& touch = touches[page];
        touch.page = page;
        if (get.kind == OpKind::kGet) touch.reads += bytes;
        if (get.kind == OpKind::kCreate || !get.read_only) touch.writes += bytes;
      }
    }
    for (const auto& [page, touch] : touches) call.touches.push_back(touch);
    events_.push_back(std::move(call));
  }

  const sim::Trace& trace_;
  const uint64_t page_;
  elastic::Arena arena_;
  std::map<uint32_t, Piece> pieces_;      // by tensor
  std::map<uint32_t, uint32_t> on_page_;  // tensors
  std::map<uint32_t, sim::Op> in_use_;
  std::vector<ProgramEvent> events_;
};

}  // namespace

std::vector<ProgramEvent> PagesOf(const sim::Trace& trace, Bytes page) {
  return Pager(trace, page).Run();
}

}  // namespace ravenstore::bench
