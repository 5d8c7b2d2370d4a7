// Predicts a client's calls from those that it has made: what followed the same calls before comes
// again. Until the calls are followed, what the puts announce says which units leave and come.
//
// Rows may be reused: a tensor is known by an index of its own (core/plan/tensor_indexes.h).
//
// Owns: what was learned, and the tensors as they are now. Units: as ClientForesight. Threads: one
// at a time. Errors: none. Cost: as SequencePlanner and NextUses.
// Memory: some 10 MiB of call history at most (core/plan/call_history.h). 60 bytes for each tensor
// that lives or that the history knows, and 200 for each idle tensor with a hint. The last forecast
// has about 100 bytes a call; its calls are at most those of 16 passes. None of this grows with
// the number of calls.
#pragma once

#include <vector>

#include "core/plan/call_forecast.h"
#include "core/plan/growth.h"
#include "core/plan/next_uses.h"
#include "core/plan/sequence_planner.h"
#include "core/plan/tensor_indexes.h"
#include "core/schedule/client_foresight.h"

namespace ravenstore::core {

class LearnedForesight : public ClientForesight {
 public:
  struct Options {
    bool uses_hints = true;  // of puts
    // The bytes of a tensor are not used after a put that announces no next use. If not set, such a
    // put is a hint like others, and may be wrong.
    bool ends_at_never = false;
    bool has_slots = true;  // as ClientForesight
  };

  // `limits`: as ClientForesight.
  LearnedForesight(const plan::PlanLimits& limits, const Options& options);

  void Before(const ClientCall& call, PageBooks* books) override;
  void After(const ClientCall& call, PageBooks* books) override;
  plan::Place PlaceFor(const ClientCall& call, const plan::PlacesInUse& others) override;
  void FreePlace(TensorNumber tensor) override;
  void Refused(TensorNumber tensor) override;
  bool IsLastPut(const ClientCall& call) const override;
  void Step() override { planner_.Step(); }
  void MoveToSlots(PageExecutor* executor) override;
  bool has_plan() const override { return planner_.has_plan(); }
  void ShareChanged() override { planner_.RequestPlan(); }

 private:
  plan::PlacedTensor& Of(TensorNumber tensor) { return tensors_[indexes_.Of(tensor)]; }
  void MoveToSlot(TensorNumber tensor, PageExecutor* executor);
  void Announce(const ClientCall& call, PageBooks* books);

  const Options options_;
  plan::SequencePlanner planner_;
  plan::TensorIndexes indexes_;
  plan::PlacedTensors tensors_;  // by index
  plan::NextUses next_uses_;
  plan::Growth growth_;
  std::vector<plan::Unit> left_;  // pages that have left; kept for its memory
  Duration now_{0};
};

}  // namespace ravenstore::core
