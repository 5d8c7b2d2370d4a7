#include "sim/paged_foresight.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/check.h"
#include "sim/paged_packing.h"

namespace ravenstore::sim {

using core::ClientCall;
using core::Duration;
using core::plan::CallKind;
using core::plan::Place;
using core::plan::PlannedCall;
using core::plan::Position;

CallKind KindOf(const Op& op) {
  switch (op.kind) {
    case OpKind::kCreate: return CallKind::kCreate;
    case OpKind::kGet: return CallKind::kGet;
    case OpKind::kPut: return CallKind::kPut;
    default: break;
  }
  RAVEN_CHECK(op.kind == OpKind::kFree);
  return CallKind::kFree;
}

bool IsCall(const Op& op) {
  return op.kind != OpKind::kCompute && op.kind != OpKind::kStep;
}

namespace {

// One plan over the whole trace.
class WholeTrace : public core::ClientForesight {
 public:
  WholeTrace(const Trace& trace, const core::plan::PlanLimits& limits, const KnownPlaces& known)
      : ClientForesight(limits, known.has_slots), trace_(trace) {
    for (const Op& op : trace.ops) {
      if (IsCall(op)) WatchUse(KindOf(op), op.tensor, SizeOf(op));
    }
    if (known.packs) {
      of_tensor_ = PackPlaces(trace, places_.rule());
    } else {
      PlaceInOrder();
    }
    FindCalls();
  }

  void Before(const ClientCall& /*call*/, core::PageBooks* /*books*/) override { ++seen_; }
  void After(const ClientCall& /*call*/, core::PageBooks* books) override {
    MoveTo(++position_, books);
  }
  bool has_plan() const override { return true; }
  void ShareChanged() override { remake_ = true; }
  Place PlaceFor(const ClientCall& call, const core::plan::PlacesInUse& /*others*/) override {
    return of_tensor_[call.tensor];
  }
  void FreePlace(core::TensorNumber /*tensor*/) override {}
  bool IsLastPut(const ClientCall& /*call*/) const override { return last_put_[seen_ - 1]; }

 private:
  core::Bytes SizeOf(const Op& op) const { return trace_.tensors[op.tensor].bytes; }
  void FindCalls() {
    FindLastPuts();
    std::vector<PlannedCall> calls;
    std::vector<bool> in_use(trace_.tensors.size());
    std::vector<bool> dead(trace_.tensors.size());
    Duration at{0};
    for (const Op& op : trace_.ops) {
      at += op.time;
      if (!IsCall(op)) continue;
      PlannedCall call{.kind = KindOf(op), .modifies = op.modified, .at = at};
      call.units = UnitsOf(of_tensor_[op.tensor], SizeOf(op));
      if (Pins(call.kind)) {
        in_use[op.tensor] = true;
      } else {
        call.unpins = in_use[op.tensor];
        in_use[op.tensor] = false;
        call.dies = !dead[op.tensor] && (op.kind == OpKind::kFree || last_put_[calls.size()]);
        dead[op.tensor] = dead[op.tensor] || call.dies;
      }
      calls.push_back(call);
    }
    SetCalls(std::move(calls));
    remake_ = true;
  }
  // Of a tensor that is not got afterwards.
  void FindLastPuts() {
    std::vector<bool> is_got(trace_.tensors.size());
    for (size_t i = trace_.ops.size(); i-- > 0;) {
      const Op& op = trace_.ops[i];
      if (!IsCall(op)) continue;
      if (op.kind == OpKind::kGet) is_got[op.tensor] = true;
      last_put_.push_back(op.kind == OpKind::kPut && !is_got[op.tensor]);
    }
    std::reverse(last_put_.begin(), last_put_.end());
  }
  void PlaceInOrder() {
    of_tensor_.resize(trace_.tensors.size());
    for (const Op& op : trace_.ops) {
      if (op.kind == OpKind::kCreate) of_tensor_[op.tensor] = places_.Allocate(SizeOf(op));
      if (op.kind == OpKind::kFree) places_.Free(of_tensor_[op.tensor], SizeOf(op));
    }
  }

  const Trace& trace_;
  std::vector<bool> last_put_;  // by call
  std::vector<Place> of_tensor_;
  size_t seen_ = 0;  // calls that were made
  Position position_ = 0;
};

}  // namespace

std::unique_ptr<core::ClientForesight> ForesightOfTrace(const Trace& trace,
                                                        const core::plan::PlanLimits& limits,
                                                        const KnownPlaces& known) {
  return std::make_unique<WholeTrace>(trace, limits, known);
}

}  // namespace ravenstore::sim
